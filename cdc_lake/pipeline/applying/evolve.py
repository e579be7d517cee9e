"""Evolving: the silver table of a target brought to the columns that its next changes need.

What is needed is worked out from layouts, not from the table: the one its rows follow and the one its next changes
have. It is done right before the first change of the new layout, once, whoever is killed when; and what is destructive
only where the run was allowed to by the operation's own words.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from cdc_lake.bronze.outline import Outline
from cdc_lake.config.project import Target
from cdc_lake.errors import DestructiveChange, Unconvertible
from cdc_lake.lake.evolution import (
    KINDS,
    AddColumn,
    AssumeColumn,
    AssumeKey,
    ChangeType,
    SchemaChange,
    columns_after,
    for_the_table,
    operations,
)
from cdc_lake.lake.store import SilverColumn, SilverStore, quoted
from cdc_lake.model.relation import Relation
from cdc_lake.observe.failpoint import LAYOUT_DONE, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.target.layout_changes import check_columns, check_computed, layout_changes, of_old_values
from cdc_lake.silver.kind import Kind, RowIdentity
from cdc_lake.silver.kinds import check_kind, own_names
from cdc_lake.silver.own_columns import WORKING
from cdc_lake.silver.shape import Shape, key_moved


def evolve(
    silver: SilverStore,
    target: Target,
    kind: Kind,
    shape: Shape,
    *,
    stream: str,
    position: int,
    follows: Relation | None,
    allowed: Container[str],
    known: Callable[[], Iterable[Relation]],
    tell: Tell,
    begins: bool = False,
) -> Shape:
    """Make the silver table, or do what the layout of `shape` asks of it; the shape, with the columns that are kept.

    `position`: of its first change; `follows`: the layout that the table's rows have, None: nobody knows; `allowed`:
    destructive operations in words; `known`: all layouts of the source's table; `begins`: a copy is about to take the
    place of all rows, and with them of the columns (`pipeline.applying.merging`).
    Raises DestructiveChange, KindChanged, ShapeForeign, TransformChanged, Unconvertible, TableChangedMeanwhile.
    """
    have, wanted = silver.columns(), kind.columns(shape)
    if have is None:
        silver.create(wanted, stream)
        return shape
    check_kind([c.name for c in have], [c.name for c in wanted], target.label, target.source)
    if begins:
        have = tuple(c for c in have if target.on_drop == "keep" and not c.name.startswith(WORKING))
    else:
        check_computed(target, have, wanted)
    ambiguous = any(layout.ambiguous for layout in shape.layouts.values())
    other = follows != shape.relation or ambiguous or not set(wanted) <= set(have)  # another layout, or other settings
    if not begins and other:
        base = silver.marker(stream)
        reached = silver.laid_out(stream, base)
        if reached is None or reached < position:
            own = own_names(target, shape.relation, {column.name for column in (*have, *wanted)})
            given = [column for column in have if column.name not in own]
            changes = layout_changes(target, follows, shape.relation, given, shape.layouts.values())
            refuse(changes, target, allowed)
            if to_do := for_the_table((*changes, *_of_own(changes, have, wanted, own))):
                silver.reshape(stream, base, position, to_do, _live(kind))
                failpoint(LAYOUT_DONE)
                for change in to_do:
                    facts = {"table": target.label, "kind": KINDS[type(change)]}
                    tell(Progress("layout", change.text(target.label), facts=facts))
                have = silver.columns() or ()
    kept = {column.name: column for column in have if column.name not in {c.name for c in wanted}}
    if kept:
        check_columns(target, kept, shape.relation, known())
    return replace(shape, carried={**shape.carried, **{c: f"CAST(NULL AS {c.type})" for c in kept.values()}})


def refuse(changes: Sequence[SchemaChange], target: Target, allowed: Container[str]) -> None:
    """Raise DestructiveChange where operations would lose something and are not allowed, Unconvertible where only the
    source knows what rows have afterwards.
    """
    if words := [change.text(target.label) for change in changes if unconvertible(change)]:
        raise Unconvertible(f"{target.source} has another layout now: {'; '.join(words)}", hint=copied_again(target))
    needed = [change.text(target.label) for change in changes if change.destructive]
    if missing := [words for words in needed if words not in allowed]:
        options = " ".join(f"--allow {shlex.quote(words)}" for words in missing)
        hint = f"to have it done run `cdc-lake run {options}`; until then the table waits"
        if any(
            isinstance(one, AssumeColumn | AssumeKey) or (isinstance(one, AddColumn) and one.unknown) for one in changes
        ):
            hint += (
                f"; where it is not so, or you do not know, `cdc-lake resync {target.source}` copies the table again"
            )
        raise DestructiveChange(f"{target.source} has another layout now: {'; '.join(missing)}", hint=hint)


def unconvertible(change: SchemaChange) -> bool:
    """Whether only the source knows what rows have after an operation."""
    return isinstance(change, ChangeType) and not change.convertible


def copied_again(target: Target) -> str:
    """What is done about such an operation. A past is not made again through it, nor can a copy of a new stream follow
    a past whose column is of the former type.
    """
    if target.keeps_past:
        words = f"give {target.source} another silver table in the pipeline file (`to`), then run `cdc-lake restart`"
        done = f"{words}, which copies every table: {target.label} stays as it is, with its past"
    else:
        done = f"`cdc-lake resync {target.source}` copies the table again while the others go on"
    return f"{done}; until then the table waits"


def next_layout(seen: Outline, layouts: Mapping[int, Relation], target: Target) -> int | None:
    """The position of the first transaction whose layout asks something of the silver table that those before it do
    not; None where one state of the table takes all of the span.
    """
    if not seen.runs:
        return None
    first = seen.runs[0].position
    for one, following in pairwise(seen.runs):
        before, after = layouts[one.layout], layouts[following.layout]
        if following.position > first and (
            operations(before, after, on_drop=target.on_drop, types=target.types)
            or (after.ambiguous and not before.ambiguous)
            or (by_source_key(target) and key_moved(before, after))
        ):
            return following.position
    return None


def by_source_key(target: Target) -> bool:
    """Whether the source's own key identifies the rows of a silver table."""
    return not target.keys and target.kind != "append"


def _of_own(
    changes: Sequence[SchemaChange],
    have: Sequence[SilverColumn],
    wanted: Iterable[SilverColumn],
    own: Container[str],
) -> list[SchemaChange]:
    """What is done to the columns of our own: those of old values follow theirs, others come as they are asked for."""
    out = of_old_values(changes, {column.name: column.type for column in have if column.name in own})
    there = {column.name for column in columns_after(have, out)}
    return [*out, *(AddColumn(column) for column in wanted if column.name in own and column.name not in there)]


def _live(kind: Kind) -> str:
    """SQL of the condition under which a row of the silver table is one that the source's table has."""
    if kind.identity is RowIdentity.PLACE:
        return "false"  # changes are as they were
    flag = kind.flag
    return "true" if flag is None else f"{'' if flag.value else 'NOT '}{quoted(flag.column.name)}"
