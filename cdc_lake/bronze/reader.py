"""The bronze reader: commits, changes, layouts and whole transactions of a bronze table, without Spark.

Each call looks at the newest version. Only data files whose bounds overlap what is asked for are opened, and only the
columns asked for are read. Positions of different epochs never meet: every call has one epoch.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import COMMIT, DELETE, INSERT, RELATION, SCHEMA, SNAPSHOT, TRUNCATE, UNDECODABLE, UPDATE
from cdc_lake.bronze.decoded import Decoded
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.files import Files
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.table import BronzeTable
from cdc_lake.errors import BronzeDamaged
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.span import Span
from cdc_lake.model.undecoded import Undecoded

_ROWS_AT_ONCE = 8192
_FILES_AT_ONCE = 16
_RECENT = 256  # files whose layouts are looked at


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One landed transaction, as its COMMIT row says.

    `counts`: table as bronze writes it → operation (`I U D T`) → number; `size`: bytes of the changes as received;
    `undecoded`: why its changes are rows `X`, which are in no table's count.
    """

    epoch: int
    position: int
    commit_ts: datetime | None
    xid: int | None
    counts: dict[str, dict[str, int]]
    size: int
    content: bytes
    hash: bytes
    undecoded: Undecoded | None = None
    commit_lsn: int | None = None

    @property
    def changes(self) -> int:
        """Changes of tables; logical messages are not counted."""
        return sum(sum(kinds.values()) for kinds in self.counts.values())


class BronzeReader:
    """A bronze table; a path is a Delta table's local folder. Keeps the table open; one instance a thread."""

    def __init__(self, table: BronzeTable | Path, decoded: Decoded | None = None) -> None:
        """`decoded`: what undecodable transactions turned out to be; without it they are what they are in bronze."""
        self._table: BronzeTable = DeltaBronzeTable(table) if isinstance(table, Path) else table
        self._decoded = decoded
        self._files: tuple[int, Files] | None = None
        self._layouts: dict[int, Relation] = {}
        self._layouts_read: set[str] = set()

    @property
    def place(self) -> str:
        """Where the table is, as errors name it."""
        return self._table.place

    @property
    def sql_name(self) -> str | None:
        """What Spark SQL can name the table by, whoever asks; None where a catalog or an object store has it."""
        here = isinstance(self._table, DeltaBronzeTable) and "://" not in self.place
        return f"delta.`{Path(self.place).absolute()}`" if here else None

    def version(self) -> int | None:
        """The newest version of the table, None where there is none."""
        return self._table.version if self._table.look() else None

    def stream(self, epoch: int) -> str:
        """The stream of an epoch as its rows name it, empty where it has none."""
        files = self.files()
        for part in files.batches(files.select(epoch=epoch), ["stream"], pc.field("epoch") == epoch):
            return str(part["stream"][0])
        return ""

    def state(self) -> BronzeState | None:
        """Markers, epoch and head of the newest stream; None where no stream was started."""
        return self._table.state() if self._table.look() else None

    def proven(self) -> BronzeState | None:
        """The state as a receiver would go on from it. Raises BronzeAltered where it would not."""
        if not self._table.look():
            return None
        self._table.prove()
        return self._table.state()

    def trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """Epoch → position and hash of the last transaction that left by retention; nothing where none did."""
        return self._table.trimmed() if self._table.look() else {}

    def commits(self, span: Span) -> list[CommitRow]:
        """The transactions of a span in order, from their COMMIT rows alone."""
        files = self.files()
        return self._commits(files, files.select(epoch=span.epoch, after=span.after, upto=span.upto, op=COMMIT), span)

    def commits_in_turn(self, span: Span) -> Iterator[CommitRow]:
        """The same, a few files at a time: who stops taking them reads no further."""
        files = self.files()
        paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto, op=COMMIT)
        waiting: list[CommitRow] = []
        for at in range(0, len(paths), _FILES_AT_ONCE):
            waiting += self._commits(files, paths[at : at + _FILES_AT_ONCE], span)
            waiting.sort(key=lambda commit: commit.position)
            behind = files.lowest(paths[at + _FILES_AT_ONCE :])
            ready = bisect_left(waiting, behind, key=lambda commit: commit.position) if behind is not None else 0
            yield from waiting[:ready]
            del waiting[:ready]
        yield from waiting

    def _commits(self, files: Files, paths: Sequence[str], span: Span) -> list[CommitRow]:
        columns = ["epoch", "position", "commit_lsn", "commit_ts", "xid", "info"]
        rows = files.read(paths, columns, within(span) & (pc.field("op") == COMMIT))
        found = [_commit_row(row) for row in _in_order(rows).to_pylist()]
        return found if self._decoded is None else [self._decoded.of(commit) for commit in found]

    def undecodable(self, span: Span) -> list[CommitRow]:
        """The transactions of a span that are there as bytes only, in order; those decoded later are left out."""
        files = self.files()
        paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto, op=UNDECODABLE)
        rows = files.read(paths, ["position"], within(span) & (pc.field("op") == UNDECODABLE))
        positions = sorted(rows["position"].unique().to_pylist())
        found = [commit for at in positions for commit in self.commits(Span(span.epoch, at - 1, at))]
        return [commit for commit in found if commit.undecoded is not None]

    def highest_commit(self, epoch: int, upto: int | None = None) -> int | None:
        """The position of the last transaction of an epoch, at or below `upto`; None where there is none."""
        files = self.files()
        wanted = (pc.field("op") == COMMIT) & (pc.field("epoch") == epoch)
        if upto is not None:
            wanted &= pc.field("position") <= upto
        highest: int | None = None
        unread = files.select(epoch=epoch, upto=upto, op=COMMIT)
        while unread:
            found = pc.max(files.read([unread.pop()], ["position"], wanted)["position"]).as_py()
            if found is not None and (highest is None or found > highest):
                highest = int(found)
                higher = set(files.select(epoch=epoch, after=highest, upto=upto, op=COMMIT))
                unread = [path for path in unread if path in higher]
        return highest

    def layouts(self, relations: Iterable[TableName] | None = None, span: Span | None = None) -> dict[int, Relation]:
        """Layouts by number: of the tables named (None: of all) and in use in the span (None: ever).

        Each commit repeats the layouts it uses, so a span's own files hold all that its changes need; with a span more
        may be returned than it uses, never less.
        """
        files = self.applied()
        names = None if relations is None else {str(name) for name in relations}
        bounds = {} if span is None else {"epoch": span.epoch, "after": span.after - 1, "upto": span.upto}
        paths = files.select(op=RELATION, relations=names, **bounds)
        unread = [path for path in paths if path not in self._layouts_read]
        rows = files.read(unread, ["layout", "info"], pc.field("op") == RELATION)
        for row in rows.group_by("layout").aggregate([("info", "min")]).to_pylist():
            self._layouts[row["layout"]] = relation_of(row["info_min"])
        self._layouts_read.update(unread)
        return {n: r for n, r in self._layouts.items() if names is None or str(r.table) in names}

    def latest_layouts(self, epoch: int) -> list[Relation]:
        """The last layout of each table in an epoch, as far as its newest files tell (`_RECENT` of them)."""
        files = self.files()
        paths = files.select(epoch=epoch, op=RELATION)[-_RECENT:]
        wanted = (pc.field("epoch") == epoch) & (pc.field("op") == RELATION)
        rows = files.read(paths, ["position", "relation", "info"], wanted)
        latest = dict(zip(rows["relation"].to_pylist(), rows["info"].to_pylist(), strict=True))  # files are in order
        return [relation_of(info) for info in latest.values()]

    def last_layout(self, epoch: int, table: TableName, *, before: int | None = None) -> Relation | None:
        """The layout of a table's last changes in an epoch, or of those before a position; None where there are none.

        With `before`, one that is described in the same file as a change behind it may be the answer.
        """
        files = self.files()
        wanted = (pc.field("epoch") == epoch) & (pc.field("op") == RELATION) & (pc.field("relation") == str(table))
        bounds = {"epoch": epoch}
        if before is not None:
            wanted &= pc.field("position") < before
            bounds |= {"upto": before}
        for path in reversed(files.select(op=RELATION, relations=[str(table)], **bounds)):
            rows = files.read([path], ["info"], wanted)["info"].to_pylist()
            if rows:
                return relation_of(rows[-1])
        return None

    def changes(self, table: TableName, span: Span) -> pa.Table:
        """All columns of one table's changes (I U D T) in a span, in order."""
        files = self.applied()
        paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto, relations=[str(table)])
        wanted = within(span) & (pc.field("relation") == str(table))
        wanted &= pc.field("op").isin([INSERT, UPDATE, DELETE, TRUNCATE])
        return _in_order(files.read(paths, SCHEMA.names, wanted))

    def history_rows(self, table: TableName) -> pa.Table:
        """All columns of all changes and snapshot rows of one table, in order over all epochs."""
        files = self.applied()
        wanted = (pc.field("relation") == str(table)) & ~pc.field("op").isin([RELATION, UNDECODABLE])
        return _in_order(files.read(files.select(relations=[str(table)]), SCHEMA.names, wanted))

    def rows(self, position: int, epoch: int | None = None) -> pa.Table:
        """Every row at a position, layouts first; `epoch` defaults to the newest stream's."""
        if epoch is None:
            state = self.state()
            epoch = state.epoch if state is not None else 0
        files = self.files()
        paths = files.select(epoch=epoch, after=position - 1, upto=position)
        return _in_order(files.read(paths, SCHEMA.names, within(Span(epoch, position - 1, position))))

    def transactions(self, span: Span, columns: Sequence[str] = SCHEMA.names) -> Iterator[tuple[int, list[Any]]]:
        """The rows of each position of a span as dictionaries, in the order they stand in, file by file.

        Layout and snapshot rows are left out. Nothing is checked: `bronze.chain` does.
        """
        files = self.files()
        wanted = within(span) & ~pc.field("op").isin([RELATION, SNAPSHOT])
        paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto)
        rows = itertools.chain.from_iterable(_dictionaries(files.read([path], columns, wanted)) for path in paths)
        for position, group in itertools.groupby(rows, key=lambda row: row["position"]):
            yield position, list(group)

    def applied(self) -> Files:
        """The files, with those of transactions that were decoded after they had landed: what is applied to silver."""
        files = self.files()
        if self._decoded is None or not files.select(op=UNDECODABLE):
            return files
        return self._decoded.over(files)

    def files(self) -> Files:
        """The data files of the newest version."""
        if not self._table.look():
            return Files.none()
        if self._files is None or self._files[0] != self._table.version:
            self._files = (self._table.version, self._table.files())
        return self._files[1]


def within(span: Span) -> pc.Expression:
    """The filter of a span."""
    position = pc.field("position")
    return (pc.field("epoch") == span.epoch) & (position > span.after) & (position <= span.upto)


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows by epoch, position, ordinal; layout rows, which have no ordinal, before the others of their file."""
    names = [name for name in ("epoch", "position", "ordinal") if name in rows.column_names]
    keys = pa.table({name: pc.fill_null(rows[name], -1) for name in names})
    if rows.num_rows < 2 or _ascending([np.asarray(keys[name]) for name in names]):
        return rows
    return rows.take(pc.sort_indices(keys, [(name, "ascending") for name in names]))


def _ascending(keys: list[Any]) -> bool:
    undecided = np.ones(len(keys[0]) - 1, bool)
    for key in keys:
        step = np.diff(key)
        if (step[undecided] < 0).any():
            return False
        undecided &= step == 0
    return True


def _dictionaries(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _commit_row(row: dict[str, Any]) -> CommitRow:
    try:
        info = json.loads(row["info"])
        return CommitRow(
            epoch=row["epoch"],
            position=row["position"],
            commit_ts=row["commit_ts"],
            xid=row["xid"],
            counts=info["counts"],
            size=info["bytes"],
            content=bytes.fromhex(info["content"]),
            hash=bytes.fromhex(info["hash"]),
            undecoded=Undecoded.from_description(info["undecodable"]) if "undecodable" in info else None,
            commit_lsn=row["commit_lsn"],
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise BronzeDamaged(f"the COMMIT row at position {row['position']} cannot be read") from cause


def relation_of(info: str) -> Relation:
    """The layout that the `info` of a layout row describes. Raises BronzeDamaged."""
    try:
        return Relation.from_description(json.loads(info))
    except (KeyError, TypeError, ValueError) as cause:
        raise BronzeDamaged("a layout row cannot be read") from cause
