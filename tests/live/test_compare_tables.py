"""Compare against a real server and real Delta and Iceberg tables that were written without Spark."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.cli.commands.compare import comparison_text
from cdc_lake.comparison.columns import Sample
from cdc_lake.comparison.compare import compare
from cdc_lake.config.model import Pipeline, Silver
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, FAILED, Cut, TableState, write_cut
from cdc_lake.control.verdicts import Verdict
from cdc_lake.errors import NoTableMatches, SlotMissing
from cdc_lake.model.position import Lsn, as_of
from cdc_lake.model.quarantine import FIRST_ORDINAL, ON
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.source.postgres.snapshot_visibility import visible
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.control_schema import schema_of
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.silver_table import APP_PROPERTY, FIRST, POSITION_PROPERTY, app_id
from tests.conftest import Database

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore:The 'without_files' parameter:DeprecationWarning")]

UTC = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("small", pa.int16()),
        ("price", pa.decimal128(12, 9)),
        ("weight", pa.float64()),
        ("ratio", pa.float32()),
        ("paid", pa.bool_()),
        ("photo", pa.binary()),
        ("note", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("instant", UTC),
        ("anything", pa.string()),
    ]
)
DDL = (
    "id int8, part text, small int2, price numeric(12,9), weight float8, ratio float4, paid bool, photo bytea, "
    "note text, day date, at timestamp, instant timestamptz, anything numeric, PRIMARY KEY (id, part)"
)
ROWS = [
    (1, "a", 1, "0.000000001", "-0", "0.1", True, "\\x00ff", "", "2024-02-29", "2024-01-01 00:00:00.5", "0001-01-01 00:00:00+00", "1.10"),
    (1, "b", None, None, None, None, None, None, None, None, None, None, None),
    (2, "", -32768, "-999.999999999", "NaN", "Infinity", False, "\\x", 'q"q,\\N\\.\r\n\t', "0001-01-01", "9999-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999+00", "NaN"),
    (3, "größe 漢", 0, "0", "1e300", "1e-45", True, "\\x5c78", "\\.", "9999-12-31", "1969-12-31 23:59:59.999999", "1969-12-31 23:59:59.1+00", "1e30"),
    (4, "\n", 0, "1", "0.1", "16777216", True, "\\x61", "\n", "1900-01-01", "1900-01-01 00:00:00", "2024-10-27 01:30:00+00", "0"),
]  # fmt: skip
FORMATS = {"orders": "delta", "notes": "iceberg"}


class Lake:
    """A project with two tables whose silver is written from typed values that the driver made."""

    def __init__(self, database: Database, root: Path, **sections: Any) -> None:
        self.database = database
        document = {
            "version": 1,
            "pipeline": database.name,
            "source": database.source,
            "bronze": {"durability": "os"},
            "silver": {"tables": [{"from": f"public.{n}", "format": f} for n, f in FORMATS.items()]},
            **sections,
        }
        self.project = Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)
        self.sql = database.connect()

    def close(self) -> None:
        self.sql.close()

    def fill(self, key: str = "") -> None:
        """`key`: when it is checked, if not at once; then the server logs whole rows."""
        self.sql.execute("SET TimeZone = 'UTC'")
        for name in FORMATS:
            self.sql.execute(f"CREATE TABLE {name} ({DDL} {key})")
            self.sql.execute(f"ALTER TABLE {name} REPLICA IDENTITY {'FULL' if key else 'DEFAULT'}")
            for row in ROWS:
                self.sql.execute(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})", row)

    def receive(self) -> None:
        bronze = DeltaBronze(self.project.bronze, "os")
        receive(self.project, bronze, once=True, stop=threading.Event(), report=silent, slot_patience=60)

    @property
    def state(self) -> Any:
        return BronzeReader(self.project.bronze).state()

    def rows(self, name: str) -> pa.Table:
        """The source's rows by the driver's own conversions, not by text."""
        columns = ", ".join("anything::text" if f.name == "anything" else f'"{f.name}"' for f in SCHEMA)
        rows = self.sql.execute(f"SELECT {columns} FROM {name} ORDER BY id, part").fetchall()
        return pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)], SCHEMA)

    def silver(self, name: str, rows: pa.Table | None = None) -> None:
        rows = self.rows(name) if rows is None else rows
        target, state = self.project.target(TableName("public", name)), self.state
        app = app_id(state.stream, target, FIRST)
        if target.format == "delta":
            properties = CommitProperties(app_transactions=[Transaction(app, state.upto)])
            write_deltalake(str(self.project.silver_path(target)), rows, mode="overwrite", commit_properties=properties)
            return
        catalog = open_catalog(catalog_address(self.project))
        catalog.create_namespace_if_not_exists(target.namespace)
        table = catalog.create_table_if_not_exists((target.namespace, target.name), rows.schema)
        write = table.overwrite if table.current_snapshot() else table.append
        write(rows, snapshot_properties={APP_PROPERTY: app, POSITION_PROPERTY: str(state.upto)})

    def compare(self, *names: str) -> dict[str, Any]:
        return {t.table.removeprefix("public."): t for t in compare(self.project, names, silent).tables}


@pytest.fixture
def lake(database, tmp_path):
    with closing(Lake(database, tmp_path)) as made:
        made.fill()
        made.receive()
        for name in FORMATS:
            made.silver(name)
        yield made


def test_equal_tables_are_equal_whatever_their_values_and_format(lake):
    comparison = compare(lake.project, (), silent)
    assert {t.table: (t.verdict, t.source_rows, t.silver_rows) for t in comparison.tables} == {
        "public.notes": (Verdict.EQUAL, len(ROWS), len(ROWS)),
        "public.orders": (Verdict.EQUAL, len(ROWS), len(ROWS)),
    }
    assert comparison.text == "equal"
    document = json.loads((lake.project.reports / "compare.json").read_text())
    assert (document["verdict"], len(document["tables"])) == ("equal", 2)


@pytest.mark.parametrize("name", FORMATS)
def test_one_wrong_value_is_found_in_every_type(lake, name):
    wrong = {
        "small": 2, "price": Decimal("0.000000002"), "weight": 0.0, "ratio": 0.2, "paid": False, "photo": b"\x00",
        "note": None, "day": dt.date(2024, 2, 28), "at": dt.datetime.fromisoformat("2024-01-01T00:00:00.500001"),
        "instant": dt.datetime.fromisoformat("0001-01-01T00:00:01+00:00"), "anything": "1.1",
    }  # fmt: skip
    assert set(wrong) == set(SCHEMA.names) - {"id", "part"}
    for column, value in wrong.items():
        first, *rest = lake.rows(name).to_pylist()
        lake.silver(name, pa.Table.from_pylist([{**first, column: value}, *rest], SCHEMA))
        found = lake.compare(name)[name]
        assert (found.verdict, found.changed, found.missing, found.extra) == (Verdict.DIFFERENT, 1, 0, 0), column
        assert found.columns == ((column, 1),)
        assert dict(found.samples) == {"changed": (("1", "a"),)}


@pytest.mark.parametrize("name", FORMATS)
def test_missing_extra_repeated_and_changed_rows_are_told_apart(lake, name):
    rows = lake.rows(name).to_pylist()
    one, two, three, *rest = rows
    two["note"] = ""
    extra = {**three, "id": 99}
    lake.silver(name, pa.Table.from_pylist([one, one, two, extra, *rest], SCHEMA))
    found = lake.compare(name)[name]
    assert found.verdict is Verdict.DIFFERENT
    assert dict(found.samples) == {
        "missing": (("2", ""),),
        "extra": (("99", ""),),
        "changed": (("1", "b"),),
        "repeated": (("1", "a"),),
    }
    assert (lake.project.reports / "compare.json").read_text().count("größe") == 0


def test_what_bronze_lacks_is_inconclusive_for_that_table_only_and_silver_is_rolled_forward_by_what_it_has(lake):
    lake.sql.execute("UPDATE orders SET small = 7 WHERE id = 3")
    found = lake.compare()
    assert (found["orders"].verdict, found["notes"].verdict) == (Verdict.INCONCLUSIVE, Verdict.EQUAL)
    assert "bronze does not" in found["orders"].reason
    lake.receive()
    found = lake.compare()
    assert (found["orders"].verdict, found["notes"].verdict) == (Verdict.EQUAL, Verdict.EQUAL)
    assert (found["orders"].rolled_forward, found["notes"].rolled_forward) == (1, 0)
    lake.silver("orders")
    assert lake.compare()["orders"].rolled_forward == 0


def test_an_open_transaction_is_on_neither_side(lake):
    with lake.database.connect(autocommit=False) as other:
        other.execute("DELETE FROM orders")
        lake.sql.execute("UPDATE notes SET note = 'x'")  # a later transaction that ends earlier
        lake.receive()
        lake.silver("notes")
        assert {t.verdict for t in lake.compare().values()} == {Verdict.EQUAL}
    assert lake.compare()["orders"].verdict is Verdict.INCONCLUSIVE


def test_log_that_touches_no_table_does_not_stand_in_the_way(lake):
    with lake.database.admin() as admin:
        admin.execute("CREATE TABLE elsewhere AS SELECT 1")
        admin.execute("CHECKPOINT")
    assert {t.verdict for t in lake.compare("orders", "public.notes").values()} == {Verdict.EQUAL}


def test_a_table_that_is_not_published_is_named(lake):
    with pytest.raises(NoTableMatches, match="nowhere"):
        lake.compare("nowhere")


def test_a_column_added_at_the_source_is_not_called_equal(lake):
    lake.sql.execute("ALTER TABLE orders ADD COLUMN colour text DEFAULT 'red'")
    found = lake.compare("orders")["orders"]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "colour" in found.reason


def hold(
    lake: Lake, name: str, *, reason: str = "failed", changes: slice = slice(None), keys: Sequence[str] = ()
) -> None:
    """Record all bronze changes of a table above its silver as held, as apply does; `keys`: its own ones."""
    bronze, state = BronzeReader(lake.project.bronze), lake.state
    table = TableName("public", name)
    rows = [r for r in bronze.history_rows(table).to_pylist() if r["op"] != "S"][changes]
    control = ControlTables(lake.project.control, "os")
    given = {"generation": 1, "relation": str(table), "table": f"silver.{name}", "reason": reason, "rules": ["r"],
             "span_upto": state.upto, "recorded_at": dt.datetime.now(dt.UTC)}  # fmt: skip
    blank = dict.fromkeys(schema_of("quarantine").names)
    layouts = bronze.layouts([table])
    kept = [
        blank | {k: v for k, v in (r | given | keys_of(r, layouts[r["layout"]], keys)).items() if k in blank}
        for r in rows
    ]
    control.append("quarantine", kept)


def keys_of(row: dict[str, Any], layout: Relation, keys: Sequence[str]) -> dict[str, list[str] | None]:
    """The key that a change leaves, and the one that it gives."""

    def key(values: list[str] | None) -> list[str] | None:
        return None if values is None else [values[layout.names.index(name)] for name in keys or layout.primary_key]

    leaves = None if row["op"] == "I" else key(row["old"] or row["new"])
    return {"from_key": leaves, "key": key(row["new"])}


def test_what_happened_to_held_keys_since_is_folded_behind_what_is_held(lake):
    before = lake.rows("orders")
    lake.sql.execute("UPDATE orders SET day = 'infinity' WHERE id = 3")
    lake.receive()
    hold(lake, "orders")
    lake.silver("orders", before)
    lake.sql.execute("UPDATE orders SET id = 8, day = '2024-01-01' WHERE id = 3")
    lake.sql.execute("UPDATE orders SET small = 9 WHERE id = 8")
    lake.sql.execute("UPDATE orders SET small = 9 WHERE id = 4")
    lake.receive()
    found = lake.compare("orders")["orders"]
    assert (found.text, found.rolled_forward) == ("equal but for 2 quarantined keys", 3), (
        "the key that left, and the one given"
    )
    lake.sql.execute("TRUNCATE orders")
    lake.sql.execute("INSERT INTO orders (id, part) VALUES (1, 'x')")
    lake.receive()
    found = lake.compare("orders")["orders"]
    assert (found.text, found.rolled_forward, found.silver_rows) == ("equal", 5, 1), "a TRUNCATE ends all holds"


@pytest.mark.parametrize("name", FORMATS)
def test_held_keys_are_accounted_for_by_folding_their_changes(lake, name):
    before = lake.rows(name)
    lake.sql.execute(f"UPDATE {name} SET day = 'infinity', weight = 2.5 WHERE id = 3")
    lake.sql.execute(f"UPDATE {name} SET small = 5 WHERE id = 3")
    lake.sql.execute(f"INSERT INTO {name} (id, part, price) VALUES (7, 'x', 'NaN')")
    lake.sql.execute(f"DELETE FROM {name} WHERE part = 'b'")
    lake.sql.execute(f"UPDATE {name} SET id = 8 WHERE id = 4")
    lake.receive()
    hold(lake, name)
    lake.silver(name, before)
    found = lake.compare(name)[name]
    assert (found.text, found.quarantined_keys) == ("equal but for 5 quarantined keys", 5)
    assert (found.changed, found.missing, found.extra) == (0, 0, 0)


def discard(lake: Lake, name: str, id_: str) -> None:
    """Give up what is held of a key, as of where silver stands."""
    control = ControlTables(lake.project.control, "os")
    rows = [
        row
        for row in control.read("quarantine").to_pylist()
        if id_ in {(row[k] or [""])[0] for k in ("key", "from_key")}
    ]
    blank = dict.fromkeys(schema_of("decisions").names)
    own = {"verb": "discard", "reason": "a test", "relation": f"public.{name}", "position": lake.state.upto}
    control.append(
        "decisions",
        [
            {**blank, **{k: v for k, v in row.items() if k in blank}, **own, "ordinal": FIRST_ORDINAL + n}
            | dict(zip(ON, (row["position"], row["ordinal"]), strict=True))
            for n, row in enumerate(rows)
        ],
    )


def test_discarded_keys_are_accounted_for_too_and_said_apart(lake):
    before = lake.rows("orders")
    lake.sql.execute("UPDATE orders SET small = 5 WHERE id = 3")
    lake.sql.execute("UPDATE orders SET small = 6 WHERE id = 4")
    lake.receive()
    hold(lake, "orders")
    lake.silver("orders", before)
    discard(lake, "orders", "3")
    found = lake.compare("orders")["orders"]
    assert (found.verdict, found.text) == (
        Verdict.EQUAL_BUT_DISCARDED, "equal but for 1 quarantined key and 1 discarded key",
    )  # fmt: skip
    discard(lake, "orders", "4")
    assert lake.compare("orders")["orders"].text == "equal but for 2 discarded keys"
    without = lake.rows("orders").to_pylist()
    del without[3]
    lake.silver("orders", pa.Table.from_pylist(without, SCHEMA))
    assert lake.compare("orders")["orders"].verdict is Verdict.DIFFERENT, "nothing that was given up explains it"


def test_what_was_given_up_says_nothing_of_a_key_that_was_told_anew(lake):
    before = lake.rows("orders")
    lake.sql.execute("UPDATE orders SET id = 8 WHERE id = 3")
    lake.receive()
    hold(lake, "orders")
    discard(lake, "orders", "3")
    lake.sql.execute("INSERT INTO orders (id, part, small) VALUES (3, 'größe 漢', 9)")
    lake.receive()
    control = ControlTables(lake.project.control, "os")
    *_, decided = control.read("quarantine").to_pylist()
    own = {"reason": "closed", "op": "S", "position": lake.state.upto, "key": decided["from_key"], "from_key": None}
    control.append("quarantine", [decided | own])
    told = [row for row in before.to_pylist() if row["id"] != 3] + [
        row for row in lake.rows("orders").to_pylist() if row["id"] == 3
    ]
    lake.silver("orders", pa.Table.from_pylist(told, SCHEMA))
    assert lake.compare("orders")["orders"].text == "equal but for 1 discarded key"


def test_rows_that_have_one_key_in_turn_are_folded_as_the_server_made_them(database, tmp_path):
    with closing(Lake(database, tmp_path)) as lake:
        lake.fill("DEFERRABLE INITIALLY DEFERRED")
        lake.receive()
        before = lake.rows("orders")
        lake.silver("orders")
        lake.sql.execute("UPDATE orders SET part = CASE part WHEN 'a' THEN 'b' ELSE 'a' END WHERE id = 1")
        lake.sql.execute(
            "BEGIN; INSERT INTO orders (id, part, small) VALUES (3, 'größe 漢', 7); "
            "DELETE FROM orders WHERE id = 3 AND small = 0; COMMIT"
        )
        lake.receive()
        found = lake.compare("orders")["orders"]
        assert (found.text, found.rolled_forward) == ("equal", 2)
        hold(lake, "orders")
        lake.silver("orders", before)
        assert lake.compare("orders")["orders"].text == "equal but for 3 quarantined keys"


def test_rows_that_share_a_key_are_held_and_accounted_for_or_said_to_share_it(database, tmp_path):
    own = {"silver": {"tables": [{"from": "public.bag", "keys": ["code"]}]}}
    schema = pa.schema([("code", pa.int32()), ("note", pa.string())])
    with closing(Lake(database, tmp_path, **own)) as lake:
        lake.sql.execute("CREATE TABLE bag (code int, note text)")
        lake.sql.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
        lake.sql.execute("INSERT INTO bag VALUES (NULL, 'a'), (1, 'b')")
        lake.receive()
        rows = pa.table([[None, 1], ["a", "b"]], schema=schema)
        lake.silver("bag", rows)
        lake.sql.execute("INSERT INTO bag VALUES (NULL, 'c'), (NULL, 'c')")
        lake.receive()
        found = lake.compare("bag")["bag"]
        assert (found.verdict, found.hint) == (Verdict.INCONCLUSIVE, "run `cdc-lake run --once`, then compare again")
        hold(lake, "bag", keys=["code"])
        lake.silver("bag", rows)
        lake.sql.execute("UPDATE bag SET note = 'd' WHERE ctid = (SELECT min(ctid) FROM bag WHERE note = 'c')")
        lake.sql.execute("DELETE FROM bag WHERE note = 'a'")
        lake.receive()
        found = lake.compare("bag")["bag"]
        assert (found.text, found.source_rows, found.silver_rows, found.hint) == (
            "equal but for 1 quarantined key",
            3,
            2,
            "",
        )
        lake.sql.execute("INSERT INTO bag VALUES (1, 'e')")
        lake.receive()
        assert lake.compare("bag")["bag"].verdict is Verdict.INCONCLUSIVE
        lake.silver("bag", pa.table([[None, 1], ["a", "e"]], schema=schema))  # as a merge by key leaves it
        found = lake.compare("bag")["bag"]
        assert (found.verdict, found.repeated, found.changed) == (Verdict.DIFFERENT, 1, 0)
        assert found.reason == "the source has several rows with the same key: code does not identify a row"
        assert "`keys`" in found.hint


def test_a_difference_beside_a_held_key_and_one_that_the_hold_does_not_explain_are_found(lake):
    before = lake.rows("orders").to_pylist()
    lake.sql.execute("UPDATE orders SET small = 5 WHERE id = 3")
    lake.sql.execute("UPDATE orders SET small = 6 WHERE id = 2")
    lake.receive()
    hold(lake, "orders")
    before[0]["small"] = 77  # not held
    del before[2]  # held, and there is no row that its update could have changed
    lake.silver("orders", pa.Table.from_pylist(before, SCHEMA))
    found = lake.compare("orders")["orders"]
    assert (found.verdict, found.quarantined_keys, found.unaccounted, found.changed) == (Verdict.DIFFERENT, 1, 1, 1)
    assert dict(found.samples) == {"changed": (("1", "a"),), "unaccounted": (("2", ""),)}


def test_a_table_cannot_be_emptied_under_the_snapshot_but_rows_can_change(lake):
    with lake.database.connect() as reading, visible(reading, [TableName("public", "orders")]) as seen:
        lake.sql.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            lake.sql.execute("TRUNCATE orders")
        lake.sql.execute("DELETE FROM orders")
        assert reading.execute("SELECT count(*) FROM orders").fetchone() == (len(ROWS),)
        xid = int(lake.sql.execute("SELECT pg_current_xact_id()::text").fetchone()[0])
        assert not seen.shows(xid, seen.position + 1)


@pytest.mark.slow
def test_a_receiver_that_reads_the_slot_is_waited_for(lake):
    stop = threading.Event()
    bronze = DeltaBronze(lake.project.bronze, "os")
    running = threading.Thread(
        target=receive, args=(lake.project, bronze), kwargs={"once": False, "stop": stop, "report": silent}
    )
    running.start()
    try:
        lake.sql.execute("CREATE TABLE elsewhere AS SELECT 1")  # log behind which no transaction of ours comes
        assert {t.verdict for t in lake.compare("orders", "notes").values()} == {Verdict.EQUAL}
    finally:
        stop.set()
        running.join(30)


def test_a_table_without_a_key_is_compared_by_how_often_each_row_is_there(database, tmp_path):
    with closing(Lake(database, tmp_path)) as lake:
        lake.sql.execute("CREATE TABLE bag (id int8, note text)")
        lake.sql.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
        lake.sql.execute("INSERT INTO bag VALUES (1, NULL), (1, NULL), (2, 'two')")
        lake.receive()
        rows = {"id": [2, 1, 1], "note": ["two", None, None], "_copy": [1, 1, 2]}
        schema = pa.schema([("id", pa.int64()), ("note", pa.string()), ("_copy", pa.int64())])
        lake.silver("bag", pa.table(rows, schema))
        equal = lake.compare("bag")["bag"]
        assert (equal.verdict, equal.source_rows, equal.silver_rows) == (Verdict.EQUAL, 3, 3)
        lake.silver("bag", pa.table(rows, schema).slice(0, 2))
        lacking = lake.compare("bag")["bag"]
        assert (lacking.verdict, lacking.changed, lacking.silver_rows) == (Verdict.DIFFERENT, 1, 2)
        assert (lacking.samples, lacking.columns) == ((), ()), "a row is not told"
        lake.silver("bag", pa.table(rows, schema))
        lake.sql.execute("DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)")
        lake.sql.execute("UPDATE bag SET note = 'zwei' WHERE id = 2")
        lake.sql.execute("INSERT INTO bag VALUES (3, 'three'), (3, 'three')")
        lake.receive()
        forward = lake.compare("bag")["bag"]
        assert (forward.verdict, forward.silver_rows, forward.rolled_forward) == (Verdict.EQUAL, 4, 3)


def test_columns_that_are_left_out_or_renamed_are_compared_as_silver_has_them(lake):
    given = {"from": "public.orders", "exclude": ["photo", "anything"], "rename": {"note": "words", "id": "number"}}
    silver = Silver.model_validate({"defaults": {"namespace": "other"}, "tables": [given]})
    lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"silver": silver}))
    rows = lake.rows("orders").drop_columns(["photo", "anything"])
    names = ["number" if n == "id" else "words" if n == "note" else n for n in rows.column_names]
    lake.silver("orders", rows.rename_columns(names))
    assert lake.compare("orders")["orders"].verdict is Verdict.EQUAL
    changed = rows.to_pylist()
    changed[2]["note"] = "other"
    lake.silver("orders", pa.Table.from_pylist(changed, rows.schema).rename_columns(names))
    found = lake.compare("orders")["orders"]
    assert (found.verdict, found.columns, dict(found.samples)) == (
        Verdict.DIFFERENT,
        (("note", 1),),
        {"changed": (("2", ""),)},
    )


def test_a_table_that_keeps_every_change_is_not_compared_and_does_not_decide_for_others(lake):
    given = {"defaults": {"namespace": "other"}, "tables": [{"from": "public.notes", "kind": "append"}]}
    silver = Silver.model_validate(given)
    lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"silver": silver}))
    lake.silver("orders", lake.rows("orders"))
    whole = compare(lake.project, (), silent)
    found = {one.table: one for one in whole.tables}
    assert (found["public.notes"].verdict, found["public.orders"].verdict) == (Verdict.NOT_COMPARED, Verdict.EQUAL)
    assert (whole.verdict, whole.not_compared) == (Verdict.EQUAL, 1)
    assert comparison_text(whole, 100).splitlines()[-1].startswith("equal: 1 table, 1 not compared at ")
    assert compare(lake.project, ["notes"], silent).verdict is Verdict.INCONCLUSIVE  # nothing else was asked for


def test_tables_can_be_left_out_of_a_comparison(lake):
    assert [one.table for one in compare(lake.project, (), silent, exclude=["notes"]).tables] == ["public.orders"]
    with pytest.raises(NoTableMatches):
        compare(lake.project, (), silent, exclude=["nots"])


def test_with_the_slot_gone_it_shows_what_was_lost(lake):
    """Just then one wants to know: what bronze does not have, nobody will bring any more."""
    told: list[ProgressEvent] = []
    lake.sql.execute("UPDATE orders SET note = 'never received' WHERE id = 3")
    with lake.database.admin() as admin:
        admin.execute("SELECT pg_drop_replication_slot(%s)", [lake.project.slot])
    whole = compare(lake.project, (), told.append)
    found = {one.table: one for one in whole.tables}
    assert (found["public.orders"].verdict, found["public.notes"].verdict) == (Verdict.DIFFERENT, Verdict.EQUAL)
    assert dict(found["public.orders"].samples)["changed"] == (("3", "größe 漢"),)
    said = [one for one in told if one.stage == "warning"]
    assert [one.facts["code"] for one in said] == [SlotMissing.code]
    assert "shown as differences" in said[0].text


def test_a_column_that_waits_says_what_it_waits_for(lake):
    lake.sql.execute("ALTER TABLE orders ADD COLUMN more int")
    assert lake.compare("orders")["orders"].hint.startswith("run `cdc-lake run --once`; if that changes nothing")
    lake.sql.execute("UPDATE orders SET more = 1 WHERE id = 3")
    lake.receive()
    assert lake.compare("orders")["orders"].hint.startswith("its change is not applied yet: `cdc-lake run --once`")
    error = ("LAK410", "public.orders was altered", "to apply the change run `cdc-lake run --allow …`")
    table = TableState("silver.orders", "delta", 0, lake.state.upto, FAILED, 0, error=error)
    write_cut(
        ControlTables(lake.project.control, "os"),
        lake.state,
        Cut(lake.state.upto, {"public.orders": table}),
        None,
        silent,
    )
    hint = lake.compare("orders")["orders"].hint
    assert hint == f"the table waits: {error[1]} [LAK410]; {error[2]}"


def test_all_rows_are_matched_where_that_is_asked_for(lake):
    found = {t.table: t for t in compare(lake.project, (), silent, full=True).tables}
    assert {(t.verdict, t.hashed_by, t.rows_matched, t.silver_rows) for t in found.values()} == {
        (Verdict.EQUAL, "", len(ROWS), len(ROWS))
    }


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_sample_is_told_as_one_and_proves_nothing_of_the_whole(lake, name, full):
    def compared(sample: str) -> Any:
        (table,) = compare(lake.project, [name], silent, full=full, sample=Sample.parse(sample)).tables
        return table

    whole = compared("100%")
    assert (whole.text, whole.source_rows, whole.silver_rows) == ("equal in a sample of 100%", len(ROWS), len(ROWS))
    few = compared("0.001%")
    assert few.source_rows == few.silver_rows <= 1
    assert few.text.startswith("equal in a sample of 0.0")
    assert compared(str(len(ROWS))).source_rows == len(ROWS)
    assert ControlTables(lake.project.control).read("verified").num_rows == 0
    lake.silver(name, lake.rows(name).slice(1))
    assert compared("100%").missing == 1
    assert ControlTables(lake.project.control).read("verified").num_rows == 1


def test_an_older_cut_is_proven_by_rolling_it_forward(lake):
    target = lake.project.target(TableName("public", "orders"))

    def cut(version: int) -> int:
        state = lake.state
        there = TableState(target.label, "delta", version, state.upto, ACTIVE, 0, FIRST)
        write_cut(ControlTables(lake.project.control), state, Cut(state.upto, {"public.orders": there}), None, silent)
        return int(state.upto)

    first = cut(0)
    lake.sql.execute("UPDATE orders SET small = 7 WHERE id = 3")
    lake.sql.execute("DELETE FROM orders WHERE id = 4")
    lake.receive()
    lake.silver("orders", lake.rows("orders").slice(1))
    cut(1)

    def compared(at: int | None) -> Any:
        given = None if at is None else as_of(at)
        return {t.table: t for t in compare(lake.project, (), silent, as_of=given).tables}

    now, then = compared(None)["public.orders"], compared(first)
    assert (now.verdict, now.missing, now.rolled_forward) == (Verdict.DIFFERENT, 1, 0)
    assert (then["public.orders"].verdict, then["public.orders"].rolled_forward) == (Verdict.EQUAL, 2)
    assert then["public.orders"].watermark == str(Lsn(first))
    assert "the cut does not contain it" in then["public.notes"].reason
    with pytest.raises(ValueError, match="not repaired"):
        compare(lake.project, (), silent, as_of=as_of(first), repair=True)
