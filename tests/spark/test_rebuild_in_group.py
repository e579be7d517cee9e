"""A table of a group is built again while the group waits for it, or when nobody knows any more what the group held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, FAILED, last_cut
from cdc_lake.errors import GroupWaits, OtherWriter, QuarantineLost
from cdc_lake.model.change import Change, Insert
from cdc_lake.model.relation import Relation
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.quarantine import list_quarantine
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import store
from cdc_lake_testing.faults import assert_cuts_are_true, assert_nothing_is_held_twice
from cdc_lake_testing.messages import raw_transaction, transaction_at
from tests.silver_rows import silver_rows

from .test_quarantine_groups import ALONE, LIMIT, LINES, ORDERS, advance, project_of

pytestmark = pytest.mark.spark


class World:
    """Two tables of a group and one beside, with one transaction that is held for a row of `lines`."""

    def __init__(self, root: Path, spark: Any, name: str) -> None:
        self.spark = spark
        self.project: Project = project_of(root, name, apply={"parallelism": 1})
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.bronze.begin_stream("test", 10)
        self.land(100, row(ORDERS, 1), row(LINES, 1), row(ALONE, 1))
        self.land(110, row(ORDERS, 2), row(LINES, 2, LIMIT + 1))
        advance(self.project, spark)

    def land(self, position: int, *changes: Change) -> None:
        one = transaction_at(position, changes)
        self.bronze.append([raw_transaction(one)])

    def states(self) -> dict[str, tuple[str, int]]:
        cut = last_cut(control_tables(self.project), "test")
        assert cut is not None
        return {name.partition(".")[2]: (one.state, one.position) for name, one in cut.tables.items()}

    def keys(self, relation: Relation) -> list[str]:
        rows = silver_rows(self.project, self.project.target(relation.table))
        return sorted(str(one["id"]) for one in rows if one.get("is_current") != "f")

    def quarantined(self) -> list[tuple[str, str | None]]:
        return sorted((one.source, one.key[0]) for one in list_quarantine(self.project).changes)

    def spoil(self) -> None:
        """Something else deletes a row of `orders`."""
        name = store(self.spark, self.project, self.project.target(ORDERS.table)).name
        self.spark.sql(f"DELETE FROM {name} WHERE id = 1")

    def rebuild(self, relation: Relation) -> None:
        rebuild(self.project, str(relation.table), spark=self.spark)


def row(relation: Relation, id_: int, amount: int = 5) -> Insert:
    return Insert(relation, (str(id_), str(amount), "x"))


def test_a_table_that_its_group_waits_for_is_built_again_and_the_group_goes_on(spark: Any, lake_root: Path) -> None:
    world = World(lake_root, spark, "waited_for")
    world.spoil()
    world.land(120, row(ORDERS, 3), row(LINES, 3, LIMIT + 1), row(ALONE, 3))
    world.land(130, row(ORDERS, 4), row(LINES, 4))
    with pytest.raises(OtherWriter):
        advance(world.project, spark)
    assert world.states() == {"orders": (FAILED, 110), "lines": (FAILED, 110), "alone": (ACTIVE, 130)}
    world.rebuild(ORDERS)
    assert world.states() == {"orders": (FAILED, 110), "lines": (FAILED, 110), "alone": (ACTIVE, 130)}
    assert world.keys(ORDERS) == ["1"], "no further than its group"
    assert_cuts_are_true(world.project)
    advance(world.project, spark)
    assert set(world.states().values()) == {(ACTIVE, 130)}
    assert (world.keys(ORDERS), world.keys(LINES), world.keys(ALONE)) == (["1", "4"], ["1", "4"], ["1", "3"])
    assert world.quarantined() == [(f"public.{name}", key) for name in ("lines", "orders") for key in ("2", "3")]
    assert_nothing_is_held_twice(world.project)
    assert_cuts_are_true(world.project)


def test_nothing_is_built_again_beside_a_table_of_which_is_not_known_what_it_held(spark: Any, lake_root: Path) -> None:
    world = World(lake_root, spark, "unknown")
    quarantined = [("public.lines", "2"), ("public.orders", "2")]
    assert world.quarantined() == quarantined
    control = control_tables(world.project)
    kept = control.read("quarantine")
    control.delete("quarantine", pc.scalar(True))
    with pytest.raises(QuarantineLost):
        advance(world.project, spark)
    for relation in (ORDERS, LINES):
        with pytest.raises(QuarantineLost, match=f"{relation.table.name} holds whole transactions of its group"):
            world.rebuild(relation)
    assert (world.keys(ORDERS), world.keys(LINES)) == (["1"], ["1"])
    control.append("quarantine", kept)
    world.land(120, row(ORDERS, 3), row(LINES, 3))
    advance(world.project, spark)
    world.rebuild(ORDERS)
    assert (world.keys(ORDERS), world.keys(LINES), world.quarantined()) == (["1", "3"], ["1", "3"], quarantined)


def test_of_two_that_are_behind_each_other_the_one_behind_is_built_first(spark: Any, lake_root: Path) -> None:
    world = World(lake_root, spark, "behind")
    world.spoil()
    world.land(120, row(ORDERS, 3), row(LINES, 3), row(ALONE, 3))
    with pytest.raises(OtherWriter):
        advance(world.project, spark)
    world.rebuild(LINES)
    assert world.states()["lines"] == (FAILED, 110), "it has nowhere to go before the other one"
    with pytest.raises((OtherWriter, GroupWaits)):
        advance(world.project, spark)
    world.rebuild(ORDERS)
    advance(world.project, spark)
    assert (world.keys(ORDERS), world.keys(LINES)) == (["1", "3"], ["1", "3"])
    assert set(world.states().values()) == {(ACTIVE, 120)}
