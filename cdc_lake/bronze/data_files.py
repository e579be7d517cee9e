"""What writer and reader need of a bronze table of any format: its data files, its state, and commits.

Data files have bounds in the table's metadata; a file without them (rewritten by another program) may contain anything
and is always read. The state describes the newest stream; each commit contains it.

A table object is at one version, which is read or used as the base of a commit. A commit contains rows and the whole
state, or neither, and succeeds only on the version it is based on: the second of two writers is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from cdc_lake.bronze.contract import COMMIT, CONTRACT_VERSION, SCHEMA, StreamCheckpoint
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.errors import BronzeDamaged, BronzeUnknown
from cdc_lake.model.position import Span
from cdc_lake.tables.files import Rows
from cdc_lake.tables.object_store import reading
from cdc_lake.tables.store_options import address_of

BOUNDED = tuple(f.name for f in SCHEMA if not pa.types.is_nested(f.type) and f.name not in {"info", "raw"})
"""Columns for which every data file of bronze has exact bounds."""

PLAIN = ("ordinal", "lsn", "new", "old", "info", "raw")
"""Columns whose values rarely repeat, so a dictionary would only cost time."""

LOOSE = {"info": ("{", "}")}
"""Bounds for values that are too long for the log: every `info` is a JSON object."""

_ORDER = ("min.epoch", "min.position", "max.position", "min.ordinal")  # by ordinal if a transaction has many files
_AT_ONCE = 32 * 1024  # rows
_OPEN = 64  # files
_A_ROW = 120  # bytes of a row in memory that a file does not show: values repeated from the row before


@dataclass(frozen=True)
class Files:
    """The data files of a version of the table, in the order of their rows.

    `actions`: one row per file, with `path` in `filesystem` and, if known, the bounds of each column as `min.<column>`
    and `max.<column>`.
    """

    actions: pa.Table
    filesystem: pafs.FileSystem = field(default_factory=pafs.LocalFileSystem)

    @classmethod
    def from_actions(cls, actions: pa.Table, filesystem: pafs.FileSystem | None = None) -> Files:
        """Files in any order, on the local disk by default."""
        order = [(name, "ascending") for name in _ORDER if name in actions.column_names]
        ordered_actions = actions.sort_by(order) if order else actions
        return cls(ordered_actions) if filesystem is None else cls(ordered_actions, filesystem)

    @classmethod
    def empty(cls) -> Files:
        """The files of a table that does not exist."""
        return cls(pa.table({"path": pa.array([], pa.string())}))

    @cached_property
    def paths(self) -> list[str]:
        """Where the files are in the file system."""
        return list(self.actions["path"].to_pylist())

    def for_spark(self, paths: Sequence[str]) -> list[str]:
        """Paths or addresses by which Spark reads some of the files."""
        return [address_of(self.filesystem_of(path), path) for path in paths]

    def filesystem_of(self, path: str) -> pafs.FileSystem:
        """The file system that has one of the files."""
        del path
        return self.filesystem

    def select(
        self,
        *,
        epoch: int | None = None,
        after: int | None = None,
        upto: int | None = None,
        op: str | None = None,
        relations: Iterable[str] | None = None,
    ) -> list[str]:
        """Paths of the files that may contain a row with `after < position <= upto`, and so on; None: any."""
        keep = np.ones(self.actions.num_rows, bool)
        if epoch is not None:
            keep &= self._low("epoch", epoch) & self._high("epoch", epoch)
        if after is not None:
            keep &= self._high("position", after + 1)
        if upto is not None:
            keep &= self._low("position", upto)
        if op is not None:
            keep &= self._low("op", op) & self._high("op", op)
        if relations is not None:
            named = np.zeros(self.actions.num_rows, bool)
            for relation in relations:
                named |= self._low("relation", relation) & self._high("relation", relation)
            keep &= named
        return [self.paths[index] for index in np.flatnonzero(keep).tolist()]

    def select_span(
        self, span: Span | None, op: str | None = None, relations: Iterable[str] | None = None
    ) -> list[str]:
        """The same for a span; None: all epochs."""
        bounds = {} if span is None else {"epoch": span.epoch, "after": span.after, "upto": span.upto}
        return self.select(op=op, relations=relations, **bounds)

    def first(self, path: str) -> tuple[int, int] | None:
        """Epoch and position of the first row of a file, None if its bounds are unknown."""
        names = self.actions.column_names
        if "min.epoch" not in names or "min.position" not in names:
            return None
        index = self.paths.index(path)
        epoch, position = self.actions["min.epoch"][index].as_py(), self.actions["min.position"][index].as_py()
        return None if epoch is None or position is None else (epoch, position)

    def lowest(self, paths: Sequence[str]) -> int | None:
        """The smallest position of rows in some of the files; None if unknown or without files."""
        if not paths or "min.position" not in self.actions.column_names:
            return None
        starts = self._actions_of(paths)["min.position"]
        return None if starts.null_count else pc.min(starts).as_py()

    def is_within_span(self, paths: Sequence[str], span: Span) -> bool:
        """Whether all rows of these files are in the span, according to known bounds."""
        names = ("min.epoch", "max.epoch", "min.position", "max.position")
        if not {*names} <= {*self.actions.column_names}:
            return False
        named = self._actions_of(paths)
        of_epoch = pc.and_(pc.equal(named[names[0]], span.epoch), pc.equal(named[names[1]], span.epoch))
        of_span = pc.and_(pc.greater(named[names[2]], span.after), pc.less_equal(named[names[3]], span.upto))
        return pc.all(pc.fill_null(pc.and_(of_epoch, of_span), fill_value=False)).as_py() is not False

    def read(self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None) -> pa.Table:
        """The requested columns of the given files, with their rows in order."""
        empty = pa.schema([SCHEMA.field(name) for name in columns]).empty_table()
        return pa.concat_tables([empty, *self.scan(paths, columns, wanted)])

    def scan(
        self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """The same rows in parts, with several files read at once."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        if paths:
            with reading(paths[0]), _raise_bronze_damaged(paths):
                dataset = ds.dataset(list(paths), schema=SCHEMA, format="parquet", filesystem=self.filesystem)
                yield from _parts(dataset.scanner(columns=list(columns), filter=wanted), schema)

    def memory_bytes(self, path: str) -> int:
        """Approximate bytes of a file's rows in memory, from its footer."""
        with reading(path), _raise_bronze_damaged([path]):
            footer = pq.read_metadata(path, filesystem=self.filesystem_of(path))
        groups = (footer.row_group(index) for index in range(footer.num_row_groups))
        return int(_A_ROW * footer.num_rows + sum(group.total_byte_size for group in groups))

    def batches(
        self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """The same rows in parts, file by file, so that memory contains a row group and not the span."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        for path in paths:
            with reading(path), _raise_bronze_damaged([path]):
                scanner = self._open_cached(path).scanner(
                    columns=list(columns), filter=wanted, batch_size=_AT_ONCE, batch_readahead=2, fragment_readahead=1
                )
                yield from _parts(scanner, schema)

    def in_turn(self, paths: Sequence[str]) -> Iterator[pa.Table]:
        """All rows of the files, a row group or a part of a long one at a time, without read-ahead: Arrow counts it in
        rows, and wide rows take ten times the memory of a row group. Footers are not cached either.
        """
        for path in paths:
            with reading(path), _raise_bronze_damaged([path]):
                (fragment,) = _open(self.filesystem_of(path), path).get_fragments()
                for number in range(fragment.num_row_groups):
                    group = fragment.subset(schema=SCHEMA, row_group_ids=[number])
                    scanner = group.scanner(SCHEMA, batch_size=_AT_ONCE, batch_readahead=0, fragment_readahead=0)
                    yield from _parts(scanner, SCHEMA)

    def rough(self, path: str, columns: Sequence[str], wanted: pc.Expression) -> Iterator[pa.Table]:
        """Rows of one file in parts, including unwanted ones: only whole row groups are skipped. If most rows are
        wanted, that takes half as long. May be called from several threads.
        """
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        with reading(path), _raise_bronze_damaged([path]):
            for fragment in _open(self.filesystem_of(path), path).get_fragments():
                subset = fragment.subset(filter=wanted, schema=SCHEMA)
                scanner = subset.scanner(
                    SCHEMA, columns=list(columns), batch_size=_AT_ONCE, batch_readahead=2, fragment_readahead=1
                )
                for batch in scanner.to_batches():
                    yield pa.table(batch).cast(schema)

    @cached_property
    def _open_cached(self) -> Callable[[str], ds.Dataset]:
        """One file; the footers of recently read files are cached."""
        return lru_cache(_OPEN)(lambda path: _open(self.filesystem_of(path), path))

    def _actions_of(self, paths: Sequence[str]) -> pa.Table:
        """The actions of some of the files."""
        return self.actions.filter(pc.is_in(self.actions["path"], value_set=pa.array(paths, pa.string())))

    def _low(self, column: str, value: object) -> Any:
        """Files whose smallest value is at most `value`, or unknown."""
        return self._compare_bound(f"min.{column}", pc.less_equal, value)

    def _high(self, column: str, value: object) -> Any:
        """Files whose greatest value is at least `value`, or unknown."""
        return self._compare_bound(f"max.{column}", pc.greater_equal, value)

    def _compare_bound(self, column: str, compare: Any, value: object) -> Any:
        if column not in self.actions.column_names:
            return np.ones(self.actions.num_rows, bool)
        return np.asarray(pc.fill_null(compare(self.actions[column], value), fill_value=True))


def _open(filesystem: pafs.FileSystem, path: str) -> ds.Dataset:
    return ds.dataset([path], schema=SCHEMA, format="parquet", filesystem=filesystem)


def _parts(scanner: ds.Scanner, schema: pa.Schema) -> Iterator[pa.Table]:
    """The non-empty batches."""
    return (pa.table(batch).cast(schema) for batch in scanner.to_batches() if batch.num_rows)


@contextmanager
def _raise_bronze_damaged(paths: Sequence[str]) -> Iterator[None]:
    """Convert Arrow's errors about a missing or truncated data file to BronzeDamaged."""
    try:
        yield
    except (FileNotFoundError, pa.ArrowInvalid) as cause:
        problem = "does not exist" if isinstance(cause, FileNotFoundError) else "cannot be read"
        where = next((path for path in paths if path in str(cause)), paths[0])
        hint = (
            "restore the file from a copy: another program removed or altered it. If the query ran longer than "
            "`keep_replaced`, maintenance may have removed the file: then run the query again"
        )
        raise BronzeDamaged(f"a data file of bronze {problem}", where=where, hint=hint) from cause


CONTRACT_PROPERTY = "cdc_lake.contract"
"""The table property that marks a table as bronze, with the version of the contract."""

TRIMMED_PROPERTY = "cdc_lake.trimmed"
"""The table property with the last transaction of each epoch that retention removed, and its hash."""


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The state without the markers, which each format stores separately."""

    stream: str
    epoch: int
    head: bytes
    empty: int


def check_contract(version: str, place: str) -> None:
    """Raise BronzeUnknown unless this version supports the contract of a table."""
    if not version.isdigit():
        raise BronzeUnknown("the table does not state its bronze contract", where=place)
    if int(version) > CONTRACT_VERSION:
        raise BronzeUnknown(
            f"the table has bronze contract {version}, but this version knows only {CONTRACT_VERSION}",
            where=place,
            hint="install a newer cdc_lake: at least the version that wrote the table",
        )


def note_of(state: StreamCheckpoint) -> dict[str, object]:
    """The metadata of a commit besides its markers."""
    return {
        "contract": CONTRACT_VERSION,
        "stream": state.stream,
        "epoch": state.epoch,
        "head": state.head.hex(),
        "empty": state.empty,
    }


def from_note(note: Mapping[str, Any]) -> CommittedState:
    """Parse the metadata of a commit."""
    return CommittedState(
        str(note["stream"]), int(note["epoch"]), bytes.fromhex(str(note["head"])), int(note.get("empty", 0))
    )


def from_rows(files: Files) -> CommittedState | None:
    """The state from the rows, if no commit has metadata any more; the count of empty transactions is lost."""
    newest: tuple[int, int] | None = None
    note: CommittedState | None = None
    for path in files.select():
        rows = files.read([path], ["stream", "epoch", "position", "info", "op"])
        for row in _last(rows):
            place = (row["epoch"], row["position"] if row["op"] == COMMIT else -1)
            if newest is None or place > newest:
                head = bytes.fromhex(json.loads(row["info"])["hash"]) if row["op"] == COMMIT else GENESIS
                newest, note = place, CommittedState(row["stream"], row["epoch"], head, 0)
    return note


def _last(rows: Any) -> list[dict[str, Any]]:
    """The last COMMIT row, or any row without one."""
    commits = rows.filter(pc.equal(rows["op"], COMMIT))
    candidates = commits if commits.num_rows else rows
    return candidates.slice(candidates.num_rows - 1).to_pylist() if candidates.num_rows else []


def trimmed_text(trimmed: Mapping[int, tuple[int, bytes]]) -> str:
    """Epoch → position and hash, as the property stores it."""
    return json.dumps({str(epoch): [position, head.hex()] for epoch, (position, head) in sorted(trimmed.items())})


def trimmed_of(text: str | None) -> dict[int, tuple[int, bytes]]:
    """Parse the property; empty without one."""
    ends = json.loads(text) if text else {}
    return {int(epoch): (int(position), bytes.fromhex(head)) for epoch, (position, head) in ends.items()}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that no version refers to yet: what the format needs to commit it, and its bytes."""

    file: Any
    size: int


class BronzeTable(Protocol):
    """A bronze table at the version that was read last. One instance is used by one thread."""

    @property
    def place(self) -> str:
        """Its location, for errors and views."""

    @property
    def version(self) -> int:
        """The current version; grows with each commit."""

    def refresh(self) -> bool:
        """Move to the newest version; False if there is no table.

        Raises BronzeUnknown for a table that is not bronze, or whose contract this version does not support.
        """

    def create(self) -> None:
        """Create the empty table and read it. Raises BronzeNotWritten."""

    def state(self) -> StreamCheckpoint | None:
        """The state of the newest stream in this version; None if no stream was started. Raises BronzeDamaged."""

    def prove(self) -> None:
        """Raise BronzeAltered if another program changed the data since the newest version of cdc_lake.

        A commit verifies the version it is based on, unless this object wrote it.
        """

    def last_chunk(self, app: str) -> int | None:
        """The last chunk of a snapshot, by its application id."""

    def files(self) -> Files:
        """The data files of the version."""

    def last_trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """Epoch → position and hash of the last transaction that retention removed; the chain continues after it."""

    def write(self, rows: Rows) -> WrittenFile:
        """Write one data file, synced if the durability requires it. Raises BronzeNotWritten."""

    def commit(self, files: Sequence[WrittenFile], state: StreamCheckpoint, chunks: Mapping[str, int]) -> int:
        """Commit files together with the state and chunk numbers; returns the new version, which becomes the current
        one.

        Raises AnotherReceiver if the current version is not the newest one, BronzeNotWritten if the commit certainly
        failed. After either, call `refresh`.
        """
