"""Silver follows the layouts of its source: random changes of them, kills between the steps, what has to be allowed."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.errors import ConcurrentModification, DestructiveChange, UnexpectedColumn
from cdc_lake.model.change import Transaction
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.apply import schema_changes
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.silver.kinds import source_rows
from cdc_lake.tables import iceberg_silver
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import store, table_log
from cdc_lake.tables.schema_evolution import AddColumn, ChangeType, layout_columns
from cdc_lake.tables.spark_session import derive
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.messages import boundaries, raw_transaction
from tests.pipeline_file import make_project
from tests.schema_changes import Evolving
from tests.seeds import one_seed

from .conftest import new_name
from .formats import FORMATS, drawn
from .interrupted_pipeline import Anything

pytestmark = pytest.mark.spark
BUDGET = float(os.environ.get("CDC_LAKE_BUDGET", "1"))
TURNS = 2 if BUDGET == 1 else int(3 * BUDGET)


class Killed(BaseException):
    """The process that was applying is no more."""


class Lake:
    """A pipeline whose tables change their layouts."""

    def __init__(self, root: Path, spark: Any, name: str, fmt: str, tables: dict[str, dict[str, Any]], seed: int = 0):
        self.spark = spark
        name = new_name(name, fmt)
        self.project: Project = make_project(
            root,
            name,
            silver={
                "defaults": {"format": fmt, "namespace": name},
                "tables": [{"from": f"public.{table}", **settings} for table, settings in tables.items()],
            },
            snapshot={"mode": "none"},
        )
        self.tables = {table: Evolving(table, seed + n) for n, table in enumerate(tables)}
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.bronze.begin_stream("test", 10)
        self.position = 100
        self.told: list[ProgressEvent] = []

    def __getitem__(self, name: str) -> Evolving:
        return self.tables[name]

    def land(self) -> int:
        """What was done to the tables, as one transaction."""
        self.position += 10
        changes = tuple(change for table in self.tables.values() for change in table.taken())
        self.bronze.append([raw_transaction(Transaction(boundaries(self.position), changes))])
        return self.position

    def advance(self, *allowed: str, everything: bool = False) -> dict[str, Any]:
        """Apply; the errors of the tables that wait."""
        words = Anything() if everything else frozenset(allowed)
        with SpanLoop(self.project, self.spark, self.told.append, allowed=words) as advance:
            advance.run(None, threading.Event())
            return {label.split(".")[1]: error for label, error in advance.totals.failed.items()}

    def target(self, name: str) -> Any:
        return self.project.target(self.tables[name].table)

    def rows(self, name: str, *, whole: bool = False) -> list[dict[str, Any]]:
        """The rows that silver says the source has; `whole`: with columns that are kept."""
        target = self.target(name)
        found = source_rows(table_log(self.project, target).read(), target, self.tables[name].relation)
        names = found.column_names if whole else [c.name for c in layout_columns(self.tables[name].relation)]
        return sorted(found.select(names).to_pylist(), key=lambda row: row["id"])

    def columns(self, name: str) -> dict[str, str]:
        return {c.name: c.type for c in store(self.spark, self.project, self.target(name)).columns() or ()}


@FORMATS
def test_silver_equals_the_source_whatever_becomes_of_its_layouts(
    spark: Any, lake_root: Path, fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    chance = random.Random(seed)
    tables = {"plain": {"on_drop": "drop"}, "soft": {"deletes": "soft"}, "past": {"kind": "history", "on_drop": "drop"}}
    lake = Lake(lake_root, spark, "layouts", fmt, tables, seed)
    for table in lake.tables.values():
        table.insert()
    for turn in range(TURNS):
        for _ in range(chance.randint(2, 4)):
            for table in lake.tables.values():
                table.transaction(0.15 if turn else 0.0)
            lake.land()
        if chance.random() < 0.5:
            die_once(monkeypatch, chance.randint(1, 4))
            with contextlib.suppress(Killed):
                lake.advance(everything=True)
            monkeypatch.undo()
        assert lake.advance(everything=True) == {}
        for name, table in lake.tables.items():
            assert lake.rows(name) == table.expected(), (name, turn)


def die_once(monkeypatch: pytest.MonkeyPatch, passage: int) -> None:
    """At the n-th passage between two steps of a layout."""
    left = [passage]

    def passed(name: str) -> None:
        left[0] -= name in {at.LAYOUT_BEGUN, at.LAYOUT_FILLED, at.LAYOUT_DONE}
        if left[0] == 0:
            left[0] = -1
            raise Killed

    monkeypatch.setattr(schema_changes, "failpoint", passed)
    monkeypatch.setattr(iceberg_silver, "failpoint", passed)


@drawn
def test_what_is_destructive_waits_until_it_is_allowed_and_other_tables_flow(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "allowed", fmt, {"one": {"on_drop": "drop"}, "other": {}})
    one, other = lake["one"], lake["other"]
    one.insert()
    other.insert()
    lake.land()
    one.add("note", "text", "old")
    one.insert()
    lake.land()
    assert lake.advance() == {}
    assert lake.rows("one") == one.expected()
    before = lake.rows("one")
    one.rename("note", "remark")
    one.insert()
    other.insert()
    lake.land()
    one.drop("body")
    one.retype("id", "int8")
    one.insert()
    lake.land()
    waits = lake.advance()["one"]
    assert isinstance(waits, DestructiveChange)
    rename = f"rename column note of allowed_{fmt}.one to remark"
    assert rename in waits.message
    assert rename in (waits.remedy or "")
    assert lake.rows("one", whole=True) == before
    assert lake.rows("other") == other.expected()
    waits = lake.advance(rename)["one"]
    drop = f"drop column body of allowed_{fmt}.one"
    assert drop in waits.message
    assert lake.columns("one") == {"id": "int", "body": "string", "remark": "string"}
    assert lake.advance(drop) == {}
    assert lake.rows("one", whole=True) == one.expected()
    assert lake.columns("one") == {"id": "bigint", "remark": "string"}
    kinds = [one.facts["kind"] for one in lake.told if one.stage == "layout"]
    assert kinds == ["add_column", "rename_column", "drop_column", "change_type"]
    cut = ControlTables(lake.project.control).last_cut("test")
    assert cut is not None
    assert cut.position == lake.position


@FORMATS
def test_a_kept_column_is_null_from_then_on_and_its_name_may_come_back(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "keeps", fmt, {"t": {}, "every": {"kind": "append"}})
    for table in lake.tables.values():
        table.add("note", "text")
        table.insert(note="y")
        table.insert(note="y")
    lake.land()
    for table in lake.tables.values():
        table.drop("note")
        table.insert()
    lake["t"].update()
    lake.land()
    assert lake.advance() == {}
    notes = [row["note"] for row in lake.rows("t", whole=True)]
    assert sorted(map(str, notes)) in (["None", "None", "y"], ["None", "y", "y"])  # the update may be of the new row
    every = table_log(lake.project, lake.target("every")).read()["note"].to_pylist()
    assert sorted(map(str, every)) == ["None", "y", "y"]
    for table in lake.tables.values():
        table.add("note", "int4", "7")
        table.insert()
    lake.land()
    waits = lake.advance()
    words = {name: f"drop column note of keeps_{fmt}.{name}" for name in lake.tables}
    assert all(words[name] in error.message for name, error in waits.items())
    assert set(waits) == set(words)
    assert lake.advance(*words.values()) == {}
    assert lake.rows("t", whole=True) == lake["t"].expected()
    lake["t"].make_again()
    lake["t"].insert()
    lake.land()
    assert set(lake.advance()) == {"t"}
    assert lake.advance(f"begin keeps_{fmt}.t again") == {}
    assert lake.rows("t") == lake["t"].expected()
    assert len(lake.rows("t")) == 1


@FORMATS
def test_what_old_rows_had_in_a_column_follows_the_column(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "olds", fmt, {"t": {"kind": "append", "old_values": True, "on_drop": "drop"}})
    table = lake["t"]
    table.columns = [*table.columns[:1], replace(table.columns[1], name="Again")]
    for name, kind in (("day", "date"), ("gone", "int4"), ("left", "int4"), ("right", "int4")):
        table.add(name, kind)
    table.replace("1", "a", "2026-01-02", "3", "4", "5")
    lake.land()
    assert lake.advance() == {}
    table.retype("day", "text")
    for name, to in (("left", "l"), ("right", "left"), ("l", "right")):
        table.rename(name, to)
    table.drop("gone")
    table.drop("Again")
    table.add("Again", "int4")
    table.replace("1", "2026-01-03", "40", "50", "60")
    lake.land()
    waits = lake.advance()["t"]
    assert waits.remedy.count("--allow") == 5
    assert "_old_" not in waits.remedy
    assert lake.advance(everything=True) == {}
    there = lake.columns("t")
    old = {name: kind for name, kind in there.items() if name.startswith("_old_")}
    names = ["_old_id", "_old_day", "_old_right", "_old_left", "_old_Again"]
    assert old == {name: "string" if name == "_old_day" else "int" for name in names}
    rows = table_log(lake.project, lake.target("t")).read().select(names).to_pylist()
    assert {tuple(row.values()) for row in rows} == {(1, "2026-01-02", 4, 5, None), (1, "2026-01-03", 40, 50, 60)}


@FORMATS
def test_an_applier_that_comes_late_changes_no_layout_again(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "late", fmt, {"t": {}})
    lake["t"].insert()
    first = lake.land()
    assert lake.advance() == {}
    late = store(derive(spark), lake.project, lake.target("t"))
    base = late.marker("test")
    assert base.position == first
    lake["t"].add("note", "text", "old")
    lake["t"].insert()
    lake["t"].update()
    second = lake.land()
    assert lake.advance() == {}
    changes = [AddColumn(SilverColumn("note", "string"), "'old'"), ChangeType("id", "int", "bigint")]
    with pytest.raises(ConcurrentModification):
        late.reshape("test", base, second, changes, "true")
    assert lake.rows("t", whole=True) == lake["t"].expected()
    spark.sql(f"ALTER TABLE {late.name} ADD COLUMNS (mine int)")
    lake["t"].insert()
    lake.land()
    assert isinstance(lake.advance()["t"], UnexpectedColumn)
