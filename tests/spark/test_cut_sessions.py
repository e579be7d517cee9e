"""Sessions at cuts by Spark: the same rows as without it, for every kind and format; pins are told to the formats."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import cdc_lake
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.errors import VersionGone
from cdc_lake.model.change import Delete, Insert, OldKind, Transaction, Update
from cdc_lake.model.position import as_of
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.cut_retention import pin_cut, unpin_cut
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.spark_session import derive
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project
from tests.seeds import one_seed

from .conftest import BUDGET

pytestmark = pytest.mark.spark
NAMES = {"rows_d": "current", "rows_i": "current", "past_d": "history", "past_i": "history", "log_i": "append"}
TABLES = {name: table(f"public.{name}", id="int4", amount="int4") for name in NAMES}


class Shop:
    """A table of each kind and format that get the same changes."""

    def __init__(self, root: Path, spark: Any) -> None:
        tables = [
            {"from": f"public.{name}", "kind": kind, "format": "delta" if name.endswith("d") else "iceberg"}
            for name, kind in NAMES.items()
        ]
        silver = {"defaults": {"namespace": "cut_sessions"}, "tables": tables}
        self.project = make_project(root, "cut_sessions", silver=silver, snapshot={"mode": "none"})
        self.spark = spark
        self.rows: dict[int, int] = {}
        self.states: dict[int, dict[int, int]] = {}
        self._bronze = DeltaBronze(self.project.bronze, durability="os")
        self._bronze.begin_stream("test", 10)
        self._position = 100

    def change(self, chance: random.Random) -> int:
        """A transaction that inserts, updates and deletes in all tables; its position."""
        self._position += 10
        made: list[Any] = []
        for id_ in chance.sample(range(8), 4):
            amount = chance.randrange(1000)
            if id_ not in self.rows:
                made += [Insert(t, (str(id_), str(amount))) for t in TABLES.values()]
                self.rows[id_] = amount
            elif chance.random() < 0.6:
                made += [Update(t, (str(id_), str(amount))) for t in TABLES.values()]
                self.rows[id_] = amount
            else:
                made += [Delete(t, (str(id_), None), OldKind.KEY) for t in TABLES.values()]
                del self.rows[id_]
        self._bronze.append([raw_transaction(Transaction(boundaries(self._position), tuple(made)))])
        return self._position

    def apply(self) -> None:
        """Everything, and a cut; what the source held then is kept."""
        with SpanLoop(self.project, self.spark, silent) as advance:
            advance.run(None, threading.Event())
            assert not advance.totals.failed
        self.states[self._position] = dict(self.rows)


def by_id(rows: list[dict[str, Any]]) -> dict[int, int]:
    found = {row["id"]: row["amount"] for row in rows}
    assert len(found) == len(rows)
    return found


def changes(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["_position"], row["_ordinal"], row["_op"], row["id"], row["amount"]) for row in rows)


def versions(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(
        str([v.astimezone(UTC) if isinstance(v, datetime) else v for v in map(row.get, sorted(row))]) for row in rows
    )


def test_every_kind_answers_as_of_every_cut_with_spark_and_without(spark: Any, lake_root: Path) -> None:
    seed = one_seed()
    print(f"seed {seed}")
    chance, shop = random.Random(seed), Shop(lake_root, spark)
    for _ in range(3 if BUDGET == 1 else 4):
        for _ in range(chance.randint(1, 3)):
            shop.change(chance)
        shop.apply()
    first = min(shop.states)
    pin_cut(shop.project, "first", as_of(first), None, None)
    logs: dict[str, list[tuple[Any, ...]]] = {}

    def proven(position: int, asked: Any, names: tuple[str, ...]) -> None:
        session, own = cdc_lake.Pipeline(shop.project).cut(as_of=asked), derive(spark)
        assert session.cut.position == position
        for name in names:
            given = session.read(name).to_pylist()
            frames = [row.asDict() for row in session.frame(own, name).collect()]
            if NAMES[name] == "append":
                assert changes(given) == changes(frames)
                assert max(row["_position"] for row in given) == position
                assert changes(given) == logs.setdefault(f"{name} {position}", changes(given))
                continue
            assert by_id(given) == by_id(frames) == shop.states[position]
            if NAMES[name] == "history":
                whole = session.read(name, versions=True).to_pylist()
                spark_rows = [r.asDict() for r in session.frame(own, name, versions=True).collect()]
                assert versions(whole) == versions(spark_rows)
                assert versions(whole) == logs.setdefault(f"{name} {position}", versions(whole))

    for position in shop.states:
        proven(position, position + 9 if position < max(shop.states) else "latest", tuple(NAMES))
    # the formats were told of the pin: the delta table's own vacuum would keep its version, an expiry too
    shop.apply()
    deltas = [shop.project.target(TABLES[name].table) for name in ("rows_d", "past_d")]
    paths = [str(shop.project.silver_path(target)) for target in deltas]
    for path in paths:
        assert DeltaTable(path).metadata().configuration["delta.logRetentionDuration"] == "interval 876000 hours"
    tagged = spark.sql("SELECT id, amount FROM lake.cut_sessions.rows_i VERSION AS OF 'cut_first'").collect()
    assert by_id([row.asDict() for row in tagged]) == shop.states[first]
    unpin_cut(shop.project, "first")
    shop.apply()
    for path in paths:
        assert "cdc_lake.promised" not in DeltaTable(path).metadata().configuration
        DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    for name in ("rows_i", "past_i", "log_i"):
        made = iceberg_table(shop.project, shop.project.target(TABLES[name].table))
        assert made is not None
        assert list(made.refs()) == ["main"] or all(not tag.startswith("cut_") for tag in made.refs())
        head = made.current_snapshot()
        for one in made.snapshots():
            if head is not None and one.snapshot_id != head.snapshot_id:
                spark.sql(f"CALL lake.system.expire_snapshots(table => 'cut_sessions.{name}', "
                          f"snapshot_ids => ARRAY({one.snapshot_id}))")  # fmt: skip
    gone = cdc_lake.Pipeline(shop.project).cut(as_of=first)
    for name in ("rows_d", "rows_i"):
        with pytest.raises(VersionGone):
            gone.read(name)
        with pytest.raises(VersionGone):
            gone.frame(derive(spark), name)
    for position in shop.states:  # what keeps its past answers for ever
        proven(position, position, ("past_d", "past_i", "log_i"))
