"""What writer and reader need of a bronze table of any format: its data files, its state, and commits.

Data files carry bounds in the table's metadata that say which rows each can hold; a file without them (rewritten by
somebody else) can hold anything and is read. The state describes the newest stream, as each commit notes it.

A table is looked at, then read or committed to as it was then. A commit carries rows and the whole state, or neither,
and lands only on top of the version that was looked at: the second of two writers is refused, not interleaved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
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

BOUNDED = tuple(f.name for f in SCHEMA if not pa.types.is_nested(f.type) and f.name not in {"info", "raw"})
"""Columns that every data file of bronze has exact bounds of."""

PLAIN = ("ordinal", "lsn", "new", "old", "info", "raw")
"""Columns whose values hardly repeat: a dictionary would only slow them down."""

LOOSE = {"info": ("{", "}")}
"""Bounds of what is too long for the log: every `info` is a JSON object."""

_ORDER = ("min.epoch", "min.position", "max.position", "min.ordinal")  # of a transaction in many files each has a part
_AT_ONCE = 32 * 1024  # rows
_OPEN = 64  # files
_A_ROW = 120  # bytes of a row in memory that a file does not show: what is the same as in the row before


@dataclass(frozen=True)
class Files:
    """The data files of a version of the table, in the order of their rows.

    `actions`: one row a file, `path` as `filesystem` has it and, where they are known, the bounds of each column as
    `min.<column>` and `max.<column>`.
    """

    actions: pa.Table
    filesystem: pafs.FileSystem = field(default_factory=pafs.LocalFileSystem)

    @classmethod
    def from_actions(cls, actions: pa.Table, filesystem: pafs.FileSystem | None = None) -> Files:
        """Files in whatever order, on the local disk by default."""
        order = [(name, "ascending") for name in _ORDER if name in actions.column_names]
        ordered_actions = actions.sort_by(order) if order else actions
        return cls(ordered_actions) if filesystem is None else cls(ordered_actions, filesystem)

    @classmethod
    def empty(cls) -> Files:
        """Of a table that is not there."""
        return cls(pa.table({"path": pa.array([], pa.string())}))

    @property
    def is_local(self) -> bool:
        """Whether they are on this machine."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    @cached_property
    def paths(self) -> list[str]:
        """Where the files are in the file system."""
        return list(self.actions["path"].to_pylist())

    def select(
        self,
        *,
        epoch: int | None = None,
        after: int | None = None,
        upto: int | None = None,
        op: str | None = None,
        relations: Iterable[str] | None = None,
    ) -> list[str]:
        """Paths of the files that may hold a row with `after < position <= upto`, and so on; None: any."""
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

    def first(self, path: str) -> tuple[int, int] | None:
        """Epoch and position of the first row of a file, None where its bounds are not known."""
        names = self.actions.column_names
        if "min.epoch" not in names or "min.position" not in names:
            return None
        index = self.paths.index(path)
        epoch, position = self.actions["min.epoch"][index].as_py(), self.actions["min.position"][index].as_py()
        return None if epoch is None or position is None else (epoch, position)

    def lowest(self, paths: Sequence[str]) -> int | None:
        """The smallest position that rows of some of the files have; None where that is not known, or of none."""
        if not paths or "min.position" not in self.actions.column_names:
            return None
        starts = self._actions_of(paths)["min.position"]
        return None if starts.null_count else pc.min(starts).as_py()

    def is_within_span(self, paths: Sequence[str], span: Span) -> bool:
        """Whether all rows of these files are of the span's epoch and positions, by bounds that are known."""
        names = ("min.epoch", "max.epoch", "min.position", "max.position")
        if not {*names} <= {*self.actions.column_names}:
            return False
        named = self._actions_of(paths)
        of_epoch = pc.and_(pc.equal(named[names[0]], span.epoch), pc.equal(named[names[1]], span.epoch))
        of_span = pc.and_(pc.greater(named[names[2]], span.after), pc.less_equal(named[names[3]], span.upto))
        return pc.all(pc.fill_null(pc.and_(of_epoch, of_span), fill_value=False)).as_py() is not False

    def read(self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None) -> pa.Table:
        """Rows of the given files, in their order, of the columns asked for."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        if not paths:
            return schema.empty_table()
        with reading(paths[0]), _raise_bronze_damaged(paths):
            dataset = ds.dataset(list(paths), schema=SCHEMA, format="parquet", filesystem=self.filesystem)
            return dataset.to_table(columns=list(columns), filter=wanted).cast(schema)

    def memory_bytes(self, path: str) -> int:
        """About the bytes that a file's rows have in memory, by its footer."""
        with reading(path), _raise_bronze_damaged([path]):
            footer = pq.read_metadata(path, filesystem=self.filesystem)
        groups = (footer.row_group(index) for index in range(footer.num_row_groups))
        return int(_A_ROW * footer.num_rows + sum(group.total_byte_size for group in groups))

    def batches(
        self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """The same rows a part at a time, file by file, so that memory holds a row group and not the span."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        for path in paths:
            with reading(path), _raise_bronze_damaged([path]):
                scanner = self._open_cached(path).scanner(
                    columns=list(columns), filter=wanted, batch_size=_AT_ONCE, batch_readahead=2, fragment_readahead=1
                )
                yield from _parts(scanner, schema)

    def in_turn(self, paths: Sequence[str]) -> Iterator[pa.Table]:
        """All rows of the files, a row group at a time, or a part of a long one. None is read ahead: what Arrow reads
        ahead is counted in rows, and wide ones take ten times the memory of a row group. Nor is a footer kept.
        """
        for path in paths:
            with reading(path), _raise_bronze_damaged([path]):
                (fragment,) = self._open(path).get_fragments()
                for number in range(fragment.num_row_groups):
                    group = fragment.subset(schema=SCHEMA, row_group_ids=[number])
                    scanner = group.scanner(SCHEMA, batch_size=_AT_ONCE, batch_readahead=0, fragment_readahead=0)
                    yield from _parts(scanner, SCHEMA)

    def rough(self, path: str, columns: Sequence[str], wanted: pc.Expression) -> Iterator[pa.Table]:
        """Rows of one file a part at a time, also such as are not wanted: only whole row groups are passed over. Where
        most rows are wanted, that takes half as long; may be called from several threads.
        """
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        with reading(path), _raise_bronze_damaged([path]):
            for fragment in self._open(path).get_fragments():
                subset = fragment.subset(filter=wanted, schema=SCHEMA)
                scanner = subset.scanner(
                    SCHEMA, columns=list(columns), batch_size=_AT_ONCE, batch_readahead=2, fragment_readahead=1
                )
                for batch in scanner.to_batches():
                    yield pa.table(batch).cast(schema)

    def _open_cached(self, path: str) -> ds.Dataset:
        """One file, whose footer is read once as long as it is among the last that were read."""
        dataset = self._recent.pop(path, None)
        if dataset is None:
            dataset = self._open(path)
        self._recent[path] = dataset
        if len(self._recent) > _OPEN:
            del self._recent[next(iter(self._recent))]
        return dataset

    def _open(self, path: str) -> ds.Dataset:
        return ds.dataset([path], schema=SCHEMA, format="parquet", filesystem=self.filesystem)

    @cached_property
    def _recent(self) -> dict[str, ds.Dataset]:
        return {}

    def _actions_of(self, paths: Sequence[str]) -> pa.Table:
        """The actions of some of the files."""
        return self.actions.filter(pc.is_in(self.actions["path"], value_set=pa.array(paths, pa.string())))

    def _low(self, column: str, value: object) -> Any:
        """Files whose smallest value is not above `value`, or unknown."""
        return self._compare_bound(f"min.{column}", pc.less_equal, value)

    def _high(self, column: str, value: object) -> Any:
        """Files whose greatest value is not below `value`, or unknown."""
        return self._compare_bound(f"max.{column}", pc.greater_equal, value)

    def _compare_bound(self, column: str, compare: Any, value: object) -> Any:
        if column not in self.actions.column_names:
            return np.ones(self.actions.num_rows, bool)
        return np.asarray(pc.fill_null(compare(self.actions[column], value), fill_value=True))


def _parts(scanner: ds.Scanner, schema: pa.Schema) -> Iterator[pa.Table]:
    """The batches that have rows."""
    return (pa.table(batch).cast(schema) for batch in scanner.to_batches() if batch.num_rows)


@contextmanager
def _raise_bronze_damaged(paths: Sequence[str]) -> Iterator[None]:
    """Turn what Arrow raises for a data file that is gone or cut into BronzeDamaged."""
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
"""The table property that says that it is bronze, and which contract it follows."""

TRIMMED_PROPERTY = "cdc_lake.trimmed"
"""The table property that says of each epoch which transaction was the last to leave by retention, and its hash."""


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The state but for the markers, which have a place of their own in each format."""

    stream: str
    epoch: int
    head: bytes
    empty: int


def check_contract(version: str, place: str) -> None:
    """Raise BronzeUnknown unless this version knows the contract that a table says it follows."""
    if not version.isdigit():
        raise BronzeUnknown("the table does not state its bronze contract", where=place)
    if int(version) > CONTRACT_VERSION:
        raise BronzeUnknown(
            f"the table has bronze contract {version}, but this version knows only {CONTRACT_VERSION}",
            where=place,
            hint="install a newer cdc_lake: at least the version that wrote the table",
        )


def note_of(state: StreamCheckpoint) -> dict[str, object]:
    """What a commit notes beside its markers."""
    return {
        "contract": CONTRACT_VERSION,
        "stream": state.stream,
        "epoch": state.epoch,
        "head": state.head.hex(),
        "empty": state.empty,
    }


def from_note(note: Mapping[str, Any]) -> CommittedState:
    """What a commit noted."""
    return CommittedState(
        str(note["stream"]), int(note["epoch"]), bytes.fromhex(str(note["head"])), int(note.get("empty", 0))
    )


def from_rows(files: Files) -> CommittedState | None:
    """From the rows, where no commit has a note any more; how many empty transactions were counted since is lost."""
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
    """The last COMMIT row, or any row where there is none."""
    commits = rows.filter(pc.equal(rows["op"], COMMIT))
    candidates = commits if commits.num_rows else rows
    return candidates.slice(candidates.num_rows - 1).to_pylist() if candidates.num_rows else []


def trimmed_text(trimmed: Mapping[int, tuple[int, bytes]]) -> str:
    """Epoch → position and hash, as the property has it."""
    return json.dumps({str(epoch): [position, head.hex()] for epoch, (position, head) in sorted(trimmed.items())})


def trimmed_of(text: str | None) -> dict[int, tuple[int, bytes]]:
    """What the property says; nothing where there is none."""
    ends = json.loads(text) if text else {}
    return {int(epoch): (int(position), bytes.fromhex(head)) for epoch, (position, head) in ends.items()}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that is there and that no version names yet: what the format commits it by, and its bytes."""

    file: Any
    size: int


class BronzeTable(Protocol):
    """A bronze table at the version that was looked at last. One instance is used by one thread."""

    @property
    def place(self) -> str:
        """Where it is, as errors and views name it."""

    @property
    def version(self) -> int:
        """The version looked at; grows with each commit."""

    def refresh(self) -> bool:
        """Move to the newest version; False where there is no table.

        Raises BronzeUnknown for a table that is not bronze, or of a contract that this version does not know.
        """

    def create(self) -> None:
        """Make the empty table and look at it. Raises BronzeNotWritten."""

    def state(self) -> StreamCheckpoint | None:
        """What the version says of its newest stream; None where no stream was started. Raises BronzeDamaged."""

    def prove(self) -> None:
        """Raise BronzeAltered where something else changed the data since the newest version that was made here.

        A commit proves the version that it is made on, where that was not made by the same table.
        """

    def last_chunk(self, app: str) -> int | None:
        """The last chunk of a snapshot, by its application id."""

    def files(self) -> Files:
        """The data files of the version."""

    def last_trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """Epoch → position and hash of the last transaction that left by retention; the chain goes on behind it."""

    def write(self, rows: Rows) -> WrittenFile:
        """Write one data file, on disk where the durability says so. Raises BronzeNotWritten."""

    def commit(self, files: Sequence[WrittenFile], state: StreamCheckpoint, chunks: Mapping[str, int]) -> int:
        """Make the files part of the table together with the state and chunk numbers; the version made, looked at.

        Raises AnotherReceiver where the version looked at is not the newest one, BronzeNotWritten where the commit is
        known not to have landed. After either, look again.
        """
