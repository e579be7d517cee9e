"""The columnar decoder: the same result as `plain`, a chunk of rows at a time.

Rows are joined into chunks of a megabyte, found by shape and walked column by column (`shapes`; `text_columnar` makes
such a chunk of statements), and the values are copied once, by Arrow. Whatever is not regular goes to the plain
decoder, so an error is always the plain decoder's error; so do databases whose encoding is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.digest import Digests
from cdc_lake.decode.hashing import Hashing, hashed_here
from cdc_lake.decode.joined import joined
from cdc_lake.decode.mppdb.codec import Policy
from cdc_lake.decode.mppdb.cuts import Piece, chunk_of, cuts, lsns_of
from cdc_lake.decode.mppdb.layouts import Layouts, Plan
from cdc_lake.decode.mppdb.plain import tabulate_plain
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.decode.mppdb.shape_digests import canonical_rows, in_rows
from cdc_lake.decode.mppdb.shapes import Group, Values, groups
from cdc_lake.decode.mppdb.statements import Statements
from cdc_lake.decode.mppdb.text import heads
from cdc_lake.decode.mppdb.text_columnar import text_groups
from cdc_lake.decode.not_text import any_prefixed
from cdc_lake.decode.plain import POSITIONS, TUPLES, Numbering, refuse_oversize
from cdc_lake.decode.walk import Chunk, Irregular, Tuples, bitmap, copied, lists, require, texts
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import OldKind
from cdc_lake.model.relation import Relation, TableName

CHUNK_BYTES: Final = 1 << 20
"""As for pgoutput: larger chunks miss the cache."""

SMALL: Final = 32
"""Below this many rows the plain decoder is faster than setting up a walk."""

_INSERT: Final = ord("I")
_KINDS: Final = {None: -1, OldKind.KEY: 0, OldKind.FULL: 1}
_KIND_NAMES: Final = pa.array(["key", "full"])


def tabulate(batch: Sequence[RecordTransaction], layouts: Layouts, hashing: Hashing = hashed_here) -> ChangeColumns:
    """The changes of the transactions as columns, in order.

    Equal in every field to `tabulate_plain(batch, layouts)`, and raises the same DecodeError for the same bytes. Asks
    the catalog, so also SourceError. `hashing` is what makes digests of large chunks.
    """
    sizes = [raw.count for raw in batch]
    if sum(sizes) >= SMALL and layouts.codec.python == "utf-8" and len({raw.style for raw in batch}) == 1:
        before = layouts.mark()
        try:
            return _tabulate(batch, sizes, layouts, hashing)
        except Irregular:
            layouts.back(before)
        if layouts.codec.policy is Policy.HEX and len(batch) > 1:  # a few odd values must not slow all of a batch down
            half = len(batch) // 2
            parts = ((batch[:half], half), (batch[half:], len(batch) - half))
            return joined([(tabulate(part, layouts, hashing), count) for part, count in parts], pa.concat_arrays)
    return tabulate_plain(batch, layouts)


def _tabulate(
    batch: Sequence[RecordTransaction], sizes: list[int], layouts: Layouts, hashing: Hashing
) -> ChangeColumns:
    refuse_oversize(sum(raw.size for raw in batch))
    numbering = Numbering()
    count, style = sum(sizes), batch[0].style
    pieces = cuts(batch, CHUNK_BYTES)
    parts = [_part(*_walked(cut, lengths, style, layouts), numbering, hashing) for cut, lengths in pieces]
    columns = ChangeColumns(
        relations=numbering.relations,
        transaction=np.repeat(np.arange(len(batch), dtype=np.int32), sizes),
        op=np.concatenate([part.op for part in parts]),
        relation=np.concatenate([part.relation for part in parts]),
        lsn=lsns_of(batch),
        new=_joined([part.new for part in parts]),
        old=_joined([part.old for part in parts]),
        old_kind=_joined([part.old_kind for part in parts]),
        unchanged=pa.nulls(count, POSITIONS),
        info=pa.nulls(count, pa.string()),
        digests=Digests.of([part.digests for part in parts]),
    )
    require(layouts.codec.policy is Policy.STOP or not (any_prefixed(columns.new) or any_prefixed(columns.old)))
    cancels = np.concatenate([part.cancels for part in parts])
    return _without_cancelled(columns, cancels) if cancels.any() else columns


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


@dataclass(frozen=True, slots=True)
class _Part:
    """The columns of one cut; `cancels`: bool ndarray, the rows that take back an INSERT."""

    op: Any
    relation: Any
    new: pa.Array
    old: pa.Array
    old_kind: pa.Array
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
    return _Part(
        op=op,
        relation=relation,
        new=_tuple_lists(chunk, _news(found), count),
        old=_tuple_lists(chunk, _olds(found, plans), count),
        old_kind=_KIND_NAMES.take(pa.array(kind, mask=kind < 0)),
        digests=in_rows(found, digests(), count),
        cancels=cancels,
    )


def _walked(cut: list[Piece], sizes: Any, style: Style, layouts: Layouts) -> tuple[Chunk, list[Group], list[Plan]]:
    chunk, found = _groups(cut, sizes, style, layouts)
    return chunk, found, _plans(found, layouts)


def _groups(cut: list[Piece], sizes: Any, style: Style, layouts: Layouts) -> tuple[Chunk, list[Group]]:
    if style is Style.BINARY:
        chunk = chunk_of(cut, sizes)
        return chunk, list(groups(chunk))
    known = heads(layouts.tables, layouts.codec) if layouts.tables else None
    return text_groups(Statements(cut), style, layouts.codec, known)


def _plans(found: list[Group], layouts: Layouts) -> list[Plan]:
    """The plan of each group, and the layouts as they are after the last row.

    A DELETE has the layout its table had last. That is taken to be one in the whole chunk; otherwise Irregular.
    """
    before = layouts.latest()
    try:
        plans = [layouts.plan(group.row) for group in found]
    except DecodeError:
        raise Irregular from None  # the plain decoder says it again, with its place
    require(not any(plan.first for plan in plans))
    seen: dict[TableName, set[Relation]] = {}
    for group, plan in zip(found, plans, strict=True):
        if group.new is not None:
            seen.setdefault(group.row.table, set()).add(plan.relation)
    for group, plan in zip(found, plans, strict=True):
        if group.new is None and (others := seen.get(group.row.table)):
            require(others == {before.get(group.row.table, plan.relation)})
    for group in sorted(found, key=lambda group: int(group.rows[-1])):
        if len(seen.get(group.row.table, ())) > 1:
            layouts.plan(group.row)
    return plans


@dataclass(frozen=True, slots=True)
class _Tuples:
    """Tuples of some rows of a chunk: the values sent, where each stands in its row, and how many values a row has."""

    rows: Any
    values: Values
    places: list[int]
    width: int


def _news(found: list[Group]) -> list[_Tuples]:
    tuples = [(group.rows, group.new) for group in found if group.new is not None]
    return [_Tuples(rows, new, list(range(new.slots.shape[1])), new.slots.shape[1]) for rows, new in tuples]


def _olds(found: list[Group], plans: list[Plan]) -> list[_Tuples]:
    """As many values as the relation has columns: what was not sent is NULL."""
    return [
        _Tuples(group.rows, group.old, list(plan.places), len(plan.relation.columns))
        for group, plan in zip(found, plans, strict=True)
        if group.old is not None and plan.old_kind is not None
    ]


def _tuple_lists(chunk: Chunk, parts: list[_Tuples], count: int) -> pa.Array:
    """The tuples of some rows of `count` as lists, NULL for the other rows."""
    if not parts:
        return pa.nulls(count, TUPLES)
    lengths, valid = np.zeros(count, np.int64), np.zeros(count, bool)
    for part in parts:
        require(part.places == sorted(part.places))
        lengths[part.rows], valid[part.rows] = part.width, True
    return lists(TUPLES, lengths, valid, _texts(chunk, parts, lengths))


def _texts(chunk: Chunk, parts: list[_Tuples], lengths: Any) -> pa.Array:
    """The values of all tuples in the order of rows, which have `lengths` values each."""
    whole = all(len(part.places) == part.width for part in parts)
    slots = _in_order([(part.rows, part.values.slots.view(np.int64)[:, :, 0]) for part in parts], lengths, whole=whole)
    if whole and all(part.values.null is None for part in parts):
        return texts(chunk, Tuples(None, slots, None, None, None))
    sizes = _in_order([(part.rows, _spread(part, _sizes(part.values), -1)) for part in parts], lengths, whole=True)
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=ends[1:])
    data = copied(chunk, slots)[1] if len(slots) else None
    mask = bitmap(sizes >= 0) if (sizes < 0).any() else None
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(ends), data or pa.py_buffer(b""), mask)


def _sizes(values: Values) -> Any:
    """The size of each value, -1 for NULL: int32 ndarray (r, k)."""
    sizes = values.slots[:, :, 1] - values.slots[:, :, 0]
    if values.null is not None:
        sizes[values.null] = -1
    return sizes


def _spread(part: _Tuples, given: Any, missing: int) -> Any:
    """One entry a column of the row, from one a value sent."""
    if len(part.places) == part.width:
        return given
    out = np.full((len(given), part.width), missing, given.dtype)
    out[:, part.places] = given
    return out


def _in_order(parts: list[tuple[Any, Any]], lengths: Any, *, whole: bool) -> Any:
    """The entries (r, k) of all parts in the order of their rows. `whole`: rows have `lengths` entries, else fewer."""
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0][1]).ravel()
    if not whole:
        lengths = np.zeros_like(lengths)
        for rows, entries in parts:
            lengths[rows] = entries.shape[1]
    out = np.empty(int(lengths.sum()), parts[0][1].dtype)
    widths = {entries.shape[1] for _, entries in parts}
    if len(widths) == 1 and (width := widths.pop()):  # the usual case: whole rows are placed
        nth = np.cumsum(lengths > 0) - 1
        for rows, entries in parts:
            out.reshape(-1, width)[nth[rows]] = entries
        return out
    first = np.cumsum(lengths) - lengths
    for rows, entries in parts:
        out[first[rows][:, None] + np.arange(entries.shape[1])] = entries
    return out


def _without_cancelled(columns: ChangeColumns, cancels: Any) -> ChangeColumns:
    """The changes without those that take an INSERT back, and without what they take back."""
    keep = ~cancels
    keep[_taken_back(columns, cancels)] = False
    kept = columns.at(np.flatnonzero(keep))
    numbers, first, relation = np.unique(kept.relation, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return replace(
        kept,
        relations=[columns.relations[numbers[at]] for at in order],
        relation=np.argsort(order).astype(np.int32)[relation],
    )


def _taken_back(columns: ChangeColumns, cancels: Any) -> list[int]:
    """The INSERTs that are taken back: of each DELETE the last one before it, of its table and transaction."""
    numbers: dict[TableName, int] = {}
    tables = [numbers.setdefault(relation.table, len(numbers)) for relation in columns.relations]
    out = []
    for transaction in np.unique(columns.transaction[cancels]).tolist():
        start, end = np.searchsorted(columns.transaction, [transaction, transaction + 1]).tolist()
        inserts: dict[int, list[int]] = {}
        rows: Iterable[tuple[int, int, bool]] = zip(
            columns.op[start:end].tolist(),
            columns.relation[start:end].tolist(),
            cancels[start:end].tolist(),
            strict=True,
        )
        for at, (op, relation, cancel) in enumerate(rows, start):
            table = tables[relation]
            if cancel:
                require(inserts.get(table))
                out.append(inserts[table].pop())
            elif op == _INSERT:
                inserts.setdefault(table, []).append(at)
    return out
