"""`quarantine list` and `quarantine retry`: what could not be decoded is decoded again, and read in its place; bronze stays."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from cdc_lake.bronze.compaction import compact
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader, bronze_table, bronze_writer
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_history import replay_rows
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.cli.app import app
from cdc_lake.cli.commands.inspect import transaction_text
from cdc_lake.cli.commands.quarantine import list_text, retry_text
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.control.streams import undecoded_error
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.gaussdb import columnar as family
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.undecodable import GaussDbFormat
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.undecodable import PgoutputFormat, StoreUndecodable
from cdc_lake.errors import MalformedMessage, NotInBronze, TransactionUndecoded
from cdc_lake.model.change import Boundaries, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.ops.inspect import inspect_transaction
from cdc_lake.ops.status import status
from cdc_lake.runtime import redecode
from cdc_lake.runtime.maintain import maintain
from cdc_lake.runtime.quarantine import list_quarantine
from cdc_lake.runtime.redecode import retry
from cdc_lake.tables.control_schema import CutRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.gaussdb.encode import Print, binary_record, statement
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.object_store import LocalStore
from tests.pipeline_file import make_project

ORDERS = table("public.orders", id="int8", note="text")
ALL = Span(1, -1, 1 << 62)
MARK = b"MARK"


def project_in(folder: Path, bronze: dict[str, Any] | None = None, **source: Any) -> Project:
    given = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"], **source}
    values = {"version": 1, "pipeline": "shop", "source": given, "bronze": {"undecodable": "land", **(bronze or {})}}
    return Project(Pipeline.model_validate(values), folder / "shop.yaml", folder)


def refusing(decode: Callable[..., ChangeColumns]) -> Callable[..., ChangeColumns]:
    """A decoder with a fault: it cannot read the marker."""

    def faulty(batch: Sequence[Any], *more: Any) -> ChangeColumns:
        for raw in batch:
            for data in getattr(raw, "frames", None) or getattr(raw, "records", ()):
                if MARK in data:
                    raise MalformedMessage("a fault", where=f"change 1 of the transaction at {raw.bounds.position}")
        return decode(batch, *more)

    return faulty


def transactions() -> list[Any]:
    changes: list[tuple[Any, ...]] = [
        (Insert(ORDERS, ("1", "a")),),
        (Insert(ORDERS, ("2", "MARK")), Update(ORDERS, ("3", "x"), ("1", None), OldKind.KEY)),
        (Delete(ORDERS, ("3", None), OldKind.KEY),),
        (Truncate(ORDERS), Insert(ORDERS, ("9", "MARK"))),
    ]
    return [raw_transaction(Transaction(boundaries(200 + 100 * n), one)) for n, one in enumerate(changes)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = project_in(tmp_path)
    writer = DeltaBronze(made.bronze, durability="os")
    writer.begin_stream("s", 100)
    for raw in transactions():  # a commit each
        writer.append([raw], StoreUndecodable(PgoutputFormat(refusing(tabulate))))
    return made


def digest(folder: Path) -> str:
    """Of every byte of bronze."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_what_waits_is_listed_with_its_reason(project: Project):
    found = list_quarantine(project)
    first, second = found.undecodable
    assert (first.position, second.position, found.behind) == ("0/12C", "0/1F4", 2)
    assert (first.code, first.tables, first.frames) == ("DEC303", ("public.orders",), 2)
    text = list_text(found)
    assert "transaction 0/12C could not be decoded" in text
    assert "MARK" not in text


def test_held_changes_are_listed_with_their_key_and_rule(project: Project):
    control = ControlTables(project.control)
    state = {"table": "silver.orders", "format": "delta", "version": 1, "position": 250, "state": "active", "held": 1}
    control.record(CutRow(1, "s", 250, None, json.dumps({"public.orders": state}), utc_now()))
    common = {
        "stream": "s", "epoch": 1, "generation": 1, "relation": "public.orders", "table": "silver.orders",
        "op": "U", "from_key": ["7"], "layout": ORDERS.layout, "new": ["7", "x"], "old": None, "old_kind": None,
        "unchanged": None, "span_upto": 250, "recorded_at": utc_now(),
    }  # fmt: skip
    control.append(
        "quarantine",
        [
            {**common, "position": 200, "ordinal": 1, "reason": "failed", "rules": ["in_set_note"], "key": ["7"]},
            {**common, "position": 240, "ordinal": 2, "reason": "waiting", "rules": [], "key": ["7"]},
            {**common, "position": 900, "ordinal": 1, "reason": "waiting", "rules": [], "key": ["7"]},  # not merged
        ],
    )
    found = list_quarantine(project)
    assert [(one.position, one.rules, one.key) for one in found.changes] == [
        ("0/C8", ("in_set_note",), ("7",)),
        ("0/F0", (), ("7",)),
    ]
    text = list_text(found)
    assert "in_set_note" in text
    assert "queued behind a quarantined change of its key" in text
    assert [one.position for one in found.undecodable] == ["0/12C", "0/1F4"]


def test_a_retry_that_fails_says_so_and_leaves_everything(project: Project, monkeypatch):
    monkeypatch.setattr(redecode, "tabulate", refusing(tabulate))
    done = retry(project, None, silent)
    assert [(one.position, one.changes, one.code) for one in done.tried] == [
        ("0/12C", None, "DEC303"),
        ("0/1F4", None, "DEC303"),
    ]
    assert done.failed_count == 2
    assert "still cannot be decoded" in retry_text(done)
    assert len(list_quarantine(project).undecodable) == 2


def test_a_retry_that_succeeds_is_read_in_its_place_and_bronze_is_not_rewritten(project: Project):
    before = digest(project.bronze)
    done = retry(project, None, silent)
    assert [(one.position, one.changes) for one in done.tried] == [("0/12C", 2), ("0/1F4", 2)]
    assert digest(project.bronze) == before
    assert verify(bronze_reader(project)).holds

    never = DeltaBronze(project.root / "never", durability="os")
    never.begin_stream("s", 100)
    never.append(transactions())
    reader, wanted = bronze_reader(project), BronzeReader(project.root / "never")
    names = ["position", "ordinal", "op", "relation", "layout", "new", "old", "old_kind", "unchanged", "info", "csn"]
    found = reader.changes(ORDERS.table, ALL).select(names)
    assert found.to_pylist() == wanted.changes(ORDERS.table, ALL).select(names).to_pylist()
    commits = [(c.position, c.counts, c.undecoded) for c in reader.commits(ALL)]
    assert commits == [(c.position, c.counts, c.undecoded) for c in wanted.commits(ALL)]
    assert list_quarantine(project).undecodable == ()
    assert replay_rows(bronze_reader(project), 1, {"public.orders": ["id"]}, {}) == {
        "public.orders": [{"id": "9", "note": "MARK"}]
    }


def test_a_bronze_in_iceberg_does_the_same(tmp_path: Path):
    project = project_in(tmp_path, bronze={"format": "iceberg"})
    writer = bronze_writer(project)
    writer.begin_stream("s", 100)
    writer.append(transactions(), StoreUndecodable(PgoutputFormat(refusing(tabulate))))
    assert verify(bronze_reader(project)).holds
    assert [one.position for one in list_quarantine(project).undecodable] == ["0/12C", "0/1F4"]
    assert retry(project, None, silent).failed_count == 0
    changes = bronze_reader(project).changes(ORDERS.table, ALL)
    assert changes["op"].to_pylist() == ["I", "I", "U", "D", "T", "I"]


def test_with_a_lake_in_a_store_another_machine_reads_what_one_decoded(tmp_path: Path):
    with LocalStore() as store:
        store.bucket("lake")
        storage = {
            "endpoint": store.endpoint, "region": "us-east-1", "allow_http": True,
            "access_key_id": "kit", "secret_access_key": "kit-secret",
        }  # fmt: skip
        one, another = (
            make_project(
                tmp_path / name,
                bronze={"undecodable": "land"},
                lake={"path": "s3://lake/decoded_later", "storage": storage},
            )
            for name in ("one", "another")
        )
        writer = bronze_writer(one)
        writer.begin_stream("s", 100)
        writer.append(transactions(), StoreUndecodable(PgoutputFormat(refusing(tabulate))))
        assert retry(one, None, silent).failed_count == 0
        reader = bronze_reader(another)
        assert reader.changes(ORDERS.table, ALL)["op"].to_pylist() == ["I", "I", "U", "D", "T", "I"]
        assert list_quarantine(another).undecodable == ()
        files = reader.applied_files()
        addresses = files.for_spark(files.select())
        assert [address.split("/")[:4] for address in addresses] == [["s3:", "", "lake", "decoded_later"]] * 3
        assert sum(files.memory_bytes(path) > 0 for path in files.select()) == 3


def test_what_was_put_together_by_upkeep_is_decoded_as_well(project: Project):
    names = ["position", "ordinal", "op", "relation", "layout", "new", "old", "old_kind", "unchanged", "info"]
    assert compact(bronze_table(project), 2, ignore_tiers=True)
    assert verify(bronze_reader(project)).holds
    assert retry(project, None, silent).failed_count == 0
    found = bronze_reader(project).changes(ORDERS.table, ALL).select(names)
    never = DeltaBronze(project.root / "never", durability="os")
    never.begin_stream("s", 100)
    never.append(transactions())
    assert (
        found.to_pylist() == BronzeReader(project.root / "never").changes(ORDERS.table, ALL).select(names).to_pylist()
    )


def test_one_transaction_can_be_retried_by_its_position(project: Project):
    assert [one.position for one in retry(project, 500, silent).tried] == ["0/1F4"]
    assert [one.position for one in list_quarantine(project).undecodable] == ["0/12C"]
    with pytest.raises(NotInBronze, match="0/1F4"):
        retry(project, 500, silent)
    with pytest.raises(NotInBronze, match="0/C8"):
        retry(project, 200, silent)


def test_the_fact_names_the_version_and_the_bytes(project: Project):
    retry(project, 300, silent)
    (fact,) = ControlTables(project.control).read("decoded").to_pylist()
    (commit,) = bronze_reader(project).commits(Span(1, 299, 300))
    assert (fact["epoch"], fact["position"], fact["content"]) == (1, 300, commit.content.hex())
    assert fact["version"]
    assert json.loads(fact["counts"]) == {"public.orders": {"I": 1, "U": 1}}


def test_a_fact_whose_file_is_gone_counts_for_nothing(project: Project):
    retry(project, None, silent)
    for path in (project.control / "decoded_rows").iterdir():
        path.unlink()
    assert len(list_quarantine(project).undecodable) == 2
    assert retry(project, None, silent).failed_count == 0
    assert list_quarantine(project).undecodable == ()


def test_what_was_decoded_later_leaves_with_its_transaction(project: Project, tmp_path: Path):
    retry(project, None, silent)
    kept = bronze_reader(project).changes(ORDERS.table, ALL).filter(pc.field("position") > 300).to_pylist()
    control = ControlTables(project.control)
    state = bronze_reader(project).state()
    assert state is not None
    at = datetime.now(UTC) + timedelta(days=100)
    merged = {"table": "silver.orders", "format": "delta", "version": 1, "position": 300, "held": 0, "state": "active"}
    control.record(CutRow(state.epoch, "s", 300, None, json.dumps({"public.orders": merged}), utc_now()))
    short = project_in(tmp_path, {"retention": {"min_age": "90 d", "rebuilds": False}})
    done = maintain(short, started_at=at)
    assert [step.facts["decoded_later"] for step in done.steps if "decoded_later" in step.facts] == [1]
    assert control.read("decoded")["position"].to_pylist() == [500]
    assert len(list((project.control / "decoded_rows").iterdir())) == 1
    assert verify(bronze_reader(project)).holds
    assert bronze_reader(project).changes(ORDERS.table, ALL).to_pylist() == kept
    assert not [step for step in maintain(short, started_at=at).steps if "decoded_later" in step.facts]


def test_a_fact_about_other_bytes_counts_for_nothing(project: Project):
    retry(project, None, silent)
    shutil.rmtree(project.bronze)
    writer = DeltaBronze(project.bronze, durability="os")
    writer.begin_stream("s", 100)
    other = Insert(ORDERS, ("7", "MARK too"))
    raw = raw_transaction(Transaction(boundaries(300), (other,)))
    writer.append([raw], StoreUndecodable(PgoutputFormat(refusing(tabulate))))
    assert [one.position for one in list_quarantine(project).undecodable] == ["0/12C"]
    assert bronze_reader(project).changes(ORDERS.table, ALL).num_rows == 0
    retry(project, None, silent)
    assert bronze_reader(project).changes(ORDERS.table, ALL)["new"].to_pylist() == [["7", "MARK too"]]


def test_the_history_of_a_row_has_no_bytes(project: Project):
    ops = bronze_reader(project).history_rows(ORDERS.table)["op"].to_pylist()
    assert ops == ["I", "D"]
    retry(project, None, silent)
    assert bronze_reader(project).history_rows(ORDERS.table)["op"].to_pylist() == ["I", "I", "U", "D", "T", "I"]


def test_the_transaction_is_shown_with_its_reason_also_once_it_is_decoded(project: Project):
    for _ in range(2):
        found = inspect_transaction(bronze_reader(project), 300)
        assert found.undecodable is not None
        assert found.undecodable.code == "DEC303"
        assert [change.op for change in found.changes] == ["X", "X"]
        assert "undecodable DEC303" in transaction_text(found)
        retry(project, None, silent)


def test_the_error_of_silver_names_position_tables_code_and_remedy(project: Project):
    (commit, _) = bronze_reader(project).undecodable(ALL)
    error = undecoded_error("s", commit)
    assert isinstance(error, TransactionUndecoded)
    assert (error.code, error.exit_status) == ("STA655", 1)
    assert all(word in error.message for word in ("0/12C", "DEC303", "public.orders"))
    assert "quarantine retry" in error.remedy
    assert error.where == "change 1 of the transaction at 300"


def test_status_says_what_silver_stops_before(project: Project):
    found = status(project)
    assert [one.position for one in found.undecodable] == ["0/12C", "0/1F4"]


def test_the_command_line_lists_and_retries(project: Project, monkeypatch):
    (project.root / "shop.yaml").write_text(
        "version: 1\npipeline: shop\nbronze: {undecodable: land}\n"
        "source: {type: postgres, host: h, database: d, user: u, tables: ['public.*']}\n"
    )
    monkeypatch.chdir(project.root)
    run, file = CliRunner().invoke, ["-p", "shop.yaml"]
    listed = json.loads(run(app, ["quarantine", "list", "--json", *file]).stdout)
    assert [one["position"] for one in listed["undecodable"]] == ["0/12C", "0/1F4"]
    monkeypatch.setattr(redecode, "tabulate", refusing(tabulate))
    assert run(app, ["quarantine", "retry", *file]).exit_code == 1
    monkeypatch.setattr(redecode, "tabulate", tabulate)
    assert run(app, ["quarantine", "retry", "0/12C", *file]).exit_code == 0
    done = run(app, ["quarantine", "retry", *file])
    assert "0/1F4  decoded: 2 changes of public.orders" in done.stdout


# ── the family: what decoding takes is in bronze, the source is not asked ──

NOTES = TableName("public", "notes")
FACTS = {
    NOTES: GaussDbTableMetadata(
        (GaussDbColumn("id", "int4", 23), GaussDbColumn("price", "numeric", 1700, (10 << 16 | 2) + 4)),
        ("id",),
        identity_columns=("id",),
    )
}


@pytest.mark.parametrize("style", list(Style))
def test_a_transaction_of_the_family_keeps_what_decoding_it_takes(tmp_path: Path, style: Style):
    project = project_in(
        tmp_path, type="gaussdb", port=8000, slot={"name": "shop"}, tables=["public.*"], host="nowhere.invalid"
    )
    rows = [
        Row(Operation.INSERT, NOTES, (Field("id", "1", "integer", 23), Field("price", "1.50", "numeric", 1700))),
        Row(Operation.DELETE, NOTES, None, (Field("id", "1", "integer", 23),)),
    ]
    how = Print(style)
    data = [binary_record(row, "utf-8")[12:] if style is Style.BINARY else statement(row, how) for row in rows]
    raws = [
        RecordTransaction(Boundaries(at, at, csn=at, commit_lsn=at), style, data, [at, at], sum(map(len, data)))
        for at in (200, 300)
    ]
    writer = DeltaBronze(project.bronze, durability="os")
    writer.begin_stream("gauss:1:d:shop:csn:100@0/64", 100)
    form = GaussDbFormat(
        RelationResolver(FACTS.get, tables=frozenset(FACTS)), "mppdb_decoding", only_first(family.tabulate)
    )
    for raw in raws:
        writer.append([raw], StoreUndecodable(form))
    assert [one.position for one in list_quarantine(project).undecodable] == ["300"]
    done = retry(project, None, silent)
    assert [(one.position, one.changes, one.tables) for one in done.tried] == [("300", 2, ("public.notes",))]
    changes = bronze_reader(project).changes(NOTES, ALL).to_pylist()
    compared = [{k: row[k] for k in ("op", "layout", "new", "old", "old_kind", "ordinal")} for row in changes]
    assert compared[:2] == compared[2:]


def only_first(decode: Callable[..., ChangeColumns]) -> Callable[..., ChangeColumns]:
    def faulty(batch: Sequence[Any], layouts: RelationResolver) -> ChangeColumns:
        if any(raw.bounds.position > 200 for raw in batch):
            raise MalformedMessage("a fault")
        return decode(batch, layouts)

    return faulty
