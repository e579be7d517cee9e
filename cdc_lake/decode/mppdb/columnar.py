"""The columnar decoder: the same result as `plain`, a chunk of rows at a time.

Rows are joined into chunks of two mebibytes, found by shape and walked column by column (`shapes`; `text_columnar`
makes such a chunk of statements), and the values are copied once, by Arrow. Whatever is not regular goes to the plain
decoder, so an error is always the plain decoder's error; so do databases whose encoding is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.digest import Digests
from cdc_lake.decode.hashing import Hashing, hashed_here, meanwhile
from cdc_lake.decode.joined import concatenated, joined
from cdc_lake.decode.mppdb.codec import Policy
from cdc_lake.decode.mppdb.cuts import Piece, chunk_of, cuts, lsns_of
from cdc_lake.decode.mppdb.layouts import Layouts, Plan, identified_by
from cdc_lake.decode.mppdb.plain import tabulate_plain
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.decode.mppdb.shape_digests import canonical_rows, in_rows
from cdc_lake.decode.mppdb.shapes import Group, groups
from cdc_lake.decode.mppdb.statements import Statements
from cdc_lake.decode.mppdb.text import heads
from cdc_lake.decode.mppdb.text_columnar import text_groups
from cdc_lake.decode.mppdb.tuple_lists import new_tuples, old_tuples, unchanged
from cdc_lake.decode.not_text import any_prefixed
from cdc_lake.decode.plain import Numbering, refuse_oversize
from cdc_lake.decode.walk import Chunk, Irregular, require
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import OldKind
from cdc_lake.model.relation import Relation, TableName

CHUNK_BYTES: Final = 2 << 20
"""As much as is decoded at a time (`pipeline.receiving.landing`); half of it costs a fourth more, twice as much the
same."""

SMALL: Final = 32
"""Below this many rows the plain decoder is faster than setting up a walk, unless they are large: it copies them more
often.
"""

_HALF: Final = 1 << 31
_INSERT: Final = ord("I")
_TRUNCATE: Final = b": TRUNCATE: "
_KINDS: Final = {None: -1, OldKind.KEY: 0, OldKind.FULL: 1}
_KIND_NAMES: Final = pa.array(["key", "full"])


def tabulate(batch: Sequence[RecordTransaction], layouts: Layouts, hashing: Hashing = hashed_here) -> ChangeColumns:
    """The changes of the transactions as columns, in order.

    Equal in every field to `tabulate_plain(batch, layouts)`, and raises the same DecodeError for the same bytes. Asks
    the catalog, so also SourceError. `hashing` is what makes digests of large chunks.
    """
    sizes = [raw.count for raw in batch]
    worth = sum(sizes) >= SMALL or sum(raw.size for raw in batch) >= CHUNK_BYTES
    if worth and layouts.codec.python == "utf-8" and len({raw.style for raw in batch}) == 1:
        before = layouts.mark()
        try:
            return _tabulate(batch, sizes, layouts, hashing)
        except Irregular:
            layouts.back(before)
        if 0 < sum(apart := [_truncates(raw) for raw in batch]) < len(batch):
            runs = [[raw for raw, _ in some] for _, some in groupby(zip(batch, apart, strict=True), lambda one: one[1])]
            return joined([(tabulate(run, layouts, hashing), len(run)) for run in runs], pa.concat_arrays)
        if layouts.codec.policy is Policy.HEX and len(batch) > 1:  # a few odd values must not slow all of a batch down
            half = len(batch) // 2
            parts = ((batch[:half], half), (batch[half:], len(batch) - half))
            return joined([(tabulate(part, layouts, hashing), count) for part, count in parts], pa.concat_arrays)
    return tabulate_plain(batch, layouts)


def _truncates(raw: RecordTransaction) -> bool:
    """Whether it may have a TRUNCATE, which is no row; only serial decoding prints them."""
    return raw.style is Style.SERIAL and any(_TRUNCATE in record for record in raw.records)


def _tabulate(
    batch: Sequence[RecordTransaction], sizes: list[int], layouts: Layouts, hashing: Hashing
) -> ChangeColumns:
    refuse_oversize(sum(raw.size for raw in batch))
    numbering = Numbering()
    count, style = sum(sizes), batch[0].style
    pieces = cuts(batch, CHUNK_BYTES)
    xids = _outermost([raw.bounds.xid for raw in batch])
    parts = [_part(*_walked(cut, lengths, style, layouts, xids), numbering, hashing) for cut, lengths in pieces]
    columns = ChangeColumns(
        relations=numbering.relations,
        transaction=np.repeat(np.arange(len(batch), dtype=np.int32), sizes),
        op=np.concatenate([part.op for part in parts]),
        relation=np.concatenate([part.relation for part in parts]),
        lsn=lsns_of(batch),
        new=concatenated([part.new for part in parts]),
        old=concatenated([part.old for part in parts]),
        old_kind=concatenated([part.old_kind for part in parts]),
        unchanged=concatenated([part.unchanged for part in parts]),
        info=pa.nulls(count, pa.string()),
        digests=Digests.of([part.digests for part in parts]),
    )
    require(layouts.codec.policy is Policy.STOP or not (any_prefixed(columns.new) or any_prefixed(columns.old)))
    cancels = np.concatenate([part.cancels for part in parts])
    require(not (cancels[:1].any() and batch[0].part is not None and batch[0].part.movable))
    return _without_cancelled(columns, cancels) if cancels.any() else columns


@dataclass(frozen=True, slots=True)
class _Part:
    """The columns of one cut; `cancels`: bool ndarray, the rows that take back an INSERT."""

    op: Any
    relation: Any
    new: pa.Array
    old: pa.Array
    old_kind: pa.Array
    unchanged: pa.Array
    digests: Digests
    cancels: Any


def _part(chunk: Chunk, found: list[Group], plans: list[Plan], numbering: Numbering, hashing: Hashing) -> _Part:
    count = len(chunk.start)
    relation, kind, cancels = np.empty(count, np.int32), np.full(count, -1, np.int8), np.zeros(count, bool)
    for group, plan in zip(found, plans, strict=True):
        relation[group.rows] = numbering.number(plan.relation)
        kind[group.rows] = _KINDS[plan.old_kind]
        cancels[group.rows] = plan.cancels
    op = chunk.data[chunk.start]
    digests = hashing(canonical_rows(chunk, found, plans))  # which may go on elsewhere while values are copied
    with meanwhile(digests):
        new, old = new_tuples(chunk, found, count), old_tuples(chunk, found, plans, count)
    return _Part(
        op=op,
        relation=relation,
        new=new,
        old=old,
        old_kind=_KIND_NAMES.take(pa.array(kind, mask=kind < 0)),
        unchanged=unchanged(found, count),
        digests=in_rows(found, digests(), count),
        cancels=cancels,
    )


def _outermost(xids: Sequence[int | None]) -> tuple[int | None, int | None]:
    """The oldest and the newest of these transactions. Raises Irregular where some have no number and others have."""
    known = [xid for xid in xids if xid is not None]
    require(not known or len(known) == len(xids))
    if not known:
        return None, None
    ages = [(xid - known[0] + _HALF) % (2 * _HALF) for xid in known]  # numbers are compared modulo 2^32
    return known[ages.index(min(ages))], known[ages.index(max(ages))]


def _walked(
    cut: list[Piece], sizes: Any, style: Style, layouts: Layouts, xids: tuple[int | None, int | None]
) -> tuple[Chunk, list[Group], list[Plan]]:
    """`xids`: the oldest and the newest transaction of the batch."""
    chunk, found = _groups(cut, sizes, style, layouts)
    plans = _plans(found, layouts, xids[0])
    oldest, newest = xids
    require(all(layouts.age(name, oldest) == layouts.age(name, newest) for name in {one.row.table for one in found}))
    return chunk, found, plans


def _groups(cut: list[Piece], sizes: Any, style: Style, layouts: Layouts) -> tuple[Chunk, list[Group]]:
    if style is Style.BINARY:
        chunk = chunk_of(cut, sizes)
        return chunk, list(groups(chunk))
    known = heads(layouts.tables, layouts.codec) if layouts.tables else None
    return text_groups(Statements(cut), style, layouts.codec, known)


def _plans(found: list[Group], layouts: Layouts, xid: int | None) -> list[Plan]:
    """The plan of each group, and the layouts as they are after the last row.

    A DELETE has the layout its table had last. That is taken to be one in the whole chunk; otherwise Irregular.
    """
    before = layouts.latest()
    plans: list[Plan] = []
    seen: dict[TableName, set[Relation]] = {}
    earlier: dict[TableName, list[Group]] = {}
    try:
        for group in found:
            table = group.row.table
            if len(seen.get(table, ())) > 1:
                layouts.plan(_before(group, earlier[table]).row, xid)  # a new plan takes what is not told from it
            plans.append(layouts.plan(group.row, xid))
            if group.new is not None:
                seen.setdefault(table, set()).add(plans[-1].relation)
                earlier.setdefault(table, []).append(group)
    except DecodeError:
        raise Irregular from None  # the plain decoder says it again, with its place
    require(not any(plan.first or -1 in plan.places for plan in plans))
    for name, relations in seen.items():
        if len(relations) > 1 and (facts := layouts.facts_of(name)) is not None and facts.identity_changed is not None:
            require(len(set(map(identified_by, relations))) == 1)
    for group, plan in zip(found, plans, strict=True):
        if group.new is None and (others := seen.get(group.row.table)):
            require(others == {before.get(group.row.table, plan.relation)})
    for group in sorted(found, key=lambda group: int(group.rows[-1])):
        if len(seen.get(group.row.table, ())) > 1:
            layouts.plan(group.row, xid)
    return plans


def _before(group: Group, earlier: list[Group]) -> Group:
    """Of groups that begin earlier the one with the last row before the first row of this one."""
    first = group.rows[0]
    return max(earlier, key=lambda one: int(one.rows[np.searchsorted(one.rows, first) - 1]))


def _without_cancelled(columns: ChangeColumns, cancels: Any) -> ChangeColumns:
    """The changes without those that take back the INSERT right before them, and without what they take back."""
    names: dict[TableName, int] = {}
    tables = np.array([names.setdefault(relation.table, len(names)) for relation in columns.relations])
    deletes = np.flatnonzero(cancels[1:]) + 1
    inserts, of_row = deletes - 1, tables[columns.relation]
    there = (columns.op[inserts] == _INSERT) & (columns.transaction[inserts] == columns.transaction[deletes])
    there &= of_row[inserts] == of_row[deletes]
    keep = np.ones(len(cancels), bool)
    keep[deletes[there]] = keep[inserts[there]] = False
    kept = columns.at(np.flatnonzero(keep))
    numbers, first, relation = np.unique(kept.relation, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return replace(
        kept,
        relations=[columns.relations[numbers[at]] for at in order],
        relation=np.argsort(order).astype(np.int32)[relation],
    )
