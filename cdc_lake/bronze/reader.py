"""Reads commits, changes, layouts and whole transactions of a bronze table, without Spark.

Each call uses the newest version. Only data files whose bounds overlap the request are opened, and only the requested
columns are read. Every call concerns one epoch, because positions of different epochs cannot be compared.

Undecodable transactions that were decoded later are overlaid, because bronze is never rewritten: each has a file with
its layouts and changes next to the control tables, and a row of the control table `decoded` with the digest of its
bytes. The file is durable before the row; a row without its file is ignored.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from cdc_lake.bronze import contract
from cdc_lake.bronze.data_files import BronzeTable, Files
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.errors import BronzeDamaged
from cdc_lake.model.change import Undecoded
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.tables.control_files import ControlFolder, put_rows
from cdc_lake.tables.control_schema import DecodedRow, utc_now
from cdc_lake.tables.control_tables import ControlTables


@dataclass(frozen=True)
class OverlaidFiles(Files):
    """The files of bronze, and those next to the control tables, which have bronze's columns at their own positions."""

    overlay: Files = field(default_factory=Files.empty)

    def select(self, *, relations: Iterable[str] | None = None, **bounds: Any) -> list[str]:
        """The files that overlap a span; overlaid ones are last."""
        names = None if relations is None else list(relations)
        return [*super().select(relations=names, **bounds), *self.overlay.select(relations=names, **bounds)]

    def scan(
        self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """The requested columns of the given files in parts, with their rows in order."""
        own_paths, overlay_paths = self.split_paths(paths)
        yield from super().scan(own_paths, columns, wanted)
        yield from self.overlay.scan(overlay_paths, columns, wanted)

    def filesystem_of(self, path: str) -> pafs.FileSystem:
        """The file system that has one of the files."""
        return self.overlay.filesystem if path in self.overlay.paths else self.filesystem

    def split_paths(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """The paths in bronze, and the overlaid ones."""
        overlay_paths = set(self.overlay.paths)
        return [path for path in paths if path not in overlay_paths], [path for path in paths if path in overlay_paths]


def decoded_later(files: Files) -> list[tuple[int, int]]:
    """Epoch and position of overlaid transactions."""
    if not isinstance(files, OverlaidFiles):
        return []
    actions = files.overlay.actions
    return list(zip(actions["min.epoch"].to_pylist(), actions["min.position"].to_pylist(), strict=True))


def in_order(
    files: Files, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression | None = None
) -> Iterator[pa.Table]:
    """`files.batches` in order, even if some are overlaid, each with one transaction.

    The columns must include epoch, position and ordinal.
    """
    if not isinstance(files, OverlaidFiles):
        yield from files.batches(paths, columns, wanted)
        return
    own_paths, overlay_paths = files.split_paths(paths)
    waiting = files.overlay.read(overlay_paths, columns, wanted)
    for part in files.batches(own_paths, columns, wanted):
        epoch, position = (part[name][part.num_rows - 1] for name in ("epoch", "position"))
        same = pc.and_(pc.equal(waiting["epoch"], epoch), pc.less(waiting["position"], position))
        before = pc.or_(pc.less(waiting["epoch"], epoch), same)
        yield _sort_rows(pa.concat_tables([part, waiting.filter(before)])) if pc.any(before).as_py() else part
        waiting = waiting.filter(pc.invert(before))
    if waiting.num_rows:
        yield _sort_rows(waiting)


def _sort_rows(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in ("epoch", "position", "ordinal")])


class LateDecoded:
    """The transactions of a pipeline that were decoded later. One instance per thread."""

    def __init__(self, control: ControlTables, files: ControlFolder) -> None:
        self._control = control
        self._files = files
        self._standing: set[tuple[int, int, str]] = set()  # facts whose bytes are in bronze

    def resolve_commit(self, commit: CommitRow) -> CommitRow:
        """The commit, with the counts of its changes if it was decoded later."""
        if commit.undecoded is None:
            return commit
        row = self._rows().get((commit.epoch, commit.position))
        if row is None or row.content != commit.content.hex():
            return commit
        return replace(commit, counts=json.loads(row.counts), undecoded=None)

    def overlay_files(self, files: Files) -> Files:
        """The files, and those of transactions that were decoded later."""
        rows = [row for row in self._rows().values() if self._stands(row, files)]
        if not rows:
            return files
        table = pa.table(
            {
                "path": [self._files.path(row.file) for row in rows],
                **{f"{end}.epoch": pa.array([row.epoch for row in rows], pa.int32()) for end in ("min", "max")},
                **{f"{end}.position": pa.array([row.position for row in rows], pa.int64()) for end in ("min", "max")},
            }
        )
        return OverlaidFiles(files.actions, files.filesystem, Files.from_actions(table, self._files.filesystem))

    def record(self, commit: CommitRow, rows: pa.Table, counts: dict[str, dict[str, int]], version: str) -> None:
        """Store a decoded transaction; `rows` as bronze would have them. Raises LakeError."""
        fact = DecodedRow(
            epoch=commit.epoch,
            position=commit.position,
            content=commit.content.hex(),
            version=version,
            counts=json.dumps(counts, ensure_ascii=False),
            file=f"{commit.epoch}-{commit.position}-{commit.content.hex()[:12]}.parquet",
            recorded_at=utc_now(),
        )
        change_rows = rows.filter(pc.invert(pc.is_in(rows["op"], pa.array([contract.BEGIN, contract.COMMIT]))))
        # in bronze, layouts are at the batch's first position, here at the transaction's own
        index = change_rows.column_names.index("position")
        position = pa.repeat(pa.scalar(commit.position, pa.int64()), change_rows.num_rows)
        put_rows(self._files, fact.file, change_rows.set_column(index, change_rows.schema.field(index), position))
        self._control.record(fact)

    def expired_rows(self, trimmed: Mapping[int, tuple[int, bytes]], files: Files) -> list[DecodedRow]:
        """The facts about transactions that retention removed from bronze, which are no longer needed.

        `trimmed`: epoch → position and hash of the last transaction that left; `files`: of bronze, after that.
        """
        rows = [DecodedRow(**row) for row in self._control.read("decoded").to_pylist()]
        left = (row for row in rows if row.epoch in trimmed and row.position <= trimmed[row.epoch][0])
        return [row for row in left if not self._stands(row, files)]

    def forget(self, rows: Sequence[DecodedRow]) -> None:
        """Remove facts, each file before its row, which is ignored without it. Raises LakeError."""
        for row in rows:
            self._files.remove(row.file)
            place = (pc.field("epoch") == row.epoch) & (pc.field("position") == row.position)
            self._control.delete("decoded", place & (pc.field("content") == row.content))

    def _rows(self) -> dict[tuple[int, int], DecodedRow]:
        """By epoch and position; for several of one transaction the newest."""
        records = self._control.read("decoded").sort_by("recorded_at").to_pylist()
        if not records:
            return {}
        present = self._files.sizes()
        rows = [DecodedRow(**row) for row in records if row["file"] in present]
        return {(row.epoch, row.position): row for row in rows}

    def _stands(self, row: DecodedRow, files: Files) -> bool:
        """Whether bronze has the bytes of a fact: there may have been another bronze here before."""
        fact = (row.epoch, row.position, row.content)
        if fact not in self._standing:
            paths = files.select(epoch=row.epoch, after=row.position - 1, upto=row.position, op=contract.COMMIT)
            place = (pc.field("epoch") == row.epoch) & (pc.field("position") == row.position)
            infos = files.read(paths, ["info"], place & (pc.field("op") == contract.COMMIT))["info"].to_pylist()
            if not any(json.loads(info).get("content") == row.content for info in infos):
                return False
            self._standing.add(fact)
        return True


_ROWS_AT_ONCE = 8192
_FILES_AT_ONCE = 16
_RECENT = 256  # files that are searched for layouts


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One landed transaction, according to its COMMIT row.

    `counts`: table as bronze writes it → operation (`I U D T`) → number; `size`: bytes of the changes as received;
    `undecoded`: why its changes are rows `X`, which no table counts.
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
        """Changes of tables, without logical messages."""
        return sum(sum(kinds.values()) for kinds in self.counts.values())


class BronzeReader:
    """A bronze table; a path is a Delta table's local folder. Keeps the table open; one instance per thread."""

    def __init__(self, table: BronzeTable | Path, decoded: LateDecoded | None = None) -> None:
        """`decoded`: results of decoding undecodable transactions later; None: ignore them."""
        self._table: BronzeTable = DeltaBronzeTable(table) if isinstance(table, Path) else table
        self._decoded = decoded
        self._files: tuple[int, Files] | None = None
        self._layouts: dict[int, Relation] = {}
        self._layouts_read: set[str] = set()

    @property
    def place(self) -> str:
        """The table's location, for errors."""
        return self._table.place

    @property
    def sql_name(self) -> str | None:
        """The table's name for Spark SQL in any session; None in a catalog or an object store."""
        here = isinstance(self._table, DeltaBronzeTable) and "://" not in self.place
        return f"delta.`{Path(self.place).absolute()}`" if here else None

    def version(self) -> int | None:
        """The newest version of the table, None without a table."""
        return self._table.version if self._table.refresh() else None

    def stream(self, epoch: int) -> str:
        """The stream of an epoch in its rows, empty without rows."""
        files = self.files()
        for part in files.batches(files.select(epoch=epoch), ["stream"], pc.field("epoch") == epoch):
            return str(part["stream"][0])
        return ""

    def state(self) -> contract.StreamCheckpoint | None:
        """Markers, epoch and head of the newest stream; None if no stream was started."""
        return self._table.state() if self._table.refresh() else None

    def proven(self) -> contract.StreamCheckpoint | None:
        """The state from which a receiver would continue. Raises BronzeAltered if it would not."""
        if not self._table.refresh():
            return None
        self._table.prove()
        return self._table.state()

    def last_trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """Epoch → position and hash of the last transaction that retention removed; empty without any."""
        return self._table.last_trimmed() if self._table.refresh() else {}

    def commits(self, span: Span) -> list[CommitRow]:
        """The transactions of a span in order, from their COMMIT rows only."""
        files = self.files()
        return self._commits(files, files.select_span(span, contract.COMMIT), span)

    def commits_in_turn(self, span: Span) -> Iterator[CommitRow]:
        """The same, a few files at a time and only as far as they are requested."""
        files = self.files()
        paths = files.select_span(span, contract.COMMIT)
        waiting: list[CommitRow] = []
        for start in range(0, len(paths), _FILES_AT_ONCE):
            waiting += self._commits(files, paths[start : start + _FILES_AT_ONCE], span)
            waiting.sort(key=lambda commit: commit.position)
            next_position = files.lowest(paths[start + _FILES_AT_ONCE :])
            ready = 0
            if next_position is not None:
                ready = bisect_left(waiting, next_position, key=lambda commit: commit.position)
            yield from waiting[:ready]
            del waiting[:ready]
        yield from waiting

    def _commits(self, files: Files, paths: Sequence[str], span: Span) -> list[CommitRow]:
        columns = ["epoch", "position", "commit_lsn", "commit_ts", "xid", "info"]
        rows = files.read(paths, columns, span_filter(span) & (pc.field("op") == contract.COMMIT))
        commits = [_commit_row(row) for row in _in_order(rows).to_pylist()]
        return commits if self._decoded is None else [self._decoded.resolve_commit(commit) for commit in commits]

    def undecodable(self, span: Span) -> list[CommitRow]:
        """The transactions of a span that exist as bytes only, in order, without those decoded later."""
        files = self.files()
        paths = files.select_span(span, contract.UNDECODABLE)
        rows = files.read(paths, ["position"], span_filter(span) & (pc.field("op") == contract.UNDECODABLE))
        positions = sorted(rows["position"].unique().to_pylist())
        alone = (Span(span.epoch, position - 1, position) for position in positions)
        return [commit for place in alone for commit in self.commits(place) if commit.undecoded is not None]

    def highest_commit(self, epoch: int, upto: int | None = None) -> int | None:
        """The position of the last transaction of an epoch, at or below `upto`; None without one."""
        files = self.files()
        wanted = (pc.field("op") == contract.COMMIT) & (pc.field("epoch") == epoch)
        if upto is not None:
            wanted &= pc.field("position") <= upto
        highest: int | None = None
        unread = files.select(epoch=epoch, upto=upto, op=contract.COMMIT)
        while unread:
            position = pc.max(files.read([unread.pop()], ["position"], wanted)["position"]).as_py()
            if position is not None and (highest is None or position > highest):
                highest = int(position)
                higher = set(files.select(epoch=epoch, after=highest, upto=upto, op=contract.COMMIT))
                unread = [path for path in unread if path in higher]
        return highest

    def layouts(self, relations: Iterable[TableName] | None = None, span: Span | None = None) -> dict[int, Relation]:
        """Layouts by number, the earliest first: of the named tables (None: all) and used in the span (None: ever).

        Each commit repeats the layouts it uses, so a span's own files contain all that its changes need; with a span
        the result may contain unused ones.
        """
        files = self.applied_files()
        names = None if relations is None else {str(name) for name in relations}
        bounds = {} if span is None else {"epoch": span.epoch, "after": span.after - 1, "upto": span.upto}
        paths = files.select(op=contract.RELATION, relations=names, **bounds)
        unread = [path for path in paths if path not in self._layouts_read]
        rows = files.read(unread, ["layout", "info"], pc.field("op") == contract.RELATION)
        for row in rows.group_by("layout", use_threads=False).aggregate([("info", "min")]).to_pylist():
            self._layouts[row["layout"]] = relation_of(row["info_min"])
        self._layouts_read.update(unread)
        return {n: r for n, r in self._layouts.items() if names is None or str(r.table) in names}

    def latest_layouts(self, epoch: int) -> list[Relation]:
        """The last layout of each table in an epoch, from its newest files (`_RECENT` of them)."""
        files = self.files()
        paths = files.select(epoch=epoch, op=contract.RELATION)[-_RECENT:]
        wanted = (pc.field("epoch") == epoch) & (pc.field("op") == contract.RELATION)
        rows = files.read(paths, ["position", "relation", "info"], wanted)
        latest = dict(zip(rows["relation"].to_pylist(), rows["info"].to_pylist(), strict=True))  # files are in order
        return [relation_of(info) for info in latest.values()]

    def last_layout(self, epoch: int, table: TableName, *, before: int | None = None) -> Relation | None:
        """The layout of a table's last changes in an epoch, or of those before a position; None without any.

        With `before`, the result may be one that is described in the same file as a later change.
        """
        files = self.files()
        wanted = (
            (pc.field("epoch") == epoch) & (pc.field("op") == contract.RELATION) & (pc.field("relation") == str(table))
        )
        bounds = {"epoch": epoch}
        if before is not None:
            wanted &= pc.field("position") < before
            bounds |= {"upto": before}
        for path in reversed(files.select(op=contract.RELATION, relations=[str(table)], **bounds)):
            rows = files.read([path], ["info"], wanted)["info"].to_pylist()
            if rows:
                return relation_of(rows[-1])
        return None

    def changes(self, table: TableName, span: Span) -> pa.Table:
        """All columns of one table's changes (I U D T) in a span, in order."""
        files = self.applied_files()
        paths = files.select_span(span, relations=[str(table)])
        wanted = span_filter(span) & (pc.field("relation") == str(table))
        wanted &= pc.field("op").isin([contract.INSERT, contract.UPDATE, contract.DELETE, contract.TRUNCATE])
        return _in_order(files.read(paths, contract.SCHEMA.names, wanted))

    def history_rows(self, table: TableName) -> pa.Table:
        """All columns of all changes and snapshot rows of one table, in order over all epochs."""
        files = self.applied_files()
        wanted = (pc.field("relation") == str(table)) & ~pc.field("op").isin([contract.RELATION, contract.UNDECODABLE])
        return _in_order(files.read(files.select(relations=[str(table)]), contract.SCHEMA.names, wanted))

    def rows(self, position: int, epoch: int | None = None) -> pa.Table:
        """Every row at a position, layouts first; `epoch` defaults to the newest stream's."""
        if epoch is None:
            state = self.state()
            epoch = state.epoch if state is not None else 0
        files, place = self.files(), Span(epoch, position - 1, position)
        return _in_order(files.read(files.select_span(place), contract.SCHEMA.names, span_filter(place)))

    def transactions(
        self, span: Span, columns: Sequence[str] = contract.SCHEMA.names
    ) -> Iterator[tuple[int, list[Any]]]:
        """The rows of each position of a span as dictionaries, in their order, file by file.

        Without layout and snapshot rows. Nothing is verified; `bronze.hash_chain_verify` does that.
        """
        files = self.files()
        wanted = span_filter(span) & ~pc.field("op").isin([contract.RELATION, contract.SNAPSHOT])
        tables = (files.read([path], columns, wanted) for path in files.select_span(span))
        batches = (batch for table in tables for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE))
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        for position, group in itertools.groupby(rows, key=lambda row: row["position"]):
            yield position, list(group)

    def applied_files(self) -> Files:
        """The files, with those of transactions decoded later: what is applied to silver."""
        files = self.files()
        if self._decoded is None or not files.select(op=contract.UNDECODABLE):
            return files
        return self._decoded.overlay_files(files)

    def files(self) -> Files:
        """The data files of the newest version."""
        if not self._table.refresh():
            return Files.empty()
        if self._files is None or self._files[0] != self._table.version:
            self._files = (self._table.version, self._table.files())
        return self._files[1]


def span_filter(span: Span) -> pc.Expression:
    """The filter of a span."""
    position = pc.field("position")
    return (pc.field("epoch") == span.epoch) & (position > span.after) & (position <= span.upto)


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows by epoch, position, ordinal; layout rows, which have no ordinal, precede the others of their file."""
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
    """Parse the layout in the `info` of a layout row. Raises BronzeDamaged."""
    try:
        return Relation.from_description(json.loads(info))
    except (KeyError, TypeError, ValueError) as cause:
        raise BronzeDamaged("a layout row cannot be read") from cause
