"""The columnar decoder of the GaussDB family: the same result as the row decoder, a chunk of rows at a time.

Rows are joined into chunks of two mebibytes, found by template and walked column by column (`row_templates`;
`text_columnar` converts statements to such a chunk), and Arrow copies the values once. Anything irregular is passed to
the row decoder, which therefore reports all errors; so are databases whose encoding is not UTF-8.

Digests need no second form of the values. Each value follows its type's OID and its length: with `t`, `n` or `u`
written over the OID's last byte, the bytes from there to the value's end are the value's canonical ones
(`decode.hashing`). One `take` concatenates those of a row, with an `n` for what an old row omits, and the head of the
new tuple between old and new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lake.decode.change_batch import ChangeColumns, Numbering, concat_changes
from cdc_lake.decode.columnar_reader import (
    PADDING,
    FallBackToRowDecoder,
    FrameBuffer,
    bitmap,
    copy_texts,
    evens,
    gather_bytes,
    is_large,
    lists,
    require,
    string_array,
)
from cdc_lake.decode.encoding import Policy, any_prefixed
from cdc_lake.decode.gaussdb.batches import Piece, RecordTransaction, chunk_of, cuts, lsns_of, tabulate_plain
from cdc_lake.decode.gaussdb.literal_columnar import Statements
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.gaussdb.relations import RelationResolver, RowMapping, identified_by
from cdc_lake.decode.gaussdb.row_templates import RowGroup, Values, groups
from cdc_lake.decode.gaussdb.text import heads
from cdc_lake.decode.gaussdb.text_columnar import text_groups
from cdc_lake.decode.hashing import DIGEST_SIZE, Canonical, Digests, Hashing, canonical_relation, hashed_here, meanwhile
from cdc_lake.decode.pgoutput.columnar import POSITIONS, TUPLES, refuse_oversize
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import OldKind
from cdc_lake.model.relation import Relation, TableName


@dataclass(frozen=True, slots=True)
class _Tuples:
    """Tuples of some rows of a chunk: the values sent, the index of each in its row, and the number of values of a
    row.
    """

    rows: Any
    values: Values
    places: list[int]
    width: int


def new_tuples(chunk: FrameBuffer, row_groups: list[RowGroup], count: int) -> pa.Array:
    """The new tuples of `count` rows as lists, NULL without one."""
    tuples = [(group.rows, group.new) for group in row_groups if group.new is not None]
    parts = [_Tuples(rows, new, list(range(new.slots.shape[1])), new.slots.shape[1]) for rows, new in tuples]
    return _tuple_lists(chunk, parts, count)


def old_tuples(chunk: FrameBuffer, row_groups: list[RowGroup], plans: list[RowMapping], count: int) -> pa.Array:
    """The old tuples, with one value for each column of the relation: NULL if it was not sent."""
    parts = [
        _Tuples(group.rows, group.old, list(plan.places), len(plan.relation.columns))
        for group, plan in zip(row_groups, plans, strict=True)
        if group.old is not None and plan.old_kind is not None
    ]
    return _tuple_lists(chunk, parts, count)


def unchanged_positions(row_groups: list[RowGroup], count: int) -> pa.Array:
    """For each of `count` rows the positions of unchanged values, NULL if all were sent."""
    unsent_indices = [
        (group.rows, *np.nonzero(group.new.unsent))
        for group in row_groups
        if group.new is not None and group.new.unsent is not None
    ]
    if not unsent_indices:
        return pa.nulls(count, POSITIONS)
    rows = np.concatenate([every[nth] for every, nth, _ in unsent_indices])
    places = np.concatenate([place for _, _, place in unsent_indices])[np.argsort(rows, kind="stable")]
    lengths = np.bincount(rows, minlength=count)
    return lists(POSITIONS, lengths, lengths > 0, pa.array(places.astype(np.int32)))


def _tuple_lists(chunk: FrameBuffer, parts: list[_Tuples], count: int) -> pa.Array:
    """The tuples of some rows of `count` as lists, NULL for the other rows."""
    if not parts:
        return pa.nulls(count, TUPLES)
    lengths, valid = np.zeros(count, np.int64), np.zeros(count, bool)
    for part in parts:
        require(part.places == sorted(part.places))
        lengths[part.rows], valid[part.rows] = part.width, True
    return lists(TUPLES, lengths, valid, _texts(chunk, parts, lengths))


def _texts(chunk: FrameBuffer, parts: list[_Tuples], lengths: Any) -> pa.Array:
    """The values of all tuples in row order; rows have `lengths` values."""
    complete = all(len(part.places) == part.width for part in parts)
    own_slots = [(part.rows, part.values.slots.view(np.int64)[:, :, 0]) for part in parts]
    slots = _in_order(own_slots, lengths, complete=complete)
    if complete and all(part.values.null is None for part in parts):
        return string_array(chunk, slots, None)
    sizes = _in_order([(part.rows, _spread(part, _sizes(part.values), -1)) for part in parts], lengths, complete=True)
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=ends[1:])
    data = copy_texts(chunk, slots)[1] if len(slots) else None
    mask = bitmap(sizes >= 0) if (sizes < 0).any() else None
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(ends), data or pa.py_buffer(b""), mask)


def _sizes(values: Values) -> Any:
    """The size of each value, -1 for NULL: int32 ndarray (r, k)."""
    sizes = values.slots[:, :, 1] - values.slots[:, :, 0]
    if values.null is not None:
        sizes[values.null] = -1
    return sizes


def _spread(part: _Tuples, entries: Any, missing: int) -> Any:
    """Expand entries of sent values to one entry per column."""
    if len(part.places) == part.width:
        return entries
    spread = np.full((len(entries), part.width), missing, entries.dtype)
    spread[:, part.places] = entries
    return spread


def _in_order(parts: list[tuple[Any, Any]], lengths: Any, *, complete: bool) -> Any:
    """The entries (r, k) of all parts in row order. `complete`: rows have `lengths` entries, otherwise fewer."""
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0][1]).ravel()
    if not complete:
        lengths = np.zeros_like(lengths)
        for rows, entries in parts:
            lengths[rows] = entries.shape[1]
    ordered = np.empty(int(lengths.sum()), parts[0][1].dtype)
    widths = {entries.shape[1] for _, entries in parts}
    if len(widths) == 1 and (width := widths.pop()):  # the usual case: whole rows are placed
        nth = np.cumsum(lengths > 0) - 1
        for rows, entries in parts:
            ordered.reshape(-1, width)[nth[rows]] = entries
        return ordered
    first = np.cumsum(lengths) - lengths
    for rows, entries in parts:
        ordered[first[rows][:, None] + np.arange(entries.shape[1])] = entries
    return ordered


_BEFORE: Final = 5  # bytes before a value: the OID's last byte and the length
_LETTERS: Final = {OldKind.KEY: b"K", OldKind.FULL: b"O"}
_NULL, _TEXT, _UNSENT = b"ntu"
_NOTHING, _HEAD = -1, -2  # pieces in the padding


def canonical_rows(chunk: FrameBuffer, row_groups: list[RowGroup], plans: list[RowMapping]) -> list[Canonical]:
    """The canonical bytes of each group's rows; modifies the chunk, except its values."""
    return [_of_group(chunk, group, plan) for group, plan in zip(row_groups, plans, strict=True)]


def in_rows(row_groups: list[RowGroup], digests: list[bytes], count: int) -> Digests:
    """One digest per row, from those of each group."""
    if len(row_groups) == 1:
        return Digests(digests[0])
    ordered = np.empty((count, DIGEST_SIZE), np.uint8)
    for group, of_group in zip(row_groups, digests, strict=True):
        ordered[group.rows] = np.frombuffer(of_group, np.uint8).reshape(-1, DIGEST_SIZE)
    return Digests(ordered.tobytes())


def _of_group(chunk: FrameBuffer, group: RowGroup, plan: RowMapping) -> Canonical:
    width = len(plan.relation.columns)
    prefix = group.row.operation.value.encode() + canonical_relation(str(plan.relation.table))
    count = width.to_bytes(2, "big")
    has_old = plan.old_kind is not None
    if plan.old_kind is not None:
        prefix += _LETTERS[plan.old_kind] + count
    elif group.new is not None:
        prefix += b"N" + count
    if not width or (not has_old and group.new is None):
        return Canonical(prefix, np.zeros(len(group.rows) + 1, np.int32), b"")
    return _tails(chunk, group, plan, prefix, b"N" + count)


def _tails(chunk: FrameBuffer, group: RowGroup, plan: RowMapping, prefix: bytes, head: bytes) -> Canonical:
    """The canonical bytes of each row after the prefix; `head`: the beginning of a new tuple."""
    old = group.old if plan.old_kind is not None else None
    old_first = _stands_before(old, group.new)
    sent = (old, group.new) if old_first else (group.new, old)
    slots = [_mark_canonical(chunk, values) for values in sent if values is not None]
    pieces = sum(each.shape[0] * each.shape[1] for each in slots)
    # the pieces of the chunk in its order, then an `n` and the head of a new tuple, which are in the padding
    padding = len(chunk.bytes) - len(PADDING)
    chunk.data[padding : padding + 1 + len(head)] = np.frombuffer(b"n" + head, np.uint8)
    constants = np.array([padding, padding + 1, padding + 1, padding + 1 + len(head)], np.int32)
    offsets = np.concatenate([(slots[0] if len(slots) == 1 else np.concatenate(slots, axis=1)).ravel(), constants])
    take, each = _order(group, plan, pieces, old_first=old_first)
    if is_large(len(chunk.bytes), len(take)):
        which = np.asarray(take)
        ends, data = gather_bytes(chunk, offsets[which], offsets[which + 1])
    else:
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(chunk.bytes)]
        _, ends, data = pa.BinaryArray.from_buffers(pa.binary(), 2 * pieces + 3, buffers).take(take).buffers()
    borders = np.ascontiguousarray(np.frombuffer(ends, np.int32, len(group.rows) * each + 1)[::each])
    return Canonical(prefix, borders, b"" if data is None else memoryview(data)[: int(borders[-1])])


def _stands_before(values: Values | None, others: Values | None) -> bool:
    """Whether these values precede the others in each row, as old ones do in text."""
    if values is None or others is None or not values.slots.size or not others.slots.size:
        return False
    return bool(values.slots[0, 0, 0] < others.slots[0, 0, 0])


def _order(group: RowGroup, plan: RowMapping, pieces: int, *, old_first: bool) -> tuple[Any, int]:
    """The pieces of all rows, by index in the array of pieces and gaps, and the number of pieces per row."""
    width = len(plan.relation.columns)
    if plan.old_kind is None:
        return evens(pieces), width
    new, old = (len(plan.places), 0) if old_first else (0, width if group.new is not None else 0)
    places = {place: old + nth for nth, place in enumerate(plan.places)}
    order = [places.get(column, _NOTHING) for column in range(width)]
    if group.new is not None:
        order += [_HEAD, *range(new, new + width)]
    wanted = np.array(order, np.int32)
    each = pieces // len(group.rows)
    take = 2 * (np.arange(0, pieces or len(group.rows), each or 1, dtype=np.int32)[:, None] + wanted)
    take[:, wanted == _NOTHING], take[:, wanted == _HEAD] = 2 * pieces, 2 * pieces + 2
    return pa.array(take.ravel()), len(order)


def _mark_canonical(chunk: FrameBuffer, values: Values) -> Any:
    """The canonical bytes of each value as slots; modifies the chunk."""
    slots = values.slots.copy()
    slots[:, :, 0] -= _BEFORE
    first = slots[:, :, 0]
    if values.null is None:
        chunk.data[first] = _TEXT
    else:
        letters = np.where(values.null, np.uint8(_NULL), np.uint8(_TEXT))
        if values.unsent is not None:
            letters[values.unsent] = _UNSENT
        chunk.data[first] = letters
        slots[:, :, 1] -= np.where(values.null, np.int32(_BEFORE - 1), np.int32(0))
    return slots


CHUNK_BYTES: Final = 2 << 20
"""The amount that is decoded at a time (`runtime.receive.commit_pipeline`); half of it costs a fourth more, twice as
much the same (measured).
"""

SMALL: Final = 32
"""Below this many rows the row decoder is faster than a columnar walk, unless they are large, because it copies them
more often.
"""

_HALF: Final = 1 << 31
_INSERT: Final = ord("I")
_TRUNCATE: Final = b": TRUNCATE: "
_KINDS: Final = {None: -1, OldKind.KEY: 0, OldKind.FULL: 1}
_KIND_NAMES: Final = pa.array(["key", "full"])


def tabulate(
    batch: Sequence[RecordTransaction], layouts: RelationResolver, hashing: Hashing = hashed_here
) -> ChangeColumns:
    """The changes of the transactions as columns, in order.

    Equal in every field to `tabulate_plain(batch, layouts)`, with the same DecodeError for the same bytes. Queries the
    catalog, so also raises SourceError. `hashing` computes the digests of large chunks.
    """
    sizes = [raw.count for raw in batch]
    worth = sum(sizes) >= SMALL or sum(raw.size for raw in batch) >= CHUNK_BYTES
    if worth and layouts.codec.python == "utf-8" and len({raw.style for raw in batch}) == 1:
        before = layouts.mark()
        try:
            return _tabulate(batch, sizes, layouts, hashing)
        except FallBackToRowDecoder:
            layouts.restore(before)
        parts: list[Sequence[RecordTransaction]] = [list(run) for _, run in groupby(batch, _truncates)]
        half = len(batch) // 2
        if len(parts) == 1 and half and layouts.codec.policy is Policy.HEX:
            parts = [batch[:half], batch[half:]]  # a few odd values must not slow down the batch
        if len(parts) > 1:
            return concat_changes([(tabulate(part, layouts, hashing), len(part)) for part in parts], pa.concat_arrays)
    return tabulate_plain(batch, layouts)


def _truncates(raw: RecordTransaction) -> bool:
    """Whether it may contain a TRUNCATE, which is not a row; only serial decoding prints them."""
    return raw.style is Style.SERIAL and any(_TRUNCATE in record for record in raw.records)


def _tabulate(
    batch: Sequence[RecordTransaction], sizes: list[int], layouts: RelationResolver, hashing: Hashing
) -> ChangeColumns:
    refuse_oversize(sum(raw.size for raw in batch))
    numbering, style = Numbering(), batch[0].style
    xids = _outermost([raw.bounds.xid for raw in batch])
    transaction, lsn = np.repeat(np.arange(len(batch), dtype=np.int32), sizes), lsns_of(batch)
    parts: list[tuple[ChangeColumns, Any]] = []
    first = 0
    for cut, lengths in cuts(batch, CHUNK_BYTES):
        rows = slice(first, first := first + len(lengths))
        walked = _walk_chunk(cut, lengths, style, layouts, xids)
        parts.append(_part(*walked, transaction[rows], lsn[rows], numbering, hashing))
    columns = concat_changes([(part, 0) for part, _ in parts], pa.concat_arrays)
    require(layouts.codec.policy is Policy.STOP or not (any_prefixed(columns.new) or any_prefixed(columns.old)))
    cancels = np.concatenate([mask for _, mask in parts])
    require(not (cancels[:1].any() and batch[0].part is not None and batch[0].part.movable))
    return _without_cancelled(columns, cancels) if cancels.any() else columns


def _part(
    chunk: FrameBuffer,
    row_groups: list[RowGroup],
    plans: list[RowMapping],
    transaction: Any,
    lsn: Any,
    numbering: Numbering,
    hashing: Hashing,
) -> tuple[ChangeColumns, Any]:
    """The changes of one cut, and which of them (bool ndarray) cancel an INSERT."""
    count = len(chunk.start)
    relation, kind, cancels = np.empty(count, np.int32), np.full(count, -1, np.int8), np.zeros(count, bool)
    for group, plan in zip(row_groups, plans, strict=True):
        relation[group.rows] = numbering.number(plan.relation)
        kind[group.rows] = _KINDS[plan.old_kind]
        cancels[group.rows] = plan.cancels
    op = chunk.data[chunk.start]
    digests = hashing(canonical_rows(chunk, row_groups, plans))  # may run elsewhere while values are copied
    with meanwhile(digests):
        new, old = new_tuples(chunk, row_groups, count), old_tuples(chunk, row_groups, plans, count)
    columns = ChangeColumns(
        relations=numbering.relations,
        transaction=transaction,
        op=op,
        relation=relation,
        lsn=lsn,
        new=new,
        old=old,
        old_kind=_KIND_NAMES.take(pa.array(kind, mask=kind < 0)),
        unchanged=unchanged_positions(row_groups, count),
        info=pa.nulls(count, pa.string()),
        digests=in_rows(row_groups, digests(), count),
    )
    return columns, cancels


def _outermost(xids: Sequence[int | None]) -> tuple[int | None, int | None]:
    """The oldest and the newest of these transactions. Raises FallBackToRowDecoder if only some have an id."""
    known_xids = [xid for xid in xids if xid is not None]
    require(not known_xids or len(known_xids) == len(xids))
    if not known_xids:
        return None, None
    ages = [(xid - known_xids[0] + _HALF) % (2 * _HALF) for xid in known_xids]  # ids are compared modulo 2^32
    return known_xids[ages.index(min(ages))], known_xids[ages.index(max(ages))]


def _walk_chunk(
    cut: list[Piece], sizes: Any, style: Style, layouts: RelationResolver, xids: tuple[int | None, int | None]
) -> tuple[FrameBuffer, list[RowGroup], list[RowMapping]]:
    """`xids`: the oldest and the newest transaction of the batch."""
    if style is Style.BINARY:
        chunk = chunk_of(cut, sizes)
        row_groups = list(groups(chunk))
    else:
        table_heads = heads(layouts.tables, layouts.codec) if layouts.tables else None
        chunk, row_groups = text_groups(Statements(cut), style, layouts.codec, table_heads)
    oldest, newest = xids
    plans = _plans(row_groups, layouts, oldest)
    tables = {group.row.table for group in row_groups}
    require(all(layouts.age(name, oldest) == layouts.age(name, newest) for name in tables))
    return chunk, row_groups, plans


def _plans(row_groups: list[RowGroup], layouts: RelationResolver, xid: int | None) -> list[RowMapping]:
    """The mapping of each group, and update the layouts as after the last row.

    A DELETE has its table's last layout, which must be the same in the whole chunk; otherwise FallBackToRowDecoder.
    """
    before = layouts.latest()
    plans: list[RowMapping] = []
    relations_by_table: dict[TableName, set[Relation]] = {}
    earlier: dict[TableName, list[RowGroup]] = {}
    try:
        for group in row_groups:
            table = group.row.table
            if len(relations_by_table.get(table, ())) > 1:
                # a new mapping takes unknown parts from that of the row before
                layouts.plan(_previous_group(group, earlier[table]).row, xid)
            plans.append(layouts.plan(group.row, xid))
            if group.new is not None:
                relations_by_table.setdefault(table, set()).add(plans[-1].relation)
                earlier.setdefault(table, []).append(group)
    except DecodeError:
        raise FallBackToRowDecoder from None  # the row decoder reports the error with its location
    require(not any(plan.first or -1 in plan.places for plan in plans))
    for name, relations in relations_by_table.items():
        if len(relations) > 1 and (facts := layouts.facts_of(name)) is not None and facts.identity_changed is not None:
            require(len(set(map(identified_by, relations))) == 1)
    for group, plan in zip(row_groups, plans, strict=True):
        if group.new is None and (others := relations_by_table.get(group.row.table)):
            require(others == {before.get(group.row.table, plan.relation)})
    for group in sorted(row_groups, key=lambda group: int(group.rows[-1])):
        if len(relations_by_table.get(group.row.table, ())) > 1:
            layouts.plan(group.row, xid)
    return plans


def _previous_group(group: RowGroup, earlier: list[RowGroup]) -> RowGroup:
    """The earlier group with the last row before the first row of this one."""
    first = group.rows[0]
    return max(earlier, key=lambda candidate: int(candidate.rows[np.searchsorted(candidate.rows, first) - 1]))


def _without_cancelled(columns: ChangeColumns, cancels: Any) -> ChangeColumns:
    """The changes without those that cancel the INSERT directly before them, and without these INSERTs."""
    names: dict[TableName, int] = {}
    tables = np.array([names.setdefault(relation.table, len(names)) for relation in columns.relations])
    deletes = np.flatnonzero(cancels[1:]) + 1
    inserts, of_row = deletes - 1, tables[columns.relation]
    matching = (columns.op[inserts] == _INSERT) & (columns.transaction[inserts] == columns.transaction[deletes])
    matching &= of_row[inserts] == of_row[deletes]
    keep = np.ones(len(cancels), bool)
    keep[deletes[matching]] = keep[inserts[matching]] = False
    remaining = columns.take(np.flatnonzero(keep))
    numbers, first, relation = np.unique(remaining.relation, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return replace(
        remaining,
        relations=[columns.relations[numbers[index]] for index in order],
        relation=np.argsort(order).astype(np.int32)[relation],
    )
