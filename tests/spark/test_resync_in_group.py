"""Tables of a group that are copied again while another of them is behind: the copy ends it, and the group goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.writer import BesideBronze, DeltaBronze
from cdc_lake.control.cuts import ACTIVE, FAILED, last_cut
from cdc_lake.control.snapshots import CopiedTable, copy_name, record_recopied
from cdc_lake.errors import BaseRowMissing, GroupWaits, QuarantineLost
from cdc_lake.model.change import UNCHANGED, Change, Insert, Update
from cdc_lake.model.relation import Relation
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.quarantine import list_quarantine
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.faults import assert_cuts_are_true
from cdc_lake_testing.messages import raw_transaction, transaction_at
from tests.pipeline_file import make_project
from tests.silver_rows import silver_rows

from .formats import BESIDE
from .test_quarantine_groups import ALONE, BUDGET, GROUP, LIMIT, LINES, ORDERS, RULE

pytestmark = pytest.mark.spark


class World:
    """Two tables of a group and one beside; `lines` misses a row, so that what changes it is refused."""

    lines: ClassVar[dict[str, str]] = {"format": "iceberg"}

    def __init__(self, root: Path, spark: Any, name: str, **orders: Any) -> None:
        self._spark = spark
        tables = [
            {"from": "public.orders", "rules": [RULE], **orders},
            {"from": "public.lines", "rules": [RULE], **self.lines},
        ]
        silver = {"defaults": {"namespace": name, "format": BESIDE}, "tables": tables, "groups": [GROUP]}
        small = {"parallelism": 1}
        self.project = make_project(root, name, silver=silver, snapshot={"mode": "none"}, apply=small)
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.bronze.begin_stream("test", 10)
        self.beside = BesideBronze(DeltaBronzeTable(LocalDeltaStorage(self.project.bronze, durable=False)))
        self.control = control_tables(self.project)
        self.lasting: SpanLoop | None = None
        """The one that goes on from run to run, where there is one."""
        self.land(100, row(ORDERS, 1), row(LINES, 1))
        self.advance()
        self.begin()

    def begin(self) -> None:
        self.land(110, Update(LINES, ("9", "5", UNCHANGED), None), row(ORDERS, 2), row(ALONE, 2))
        self.refused()

    def land(self, position: int, *changes: Change) -> None:
        one = transaction_at(position, changes)
        self.bronze.append([raw_transaction(one)])

    def copy(self, position: int, *, late: bool = False, **rows: Sequence[int]) -> None:
        """Copies of tables with rows of these ids, all as of one position, are in force; `late`: the stream is beyond
        it.
        """
        state = self.bronze.state()
        assert state is not None
        name, copied = copy_name(state, position), []
        for chunk, relation in enumerate((ORDERS, LINES), 1):
            if (ids := rows.get(relation.table.name)) is None:
                continue
            values = pa.array([[str(id_), "5", "x"] for id_ in ids], pa.list_(pa.string()))
            self.beside.append_snapshot(name, chunk, relation, values, 1000 * chunk, position)
            copied.append(CopiedTable(relation.table, relation.layout, len(ids), 1, position))
        record_recopied(self.control, state, name, copied)
        if not late:
            self.bronze.advance(position + 1, position + 1)

    def advance(self) -> None:
        with nullcontext(self.lasting) if self.lasting else SpanLoop(self.project, self._spark, silent) as walk:
            walk.run(None, threading.Event())
            for error in sorted(walk.totals.failed.values(), key=lambda error: isinstance(error, GroupWaits)):
                raise error

    def refused(self) -> None:
        with pytest.raises(BaseRowMissing):
            self.advance()
        assert self.states() == {"orders": FAILED, "lines": FAILED, "alone": ACTIVE}

    def states(self) -> dict[str, str]:
        cut = last_cut(self.control, "test")
        assert cut is not None
        return {relation.partition(".")[2]: one.state for relation, one in cut.tables.items()}

    def keys(self, relation: Relation) -> list[int]:
        rows = silver_rows(self.project, self.project.target(relation.table))
        return sorted(int(str(one["id"])) for one in rows if one.get("is_current") != "f")

    def assert_whole(self, orders: list[int], lines: list[int]) -> None:
        assert (self.keys(ORDERS), self.keys(LINES)) == (orders, lines)
        assert set(self.states().values()) == {ACTIVE}
        assert_cuts_are_true(self.project)


class Lost(World):
    """Tables of kind `history` that hold a transaction, which is recorded no more."""

    lines: ClassVar[dict[str, str]] = {"kind": "history"}

    def begin(self) -> None:
        self.land(110, row(ORDERS, 2), row(LINES, 2, LIMIT + 1))
        self.advance()
        self.control.delete("quarantine", pc.scalar(True))


def row(relation: Relation, id_: int, amount: int = 5) -> Insert:
    return Insert(relation, (str(id_), str(amount), "x"))


@pytest.mark.parametrize("lasting", [True, False][:BUDGET], ids=["by the same run", "by the next"][:BUDGET])
def test_the_table_that_keeps_its_group_back_is_mended_by_a_copy(spark: Any, lake_root: Path, *, lasting: bool) -> None:
    world = World(lake_root, spark, f"mended{int(lasting)}", format="delta")
    with ExitStack() as opened:
        if lasting:
            world.lasting = opened.enter_context(SpanLoop(world.project, spark, silent))
        world.land(115, row(ORDERS, 7, LIMIT + 1), row(LINES, 8), row(ALONE, 3))
        world.refused()
        world.copy(125, lines=[1, 8, 9])
        world.land(130, row(ORDERS, 4), row(LINES, 4))
        world.advance()
    world.assert_whole([1, 2, 4], [1, 4, 8, 9])
    quarantined = [(one.source, one.key[0]) for one in list_quarantine(world.project).changes]
    assert quarantined == [("public.orders", "7")], "the copy has the other half of that transaction"


def test_both_tables_of_a_group_that_is_behind_are_copied_again(spark: Any, lake_root: Path) -> None:
    world = World(lake_root, spark, "both")
    world.land(120, row(ORDERS, 3), row(LINES, 3), row(ALONE, 3))
    world.refused()
    world.copy(125, orders=[1, 2, 3], lines=[1, 3, 9])
    world.land(130, row(ORDERS, 4), row(LINES, 4))
    world.advance()
    world.assert_whole([1, 2, 3, 4], [1, 3, 4, 9])


@pytest.mark.parametrize(
    ("orders", "apart"),
    [({}, False), ({"kind": "history"}, True)],
    ids=["current, copied at once", "history, one after the other"],
)
def test_tables_of_a_group_do_not_wait_for_each_other_where_a_cut_is_beyond_their_copies(
    spark: Any, lake_root: Path, orders: dict[str, Any], *, apart: bool
) -> None:
    world = World(lake_root, spark, f"beyond{int(apart)}", **orders)
    world.land(120, row(ORDERS, 3), row(LINES, 3), row(ALONE, 3))
    world.land(130, row(ORDERS, 4), row(LINES, 4))
    world.land(140, row(ORDERS, 5, LIMIT + 1), row(LINES, 5))
    world.land(150, row(ORDERS, 6), row(LINES, 6), row(ALONE, 6))
    world.refused()
    if apart:
        world.copy(125, late=True, orders=[1, 2, 3])
        world.copy(135, late=True, lines=[1, 3, 4, 9])
    else:
        world.copy(125, late=True, orders=[1, 2, 3], lines=[1, 3, 9])
    world.land(160, row(ORDERS, 7), row(LINES, 7))
    world.advance()
    world.assert_whole([1, 2, 3, 4, 6, 7], [1, 3, 4, 6, 7, 9])
    quarantined = {(one.source, one.key[0]) for one in list_quarantine(world.project).changes}
    assert quarantined == {("public.orders", "5"), ("public.lines", "5")}


@pytest.mark.parametrize("orders", [{"kind": "history"}, {}][:BUDGET], ids=["history", "current"][:BUDGET])
def test_a_copy_waits_for_a_table_of_its_group_that_can_go_on(
    spark: Any, lake_root: Path, orders: dict[str, Any]
) -> None:
    world = World(lake_root, spark, f"waits_{orders.get('kind', 'current')}", **orders)
    world.land(120, row(ORDERS, 3), row(LINES, 3), row(ALONE, 3))
    world.copy(125, orders=[1, 2, 3])
    world.land(130, row(ORDERS, 4), row(LINES, 4), row(ALONE, 4))
    with pytest.raises(BaseRowMissing):
        world.advance()
    assert world.states()["lines"] == FAILED
    world.copy(135, lines=[1, 3, 4, 9])
    world.land(140, row(ORDERS, 5), row(LINES, 5))
    world.advance()
    world.assert_whole([1, 2, 3, 4, 5], [1, 3, 4, 5, 9])


def test_histories_of_a_group_whose_holds_are_lost_go_on_from_copies_of_all_of_it(spark: Any, lake_root: Path) -> None:
    world = Lost(lake_root, spark, "lost", kind="history")
    world.land(120, row(ORDERS, 3), row(LINES, 3), row(ALONE, 3))
    with pytest.raises(QuarantineLost):
        world.advance()
    world.copy(125, orders=[1, 2, 3], lines=[1, 3])
    world.land(130, row(ORDERS, 4), row(LINES, 4))
    world.land(140, row(ORDERS, 5), row(LINES, 5, LIMIT + 1))
    world.advance()
    world.assert_whole([1, 2, 3, 4], [1, 3, 4])
    assert {one.key[0] for one in list_quarantine(world.project).changes} == {"5"}
