"""Undecodable transactions: by the policy `stop` what stands before the first one is told apart from it.

By the policy `land` they become rows `X` of their bytes, and the others are decoded. A transaction is kept as a whole:
one change may depend on another, so what of it could be decoded is not. A batch in which something cannot be decoded is
halved until the transactions are found that cannot; the others are as if those were not there. What is kept is enough
to decode them later, by a version that can (`redecode` of each format).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.digest import canonical_undecodable, digest_of
from cdc_lake.decode.joined import joined
from cdc_lake.decode.plain import POSITIONS, TUPLES, Numbering
from cdc_lake.errors import BatchTooLarge, DecodeError
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.undecoded import Undecoded

READING: Final = "reading"
"""Key in the `info` of a transaction's first row `X`: plugin, style or protocol, and encoding, in three words."""

_X: Final = ord("X")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Frame:
    """One data message as the server sent it; `info`: what else decoding it takes."""

    data: bytes
    lsn: int
    relation: Relation | None = None
    info: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """A transaction as it is kept. `reading`: how its bytes are read, empty where a part before says so; `tables`:
    those it changes, where they are known; `layouts`: layouts that decoding it takes, besides the frames' own.
    """

    reading: str
    frames: Sequence[Frame]
    error: DecodeError
    tables: Sequence[TableName] = ()
    layouts: Sequence[Relation] = ()


class Format(Protocol[R_contra]):
    """What one format does. `tabulate` may learn from each batch; `mark` and `back` undo what a failed one taught."""

    def tabulate(self, batch: Sequence[R_contra]) -> ChangeColumns:
        """The changes of whole transactions. Raises DecodeError."""
        ...

    def mark(self) -> object:
        """What was learned so far."""
        ...

    def back(self, mark: object) -> None:
        """Forget what was learned since."""
        ...

    def keep(self, raw: R_contra, error: DecodeError) -> Kept:
        """What to keep of a transaction that gave this error."""
        ...


@dataclass(frozen=True, slots=True)
class Keeping(Generic[R]):
    """Makes columns of transactions of a format, of those it cannot decode rows `X` (a `bronze.port.Tabulate`)."""

    form: Format[R]

    def __call__(self, batch: Sequence[R]) -> ChangeColumns:
        """The changes of the batch. Raises BatchTooLarge, and what the format's catalog raises."""
        return joined(self._parts(batch), pa.concat_arrays)

    def _parts(self, batch: Sequence[R]) -> list[tuple[ChangeColumns, int]]:
        """Columns, and how many transactions they are of."""
        mark = self.form.mark()
        try:
            return [(self.form.tabulate(batch), len(batch))]
        except BatchTooLarge:
            raise  # kept as bytes it would be no smaller
        except DecodeError as failure:
            error = failure
        self.form.back(mark)
        if len(batch) == 1:
            return [(columns_of(self.form.keep(batch[0], error)), 1)]
        half = len(batch) // 2
        return self._parts(batch[:half]) + self._parts(batch[half:])


@dataclass(frozen=True, slots=True)
class Stopping(Generic[R]):
    """Makes columns of transactions of a format, or says how many stand before the first that cannot be decoded.

    A `bronze.port.Tabulate`; what the failed batch taught is forgotten, so that the good ones can be asked for alone.
    """

    form: Format[R]

    def __call__(self, batch: Sequence[R]) -> ChangeColumns:
        """The changes of the batch. Raises DecodeError with `good`, and what the format's catalog raises."""
        mark = self.form.mark()
        try:
            return self.form.tabulate(batch)
        except BatchTooLarge:
            raise  # of no single transaction
        except DecodeError as failure:
            error = failure
        self.form.back(mark)
        try:
            error = self._first(batch, error)
        finally:
            self.form.back(mark)
        raise error

    def _first(self, batch: Sequence[R], error: DecodeError) -> DecodeError:
        """The error of the first transaction that cannot be decoded: the half that fails is halved again."""
        good, left = 0, len(batch)
        while left > 1:
            half, mark = left // 2, self.form.mark()
            try:
                self.form.tabulate(batch[good : good + half])
            except DecodeError as failure:
                error, left = failure, half
                self.form.back(mark)
            else:
                good, left = good + half, left - half
        try:
            self.form.tabulate(batch[good : good + 1])
        except DecodeError as failure:
            error = failure
        error.good = good
        return error


def columns_of(kept: Kept) -> ChangeColumns:
    """The rows `X` of one transaction."""
    count = len(kept.frames)
    numbering = Numbering()
    numbers = [-1 if frame.relation is None else numbering.number(frame.relation) for frame in kept.frames]
    for layout in kept.layouts:
        numbering.number(layout)
    infos: list[dict[str, object]] = [dict(frame.info) for frame in kept.frames]
    if kept.reading:
        infos[0] = {READING: kept.reading, **infos[0]}
    digests = []
    for frame, info in zip(kept.frames, infos, strict=True):
        name = None if frame.relation is None else str(frame.relation.table)
        digests.append(digest_of(canonical_undecodable(str(info.get(READING, "")), name, frame.data)))
    return ChangeColumns(
        relations=numbering.relations,
        transaction=np.zeros(count, np.int32),
        op=np.full(count, _X, np.uint8),
        relation=np.array(numbers, np.int32),
        lsn=np.array([frame.lsn for frame in kept.frames], np.int64),
        new=pa.nulls(count, TUPLES),
        old=pa.nulls(count, TUPLES),
        old_kind=pa.nulls(count, pa.string()),
        unchanged=pa.nulls(count, POSITIONS),
        info=pa.array([json.dumps(info, ensure_ascii=False) if info else None for info in infos], pa.string()),
        digests=digests,
        raw=pa.array([frame.data for frame in kept.frames], pa.binary()),
        undecoded={0: _why(kept)},
    )


def _why(kept: Kept) -> Undecoded:
    error = kept.error
    tables = tuple(dict.fromkeys(map(str, kept.tables)))
    return Undecoded(len(kept.frames), error.code, error.message, error.where, tables, version("cdc_lake"))
