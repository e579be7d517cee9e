"""What `source.tables` says otherwise than a stream has it: tables that came, tables that went.

A set of names each, worked out from what is chosen, what the stream carries, what the database has, and how each table
was followed until now. What a start does about them is of each kind of source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from cdc_lake.bronze.port import BronzeState
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observe.failpoint import TABLES_LEFT, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.state.copies import Course, record_left


@dataclass(frozen=True, slots=True)
class TableChanges:
    """`lacking`: chosen and not carried; `waiting`: left or never followed, chosen and carried; `gone`: followed, there
    and not chosen; `extra`: carried and not chosen, where who carries them can leave them out; `left`: all that were
    left, and not copied since; `moved`: those of `waiting` that the publication has in another way than before.
    """

    lacking: tuple[TableName, ...] = ()
    waiting: tuple[TableName, ...] = ()
    gone: tuple[TableName, ...] = ()
    extra: tuple[TableName, ...] = ()
    left: frozenset[TableName] = frozenset()
    moved: frozenset[TableName] = frozenset()


def changes_of(
    chosen: Collection[TableName],
    carried: Collection[TableName],
    existing: Collection[TableName],
    known: Mapping[str, Course],
    came: Collection[TableName],
    *,
    published: bool,
    moved: Collection[TableName] = (),
) -> TableChanges:
    """Compare. `came`: those carried that nothing is known of; `published`: what is carried can be altered; `moved`:
    those that it carries in another way than before.
    """
    chosen, carried = set(chosen), set(carried)
    again = frozenset(moved) & chosen & carried
    left = frozenset(TableName.parse(name) for name, course in known.items() if course.waits)
    followed = {TableName.parse(name) for name in known} - left
    return TableChanges(
        lacking=tuple(sorted(chosen - carried)),
        waiting=tuple(sorted(chosen & carried & left | set(came) | again)),
        gone=tuple(sorted((carried - left | followed) & set(existing) - chosen)),
        extra=tuple(sorted(carried - chosen if published else ())),
        left=left,
        moved=again - left,
    )


def leave(
    found: TableChanges, waiting: Collection[TableName], control: ControlTables, state: BronzeState, tell: Tell
) -> None:
    """Record as left what went, and what is `waiting` for a copy; tell of what went. Raises ControlNotWritten."""
    if leaves := [table for table in (*found.gone, *waiting) if table not in found.left]:
        record_left(control, state, leaves)
    failpoint(TABLES_LEFT)
    for table in found.gone:
        tell(Progress("connect", f"table {table} is not followed any more: `source.tables` leaves it out"))


def newcomers(
    new: Iterable[TableName], landed: Iterable[Relation], layout_now: Callable[[TableName], Relation | None]
) -> set[TableName]:
    """Those of new tables that bronze has nothing of; one that has another name now is none of them."""
    landed = list(landed)
    names, numbers = {layout.table for layout in landed}, {layout.oid for layout in landed if layout.oid is not None}
    out = set()
    for table in set(new) - names:
        now = layout_now(table)
        if now is not None and now.oid not in numbers:
            out.add(table)
    return out
