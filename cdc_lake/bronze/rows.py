"""Rows: a batch of transactions as the bronze table has them (`bronze/contract.py`).

Layout rows first, one a layout of the batch, then each transaction as B, its changes, C. Changes come and go as
columns: their place is computed once and nothing is done per change in Python. Lists are not copied at all: a row
without a tuple is a NULL of length zero between the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import BEGIN, COMMIT, MESSAGE, RELATION, SCHEMA, SNAPSHOT, UNDECODABLE
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.digest import chain_of, content_of
from cdc_lake.decode.raw import Raw
from cdc_lake.model.relation import Relation
from cdc_lake.model.undecoded import Undecoded

_UNCOUNTED = (ord(MESSAGE), ord(UNDECODABLE))
"""Rows that are of no table, or of one that is not certain."""


def build(
    batch: Sequence[Raw],
    changes: ChangeColumns,
    *,
    stream: str,
    epoch: int,
    previous: bytes,
    ingest_ts: int,
) -> tuple[pa.Table, bytes]:
    """The rows of a batch in bronze order, and the hash of its last transaction.

    `batch` is not empty and ascends by position; `previous` is the hash of the transaction before it; `ingest_ts` is in
    microseconds since 1970-01-01 UTC.
    """
    places = _places(batch, changes)
    infos, head = _commit_infos(batch, changes, places.sizes, previous)
    bounds = [raw.bounds for raw in batch]
    layouts = changes.relations
    per_transaction = {
        "position": pa.array([b.position for b in bounds], pa.int64()),
        "csn": pa.array([b.csn for b in bounds], pa.int64()),
        "first_lsn": pa.array([b.first_lsn for b in bounds], pa.int64()),
        "commit_lsn": pa.array([b.commit_lsn for b in bounds], pa.int64()),
        "xid": pa.array([b.xid for b in bounds], pa.int64()),
        "commit_ts": pa.array([b.commit_ts for b in bounds], pa.timestamp("us", tz="UTC")),
    }
    columns: dict[str, Any] = {name: values.take(places.transaction) for name, values in per_transaction.items()}
    columns["position"] = pc.fill_null(columns["position"], bounds[0].position)
    columns |= _constants(places.rows, stream=stream, epoch=epoch, ingest_ts=ingest_ts)
    columns |= {
        "ordinal": pa.array(places.ordinal, mask=places.ordinal < 0),
        "op": _ops(places, changes.op),
        "lsn": _scattered(places, changes.lsn, pa.int64()),
        "relation": pa.array([str(r.table) for r in layouts], pa.string()).take(places.relation),
        "layout": pa.array([r.layout for r in layouts], pa.int64()).take(places.relation),
        "new": _lists(places, changes.new, SCHEMA.field("new").type),
        "old": _lists(places, changes.old, SCHEMA.field("old").type),
        "unchanged": _lists(places, changes.unchanged, SCHEMA.field("unchanged").type),
        "old_kind": _one(changes.old_kind, pa.string()).take(places.change),
        "info": _infos(places, layouts, [_begin_info(raw) for raw in batch], infos, changes.info),
    }
    if changes.raw is not None:
        columns["raw"] = _one(changes.raw, pa.binary()).take(places.change)
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA), head


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows of a snapshot stand, and when they were written: microseconds since 1970."""

    stream: str
    epoch: int
    position: int
    ingest_ts: int


def snapshot_rows(relation: Relation, rows: Any, place: Place, first_ordinal: int) -> pa.Table:
    """The rows of one snapshot chunk: its layout row, then one `S` row an entry of `rows`, list<string>, an array or a
    chunked one, whose values are not copied.
    """
    kind = SCHEMA.field("new").type
    pieces = rows.chunks if isinstance(rows, pa.ChunkedArray) else [rows]
    size = len(rows) + 1
    ordinal = np.arange(first_ordinal - 1, first_ordinal - 1 + size, dtype=np.int64)
    nothing = np.zeros(size, bool)
    nothing[0] = True
    columns = {
        "position": pa.array(np.full(size, place.position, np.int64)),
        "ordinal": pa.array(ordinal, mask=nothing),
        "op": pa.array([RELATION] + [SNAPSHOT] * len(rows), pa.string()),
        "relation": pa.repeat(str(relation.table), size),
        "layout": pa.array(np.full(size, relation.layout, np.int64)),
        "new": pa.chunked_array([pa.nulls(1, kind), *(_one(piece, kind) for piece in pieces)]),
        "info": pa.array([_layout_info(relation)] + [None] * len(rows), pa.string()),
    } | _constants(size, stream=place.stream, epoch=place.epoch, ingest_ts=place.ingest_ts)
    return _whole(columns, size)


def absent_rows(relation: Relation, keys: Any, place: Place, first_ordinal: int) -> pa.Table:
    """One `S` row without a new tuple an entry of `keys`, a list<string> array by position in the layout, where only
    the key is told: a snapshot has no row of it.
    """
    size = len(keys)
    columns = {
        "position": pa.array(np.full(size, place.position, np.int64)),
        "ordinal": pa.array(np.arange(first_ordinal, first_ordinal + size, dtype=np.int64)),
        "op": pa.repeat(SNAPSHOT, size),
        "relation": pa.repeat(str(relation.table), size),
        "layout": pa.array(np.full(size, relation.layout, np.int64)),
        "old": _one(keys, SCHEMA.field("old").type),
        "old_kind": pa.repeat("key", size),
    } | _constants(size, stream=place.stream, epoch=place.epoch, ingest_ts=place.ingest_ts)
    return _whole(columns, size)


@dataclass(frozen=True)
class _Places:
    """Where everything stands. Arrays have one entry a row, unless said otherwise; NULL: the row has none."""

    rows: int
    sizes: Any  # changes of each transaction
    begin: Any  # row of each transaction's B
    commit: Any  # row of each transaction's C
    at: Any  # row of each change
    change: Any  # index of the row's change
    transaction: Any  # index of the row's transaction
    relation: Any  # index of the row's relation
    ordinal: Any  # -1: none


def _places(batch: Sequence[Raw], changes: ChangeColumns) -> _Places:
    layouts = len(changes.relations)
    sizes = np.bincount(changes.transaction, minlength=len(batch))
    rows = layouts + len(changes) + 2 * len(batch)
    commit = layouts + np.cumsum(sizes + 2) - 1
    begin = commit - sizes - 1
    at = np.arange(len(changes)) + layouts + 2 * changes.transaction.astype(np.int64) + 1
    change = np.full(rows, -1, np.int64)
    change[at] = np.arange(len(changes))
    transaction = np.concatenate((np.full(layouts, -1), np.repeat(np.arange(len(batch)), sizes + 2)))
    relation = np.full(rows, -1, np.int64)
    relation[:layouts] = np.arange(layouts)
    relation[at] = changes.relation
    ordinal = np.arange(rows) - np.concatenate((np.zeros(layouts, np.int64), np.repeat(begin, sizes + 2)))
    ordinal[:layouts] = -1
    return _Places(
        rows, sizes, begin, commit, at, _index(change), _index(transaction), _index(relation), ordinal.astype(np.int64)
    )


def _index(values: Any) -> pa.Array:
    """Indices to take by, NULL where negative."""
    return pa.array(values, pa.int64(), mask=values < 0)


def _one(values: Any, kind: pa.DataType) -> Any:
    """One array of a kind, from an array or a chunked one."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values if values.type == kind else values.cast(kind)


def _whole(columns: dict[str, Any], rows: int) -> pa.Table:
    """A table of the contract; columns that are not given are NULL."""
    return pa.table(
        {f.name: columns[f.name] if f.name in columns else pa.nulls(rows, f.type) for f in SCHEMA}, schema=SCHEMA
    )


def _constants(rows: int, *, stream: str, epoch: int, ingest_ts: int) -> dict[str, Any]:
    return {
        "stream": pa.repeat(stream, rows),
        "epoch": pa.array(np.full(rows, epoch, np.int32)),
        "raw": pa.nulls(rows, pa.binary()),
        "ingest_ts": pa.array(np.full(rows, ingest_ts, np.int64)).cast(pa.timestamp("us", tz="UTC")),
    }


def _ops(places: _Places, op: Any) -> Any:
    letters = np.full(places.rows, ord(RELATION), np.uint8)
    letters[places.begin] = ord(BEGIN)
    letters[places.commit] = ord(COMMIT)
    letters[places.at] = op
    offsets = np.arange(places.rows + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(places.rows, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters.tobytes()))


def _scattered(places: _Places, values: Any, kind: pa.DataType) -> Any:
    out = np.zeros(places.rows, np.int64)
    out[places.at] = values
    missing = np.ones(places.rows, bool)
    missing[places.at] = False
    return pa.array(out, kind, mask=missing)


def _lists(places: _Places, given: Any, kind: pa.DataType) -> Any:
    """The lists at their rows, sharing the values of the given arrays: as many arrays as there are."""
    chunks = given.chunks if isinstance(given, pa.ChunkedArray) else [given]
    out, first, row = [], 0, 0
    for lists in chunks:
        behind = first + len(lists)
        end = places.at[behind] if behind < len(places.at) else places.rows
        out.append(_spread(lists, places.at[first:behind] - row, end - row).cast(kind))
        first, row = behind, end
    return pa.chunked_array(out, kind)


def _spread(lists: Any, at: Any, rows: int) -> Any:
    """The lists at these of so many rows, NULL at the others."""
    offsets = np.asarray(lists.offsets).astype(np.int64)
    missing = np.asarray(lists.is_null())
    lengths = np.diff(offsets)
    if lengths[missing].any():  # Arrow allows a NULL to own values; then they have to be copied out
        index = np.full(rows, -1, np.int64)
        index[at] = np.arange(len(at))
        return lists.take(_index(index))
    spread = np.zeros(rows + 1, np.int64)
    spread[at + 1] = lengths
    nothing = np.ones(rows, bool)
    nothing[at] = missing
    where = (np.cumsum(spread) + offsets[0]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(where), lists.values, mask=pa.array(nothing))


def _infos(places: _Places, layouts: list[Relation], begins: list[str | None], commits: list[str], given: Any) -> Any:
    pool = pa.concat_arrays(
        [
            pa.array([_layout_info(r) for r in layouts], pa.string()),
            pa.array(begins, pa.string()),
            pa.array(commits, pa.string()),
            _one(given, pa.string()),
        ]
    )
    source = np.empty(places.rows, np.int64)
    source[: len(layouts)] = np.arange(len(layouts))
    source[places.begin] = len(layouts) + np.arange(len(begins))
    source[places.commit] = len(layouts) + len(begins) + np.arange(len(commits))
    source[places.at] = len(layouts) + 2 * len(begins) + np.arange(len(places.at))
    return pool.take(pa.array(source))


def _layout_info(relation: Relation) -> str:
    return json.dumps(relation.describe(), ensure_ascii=False, separators=(",", ":"))


def _begin_info(raw: Raw) -> str | None:
    given = {"user": raw.bounds.user, "origin": raw.bounds.origin}
    present = {name: value for name, value in given.items() if value is not None}
    return json.dumps(present, ensure_ascii=False) if present else None


def _commit_infos(batch: Sequence[Raw], changes: ChangeColumns, sizes: Any, previous: bytes) -> tuple[list[str], bytes]:
    """The `info` of each COMMIT row, and the last hash. Written by hand: this is the cost of a small transaction."""
    head, start, out = previous, 0, []
    digests = changes.digests
    for at, (raw, size, counts) in enumerate(zip(batch, sizes.tolist(), _counts(changes, len(batch)), strict=True)):
        content = content_of(digests[start : start + size])
        head = chain_of(head, raw.bounds.position, content)
        start += size
        out.append(commit_info(raw, counts, content, head, changes.configuration, changes.undecoded.get(at)))
    return out, head


def commit_info(
    raw: Raw, counts: str, content: bytes, head: bytes, configuration: int, undecoded: Undecoded | None
) -> str:
    """The `info` of a COMMIT row; `counts` is the inside of its object."""
    odd = f',"undecodable":{json.dumps(undecoded.describe(), ensure_ascii=False)}' if undecoded else ""
    return (
        f'{{"counts":{{{counts}}},"bytes":{raw.size},"content":"{content.hex()}","hash":"{head.hex()}",'
        f'"empty_before":{raw.bounds.empty_before},"configuration":{configuration}{odd}}}'
    )


def _counts(changes: ChangeColumns, transactions: int) -> list[str]:
    """For each transaction the inside of `counts`: `"public.a":{"I":2,"U":1}` and so on, of changes of tables."""
    names = [json.dumps(str(r.table), ensure_ascii=False) for r in changes.relations]
    # two layouts of one table are one table here; in the order of names, whatever came first in the batch
    tables = {name: at for at, name in enumerate(sorted(set(names)))}
    labels = list(tables)
    table_of = np.array([tables[name] for name in names] or [0], np.int64)
    counted = ~np.isin(changes.op, _UNCOUNTED)
    width = max(len(labels), 1) << 8
    code = changes.transaction[counted].astype(np.int64) * width
    code += (table_of[changes.relation[counted]] << 8) + changes.op[counted]
    groups, numbers = np.unique(code, return_counts=True)
    out = [""] * transactions
    last = (-1, -1)
    for group, number in zip(groups.tolist(), numbers.tolist(), strict=True):
        transaction, rest = divmod(group, width)
        table, op = rest >> 8, chr(rest & 0xFF)
        if last == (transaction, table):
            out[transaction] = f'{out[transaction][:-1]},"{op}":{number}}}'
        else:
            comma = "," if out[transaction] else ""
            out[transaction] += f'{comma}{labels[table]}:{{"{op}":{number}}}'
        last = (transaction, table)
    return out
