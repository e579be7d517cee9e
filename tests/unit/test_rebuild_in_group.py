"""Where a table of a group is built again to, and what has to be known of the others; with Spark it is done in
tests/spark/test_rebuild_in_group.py.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, FAILED, Cut, TableState, write_cut
from cdc_lake.control.quarantine import quarantine_log
from cdc_lake.control.snapshots import CopiedTable, courses, record_left, record_recopied
from cdc_lake.errors import GroupWaits, QuarantineLost
from cdc_lake.model.change import Insert
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.rebuild import Rebuilding
from cdc_lake.runtime.apply.span_planning import Part, RebuildPlan, rebuild_plan
from cdc_lake.runtime.apply.transaction_groups import AheadTable, passed_by, renewed_to, together_at
from cdc_lake.tables.control_schema import schema_of
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import raw_transaction, table, transaction_at
from tests.pipeline_file import make_project
from tests.seeds import seeds

ORDERS, LINES, ALONE = (TableName("public", name) for name in ("orders", "lines", "alone"))
FORM = table("public.orders", id="int4")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return made(tmp_path, "current")


def made(root: Path, kind: str) -> Project:
    group = {"name": "shop", "tables": ["public.orders", "public.lines"], "hold": "transaction"}
    silver = {"defaults": {"kind": kind}, "groups": [group]}
    return make_project(root, snapshot={"mode": "none"}, silver=silver)


@pytest.fixture
def state(project: Project) -> StreamCheckpoint:
    return DeltaBronze(project.bronze, durability="os").begin_stream("test", 10)


def cut(**positions: int) -> Cut:
    at = max(positions.values())
    states = {
        n: TableState(f"silver.{n}", "delta", 1, p, ACTIVE if p == at else FAILED, 0) for n, p in positions.items()
    }
    return Cut(at, {f"public.{name}": one for name, one in states.items()})


def passed(project: Project, state: StreamCheckpoint, listed: Cut, upto: int) -> list[AheadTable]:
    plan = RebuildPlan(10, upto, None, FORM, (Part(Span(1, 10, upto), 0),))
    log = quarantine_log(ControlTables(project.control), for_new_content=True)
    return passed_by(project, log, state, listed, project.target(ORDERS), plan)


@pytest.mark.parametrize(
    ("orders", "lines", "upto"),
    [(100, 100, 100), (60, 60, 60), (50, 60, 60), (60, 50, 60), (100, 60, 100)],
    ids=["all in the cut", "a group behind it", "itself behind", "ahead of the others", "in the cut, others behind"],
)
def test_a_table_is_built_to_where_its_group_is_and_never_back(
    project: Project, state: StreamCheckpoint, orders: int, lines: int, upto: int
) -> None:
    listed = cut(orders=orders, lines=lines, alone=100)
    assert together_at(project, "test", listed, ORDERS) == upto
    assert together_at(project, "test", listed, ALONE) == 100
    if lines >= upto:
        (one,) = passed(project, state, listed, upto)
        assert (one.relation, one.after, one.position) == ("public.lines", 10, upto)
    else:
        with pytest.raises(GroupWaits, match=r"silver\.lines") as waits:
            passed(project, state, listed, upto)
        assert "cdc-lake rebuild public.lines" in waits.value.remedy
        assert together_at(project, "test", listed, LINES) == orders, "it is built to where the other one is"


def test_a_group_that_no_cut_lists_yet_keeps_no_table_back(project: Project) -> None:
    assert together_at(project, "test", cut(orders=50, alone=100), ORDERS) == 100
    assert together_at(project, "test", cut(lines=60, alone=100), ORDERS) == 60


def test_what_another_table_held_has_to_be_recorded(project: Project, state: StreamCheckpoint) -> None:
    listed = cut(orders=100, lines=100)
    listed.tables["public.lines"] = replace(listed.tables["public.lines"], quarantined_keys=1)
    with pytest.raises(
        QuarantineLost, match=r"silver\.orders holds whole transactions of its group, .* 1 quarantined keys"
    ) as lost:
        passed(project, state, listed, 100)
    assert lost.value.remedy.endswith("cdc-lake resync public.orders public.lines")
    row: dict[str, Any] = dict.fromkeys(schema_of("quarantine").names)
    row |= {"relation": "public.lines", "epoch": 1, "generation": 1, "position": 50, "ordinal": 2, "op": "I"}
    ControlTables(project.control).append("quarantine", [row | {"reason": "failed", "key": ["7"]}])
    (one,) = passed(project, state, listed, 100)
    assert one.quarantined == {(50, False)}


# ── copied again ──


class Copied:
    """Orders that were left at 65 and copied again at 70, both in bronze, with a transaction at 63 and one at 80."""

    def __init__(self, project: Project) -> None:
        self.project, self.control = project, ControlTables(project.control)
        bronze = DeltaBronze(project.bronze, durability="os")
        bronze.begin_stream("test", 10)
        self.land(bronze, 63)
        bronze.advance(65, 65)
        record_left(self.control, _there(bronze.state()), [ORDERS])
        self.copy(70, ORDERS)
        self.land(bronze, 80)
        bronze.advance(100, 100)

    def land(self, bronze: DeltaBronze, position: int) -> None:
        change = Insert(FORM, (str(position),))
        bronze.append([raw_transaction(transaction_at(position, (change,)))])

    def copy(self, position: int, *names: TableName) -> None:
        state = _there(bronze_reader(self.project).state())
        copies = [CopiedTable(name, FORM.layout, 0, 0, position) for name in names]
        record_recopied(self.control, state, f"again-{position}", copies)

    def begin(self, listed: Cut) -> Rebuilding:
        """A rebuild of orders beside what a cut lists, which is worked out and not run."""
        write_cut(self.control, _there(bronze_reader(self.project).state()), listed, None, silent)
        return Rebuilding(self.project, ORDERS)

    def others(self, listed: Cut) -> list[AheadTable]:
        """What counts of the others where orders is built again to 100."""
        reader, target = bronze_reader(self.project), self.project.target(ORDERS)
        state = _there(reader.state())
        plan = rebuild_plan(self.project, reader, state, ORDERS, 100)
        return passed_by(self.project, quarantine_log(self.control, for_new_content=True), state, listed, target, plan)


def _there(state: StreamCheckpoint | None) -> StreamCheckpoint:
    assert state is not None
    return state


@pytest.mark.parametrize(("lines", "upto"), [(60, 70), (75, 75), (100, 100)])
def test_a_table_that_no_cut_lists_is_built_to_its_copy_at_least(tmp_path: Path, lines: int, upto: int) -> None:
    world, listed = Copied(made(tmp_path, "current")), cut(lines=lines, alone=100)
    assert together_at(world.project, "test", listed, ORDERS) == upto
    assert together_at(world.project, "test", cut(orders=50, lines=lines, alone=100), ORDERS) == lines
    world.begin(listed)


def test_a_table_that_no_cut_lists_waits_for_its_group_where_its_history_was_judged_further(tmp_path: Path) -> None:
    world = Copied(made(tmp_path, "history"))
    with pytest.raises(GroupWaits, match=r"silver\.lines"):
        world.begin(cut(lines=60, alone=100))
    world.begin(cut(lines=64, alone=100))


@pytest.mark.parametrize("behind", [False, True])
def test_of_tables_that_are_copied_again_together_is_asked_only_what_is_known(tmp_path: Path, *, behind: bool) -> None:
    world = Copied(made(tmp_path, "history"))
    listed = cut(orders=100, lines=60 if behind else 100)
    listed.tables["public.lines"] = replace(listed.tables["public.lines"], quarantined_keys=1)
    with pytest.raises(GroupWaits if behind else QuarantineLost):
        world.begin(listed)
    world.copy(90, LINES, ORDERS)
    world.begin(listed)
    row: dict[str, Any] = dict.fromkeys(schema_of("quarantine").names)
    row |= {"relation": "public.lines", "epoch": 1, "generation": 1, "position": 50, "ordinal": 2, "op": "I"}
    world.control.append("quarantine", [row | {"reason": "failed", "key": ["7"]}])
    assert [one.quarantined for one in world.others(listed)] == [{(50, False)}], (
        "what is recorded counts before the copy too"
    )


# ── all of a group copied again, and silver beyond the copies ──

NAMES = ("orders", "lines", "notes")


class Behind:
    """A group of three tables of random kinds that is behind the cut; each was copied again, also behind that."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        kinds = [{"from": f"public.{name}", "kind": dice.choice(("current", "history"))} for name in NAMES]
        group = {"name": "shop", "tables": [f"public.{name}" for name in NAMES], "hold": "transaction"}
        silver = {"tables": kinds, "groups": [group]}
        self.project = make_project(root, snapshot={"mode": "none"}, silver=silver)
        self.control = ControlTables(self.project.control)
        bronze = DeltaBronze(self.project.bronze, durability="os")
        bronze.begin_stream("test", 10)
        forms = [table(f"public.{name}", id="int4") for name in NAMES]
        for position in range(20, 100, 2):
            some = dice.sample(forms, dice.randint(1, 3))
            changes = tuple(Insert(form, (str(position),)) for form in some)
            bronze.append([raw_transaction(transaction_at(position, changes))])
        bronze.advance(100, 100)
        self.state = _there(bronze.state())
        self.cut = cut(**{name: dice.randrange(20, 100) for name in NAMES}, alone=100)
        positions = dice.sample(range(20, 100), len(NAMES))  # no two copies have one name
        self.copies = dict(zip(NAMES, positions, strict=True))
        for name, position in sorted(self.copies.items(), key=lambda one: one[1]):
            form = CopiedTable(TableName("public", name), FORM.layout, 0, 0, position)
            record_recopied(self.control, self.state, f"again-{position}", [form])
        self.known = courses(self.control.snapshots(), "test")

    def renew(self, name: str) -> bool:
        """Begin again with a table's copy, as far as a run would; whether that can be."""
        listed = self.cut.tables[f"public.{name}"]
        copy = self.known[f"public.{name}"].renewal(100, listed.copied)
        if copy is None:
            return False
        write_cut(self.control, self.state, self.cut, None, silent)
        try:
            Rebuilding(self.project, copy.relation, renewed_to(self.project, "test", self.cut, self.known, copy))
        except GroupWaits:
            return False
        upto = renewed_to(self.project, "test", self.cut, self.known, copy)
        self.cut.tables[f"public.{name}"] = replace(listed, position=upto, copied=copy.position)
        return True


@pytest.mark.parametrize("seed", seeds(5))
def test_tables_of_a_group_that_were_all_copied_again_never_wait_for_each_other(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    world = Behind(tmp_path, random.Random(seed))
    waiting = set(NAMES)
    while waiting:
        begun = {name for name in sorted(waiting) if world.renew(name)}
        assert begun, f"{waiting} wait for each other: {world.cut}, copied at {world.copies}"
        waiting -= begun
    for name, copied in world.copies.items():
        assert copied <= world.cut.tables[f"public.{name}"].position <= 100
