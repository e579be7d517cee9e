"""Reading rows again at a real server: what is read counts only where it is the row at silver's watermark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import IN, TableState
from cdc_lake.control.quarantine import record
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.position import Span
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply import row_refetch
from cdc_lake.runtime.apply.row_refetch import RowRefetcher
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.silver.row_tracing import MISSING
from cdc_lake_testing.beside import beside, until
from tests.conftest import Database
from tests.live.shop import ODD, Shop, T
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in

pytestmark = pytest.mark.live
__all__ = ["stand_in"]
SECTIONS: dict[str, Any] = {
    "snapshot": {"mode": "none"},
    "silver": {"defaults": {"missing_row": "reread"}},
    "bronze": {"durability": "os"},
}


class Reread(Shop):
    """A table whose rows the stream never told."""

    def __init__(self, database: Database, project: Project) -> None:
        super().__init__(database, project)
        self.told: list[str] = []
        self.rereader = RowRefetcher(self.project, self.bronze, self.control, lambda told: self.told.append(told.text))

    def top(self) -> int:
        """The position of the last transaction in bronze."""
        found = self.bronze.highest_commit(1)
        assert found is not None
        return found

    def hold(self, upto: int) -> None:
        """Every change up to there is held, since silver has no row of it."""
        rows = self.bronze.changes(T, Span(1, -1, upto)).to_pylist()
        names = ("position", "ordinal", "op", "layout", "new", "old", "old_kind", "unchanged")
        held = [{name: row[name] for name in names} | self._key(row) | {"rules": [MISSING]} for row in rows]
        record(
            self.control,
            self.project.target(T),
            self.state.stream,
            Span(1, -1, upto),
            1,
            pa.Table.from_pylist(held),
            (),
        )

    @staticmethod
    def _key(row: dict[str, list[str] | None]) -> dict[str, list[str]]:
        new, old = row["new"] or row["old"] or [], row["old"] or row["new"] or []
        return {"key": new[:2], "from_key": old[:2]}

    def step(self, watermark: int) -> None:
        """What apply does with silver at a watermark."""
        there = TableState("silver.t", "delta", 0, watermark, IN, 1, 1, self.layout)
        self.rereader.step(self.state, {str(T): there})

    def landed(self) -> list[tuple[int, list[str | None] | None, list[str | None] | None]]:
        """Position, new and old tuple of what was landed, large values by their length."""
        rows = self.reread_rows()
        return [(at, new and [*new[:3], str(len(new[3] or ""))], old) for at, new, old in rows]


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reread:
    monkeypatch.setattr(row_refetch, "_AGAIN", 0.0)
    document = {"version": 1, "pipeline": database.name, "source": database.source, **SECTIONS}
    project = Project(Pipeline.model_validate(document), tmp_path / "pipeline.yaml", tmp_path)
    return begun(Reread(database, project))


def begun(shop: Reread) -> Reread:
    """With rows that the stream does not tell."""
    shop.sql(
        "CREATE TABLE t (a int, b text, n int, body text, PRIMARY KEY (a, b))",
        "ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 'k', 0, repeat('x', 5000) FROM generate_series(1, 5) AS g",
    )
    shop.receive()
    return shop


def test_what_is_read_lands_right_behind_the_watermark(shop: Reread) -> None:
    with shop.database.connect() as conn:
        conn.execute("UPDATE t SET a = 10, b = %s, n = 1 WHERE a = 1", [ODD])
    shop.sql("UPDATE t SET n = 2 WHERE a = 2", "DELETE FROM t WHERE a = 2")
    shop.sql("UPDATE t SET n = 3 WHERE a = 3")
    shop.receive()
    top = shop.top()
    rows = shop.bronze.changes(T, Span(1, -1, top))
    assert {len(row) for row in rows["unchanged"].to_pylist() if row} == {1}, "large values are not sent"
    shop.hold(top)
    shop.step(top)
    assert sorted(shop.landed(), key=repr) == sorted(
        [
            (top + 1, ["10", ODD, "1", "5000"], None),
            (top + 1, ["3", "k", "3", "5000"], None),
            (top + 1, None, ["1", "k", None, None]),
            (top + 1, None, ["2", "k", None, None]),
        ],
        key=repr,
    )
    assert shop.told == ["silver.t: read again at the source"]
    shop.step(top)
    assert len(shop.landed()) == 4, "what is not in force yet is not read once more"


@pytest.mark.parametrize("kind", [Kind(Style.BINARY, batch=True), Kind(Style.JSON, by_csn=True)], ids=lambda k: k.slot)
def test_the_gaussdb_family_is_asked_as_well(
    stand_in: StandIn, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_refetch, "_AGAIN", 0.0)
    shop = begun(Reread(stand_in.database, project_of(stand_in, kind, tmp_path, **SECTIONS)))
    with shop.database.connect() as conn:
        conn.execute("UPDATE t SET a = 10, b = %s, n = 1 WHERE a = 1", [ODD])
    shop.sql("UPDATE t SET n = 2 WHERE a = 2", "UPDATE t SET n = 3 WHERE a = 2")
    shop.receive()
    top = shop.top()
    shop.hold(top)
    shop.sql("UPDATE t SET n = 9 WHERE a = 5")
    shop.step(top)
    assert shop.landed() == [], "of what bronze lacks only the tables are known"
    shop.receive()
    shop.step(top)
    assert sorted(shop.landed(), key=repr) == sorted(
        [
            (top + 1, ["10", ODD, "1", "5000"], None),
            (top + 1, ["2", "k", "3", "5000"], None),
            (top + 1, None, ["1", "k", None, None]),
        ],
        key=repr,
    )


def test_a_row_that_silver_is_behind_of_waits_until_silver_is_there(shop: Reread) -> None:
    shop.sql("UPDATE t SET n = 1 WHERE a = 1")
    shop.receive()
    first = shop.top()
    shop.sql("UPDATE t SET n = 2 WHERE a = 1", "UPDATE t SET n = 9 WHERE a = 5")
    shop.receive()
    last = shop.top()
    shop.hold(first)
    shop.step(first)
    assert shop.landed() == []
    shop.step(last)
    assert shop.landed() == [(last + 1, ["1", "k", "2", "5000"], None)]


def test_what_bronze_does_not_have_yet_is_waited_for(shop: Reread) -> None:
    shop.sql("UPDATE t SET n = 1 WHERE a = 1")
    shop.receive()
    first = shop.top()
    shop.hold(first)
    shop.sql("UPDATE t SET n = 2 WHERE a = 1")
    shop.step(first)
    assert shop.landed() == []
    shop.receive()
    shop.step(first)
    assert shop.landed() == []
    shop.step(shop.top())
    assert shop.landed() == [(shop.top() + 1, ["1", "k", "2", "5000"], None)]


@pytest.fixture
def receiving(shop: Reread) -> Iterator[None]:
    writer = bronze_writer(shop.project)
    with beside(lambda stop: receive(shop.project, writer, once=False, stop=stop, report=silent)):
        yield


def test_what_silver_is_ahead_of_is_read_anew_and_others_rows_do_not_matter(shop: Reread, receiving: None) -> None:
    shop.sql("UPDATE t SET n = 1 WHERE a = 1")
    until(lambda: (shop.bronze.highest_commit(1) or 0) > 0)
    first = shop.top()
    shop.hold(first)
    with shop.database.connect(autocommit=False) as mine, shop.database.connect(autocommit=False) as other:
        mine.execute("UPDATE t SET n = 2 WHERE a = 1")
        other.execute("UPDATE t SET n = 9 WHERE a = 5")
        shop.step(first)  # the snapshot shows neither; a receiver reads the slot, so nobody can say what it has
        shop.sql("UPDATE t SET n = 8 WHERE a = 4")
        mine.commit()
        other.commit()
    until(lambda: len(shop.bronze.commits(Span(1, first, 1 << 62))) == 3)
    last = shop.top()
    assert shop.landed() == []
    until(lambda: (shop.step(last), bool(shop.landed()))[1])
    assert shop.landed() == [(last + 1, ["1", "k", "2", "5000"], None)]
    assert shop.told == ["silver.t: read again at the source"]


def refuse(shop: Reread, connections: str) -> None:
    with psycopg.connect(shop.database.server.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{shop.database.name}" ALLOW_CONNECTIONS {connections}')


def test_a_source_that_cannot_be_asked_is_told_once(shop: Reread) -> None:
    shop.sql("UPDATE t SET n = 1 WHERE a = 1")
    shop.receive()
    top = shop.top()
    shop.hold(top)
    refuse(shop, connections="false")
    shop.step(top)
    shop.step(top)
    refuse(shop, connections="true")
    (told,) = shop.told
    assert told.startswith("held rows cannot be read again: ")
    shop.step(top)
    assert len(shop.landed()) == 1
