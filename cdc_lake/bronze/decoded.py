"""Decoded later: what undecodable transactions turned out to be, kept beside bronze, which is never rewritten.

A file a transaction, with its layouts and changes as bronze would have them, in a folder beside the control tables; a
row of the control table `decoded` says which transaction it stands for, by the digest of its bytes. The file is on disk
before the row is: a row without its file counts for nothing, and the transaction is decoded again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import BEGIN, COMMIT
from cdc_lake.bronze.files import Files
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import DecodedRow, now
from cdc_lake.lake.disk import write_rows

if TYPE_CHECKING:
    from cdc_lake.bronze.reader import CommitRow


@dataclass(frozen=True)
class Overlaid(Files):
    """The files of bronze, and those beside it, which have rows of bronze's columns at positions of their own."""

    beside: Files = field(default_factory=Files.none)

    def select(
        self,
        *,
        epoch: int | None = None,
        after: int | None = None,
        upto: int | None = None,
        op: str | None = None,
        relations: Iterable[str] | None = None,
    ) -> list[str]:
        """See Files; those beside bronze come last."""
        names = None if relations is None else list(relations)
        mine = super().select(epoch=epoch, after=after, upto=upto, op=op, relations=names)
        return [*mine, *self.beside.select(epoch=epoch, after=after, upto=upto, op=op, relations=names)]

    def read(self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None) -> pa.Table:
        """See Files."""
        mine, theirs = self.parted(paths)
        return pa.concat_tables([super().read(mine, columns, wanted), self.beside.read(theirs, columns, wanted)])

    def batches(
        self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """See Files."""
        mine, theirs = self.parted(paths)
        yield from super().batches(mine, columns, wanted)
        yield from self.beside.batches(theirs, columns, wanted)

    def parted(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """The paths in bronze, and those beside it."""
        beside = set(self.beside.paths)
        return [path for path in paths if path not in beside], [path for path in paths if path in beside]


def decoded_later(files: Files) -> list[tuple[int, int]]:
    """Epoch and position of the transactions that stand beside bronze."""
    if not isinstance(files, Overlaid):
        return []
    actions = files.beside.actions
    return list(zip(actions["min.epoch"].to_pylist(), actions["min.position"].to_pylist(), strict=True))


def in_order(
    files: Files, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None
) -> Iterator[pa.Table]:
    """`files.batches` in order also where some stand beside bronze, each a transaction in size.

    Epoch, position and ordinal have to be among the columns.
    """
    if not isinstance(files, Overlaid):
        yield from files.batches(paths, columns, wanted)
        return
    mine, theirs = files.parted(paths)
    waiting = files.beside.read(theirs, columns, wanted)
    for part in files.batches(mine, columns, wanted):
        epoch, position = (part[name][part.num_rows - 1] for name in ("epoch", "position"))
        same = pc.and_(pc.equal(waiting["epoch"], epoch), pc.less(waiting["position"], position))
        before = pc.or_(pc.less(waiting["epoch"], epoch), same)
        yield _sorted(pa.concat_tables([part, waiting.filter(before)])) if pc.any(before).as_py() else part
        waiting = waiting.filter(pc.invert(before))
    if waiting.num_rows:
        yield _sorted(waiting)


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in ("epoch", "position", "ordinal")])


class Decoded:
    """The transactions of a pipeline that were decoded later. One instance a thread."""

    def __init__(self, control: ControlTables, folder: Path) -> None:
        self._control = control
        self._folder = folder
        self._standing: set[tuple[int, int, str]] = set()  # facts whose bytes bronze was seen to hold

    def of(self, commit: CommitRow) -> CommitRow:
        """The commit with the counts of its changes where it was decoded later; otherwise as it is."""
        if commit.undecoded is None:
            return commit
        row = self._rows().get((commit.epoch, commit.position))
        if row is None or row.content != commit.content.hex():
            return commit
        return replace(commit, counts=json.loads(row.counts), undecoded=None)

    def over(self, files: Files) -> Files:
        """The files, and beside them those of transactions that were decoded later."""
        rows = [row for row in self._rows().values() if self._stands(row, files)]
        if not rows:
            return files
        table = pa.table(
            {
                "path": [str(self._path(row).absolute()) for row in rows],
                **{f"{end}.epoch": pa.array([row.epoch for row in rows], pa.int32()) for end in ("min", "max")},
                **{f"{end}.position": pa.array([row.position for row in rows], pa.int64()) for end in ("min", "max")},
            }
        )
        return Overlaid(files.actions, files.filesystem, Files.of(table))

    def record(self, commit: CommitRow, rows: pa.Table, counts: dict[str, dict[str, int]], version: str) -> None:
        """Keep what a transaction turned out to be; `rows` as bronze would have them. Raises LakeError, OSError."""
        fact = DecodedRow(
            epoch=commit.epoch,
            position=commit.position,
            content=commit.content.hex(),
            version=version,
            counts=json.dumps(counts, ensure_ascii=False),
            file=f"{commit.epoch}-{commit.position}-{commit.content.hex()[:12]}.parquet",
            recorded_at=now(),
        )
        path = self._path(fact)
        whole = rows.filter(pc.invert(pc.is_in(rows["op"], pa.array([BEGIN, COMMIT]))))
        # the layouts stand at the batch's first position in bronze, here at the transaction's own
        at = whole.column_names.index("position")
        position = pa.repeat(pa.scalar(commit.position, pa.int64()), whole.num_rows)
        write_rows(whole.set_column(at, whole.schema.field(at), position), path)
        self._control.record(fact)

    def spent(self, trimmed: Mapping[int, tuple[int, bytes]], files: Files) -> list[DecodedRow]:
        """The facts about transactions that left bronze by retention: nobody can ask for them any more.

        `trimmed`: epoch → position and hash of the last transaction that left; `files`: of bronze, after that.
        """
        rows = [DecodedRow(**row) for row in self._control.read("decoded").to_pylist()]
        left = [row for row in rows if row.epoch in trimmed and row.position <= trimmed[row.epoch][0]]
        return [row for row in left if not self._stands(row, files)]

    def forget(self, rows: Sequence[DecodedRow]) -> None:
        """Remove facts, each file before its row, which counts for nothing without it. Raises LakeError, OSError."""
        for row in rows:
            self._path(row).unlink(missing_ok=True)
            place = (pc.field("epoch") == row.epoch) & (pc.field("position") == row.position)
            self._control.delete("decoded", place & (pc.field("content") == row.content))

    def _rows(self) -> dict[tuple[int, int], DecodedRow]:
        """By epoch and position; of several of one transaction the newest."""
        found = self._control.read("decoded").sort_by("recorded_at").to_pylist()
        rows = [DecodedRow(**row) for row in found]
        return {(row.epoch, row.position): row for row in rows if self._path(row).exists()}

    def _stands(self, row: DecodedRow, files: Files) -> bool:
        """Whether bronze has the bytes that a fact is about: another bronze may have stood here before."""
        fact = (row.epoch, row.position, row.content)
        if fact not in self._standing:
            paths = files.select(epoch=row.epoch, after=row.position - 1, upto=row.position, op=COMMIT)
            place = (pc.field("epoch") == row.epoch) & (pc.field("position") == row.position)
            infos = files.read(paths, ["info"], place & (pc.field("op") == COMMIT))["info"].to_pylist()
            if not any(json.loads(info).get("content") == row.content for info in infos):
                return False
            self._standing.add(fact)
        return True

    def _path(self, row: DecodedRow) -> Path:
        return self._folder / row.file
