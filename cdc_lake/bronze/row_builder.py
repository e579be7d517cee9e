"""Builds the rows of a batch for the bronze table (`bronze.contract`), one file at a time.

Layout rows come first, one for each layout of the batch, then each transaction as B, its changes, C. Changes stay
columns: Python does not loop over changes, and lists are not copied.

A large transaction comes in parts, as one commit of several files: ordinals continue from part to part, a layout is
described once, and the last part has C, which describes them all. Memory contains one part. While a thread writes one
file, the rows of the next one are built.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze import contract
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.hashing import Content, chain_of, content_of
from cdc_lake.decode.transaction import DecodedMarker, ReceivedTransaction
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import Undecoded
from cdc_lake.model.relation import Relation

_UNCOUNTED = (ord(contract.MESSAGE), ord(contract.UNDECODABLE))
"""Rows without a table, or with an uncertain one."""


def build(
    batch: Sequence[ReceivedTransaction],
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
    layouts, begins = changes.relations, [_begin_info(raw) for raw in batch]
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
        "lsn": _scatter_values(places, changes.lsn, pa.int64()),
        "relation": pa.array([str(r.table) for r in layouts], pa.string()).take(places.relation),
        "layout": pa.array([r.layout for r in layouts], pa.int64()).take(places.relation),
        "new": _lists(places, changes.new, contract.SCHEMA.field("new").type),
        "old": _lists(places, changes.old, contract.SCHEMA.field("old").type),
        "unchanged": _lists(places, changes.unchanged, contract.SCHEMA.field("unchanged").type),
        "old_kind": _as_array(changes.old_kind, pa.string()).take(places.change),
        "info": _infos(places, [_layout_info(layout) for layout in layouts], begins, infos, changes.info),
    }
    if changes.raw is not None:
        columns["raw"] = _as_array(changes.raw, pa.binary()).take(places.change)
    return pa.table({name: columns[name] for name in contract.SCHEMA.names}, schema=contract.SCHEMA), head


@dataclass(frozen=True, slots=True)
class Place:
    """The position of snapshot rows, and the time of their writing: microseconds since 1970."""

    stream: str
    epoch: int
    position: int
    ingest_ts: int


def snapshot_rows(relation: Relation, rows: Any, place: Place, first_ordinal: int) -> pa.Table:
    """The rows of a snapshot chunk: its layout row, then an `S` row for each entry of `rows`; values are not copied."""
    kind = contract.SCHEMA.field("new").type
    pieces = rows.chunks if isinstance(rows, pa.ChunkedArray) else [rows]
    size = len(rows) + 1
    ordinal = np.arange(first_ordinal - 1, first_ordinal - 1 + size, dtype=np.int64)
    nothing = np.zeros(size, bool)
    nothing[0] = True
    columns = {
        "ordinal": pa.array(ordinal, mask=nothing),
        "op": pa.array([contract.RELATION] + [contract.SNAPSHOT] * len(rows), pa.string()),
        "new": pa.chunked_array([pa.nulls(1, kind), *(_as_array(piece, kind) for piece in pieces)]),
        "info": pa.array([_layout_info(relation)] + [None] * len(rows), pa.string()),
    }
    return _full_table(columns, size, relation, place)


def absent_rows(relation: Relation, keys: Any, place: Place, first_ordinal: int) -> pa.Table:
    """An `S` row without a new tuple for each entry of `keys`: the snapshot has no row with this key."""
    size = len(keys)
    columns = {
        "ordinal": pa.array(np.arange(first_ordinal, first_ordinal + size, dtype=np.int64)),
        "op": pa.repeat(contract.SNAPSHOT, size),
        "old": _as_array(keys, contract.SCHEMA.field("old").type),
        "old_kind": pa.repeat("key", size),
    }
    return _full_table(columns, size, relation, place)


@dataclass(frozen=True)
class _Places:
    """Where everything is placed. Arrays have one entry per row, unless stated otherwise; NULL: the row has none."""

    rows: int
    sizes: Any  # changes of each transaction
    begin: Any  # row of each transaction's B
    commit: Any  # row of each transaction's C
    change_rows: Any  # row of each change
    change: Any  # index of the row's change
    transaction: Any  # index of the row's transaction
    relation: Any  # index of the row's relation
    ordinal: Any  # -1: none


def _places(batch: Sequence[ReceivedTransaction], changes: ChangeColumns) -> _Places:
    layouts = len(changes.relations)
    sizes = np.bincount(changes.transaction, minlength=len(batch))
    rows = layouts + len(changes) + 2 * len(batch)
    commit = layouts + np.cumsum(sizes + 2) - 1
    begin = commit - sizes - 1
    change_rows = np.arange(len(changes)) + layouts + 2 * changes.transaction.astype(np.int64) + 1
    change = np.full(rows, -1, np.int64)
    change[change_rows] = np.arange(len(changes))
    transaction = np.concatenate((np.full(layouts, -1), np.repeat(np.arange(len(batch)), sizes + 2)))
    relation = np.full(rows, -1, np.int64)
    relation[:layouts] = np.arange(layouts)
    relation[change_rows] = changes.relation
    ordinal = np.arange(rows) - np.concatenate((np.zeros(layouts, np.int64), np.repeat(begin, sizes + 2)))
    ordinal[:layouts] = -1
    change, transaction, relation = _index(change), _index(transaction), _index(relation)
    return _Places(rows, sizes, begin, commit, change_rows, change, transaction, relation, ordinal.astype(np.int64))


def _index(values: Any) -> pa.Array:
    """Indices for `take`, NULL if negative."""
    return pa.array(values, pa.int64(), mask=values < 0)


def _as_array(values: Any, kind: pa.DataType) -> Any:
    """One array of a kind, from an array or a chunked one."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values if values.type == kind else values.cast(kind)


def _full_table(columns: dict[str, Any], rows: int, relation: Relation, place: Place) -> pa.Table:
    """A table of the contract with rows at a place; missing columns are NULL."""
    columns |= {
        "position": pa.array(np.full(rows, place.position, np.int64)),
        "relation": pa.repeat(str(relation.table), rows),
        "layout": pa.array(np.full(rows, relation.layout, np.int64)),
    } | _constants(rows, stream=place.stream, epoch=place.epoch, ingest_ts=place.ingest_ts)
    return pa.table(
        {f.name: columns[f.name] if f.name in columns else pa.nulls(rows, f.type) for f in contract.SCHEMA},
        schema=contract.SCHEMA,
    )


def _constants(rows: int, *, stream: str, epoch: int, ingest_ts: int) -> dict[str, Any]:
    return {
        "stream": pa.repeat(stream, rows),
        "epoch": pa.array(np.full(rows, epoch, np.int32)),
        "raw": pa.nulls(rows, pa.binary()),
        "ingest_ts": pa.array(np.full(rows, ingest_ts, np.int64)).cast(pa.timestamp("us", tz="UTC")),
    }


def _ops(places: _Places, op: Any) -> Any:
    letters = np.full(places.rows, ord(contract.RELATION), np.uint8)
    letters[places.begin] = ord(contract.BEGIN)
    letters[places.commit] = ord(contract.COMMIT)
    letters[places.change_rows] = op
    offsets = np.arange(places.rows + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(places.rows, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters.tobytes()))


def _scatter_values(places: _Places, values: Any, kind: pa.DataType) -> Any:
    numbers = np.zeros(places.rows, np.int64)
    numbers[places.change_rows] = values
    missing = np.ones(places.rows, bool)
    missing[places.change_rows] = False
    return pa.array(numbers, kind, mask=missing)


def _lists(places: _Places, arrays: Any, kind: pa.DataType) -> Any:
    """The lists at their rows, sharing the values of the given arrays."""
    chunks = arrays.chunks if isinstance(arrays, pa.ChunkedArray) else [arrays]
    spread_chunks, first, row = [], 0, 0
    for lists in chunks:
        stop = first + len(lists)
        end = places.change_rows[stop] if stop < len(places.change_rows) else places.rows
        spread_chunks.append(_spread(lists, places.change_rows[first:stop] - row, end - row).cast(kind))
        first, row = stop, end
    return pa.chunked_array(spread_chunks, kind)


def _spread(lists: Any, row_indices: Any, rows: int) -> Any:
    """The lists at these row indices, NULL at the others."""
    offsets = np.asarray(lists.offsets).astype(np.int64)
    missing = np.asarray(lists.is_null())
    lengths = np.diff(offsets)
    if lengths[missing].any():  # Arrow allows a NULL to have values; then they have to be copied out
        index = np.full(rows, -1, np.int64)
        index[row_indices] = np.arange(len(row_indices))
        return lists.take(_index(index))
    spread = np.zeros(rows + 1, np.int64)
    spread[row_indices + 1] = lengths
    nothing = np.ones(rows, bool)
    nothing[row_indices] = missing
    where = (np.cumsum(spread) + offsets[0]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(where), lists.values, mask=pa.array(nothing))


def _infos(places: _Places, layouts: list[str], begins: list[str | None], commits: list[str], infos: Any) -> Any:
    pool = pa.concat_arrays([pa.array([*layouts, *begins, *commits], pa.string()), _as_array(infos, pa.string())])
    source = np.empty(places.rows, np.int64)
    source[: len(layouts)] = np.arange(len(layouts))
    source[places.begin] = len(layouts) + np.arange(len(begins))
    source[places.commit] = len(layouts) + len(begins) + np.arange(len(commits))
    source[places.change_rows] = len(layouts) + 2 * len(begins) + np.arange(len(places.change_rows))
    return pool.take(pa.array(source))


def _layout_info(relation: Relation) -> str:
    return json.dumps(relation.describe(), ensure_ascii=False, separators=(",", ":"))


def _begin_info(raw: ReceivedTransaction) -> str | None:
    fields = {"user": raw.bounds.user, "origin": raw.bounds.origin}
    present = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(present, ensure_ascii=False) if present else None


def _commit_infos(
    batch: Sequence[ReceivedTransaction], changes: ChangeColumns, sizes: Any, previous: bytes
) -> tuple[list[str], bytes]:
    """The `info` of each COMMIT row, and the last hash. Formatted by hand: small transactions cost most here."""
    head, start, infos = previous, 0, []
    digests = changes.digests
    for index, (raw, size, counts) in enumerate(zip(batch, sizes.tolist(), _counts(changes, len(batch)), strict=True)):
        content = content_of(digests[start : start + size])
        head = chain_of(head, raw.bounds.position, content)
        start += size
        infos.append(commit_info(raw, counts, content, head, changes.configuration, changes.undecoded.get(index)))
    return infos, head


def commit_info(
    raw: ReceivedTransaction, counts: str, content: bytes, head: bytes, configuration: int, undecoded: Undecoded | None
) -> str:
    """The `info` of a COMMIT row; `counts` is the content of its object."""
    odd = f',"undecodable":{json.dumps(undecoded.describe(), ensure_ascii=False)}' if undecoded else ""
    return (
        f'{{"counts":{{{counts}}},"bytes":{raw.size},"content":"{content.hex()}","hash":"{head.hex()}",'
        f'"empty_before":{raw.bounds.empty_before},"configuration":{configuration}{odd}}}'
    )


def _counts(changes: ChangeColumns, transactions: int) -> list[str]:
    """For each transaction the content of `counts`: `"public.a":{"I":2,"U":1}` and so on, for changes of tables."""
    names = [json.dumps(str(r.table), ensure_ascii=False) for r in changes.relations]
    # two layouts of one table count as one; ordered by name, independent of the batch
    tables = {name: index for index, name in enumerate(sorted(set(names)))}
    labels = list(tables)
    table_of = np.array([tables[name] for name in names] or [0], np.int64)
    counted = ~np.isin(changes.op, _UNCOUNTED)
    width = max(len(labels), 1) << 8
    code = changes.transaction[counted].astype(np.int64) * width
    code += (table_of[changes.relation[counted]] << 8) + changes.op[counted]
    groups, numbers = np.unique(code, return_counts=True)
    texts = [""] * transactions
    last = (-1, -1)
    for group, number in zip(groups.tolist(), numbers.tolist(), strict=True):
        transaction, rest = divmod(group, width)
        table, op = rest >> 8, chr(rest & 0xFF)
        if last == (transaction, table):
            texts[transaction] = f'{texts[transaction][:-1]},"{op}":{number}}}'
        else:
            comma = "," if texts[transaction] else ""
            texts[transaction] += f'{comma}{labels[table]}:{{"{op}":{number}}}'
        last = (transaction, table)
    return texts


class LargeRows:
    """The rows of one transaction, used once. `head`: its hash, after its last part."""

    def __init__(self, raw: ReceivedTransaction, build: Callable[..., tuple[pa.Table, bytes]], previous: bytes) -> None:
        """`raw`: the whole transaction; `build`: as of this module, with the arguments that are the same for all rows
        of a commit; `previous`: the hash of the transaction before.
        """
        self._raw = raw
        self._build = build
        self.head = previous
        self._content = Content()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._layouts: set[int] = set()
        self._undecoded: Undecoded | None = None
        self._frames = self._changes = 0

    def part(self, raw: ReceivedTransaction, changes: ChangeColumns) -> pa.Table:
        """The rows of the next part."""
        rows, _ = self._build([raw], changes, previous=self.head)
        layouts, first = len(changes.relations), self._frames == 0
        ordinals = np.arange(self._changes + 1, self._changes + len(changes) + 1, dtype=np.int64)
        body = _set_column(rows.slice(layouts + 1, len(changes)), "ordinal", pa.array(ordinals))
        numbers = [relation.layout for relation in changes.relations]
        fresh = pa.array([number not in self._layouts for number in numbers], pa.bool_())
        self._layouts.update(numbers)
        pieces = [rows.slice(0, layouts).filter(fresh), rows.slice(layouts, int(first)), body]
        commit = rows.slice(rows.num_rows - 1)
        self._frames += raw.count
        self._changes += len(changes)
        self._content.add_all(changes.digests)
        for table, kinds in json.loads(commit["info"][0].as_py())["counts"].items():
            self._counts[table].update(kinds)
        if (why := changes.undecoded.get(0)) is not None:
            if (earlier := self._undecoded) is not None:
                tables = tuple(dict.fromkeys([*earlier.tables, *why.tables]))
                why = replace(earlier, frames=earlier.frames + why.frames, tables=tables)
            self._undecoded = why
        if self._frames == self._raw.count:
            pieces.append(self._end(commit, changes.configuration))
        return pa.concat_tables(pieces)

    def _end(self, commit: pa.Table, configuration: int) -> pa.Table:
        content = self._content.root()
        self.head = chain_of(self.head, self._raw.bounds.position, content)
        ordered = sorted(self._counts.items(), key=lambda item: json.dumps(item[0], ensure_ascii=False))
        counts = json.dumps(
            {table: dict(sorted(kinds.items())) for table, kinds in ordered}, ensure_ascii=False, separators=(",", ":")
        )
        info = commit_info(self._raw, counts[1:-1], content, self.head, configuration, self._undecoded)
        return _set_column(_set_column(commit, "ordinal", pa.array([self._changes + 1])), "info", pa.array([info]))


def _set_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    index = contract.SCHEMA.get_field_index(name)
    return rows.set_column(index, contract.SCHEMA.field(index), values.cast(contract.SCHEMA.field(index).type))


T = TypeVar("T")

_LARGE: Final = 16 << 20
"""Bytes of a part with one large row, of which Arrow keeps several times the memory until told to free it (seen)."""
_FEW: Final = 1000
"""A table of so many bytes with fewer rows than this has large rows."""


def one_thread(name: str) -> Executor:
    """An executor with one thread."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"cdc-lake-{name}")


class BatchRows:
    """Rows of ascending transactions after `before`. After all were read, `head` is the last one's hash, `changes`
    their number, `operations` the number of each kind. `worker` creates the executor that writes files.
    """

    def __init__(
        self,
        fresh: Sequence[ReceivedTransaction],
        tabulate: contract.Tabulate,
        before: contract.StreamCheckpoint,
        ingest_ts: int,
        worker: Callable[[str], Executor] = one_thread,
    ) -> None:
        self._fresh = fresh
        self._tabulate = tabulate
        self._before = before
        self._build = partial(build, stream=before.stream, epoch=before.epoch, ingest_ts=ingest_ts)
        self._worker = worker
        self._faults: dict[int, DecodeError] = {}
        self._under_way: contract.InParts | None = None
        self._numbers = np.zeros(256, np.int64)
        self.head = before.head

    def map_tables(self, use: Callable[[pa.Table], list[T]]) -> list[T]:
        """The results of `use`, called by the worker for the rows, one file at a time and in order. Starts over, also
        in another call, if the parts of a large transaction begin elsewhere, or all of it is stored as bytes. Raises
        DecodeError, LakeError.
        """
        with self._worker("files") as pool:
            while True:
                try:
                    return _used(self._tables(), lambda table: pool.submit(use, table))
                except DecodeError as error:
                    if not self._keeps(error):
                        raise

    def _tables(self) -> Iterator[pa.Table]:
        self.head, self._under_way = self._before.head, None
        self._numbers[:] = 0
        for run in _runs(self._fresh):
            if isinstance(run, contract.InParts):
                yield from self._large(run)
                continue
            changes = self._tabulate(run)
            self._count(changes)
            rows, self.head = self._build(run, changes, previous=self.head)
            yield rows

    def _keeps(self, error: DecodeError) -> bool:
        """Whether to start over after this error."""
        large = self._under_way
        if large is None or large.bounds.position in self._faults:
            return False
        if not large.cut_otherwise(error):
            self._faults[large.bounds.position] = error.with_traceback(None)  # it would keep the part in memory
        return True

    @property
    def changes(self) -> int:
        """The number of changes."""
        return int(self._numbers.sum())

    @property
    def operations(self) -> dict[str, int]:
        """The number of changes by kind: `I U D T M X`."""
        return {chr(code): number for code, number in enumerate(self._numbers.tolist()) if number}

    def _large(self, large: contract.InParts) -> Iterator[pa.Table]:
        rows = LargeRows(large, self._build, self.head)
        self._under_way = large
        for part in large.parts(self._faults.get(large.bounds.position)):
            changes, marker = self._tabulate([part]), DecodedMarker(part.bounds, part.size, part.count)
            del part  # frees its bytes while its rows are written
            _release_memory(marker)
            self._count(changes)
            table = rows.part(marker, changes)
            if table.num_rows:  # empty if all of it was rolled back
                yield table
            del changes, table
            _release_memory(marker)
        self._under_way = None
        self.head = rows.head

    def _count(self, changes: ChangeColumns) -> None:
        self._numbers += np.bincount(changes.op, minlength=256)


def _used(tables: Iterator[pa.Table], use: Callable[[pa.Table], Future[list[T]]]) -> list[T]:
    """The results for all tables; at most one is in use while the next one is made, and none during a large row."""
    results: list[T] = []
    before: Future[list[T]] | None = None
    for table in tables:
        results += before.result() if before is not None else []
        before = use(table)
        if table.num_rows < _FEW and table.nbytes >= _LARGE:
            results, before = results + before.result(), None
        del table
    return results + (before.result() if before is not None else [])


def _release_memory(part: ReceivedTransaction) -> None:
    if part.size >= _LARGE:
        pa.default_memory_pool().release_unused()


def _runs(transactions: Sequence[ReceivedTransaction]) -> Iterator[Sequence[ReceivedTransaction] | contract.InParts]:
    """Consecutive ordinary transactions, and each large one."""
    for large, group in groupby(transactions, lambda transaction: isinstance(transaction, contract.InParts)):
        run = list(group)
        yield from cast("list[contract.InParts]", run) if large else (run,)
