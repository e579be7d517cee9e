"""What `source.tables` says otherwise than a stream has it: tables that came, tables that went.

A set of names each, worked out from what is chosen, what the stream carries, what the database has, and how each table
was followed until now. What a start does about them is of each kind of source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

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
    left, and not copied since; `moved`: those of `waiting` that the publication has in another way than before, or
    that are another table than before; `dropped`: followed, and the database has no table of that name any more.
    """

    lacking: tuple[TableName, ...] = ()
    waiting: tuple[TableName, ...] = ()
    gone: tuple[TableName, ...] = ()
    extra: tuple[TableName, ...] = ()
    left: frozenset[TableName] = frozenset()
    moved: frozenset[TableName] = frozenset()
    dropped: tuple[TableName, ...] = ()


def changes_of(
    chosen: Collection[TableName],
    carried: Collection[TableName],
    existing: Collection[TableName],
    known: Mapping[str, Course],
    came: Collection[TableName],
    *,
    published: bool,
    moved: Collection[TableName] = (),
    read: Iterable[str] = (),
) -> TableChanges:
    """Compare. `came`: those carried that nothing is known of; `published`: what is carried can be altered; `moved`:
    those that it carries in another way than before; `read`: names that the stream was read by before.
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
        dropped=tuple(sorted(({*followed, *map(TableName.parse, read)} - left).difference(existing))),
    )


def leave(
    found: TableChanges,
    waiting: Collection[TableName],
    control: ControlTables,
    state: BronzeState,
    tell: Tell,
    ends: int | None = None,
) -> None:
    """Record as left what went, and what is `waiting` for a copy; tell of what went. Raises ControlNotWritten.

    `ends`: a position that everything committed by now lies at or below: what is dropped is followed up to there. None:
    where the stream cannot say, and what is dropped is left as it is.
    """
    if found.dropped and ends is not None:
        record_left(control, replace(state, upto=max(state.upto, ends)), found.dropped)
        for table in found.dropped:
            tell(Progress("connect", f"table {table} is not in the database any more: silver keeps its last rows"))
    if leaves := [table for table in (*found.gone, *waiting) if table not in found.left]:
        record_left(control, state, leaves)
    failpoint(TABLES_LEFT)
    for table in found.gone:
        tell(Progress("connect", f"table {table} is not followed any more: `source.tables` leaves it out"))


def tell_renamed(names: Mapping[TableName, TableName], tell: Tell) -> None:
    """Tell of tables that were known by another name, where no copy is asked for."""
    for table, before in sorted(names.items()):
        text = f"table {before} was renamed to {table}: silver of that name begins with its changes from here on"
        tell(Progress("warning", f"{text}, and `snapshot.mode` asks for no copy: cdc-lake resync {table}"))


def newcomers(new: Iterable[TableName], landed: Iterable[Relation]) -> set[TableName]:
    """Those of new tables that bronze has nothing of, or that it knows by another name: they were renamed."""
    names_of: defaultdict[int | None, set[TableName]] = defaultdict(set)
    for layout in landed:
        names_of[layout.oid].add(layout.table)
    known = set().union(*names_of.values())
    renamed = {name for oid, names in names_of.items() if oid is not None and len(names) > 1 for name in names}
    return {table for table in new if table not in known or table in renamed}
