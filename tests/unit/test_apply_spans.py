"""Where a span ends, and how it is written: decided from facts, by bounds of files and sizes that were counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc_lake.bronze.span_index import RelationVersionRun, SpanSummary
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project, Target
from cdc_lake.model.change import Insert, Transaction, Truncated
from cdc_lake.model.position import Span
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.merge import choose, fits, round_bounds
from cdc_lake.runtime.apply.rule_gate import SpanProfile
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.apply.span_planning import span_limits
from cdc_lake.silver.kind import TablePart
from cdc_lake.silver.layout_mapping import make_shape
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import CommitMetrics, Marker, TableStatistics
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project
from tests.seeds import one_seed

FORMATS = pytest.mark.parametrize("fmt", ["delta", "iceberg"])
T = table("public.t", id="int8", body="text")
SHAPE = make_shape([T.layout], {T.layout: T}, None)
PART = TablePart(SHAPE, frozenset(), (), Span(1, 10, 20))
Put = Callable[[pa.Table], None]


def project(root: Path, fmt: str, **apply: Any) -> Project:
    return Project(
        Pipeline.model_validate(
            {
                "version": 1,
                "pipeline": "shop",
                "source": {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]},
                "silver": {"defaults": {"format": fmt}},
                "apply": apply,
            }
        ),
        root / "shop.yaml",
        root,
    )


def test_a_span_grows_with_the_cores_of_a_cluster_and_not_beyond_what_the_pipeline_file_says(tmp_path: Path) -> None:
    default = project(tmp_path, "delta").pipeline.apply
    assert span_limits(default, None) == default
    for cores, factor in ((0, 1), (2, 1), (5, 2), (8, 4), (1000, 8)):
        limits = span_limits(default, cores)
        assert (limits.span_rows, limits.span_bytes) == (factor * default.span_rows, factor * default.span_bytes)
    given = project(tmp_path, "delta", span_rows=500_000).pipeline.apply
    assert span_limits(given, 8) == given.model_copy(update={"span_bytes": 4 * default.span_bytes})


def silver(root: Path, fmt: str) -> tuple[Project, Target, Put]:
    """A silver table written without Spark."""
    of = project(root, fmt)
    target = of.target(T.table)
    if fmt == "delta":
        path = str(of.silver_path(target))
        return of, target, lambda rows: write_deltalake(path, rows, mode="append")
    catalog = open_catalog(catalog_address(of))
    catalog.create_namespace_if_not_exists(target.namespace)
    name = (target.namespace, target.name)
    return of, target, lambda rows: catalog.create_table_if_not_exists(name, rows.schema).append(rows)


def rows(*ids: int | None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "body": pa.array(["x"] * len(ids))})


def version(of: Project, target: Target) -> int:
    if target.format == "delta":
        return int(DeltaTable(str(of.silver_path(target))).version())
    head = open_catalog(catalog_address(of)).load_table((target.namespace, target.name)).current_snapshot()
    assert head is not None
    return head.snapshot_id


def seen(inserts: int = 1, count: int = 1) -> SpanSummary:
    return SpanSummary(count, (RelationVersionRun(T.layout, 0, 0),), (), {}, 0, None, inserts)


def survey(low: int | None, high: int = 100) -> SpanProfile:
    return SpanProfile((), 0, 0, 0, 0, None, None if low is None else (low, high))


@FORMATS
def test_keys_above_all_of_a_tables_files_are_proven_new(tmp_path: Path, fmt: str) -> None:
    of, target, put = silver(tmp_path, fmt)
    put(rows(1, 5))
    put(rows(3, 9))
    at = version(of, target)
    assert table_log(of, target).all_below(at, "id", 10)
    assert not table_log(of, target).all_below(at, "id", 9)
    put(rows(50))
    assert not table_log(of, target).all_below(version(of, target), "id", 10)
    assert not table_log(of, target).all_below(at, "no such column", 10)
    assert table_log(of, target).all_below(at, "id", 10), "the version that a plan was made for counts, not the newest"


@FORMATS
def test_a_file_without_bounds_proves_nothing(tmp_path: Path, fmt: str) -> None:
    of, target, put = silver(tmp_path, fmt)
    put(rows(1))
    put(rows(None))
    assert not table_log(of, target).all_below(version(of, target), "id", 10)


@FORMATS
def test_new_keys_are_appended_and_others_merged(tmp_path: Path, fmt: str) -> None:
    of, target, put = silver(tmp_path, fmt)
    put(rows(1, 9))
    base = Marker(10, version(of, target))

    def way(found: SpanProfile, outline: SpanSummary, part: TablePart = PART) -> str:
        return choose(of, target, base, part, outline, found, 100).mode

    assert way(survey(10), seen()) == "append"
    assert way(survey(9), seen()) == "merge", "the key may be there"
    assert way(survey(None), seen()) == "merge", "keys moved, or have no bounds"
    assert way(survey(10), seen(inserts=0)) == "merge", "an update of a row that silver lacks is not an append"
    truncated = TablePart(SHAPE, frozenset(), (Truncated(15, 1, None, None, None, None),), PART.span)
    assert way(survey(10), seen(), truncated) == "merge", "a truncate ends rows of every key"


def test_a_table_that_holds_nothing_takes_an_append(tmp_path: Path) -> None:
    of = project(tmp_path, "delta")
    assert choose(of, of.target(T.table), Marker(None, None), PART, seen(), survey(-5), 100).mode == "append"


def test_what_is_sent_to_every_task_fits_the_heap_many_times() -> None:
    gib = 1 << 30
    assert fits(PART, seen(count=500_000), 128 << 20, 2 * gib)
    assert not fits(PART, seen(count=500_000), 300 << 20, 2 * gib)
    assert not fits(PART, seen(count=10), 300 << 20, 2 * gib), "few rows may be long"
    assert not fits(PART, seen(count=50_000_000), 1 << 20, 2 * gib), "short rows may be many"
    assert not fits(PART, seen(), None, 2 * gib), "a size that nobody knows"


@FORMATS
def test_weight_and_what_a_commit_wrote_are_read_from_the_table(tmp_path: Path, fmt: str) -> None:
    of, target, put = silver(tmp_path, fmt)
    assert table_log(of, target).statistics() == TableStatistics(0, 0, marked=False)
    put(rows(1, 2))
    put(rows(3))
    now = table_log(of, target).statistics()
    assert now.files == 2
    last = table_log(of, target).commit_metrics(version(of, target))
    assert last == CommitMetrics(1, last.size, 0, 0, 0)
    assert 0 < last.size < now.size


def test_a_file_that_got_marks_was_not_rewritten(tmp_path: Path) -> None:
    of = project(tmp_path, "delta")
    log = of.silver_path(of.target(T.table)) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{7:020}.json").write_text(
        '{"commitInfo":{}}\n{"add":{"path":"a","size":1000,"deletionVector":{"sizeInBytes":40}}}\n'
        '{"remove":{"path":"a","size":1000}}\n{"remove":{"path":"b","size":500}}\n{"add":{"path":"c","size":300}}\n'
    )
    assert table_log(of, of.target(T.table)).commit_metrics(7) == CommitMetrics(1, 340, 1, 500, 1)


def test_rounded_bounds_hold_those_given_and_are_an_eighth_wider_at_most_on_either_side() -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    dice = random.Random(seed)
    for _ in range(2_000):
        width = 1 << dice.randrange(64)
        low, high = sorted(max(-(1 << 63), min((1 << 63) - 1, dice.randint(-width, width))) for _ in range(2))
        wide = round_bounds(low, high)
        assert wide[0] <= low <= high <= wide[1]
        assert max(low - wide[0], wide[1] - high) * 8 <= high - low
        assert wide[0] >= -(1 << 63)
        assert wide[1] < 1 << 63
    assert round_bounds(120, 202_249) == round_bounds(169, 202_499), "spans over much of the same keys share them"
    assert round_bounds(-(1 << 63), (1 << 63) - 1) == (-(1 << 63), (1 << 63) - 1)


def spans(root: Path, sizes: list[tuple[int, int]], **apply: Any) -> list[int]:
    """How many transactions each span takes; `sizes`: changes, and bytes of each change's text."""
    project = make_project(root, apply=apply)
    bronze = DeltaBronze(project.bronze, durability="os")
    state = bronze.begin_stream("s", 10)
    for number, (changes, text) in enumerate(sizes):
        rows = tuple(Insert(T, (str(n), "x" * text)) for n in range(changes))
        bronze.append([raw_transaction(Transaction(boundaries(100 + 10 * number), rows))])
    top, position, found = 100 + 10 * len(sizes), 10, []
    local: Any = SimpleNamespace(conf={"spark.master": "local"})  # choosing a span needs nothing else of Spark
    advance: Any = SpanLoop(project, local, silent)
    while commits := advance._next_transactions(state, Span(1, position, top)):
        found.append(len(commits))
        position = commits[-1].position
    return found


@pytest.mark.parametrize(
    ("sizes", "bounds", "want"),
    [
        ([(10, 1)] * 7, {"span_rows": 30}, [3, 3, 1]),
        ([(10, 1)] * 7, {"span_rows": 35}, [3, 3, 1]),
        ([(1, 1000)] * 7, {"span_bytes": "3500 B"}, [3, 3, 1]),
        ([(1, 1), (100, 1000), (1, 1), (1, 1)], {"span_bytes": "2 KiB"}, [1, 1, 2]),
        ([(1, 1), (100, 1), (1, 1), (1, 1)], {"span_rows": 10}, [1, 1, 2]),
    ],
)
def test_a_span_is_closed_by_changes_or_bytes_and_never_inside_a_transaction(
    tmp_path: Path, sizes: list[tuple[int, int]], bounds: dict[str, Any], want: list[int]
) -> None:
    assert spans(tmp_path, sizes, **bounds) == want
