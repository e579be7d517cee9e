"""A span split by table: each table reads its own rows and sees what it would see in bronze."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.compute as pc
import pytest

from cdc_lake.bronze import span_index
from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import SpanPartitioner, outline
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.errors import LakeError
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.position import Span
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.seeds import one_seed

TABLES = [table(f"public.t{n}", id="int8", note="text") for n in range(4)]
COLUMNS = [name for name in SCHEMA.names if name not in {"stream", "raw", "info", "ingest_ts"}]


def change(rng: random.Random) -> Change:
    of, key = rng.choice(TABLES[:3]), str(rng.randrange(50))
    match rng.randrange(5):
        case 0:
            return Update(of, (key, UNCHANGED))
        case 1:
            return Delete(of, (key, None), OldKind.KEY)
        case 2:
            return Truncate(of)
        case 3:
            return Update(of, (key, "x"), ("7", None), OldKind.KEY)
    return Insert(of, (key, "y" * rng.randrange(200)))


@pytest.fixture
def bronze(tmp_path: Path) -> BronzeReader:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    rng = random.Random(seed)
    writer = DeltaBronze(tmp_path / "bronze", durability="os")
    writer.begin_stream("s", 10)
    for position in range(100, 2100, 100):
        changes = tuple(change(rng) for _ in range(rng.randrange(1, 40)))
        writer.append([raw_transaction(Transaction(boundaries(position), changes))])
    return BronzeReader(tmp_path / "bronze")


@pytest.mark.parametrize("at_once", [1 << 30, 4096])
def test_parts_hold_what_the_span_holds(
    bronze: BronzeReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(span_index, "_READ_AT_ONCE_BYTES", at_once)
    span = Span(1, 400, 1700)
    parts = SpanPartitioner(tmp_path / "scratch").split(bronze.files(), span)
    assert set(parts) <= {str(t.table) for t in TABLES}
    for of in TABLES:
        want = bronze.changes(of.table, span)
        if want.num_rows == 0:
            assert str(of.table) not in parts
            continue
        files = parts[str(of.table)]
        have = files.read(files.paths, COLUMNS).sort_by([("position", "ascending"), ("ordinal", "ascending")])
        assert have.equals(want.select(COLUMNS))
        # a table that stands further ahead reads the end of its part
        for mine in (span, Span(1, 1000, 1700)):
            direct = outline(bronze.files(), of.table, mine, snapshot=False)
            assert outline(files, of.table, mine, snapshot=False) == direct
    assert pc.max(bronze.changes(TABLES[0].table, Span(1, 0, 5000))["position"]).as_py() > 1700


def test_the_next_span_and_the_end_leave_nothing_behind(bronze: BronzeReader, tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    left = folder / "left-by-a-killed-run.parquet"
    left.parent.mkdir()
    left.touch()
    splitter = SpanPartitioner(folder)
    first = splitter.split(bronze.files(), Span(1, 0, 1000))
    assert not left.exists()
    second = splitter.split(bronze.files(), Span(1, 1000, 2000))
    paths = {path for files in first.values() for path in files.paths}
    assert not any(Path(path).exists() for path in paths)
    assert paths.isdisjoint(path for files in second.values() for path in files.paths)
    splitter.close()
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_an_error_of_the_lake(bronze: BronzeReader, tmp_path: Path) -> None:
    (tmp_path / "scratch").touch()
    with pytest.raises(LakeError):
        SpanPartitioner(tmp_path / "scratch" / "spans").split(bronze.files(), Span(1, 0, 1000))
