"""What differs, at a real server: what is told of it, and that a repair lands it behind silver's watermark, where both
sides know the same of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.comparison import repair
from cdc_lake.comparison.columns import CompareOptions, CompareTask, pin
from cdc_lake.comparison.compare import compare
from cdc_lake.comparison.repair import REPAIR, DifferingKeys
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.connectors.factory import compare_source
from cdc_lake.control.coordination import apply_lease
from cdc_lake.control.cuts import ACTIVE, FAILED, Cut, TableState, write_cut
from cdc_lake.control.verdicts import DifferingKey, Repair, TableComparison, Verdict
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import AnotherApply
from cdc_lake.model.position import parse_position
from cdc_lake.observability.events import silent
from cdc_lake.observability.failpoints import COMMIT_WRITTEN, REREAD_LANDED
from cdc_lake.runtime.apply.snapshot_alignment import AlignmentPoint
from cdc_lake.source.base import PublishedTable
from cdc_lake.tables.silver_table import FIRST, app_id
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.kills import KILLED, Receivers, repair_until_killed
from tests.conftest import Database
from tests.live.shop import ODD, Shop, T
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in

pytestmark = pytest.mark.live
__all__ = ["stand_in"]
SECTIONS: dict[str, Any] = {"bronze": {"durability": "os"}}
ROWS = [(1, "k", 0, "one"), (2, ODD, 2, "two"), (3, "k", 3, None)]
SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), ("n", pa.decimal128(6, 2)), ("body", pa.string())])
KEYED = "PRIMARY KEY (a, b)"


class Compared(Shop):
    """With rows that were copied, and silver as some run may have left it."""

    def __init__(self, database: Database, project: Project, key: str = KEYED) -> None:
        super().__init__(database, project)
        self.sql(f"CREATE TABLE t (a int, b text, n numeric(6,2), body text, {key})")
        self.sql("ALTER TABLE t REPLICA IDENTITY FULL")
        with database.connect() as conn:
            for row in ROWS:
                conn.execute("INSERT INTO t VALUES (%s, %s, %s, %s)", row)
        self.receive()

    def silver(self, *rows: tuple[Any, ...], kept: str = ACTIVE) -> int:
        """Write these rows, and the cut that says so; the position."""
        upto = self.merged(*rows)
        self.cut(upto, kept)
        return upto

    def cut(self, upto: int, kept: str = ACTIVE) -> None:
        there = TableState(self.project.target(T).label, "delta", None, upto, kept, 0, FIRST, self.layout)
        write_cut(self.control, self.state, Cut(upto, {str(T): there}), None, silent)

    def merged(self, *rows: tuple[Any, ...]) -> int:
        """Write these rows, and no cut."""
        upto, target = self.state.upto, self.project.target(T)
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
        marker = CommitProperties(app_transactions=[Transaction(app_id(self.state.stream, target, FIRST), upto)])
        place = str(self.project.silver_path(target))
        write_deltalake(place, table, mode="overwrite", commit_properties=marker)
        return upto

    def repair(self) -> TableComparison:
        (found,) = compare(self.project, ["t"], silent, repair=True, yes=True).tables
        return found

    def runs(self) -> list[tuple[str, str]]:
        rows = self.control.read("runs").to_pylist()
        rows.sort(key=lambda row: (row["started_at"], row["ended_at"] is not None))
        return [(row["verb"], row["outcome"]) for row in rows]


def project(database: Database, root: Path, **changes: Any) -> Project:
    document = {"version": 1, "pipeline": database.name, "source": database.source, **SECTIONS}
    for section, values in changes.items():
        document[section] = {**document.get(section, {}), **values}
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Compared:
    return Compared(database, project(database, tmp_path))


WRONG = [(1, "k", 5, "one"), (3, "k", 3, None), (9, ODD, 9, "nobody has this"), (10, "k", 1, "nor this")]
RIGHT = [["1", "k", "0.00", "one"], ["2", ODD, "2.00", "two"]]
GONE = [["10", "k", None, None], ["9", ODD, None, None]]


def landed_at(position: int) -> list[tuple[int, list[str | None] | None, list[str | None] | None]]:
    return sorted([*((position, row, None) for row in RIGHT), *((position, None, key) for key in GONE)], key=repr)


def test_keys_that_differ_are_told_with_what_touched_them_and_values_only_where_asked(shop: Compared) -> None:
    shop.sql("UPDATE t SET n = 4 WHERE a = 1", "UPDATE t SET n = 0 WHERE a = 1", "DELETE FROM t WHERE a = 10")
    shop.receive()
    shop.silver(*WRONG)

    def told(*, values: bool) -> dict[tuple[str | None, ...], DifferingKey]:
        (found,) = compare(shop.project, [], silent, values=values).tables
        return {one.key: one for one in found.differing}

    found, file = told(values=False), shop.project.reports / "compare.json"
    assert {key: (one.kind, one.columns, one.touched) for key, one in found.items()} == {
        ("1", "k"): ("changed", ("n",), 3),
        ("2", ODD): ("missing", (), 1),
        ("9", ODD): ("extra", (), 0),
        ("10", "k"): ("extra", (), 0),
    }
    changes = found["1", "k"].changes
    assert [(one.op, one.committed is None, one.note) for one in changes] == [
        ("S", True, ""), ("U", False, ""), ("U", False, ""),
    ]  # fmt: skip
    assert shop.bronze.rows(parse_position(changes[-1].position))["op"].to_pylist()[-2:] == ["U", "C"]
    assert all(one.source is None and one.silver is None for one in found.values())
    assert "nobody has this" not in file.read_text()
    assert json.loads(file.read_text())["values"] is False
    found = told(values=True)
    assert found["1", "k"].source == {"a": "1", "b": "k", "n": "0.00", "body": "one"}
    assert found["1", "k"].silver == {"a": "1", "b": "k", "n": "5.00", "body": "one"}
    assert (found["2", ODD].silver, found["9", ODD].source) == (None, None)
    assert "nobody has this" in file.read_text()
    shop.repair()
    notes = [one.note for one in told(values=False)["9", ODD].changes]
    assert notes == ["read again at the source by compare --repair"]


def test_what_differs_lands_right_behind_silver_and_silver_stays_as_it_is(shop: Compared) -> None:
    upto = shop.silver(*WRONG)
    found = shop.repair()
    assert (found.verdict, found.missing, found.changed, found.extra) == (Verdict.DIFFERENT, 1, 1, 2)
    assert found.repair is not None
    assert (found.repair.keys, found.repair.left, found.repair.reason) == (4, 0, "")
    assert shop.reread_rows() == landed_at(upto + 1)
    (told,) = shop.reread()
    assert (told["relation"], told["rows"], told["by"]) == ("public.t", 4, "compare --repair")
    assert shop.runs() == [(REPAIR, "running"), (REPAIR, "done")]
    assert verify(shop.bronze).holds, "it is outside the chain"
    assert compare(shop.project, [], silent).tables[0].verdict is Verdict.DIFFERENT
    again = shop.repair().repair
    assert again is not None
    assert (again.keys, again.left) == (0, 4)
    assert "not merged yet" in again.reason
    assert len(shop.reread()) == 1


@pytest.mark.parametrize("kind", [Kind(Style.BINARY, batch=True), Kind(Style.JSON, by_csn=True)], ids=lambda k: k.slot)
def test_the_gaussdb_family_is_repaired_as_well(stand_in: StandIn, kind: Kind, tmp_path: Path) -> None:
    shop = Compared(stand_in.database, project_of(stand_in, kind, tmp_path, **SECTIONS))
    upto = shop.silver(*WRONG)
    assert shop.repair().repair is not None
    assert shop.reread_rows() == landed_at(upto + 1)


def test_a_table_that_nothing_is_merged_into_is_verified_as_far_as_the_last_cut(shop: Compared) -> None:
    before = shop.silver(*ROWS)
    shop.sql("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    shop.receive()
    assert shop.state.upto > before
    shop.cut(shop.state.upto)
    shop.repair()
    (row,) = shop.control.read("verified").to_pylist()
    assert (row["relation"], row["position"], row["verdict"]) == ("public.t", shop.state.upto, "equal")


def test_nothing_is_landed_where_nothing_differs_or_nothing_was_asked_for(shop: Compared) -> None:
    shop.silver(*ROWS)
    assert shop.repair().repair is None
    shop.silver(*WRONG)
    assert compare(shop.project, [], silent).tables[0].repair is None
    with apply_lease(shop.project):  # what only asks is in nobody's way
        (asked,) = compare(shop.project, [], silent, repair=True).tables
    assert asked.repair == Repair(4)
    assert shop.reread() == []
    assert shop.runs() == [(REPAIR, "running"), (REPAIR, "done")]


@pytest.mark.parametrize("point", [REREAD_LANDED])
def test_killed_between_landing_and_recording_it_changes_nothing_and_is_done_again(shop: Compared, point: str) -> None:
    upto = shop.silver(*WRONG)
    with broken_off(point) as reached:
        shop.repair()
    assert reached
    invariants(shop.project, Known()).assert_held("I1", "I3", "I4", "I5")
    assert shop.reread() == [], "what no row tells of is never read"
    shop.repair()
    assert shop.reread_rows() == landed_at(upto + 1)
    assert [outcome for _, outcome in shop.runs()] == ["running", "failed", "running", "done"]


def test_killed_behind_recording_it_is_in_force_and_is_not_done_again(shop: Compared) -> None:
    processes = Receivers(shop.project, {"source": shop.database.source})
    for commits in (3, 5):  # up to the row of `snapshots`; all but the end of the run
        shop.sql("UPDATE t SET n = 3 WHERE a = 3")
        shop.receive()
        upto = shop.silver(*WRONG)
        assert processes.run(f"{COMMIT_WRITTEN}:{commits}", target=repair_until_killed) == KILLED
        assert shop.runs()[-1] == (REPAIR, "running")
        found = shop.repair().repair
        assert found is not None
        assert (found.keys, found.left) == (0, 4)
        assert "not merged yet" in found.reason
        assert [row for row in shop.reread_rows() if row[0] == upto + 1] == landed_at(upto + 1)
    assert verify(shop.bronze).holds


def test_keys_that_other_transactions_change_are_left(shop: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    upto = shop.silver(*WRONG)
    shop.sql("UPDATE t SET n = 0 WHERE a = 1")
    shop.receive()
    monkeypatch.setattr(
        "cdc_lake.runtime.apply.snapshot_alignment.AlignmentPoint.find_unapplied", lambda *_: []
    )  # what is folded would be as the source
    found = shop.repair().repair
    assert found is not None
    assert (found.keys, found.left) == (3, 1)
    assert "later transactions" in found.reason
    assert shop.reread_rows() == [row for row in landed_at(upto + 1) if row[1] != RIGHT[0]]


def test_what_bronze_does_not_have_is_not_guessed_at(shop: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.silver(*WRONG)
    shop.sql("UPDATE t SET n = 0 WHERE a = 1")
    monkeypatch.setattr("cdc_lake.runtime.apply.snapshot_alignment.AlignmentPoint.unknown", lambda *_: None)
    found = shop.repair().repair
    assert found is not None
    assert (found.keys, found.left) == (0, 4)
    assert "bronze does not" in found.reason


def refused(shop: Compared) -> str:
    found = shop.repair().repair
    assert found is not None
    assert found.keys == 0
    assert found.left > 0
    assert shop.reread() == []
    return found.reason


def test_a_table_is_refused_that_stands_where_no_cut_says(shop: Compared) -> None:
    shop.silver(*WRONG, kept=FAILED)
    assert "no cut records" in refused(shop)


def test_a_table_is_refused_that_a_killed_run_left_beyond_its_cut(shop: Compared) -> None:
    shop.silver(*WRONG)
    shop.sql("UPDATE t SET n = 7 WHERE a = 3")
    shop.receive()
    shop.merged(*WRONG)
    assert "interrupted" in refused(shop)


def test_keys_that_are_too_many_and_rows_of_one_key_are_refused(
    shop: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.silver(*ROWS, ROWS[0])
    assert "several rows have the same key" in refused(shop)
    monkeypatch.setattr(repair, "REPAIRED_AT_MOST", 2)
    shop.silver(*WRONG)
    assert "up to 2 keys" in refused(shop)


def test_a_run_that_applies_is_in_the_way(shop: Compared) -> None:
    shop.silver(*WRONG)
    with apply_lease(shop.project), pytest.raises(AnotherApply):
        shop.repair()
    assert shop.reread() == []


REDACTED = {"redact_key": "a key of this test", "redact": [{"columns": ["public.t.b"], "strategy": "sha256"}]}


@pytest.mark.parametrize(
    ("changes", "key", "because"),
    [({"bronze": REDACTED}, KEYED, "redacted"), ({}, "CHECK (a > 0)", "without a key")],
    ids=["a redacted key", "no key"],
)
def test_rows_that_the_source_cannot_be_asked_for_by_key_are_refused(
    database: Database, tmp_path: Path, changes: dict[str, Any], key: str, because: str
) -> None:
    shop = Compared(database, project(database, tmp_path, **changes), key)
    shop.silver(*WRONG)
    assert because in refused(shop)


def test_a_table_that_a_filter_takes_rows_of_is_refused(database: Database, tmp_path: Path) -> None:
    shop = Compared(database, project(database, tmp_path, silver={"tables": [{"from": "public.t", "where": "a > 0"}]}))
    shop.silver(*WRONG)
    one = PublishedTable(T, tuple(SCHEMA.names), None)
    with compare_source(shop.project, shop.state) as source, source.snapshot([T]) as seen:
        pinned = pin(shop.project, shop.control, shop.state, [one])
        job = CompareTask(
            shop.project,
            shop.bronze,
            shop.control,
            shop.state,
            source,
            *pinned,
            CompareOptions(repairs=True, lands=True),
        )
        found = repair.repair(
            job,
            AlignmentPoint(seen, (), complete=True),
            DifferingKeys(("a", "b"), {}, frozenset({("1", "k")}), frozenset()),
        )
    assert (found.keys, found.left) == (0, 1)
    assert "filter" in found.reason


def test_values_that_are_redacted_are_landed_redacted(database: Database, tmp_path: Path) -> None:
    rule = {"columns": ["public.t.body"], "strategy": "null"}
    shop = Compared(database, project(database, tmp_path, bronze={"redact": [rule]}))
    shop.silver(*[(*row[:3], None) for row in WRONG])
    assert shop.repair().repair is not None
    assert [row for _, row, _ in shop.reread_rows() if row] == [[*row[:3], None] for row in RIGHT]
