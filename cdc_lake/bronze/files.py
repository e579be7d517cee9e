"""Files: the data files of one version of bronze, with the bounds that say which rows each can hold.

Every file of ours carries its bounds in the table's metadata; a file without them (rewritten by something else) can
hold anything and is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.errors import BronzeDamaged
from cdc_lake.lake.object_store import reading
from cdc_lake.model.span import Span

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
    def of(cls, actions: pa.Table, filesystem: pafs.FileSystem | None = None) -> Files:
        """Files in whatever order, on the local disk by default."""
        order = [(name, "ascending") for name in _ORDER if name in actions.column_names]
        given = actions.sort_by(order) if order else actions
        return cls(given) if filesystem is None else cls(given, filesystem)

    @classmethod
    def none(cls) -> Files:
        """Of a table that is not there."""
        return cls(pa.table({"path": pa.array([], pa.string())}))

    @property
    def near(self) -> bool:
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
        return [self.paths[at] for at in np.flatnonzero(keep).tolist()]

    def first(self, path: str) -> tuple[int, int] | None:
        """Epoch and position of the first row of a file, None where its bounds are not known."""
        names = self.actions.column_names
        if "min.epoch" not in names or "min.position" not in names:
            return None
        at = self.paths.index(path)
        epoch, position = self.actions["min.epoch"][at].as_py(), self.actions["min.position"][at].as_py()
        return None if epoch is None or position is None else (epoch, position)

    def lowest(self, paths: Sequence[str]) -> int | None:
        """The smallest position that rows of some of the files have; None where that is not known, or of none."""
        if not paths or "min.position" not in self.actions.column_names:
            return None
        starts = self._named(paths)["min.position"]
        return None if starts.null_count else pc.min(starts).as_py()

    def inside(self, paths: Sequence[str], span: Span) -> bool:
        """Whether all rows of these files are of the span's epoch and positions, by bounds that are known."""
        names = ("min.epoch", "max.epoch", "min.position", "max.position")
        if not {*names} <= {*self.actions.column_names}:
            return False
        named = self._named(paths)
        of_epoch = pc.and_(pc.equal(named[names[0]], span.epoch), pc.equal(named[names[1]], span.epoch))
        of_span = pc.and_(pc.greater(named[names[2]], span.after), pc.less_equal(named[names[3]], span.upto))
        return pc.all(pc.fill_null(pc.and_(of_epoch, of_span), fill_value=False)).as_py() is not False

    def read(self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None) -> pa.Table:
        """Rows of the given files, in their order, of the columns asked for."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        if not paths:
            return schema.empty_table()
        with reading(paths[0]), _there(paths):
            dataset = ds.dataset(list(paths), schema=SCHEMA, format="parquet", filesystem=self.filesystem)
            return dataset.to_table(columns=list(columns), filter=wanted).cast(schema)

    def unpacked(self, path: str) -> int:
        """About the bytes that a file's rows have in memory, by its footer."""
        with reading(path), _there([path]):
            footer = pq.read_metadata(path, filesystem=self.filesystem)
        groups = (footer.row_group(at) for at in range(footer.num_row_groups))
        return int(_A_ROW * footer.num_rows + sum(group.total_byte_size for group in groups))

    def batches(
        self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """The same rows a part at a time, file by file, so that memory holds a row group and not the span."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        for path in paths:
            with reading(path), _there([path]):
                scanner = self._opened(path).scanner(
                    columns=list(columns), filter=wanted, batch_size=_AT_ONCE, batch_readahead=2, fragment_readahead=1
                )
                yield from _parts(scanner, schema)

    def in_turn(self, paths: Sequence[str]) -> Iterator[pa.Table]:
        """All rows of the files, a row group at a time, or a part of a long one. None is read ahead: what Arrow reads
        ahead is counted in rows, and wide ones take ten times the memory of a row group. Nor is a footer kept.
        """
        for path in paths:
            with reading(path), _there([path]):
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
        with reading(path), _there([path]):
            for fragment in self._open(path).get_fragments():
                some = fragment.subset(filter=wanted, schema=SCHEMA)
                scanner = some.scanner(
                    SCHEMA, columns=list(columns), batch_size=_AT_ONCE, batch_readahead=2, fragment_readahead=1
                )
                for batch in scanner.to_batches():
                    yield pa.table(batch).cast(schema)

    def _opened(self, path: str) -> ds.Dataset:
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

    def _named(self, paths: Sequence[str]) -> pa.Table:
        """The actions of some of the files."""
        return self.actions.filter(pc.is_in(self.actions["path"], value_set=pa.array(paths, pa.string())))

    def _low(self, column: str, value: object) -> Any:
        """Files whose smallest value is not above `value`, or unknown."""
        return self._compared(f"min.{column}", pc.less_equal, value)

    def _high(self, column: str, value: object) -> Any:
        """Files whose greatest value is not below `value`, or unknown."""
        return self._compared(f"max.{column}", pc.greater_equal, value)

    def _compared(self, column: str, compare: Any, value: object) -> Any:
        if column not in self.actions.column_names:
            return np.ones(self.actions.num_rows, bool)
        return np.asarray(pc.fill_null(compare(self.actions[column], value), fill_value=True))


def _parts(scanner: ds.Scanner, schema: pa.Schema) -> Iterator[pa.Table]:
    """The batches that have rows."""
    return (pa.table(batch).cast(schema) for batch in scanner.to_batches() if batch.num_rows)


@contextmanager
def _there(paths: Sequence[str]) -> Iterator[None]:
    """Turn what Arrow raises for a data file that is gone or cut into BronzeDamaged."""
    try:
        yield
    except (FileNotFoundError, pa.ArrowInvalid) as cause:
        told = "is not there" if isinstance(cause, FileNotFoundError) else "cannot be read"
        where = next((path for path in paths if path in str(cause)), paths[0])
        hint = (
            "put the file back from a copy: something else removed or altered it. Where the reading took longer than "
            "`keep_replaced`, upkeep may have removed it: then run it again"
        )
        raise BronzeDamaged(f"a data file of bronze {told}", where=where, hint=hint) from cause
