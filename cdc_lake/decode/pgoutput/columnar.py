"""The columnar decoder of pgoutput: the same result as the row decoder, a chunk of frames at a time.

Frames are joined into chunks of a few megabytes (larger ones miss the cache), their columns are read for all rows at
once (`decode.columnar_reader`), and Arrow copies the values once. Anything irregular is passed to the row decoder,
which therefore reports all errors. Digests need no decoding: the received bytes are the canonical ones, except for
binary values.

`tabulate_plain`, the reference and fallback, is built only from the row decoder and values of the model, so that it
shares no byte handling with the columnar decoder.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lake.decode.change_batch import ChangeColumns, Numbering, canonical_of, concat_changes
from cdc_lake.decode.columnar_reader import (
    FallBackToRowDecoder,
    FrameBuffer,
    TupleOffsets,
    lists,
    read_tuples,
    require,
    string_array,
    unchanged_lists,
)
from cdc_lake.decode.digests import digests_anew, digests_by_kind
from cdc_lake.decode.encoding import InHex, any_prefixed
from cdc_lake.decode.hashing import DIGEST_SIZE, Canonical, Digests, Hashing, digest_of, hashed_here, meanwhile
from cdc_lake.decode.pgoutput.binary_values import binary_texts
from cdc_lake.decode.pgoutput.parser import change_of, changes
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import BatchTooLarge, DecodeError
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Truncate, Tuple, Update
from cdc_lake.model.relation import Relation

TUPLES = pa.list_(pa.string())
POSITIONS = pa.list_(pa.int32())
MAX_BYTES = (1 << 31) - (1 << 20)
"""Maximum bytes that the 32-bit offsets of one Arrow array can address, minus padding."""


def refuse_oversize(size: int) -> None:
    """Raise BatchTooLarge if so many bytes of frames exceed one array of values."""
    if size > MAX_BYTES:
        raise BatchTooLarge(f"a batch of {size} bytes of changes: at most {MAX_BYTES} fit")


def tabulate_plain(batch: Sequence[BufferedTransaction], in_hex: InHex | None = None) -> ChangeColumns:
    """The changes of the transactions, in order. Raises the DecodeError of the first invalid change.

    `in_hex`: which columns may contain invalid text (`decode.encoding`), None: no column.
    """
    refuse_oversize(sum(len(frame) for raw in batch for frame in raw.frames))
    return columns_of(
        [(nth, raw.lsns[index], change) for nth, raw in enumerate(batch) for index, change in changes(raw, in_hex)]
    )


def columns_of(decoded: Sequence[tuple[int, int, Change]]) -> ChangeColumns:
    """Changes as columns; each comes with the ascending index of its transaction, and its LSN."""
    all_changes = [change for _, _, change in decoded]
    numbering = Numbering()
    return ChangeColumns(
        transaction=np.array([nth for nth, _, _ in decoded], np.int32),
        op=np.array([ord(_OPS[type(change)]) for change in all_changes], np.uint8),
        relation=np.array(
            [-1 if isinstance(c, Message) else numbering.number(c.relation) for c in all_changes], np.int32
        ),
        lsn=np.array([lsn for _, lsn, _ in decoded], np.int64),
        new=pa.array([_text_values(_new(change)) for change in all_changes], TUPLES),
        old=pa.array([_text_values(_old(change)) for change in all_changes], TUPLES),
        old_kind=pa.array([_old_kind(change) for change in all_changes], pa.string()),
        unchanged=pa.array([_unchanged_positions(_new(change)) for change in all_changes], POSITIONS),
        info=pa.array([info_of(change) for change in all_changes], pa.string()),
        digests=[digest_of(canonical_of(change)) for change in all_changes],
        relations=numbering.relations,
    )


def info_of(change: Change) -> str | None:
    """The JSON of a truncate's flags or of a message's prefix and content (base64); None for a row change."""
    match change:
        case Truncate(cascade=cascade, restart_identity=restart):
            return json.dumps({"cascade": cascade, "restart_identity": restart})
        case Message(prefix=prefix, content=content):
            return json.dumps({"prefix": prefix, "content": base64.b64encode(content).decode()}, ensure_ascii=False)
        case _:
            return None


_OPS: dict[type[Change], str] = {Insert: "I", Update: "U", Delete: "D", Truncate: "T", Message: "M"}


def _new(change: Change) -> Tuple | None:
    return change.new if isinstance(change, Insert | Update) else None


def _old(change: Change) -> Tuple | None:
    return change.old if isinstance(change, Update | Delete) else None


def _old_kind(change: Change) -> str | None:
    kind: OldKind | None = change.old_kind if isinstance(change, Update | Delete) else None
    return None if kind is None else kind.value


def _text_values(values: Tuple | None) -> list[str | None] | None:
    return None if values is None else [None if value is UNCHANGED else value for value in values]


def _unchanged_positions(values: Tuple | None) -> list[int] | None:
    return [position for position, value in enumerate(values or ()) if value is UNCHANGED] or None


CHUNK_BYTES: Final = 2 << 20
"""Measured: half of it costs an eighth more, a quarter of a mebibyte a third, 16 of them a fifth (page faults)."""

SMALL: Final = 32
"""Below this many changes the row decoder is faster than a columnar walk (measured). But it makes several copies of
large rows, and four times the size of a text with one non-ASCII character, so large rows are always walked.
"""

_INSERT, _UPDATE, _DELETE, _TRUNCATE, _MESSAGE = b"IUDTM"
_NEW, _KEY, _FULL = b"NKO"
_SHORTEST = 8  # letter, OID, tuple kind, count: no data message is shorter
_KINDS = pa.array(["key", "full"])


def tabulate(
    batch: Sequence[BufferedTransaction], in_hex: InHex | None = None, hashing: Hashing = hashed_here
) -> ChangeColumns:
    """The changes of the transactions as columns, in order.

    Equal in every field to `tabulate_plain(batch, in_hex)`, with the same DecodeError for the same bytes. `hashing`
    computes the digests of large chunks.
    """
    sizes = [len(raw.frames) for raw in batch]
    if sum(sizes) >= SMALL or sum(raw.size for raw in batch) >= CHUNK_BYTES:
        with suppress(FallBackToRowDecoder):
            columns = _tabulate(batch, sizes, hashing)
            require(in_hex is None or not (any_prefixed(columns.new) or any_prefixed(columns.old)))
            return columns
        if in_hex is not None and len(batch) > 1:  # a few odd values must not slow down the whole batch
            parts = batch[: len(batch) // 2], batch[len(batch) // 2 :]
            return concat_changes([(tabulate(part, in_hex, hashing), len(part)) for part in parts], pa.concat_arrays)
    return tabulate_plain(batch, in_hex)


def _tabulate(batch: Sequence[BufferedTransaction], sizes: list[int], hashing: Hashing) -> ChangeColumns:
    numbering = Numbering()
    transaction = np.repeat(np.arange(len(batch), dtype=np.int32), sizes)
    lsn = np.fromiter(chain.from_iterable(raw.lsns for raw in batch), np.int64, sum(sizes))
    parts = [_part(cut, transaction, lsn, numbering, hashing) for cut in _cuts(batch, sizes)]
    columns = concat_changes([(part, 0) for part, _ in parts], pa.concat_arrays)
    binary = np.flatnonzero(np.concatenate([mask for _, mask in parts]))
    if not len(binary):
        return columns
    # of texts, instead of those of binary values
    return replace(columns, digests=digests_anew(columns, binary, hashing))


@dataclass(frozen=True, slots=True)
class _Cut:
    """Consecutive frames of a batch, across transactions; `first` is the index of the first one."""

    first: int
    frames: list[bytes]
    layouts: list[Relation | None]
    truncated: dict[int, tuple[Relation, ...]]


def _cuts(batch: Sequence[BufferedTransaction], sizes: list[int]) -> Iterator[_Cut]:
    """Divide the batch into pieces of about `CHUNK_BYTES`, at least one frame each."""
    frames = list(chain.from_iterable(raw.frames for raw in batch))
    layouts = list(chain.from_iterable(raw.layouts for raw in batch))
    truncated = {
        base + index: tables
        for raw, base in zip(batch, accumulate(sizes, initial=0), strict=False)
        for index, tables in raw.truncated.items()
    }
    ends = np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)))
    refuse_oversize(int(ends[-1]))
    piece = ends // CHUNK_BYTES
    borders = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(frames)]
    for first, end in pairwise(borders):
        inside = {index - first: tables for index, tables in truncated.items() if first <= index < end}
        yield _Cut(first, frames[first:end], layouts[first:end], inside)


@dataclass(frozen=True, slots=True)
class _Shape:
    """For each frame: letter, kind of its first tuple, relation number and column count (-1 and 0 for odd frames).

    Odd frames are truncates and logical messages: `odd` is a bool ndarray, `changes` are their changes, by frame.
    """

    letter: Any
    kind: Any
    relation: Any
    columns: Any
    odd: Any
    changes: dict[int, tuple[Change, ...]]


def _part(cut: _Cut, transaction: Any, lsn: Any, numbering: Numbering, hashing: Hashing) -> tuple[ChangeColumns, Any]:
    """The changes of one piece, and for each (bool ndarray) whether it had binary values, so that its digest covers the
    bytes of these. `transaction` and `lsn`: of all frames of the batch.
    """
    require(min(map(len, cut.frames)) >= _SHORTEST)
    chunk = FrameBuffer.from_frames(cut.frames)
    shape = _shape(cut, chunk, numbering)
    count = len(cut.frames)
    old_rows, old, new_rows, new = _tuples(chunk, shape)
    binary = _with_binary(old, old_rows, count) | _with_binary(new, new_rows, count)
    # may run in another process while values are copied
    digests = _digests(chunk, shape, numbering, hashing, none=bool((binary | shape.odd).all()))
    with meanwhile(digests):
        both = ((new, new_rows), (old, old_rows))
        new_lists, old_lists = (_tuple_lists(chunk, tuples, rows, shape, numbering) for tuples, rows in both)
    frames = slice(cut.first, cut.first + count)
    columns = ChangeColumns(
        relations=numbering.relations,
        transaction=transaction[frames],
        op=shape.letter,
        relation=shape.relation.astype(np.int32),
        lsn=lsn[frames],
        new=new_lists,
        old=old_lists,
        old_kind=_old_kinds(shape, old_rows, count),
        unchanged=unchanged_lists(new, new_rows, count, POSITIONS),
        info=pa.nulls(count, pa.string()),
        digests=digests(),
    )
    return _with_odd(columns, binary, shape, numbering) if shape.changes else (columns, binary)


def _digests(
    chunk: FrameBuffer, shape: _Shape, numbering: Numbering, hashing: Hashing, *, none: bool
) -> Callable[[], Digests]:
    """Begin the digests of frames, except odd frames and binary values (`none`: all are), which follow later."""
    if none:
        return lambda: Digests(bytes(DIGEST_SIZE * len(shape.letter)))
    borders = np.concatenate([np.zeros(1, np.int32), chunk.end.astype(np.int32)])
    tails = Canonical(b"", borders, chunk.bytes, 5)  # after letter and OID
    return digests_by_kind(shape.letter, shape.relation, numbering.relations, tails, hashing)


def _shape(cut: _Cut, chunk: FrameBuffer, numbering: Numbering) -> _Shape:
    letter, kind = chunk.data[chunk.start], chunk.data[chunk.start + 5]
    odd = (letter == _TRUNCATE) | (letter == _MESSAGE)
    changes = {index: _odd_change(cut, index) for index in np.flatnonzero(odd).tolist()}
    # layouts are distinguished by identity, then numbered in the order of their first change
    ids = np.fromiter(map(id, cut.layouts), np.int64, len(cut.layouts))
    ids[odd] = 0
    distinct = np.array(sorted(set(ids.tolist())), np.int64)
    which = np.searchsorted(distinct, ids)
    first = np.empty(len(distinct), np.int64)
    first[which[::-1]] = np.arange(len(ids) - 1, -1, -1)  # the last write wins: the first frame
    layouts = [None if odd[index] else cut.layouts[index] for index in first.tolist()]
    require(all(layout is not None or odd[index] for index, layout in zip(first.tolist(), layouts, strict=True)))
    appearances = [(index, layout) for index, layout in zip(first.tolist(), layouts, strict=True) if layout is not None]
    appearances += [(index, c.relation) for index, cs in changes.items() for c in cs if not isinstance(c, Message)]
    for _, layout in sorted(appearances, key=itemgetter(0)):
        numbering.number(layout)
    numbers = np.array([-1 if layout is None else numbering.number(layout) for layout in layouts])
    widths = np.array([0 if layout is None else len(layout.columns) for layout in layouts])
    return _Shape(letter, kind, numbers[which], widths[which], odd, changes)


def _odd_change(cut: _Cut, index: int) -> tuple[Change, ...]:
    try:
        return change_of(cut.frames[index], cut.layouts[index], cut.truncated.get(index, ()))
    except DecodeError:
        raise FallBackToRowDecoder from None  # the row decoder reports the error with its location


def _tuples(chunk: FrameBuffer, shape: _Shape) -> tuple[Any, TupleOffsets | None, Any, TupleOffsets | None]:
    """Rows with an old tuple, those tuples, rows with a new tuple, those tuples."""
    insert, update, delete = (shape.letter == op for op in (_INSERT, _UPDATE, _DELETE))
    has_old = ((shape.kind == _KEY) | (shape.kind == _FULL)) & (update | delete)
    new_first = (shape.kind == _NEW) & (insert | update)
    require((has_old | new_first | shape.odd).all())
    offsets = chunk.start + 6
    old = None
    old_rows = np.flatnonzero(has_old)
    if len(old_rows):
        old = read_tuples(chunk, offsets[old_rows], chunk.end[old_rows], shape.columns[old_rows])
        require(old.unchanged is None)
        gone = delete[old_rows]
        require((old.after[gone] == chunk.end[old_rows[gone]]).all())
        stays = old.after[~gone]
        require((stays < chunk.end[old_rows[~gone]]).all() and (chunk.data[stays] == _NEW).all())
        offsets[old_rows] = old.after + 1
    new_rows = np.flatnonzero(insert | update)
    if not len(new_rows):
        return old_rows, old, new_rows, None
    new = read_tuples(chunk, offsets[new_rows], chunk.end[new_rows], shape.columns[new_rows])
    require((new.after == chunk.end[new_rows]).all())
    return old_rows, old, new_rows, new


def _tuple_lists(
    chunk: FrameBuffer, tuples: TupleOffsets | None, rows: Any, shape: _Shape, numbering: Numbering
) -> pa.Array:
    count = len(shape.letter)
    if tuples is None:
        return pa.nulls(count, TUPLES)
    lengths, valid = np.zeros(count, np.int64), np.zeros(count, bool)
    lengths[rows], valid[rows] = np.diff(tuples.offsets), True
    if tuples.binary is None:
        return lists(TUPLES, lengths, valid, string_array(chunk, tuples.slots, tuples.absent))
    return lists(TUPLES, lengths, valid, binary_texts(chunk, tuples, shape.relation[rows], numbering.relations))


def _with_binary(tuples: TupleOffsets | None, rows: Any, count: int) -> Any:
    """For `count` changes, of which `rows` have these tuples: whether any of their values is binary."""
    mask = np.zeros(count, bool)
    if tuples is not None and tuples.binary is not None:
        mask[rows[np.searchsorted(tuples.offsets, np.flatnonzero(tuples.binary), side="right") - 1]] = True
    return mask


def _old_kinds(shape: _Shape, rows: Any, count: int) -> pa.Array:
    if not len(rows):
        return pa.nulls(count, pa.string())
    absent = np.ones(count, bool)
    absent[rows] = False
    return _KINDS.take(pa.array((shape.kind == _FULL).astype(np.int8), mask=absent))


def _with_odd(columns: ChangeColumns, binary: Any, shape: _Shape, numbering: Numbering) -> tuple[ChangeColumns, Any]:
    """The same with truncates, one change per table, and messages filled in."""
    repeats = np.ones(len(columns), np.int64)
    for index, truncates in shape.changes.items():
        repeats[index] = len(truncates)
    row = np.repeat(np.arange(len(columns)), repeats)
    first = np.cumsum(repeats) - repeats
    columns = columns.take(row)
    relation, digests = columns.relation, list(columns.digests)
    info: list[str | None] = [None] * len(row)
    for index, several in shape.changes.items():
        for to, change in enumerate(several, first[index]):
            info[to] = info_of(change)
            digests[to] = digest_of(canonical_of(change))
            relation[to] = -1 if isinstance(change, Message) else numbering.number(change.relation)
    filled = replace(columns, info=pa.array(info, pa.string()), digests=Digests.from_parts([digests]))
    return filled, binary[row]
