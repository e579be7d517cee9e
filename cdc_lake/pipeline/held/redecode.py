"""Decoding again: transactions that landed as bytes, read by the version and the settings of now.

What decoding takes was kept with the bytes; only what nobody knew when they came is asked of the source. Bronze is not
rewritten: what comes out is kept beside it (`bronze.decoded`), and silver reads that in the place of the bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self

from cdc_lake.bronze.contract import BEGIN, COMMIT, UNDECODABLE
from cdc_lake.bronze.open import bronze_reader, decoded
from cdc_lake.bronze.reader import BronzeReader, CommitRow
from cdc_lake.bronze.rows import build
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.decode.announced import TableFacts
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.digest import GENESIS
from cdc_lake.decode.kept import raw_of
from cdc_lake.decode.mppdb import kept as family
from cdc_lake.decode.mppdb.columnar import tabulate as tabulate_family
from cdc_lake.decode.mppdb.facts import FamilyTableFacts
from cdc_lake.decode.raw import Raw
from cdc_lake.decode.undecodable import READING, Frame
from cdc_lake.errors import BronzeDamaged, DecodeError, NotInBronze
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.span import Span
from cdc_lake.model.transaction import Boundaries
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.state.waiting import UndecodedTransaction, view
from cdc_lake.pipeline.stream.encoding import codec_by_name, in_hex
from cdc_lake.pipeline.stream.redaction import redacted, redaction_of
from cdc_lake.source.stream import shown
from cdc_lake.source.tables import chooses

if TYPE_CHECKING:
    from cdc_lake.source.connection import Session

_END = (1 << 63) - 1
_PGOUTPUT = "pgoutput"


@dataclass(frozen=True, slots=True)
class Retried:
    """One transaction that was tried again. `changes`: how many it has, None where it still cannot be decoded; then
    `code`, `message` and `where` are the error of this attempt.
    """

    position: str
    changes: int | None
    tables: tuple[str, ...]
    code: str = ""
    message: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class HeldRetry:
    """What a retry came to; `version`: the one that tried."""

    version: str
    tried: tuple[Retried, ...]

    @property
    def failed(self) -> int:
        """How many still cannot be decoded."""
        return sum(one.changes is None for one in self.tried)


def retry(project: Project, position: int | None, tell: Tell) -> HeldRetry:
    """Decode again what is in bronze as bytes, or one transaction of it. Raises NotInBronze, SourceError, LakeError."""
    reader = bronze_reader(project)
    state = reader.state()
    if state is None:
        raise NotInBronze("bronze holds no stream", where=reader.place)
    span = Span(state.epoch, -1, _END) if position is None else Span(state.epoch, position - 1, position)
    commits = reader.undecodable(span)
    if position is not None and not commits:
        at = shown(state.stream, position)
        raise NotInBronze(f"no transaction that could not be decoded waits at {at}", where=reader.place)
    keeper, done, ours = decoded(project), [], version("cdc_lake")
    with _Source(project) as source:
        for commit in commits:
            seen = view(state.stream, commit)
            try:
                raw, changes = _decoded(project, reader, commit, source)
            except DecodeError as error:
                done.append(_failed(seen, error))
                tell(Progress("retry", f"{seen.position} still cannot be decoded: {error.message}"))
                continue
            rows, counts = _rows(raw, changes, state.stream, commit)
            keeper.record(commit, rows, counts, ours)
            done.append(Retried(seen.position, len(changes), tuple(counts)))
            tell(Progress("retry", f"{seen.position} is decoded: {counted(len(changes), 'change')}"))
    return HeldRetry(ours, tuple(done))


def _failed(seen: UndecodedTransaction, error: DecodeError) -> Retried:
    return Retried(seen.position, None, seen.tables, error.code, error.message, error.where)


def _rows(raw: Raw, changes: ChangeColumns, stream: str, commit: CommitRow) -> tuple[Any, dict[str, dict[str, int]]]:
    """The transaction as bronze would have it, and the counts of its COMMIT row."""
    now = time.time_ns() // 1000
    rows, _ = build([raw], changes, stream=stream, epoch=commit.epoch, previous=GENESIS, ingest_ts=now)
    return rows, json.loads(rows["info"][-1].as_py())["counts"]


def _decoded(project: Project, reader: BronzeReader, commit: CommitRow, source: _Source) -> tuple[Raw, ChangeColumns]:
    """The transaction and its changes. Raises DecodeError, SourceError, BronzeDamaged."""
    at = commit.position
    layouts = reader.layouts(span=Span(commit.epoch, at - 1, at))
    rows = reader.rows(at, commit.epoch).to_pylist()
    frames = [_frame(row, layouts) for row in rows if row["op"] == UNDECODABLE]
    bounds = _bounds([row for row in rows if row["op"] in (BEGIN, COMMIT)])
    # of each table one that was described in the same file, the frames' own before others
    described = {r.table: r for r in (*layouts.values(), *(f.relation for f in frames if f.relation is not None))}
    redaction = redaction_of(project)
    if str(frames[0].info.get(READING, "")).split(" ")[0] == _PGOUTPUT:

        def landed(_oid: int, table: TableName) -> Relation | None:
            return reader.last_layout(commit.epoch, table, before=at)

        raw = raw_of(bounds, frames, described, source.postgres_facts, landed)
        return raw, redacted(lambda batch: tabulate(batch, in_hex(project)), redaction)([raw])
    records = family.raw_of(bounds, frames)
    known = family.layouts_of(
        frames,
        list(described.values()),
        lambda encoding: codec_by_name(project, encoding),
        source.family_facts,
        chooses(project.pipeline.source.tables),
        takes_back=isinstance(project.pipeline.source, FamilySource),
    )
    return records, redacted(lambda batch: tabulate_family(batch, known), redaction)([records])


def _frame(row: dict[str, Any], layouts: dict[int, Relation]) -> Frame:
    relation = layouts.get(row["layout"]) if row["layout"] is not None else None
    if row["layout"] is not None and relation is None:
        raise BronzeDamaged(f"bronze has no description of layout {row['layout']}")
    try:
        info = json.loads(row["info"] or "{}")
    except ValueError as cause:
        raise BronzeDamaged("what was kept with an undecodable transaction cannot be read") from cause
    return Frame(row["raw"], row["lsn"], relation, info)


def _bounds(rows: Sequence[dict[str, Any]]) -> Boundaries:
    """From the transaction's B and C rows."""
    begin, commit = rows[0], rows[-1]
    said = json.loads(begin["info"] or "{}")
    time_ = commit["commit_ts"]
    return Boundaries(
        position=commit["position"],
        confirm=commit["position"],
        commit_lsn=commit["commit_lsn"],
        first_lsn=commit["first_lsn"],
        csn=commit["csn"],
        xid=commit["xid"],
        commit_ts=None if time_ is None else _micros(time_),
        user=said.get("user"),
        origin=said.get("origin"),
        empty_before=int(json.loads(commit["info"]).get("empty_before", 0)),
    )


def _micros(at: Any) -> int:
    whole = at.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000 + int(at.microsecond)


@dataclass
class _Source:
    """The source's catalog, connected to when it is first asked."""

    project: Project
    _opened: ExitStack = field(default_factory=ExitStack)
    _catalog: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def postgres_facts(self, oid: int, table: TableName) -> TableFacts:
        """See `decode.announced.Catalog`. Raises SourceError."""
        if self._catalog is None:
            from cdc_lake.source.catalog import SourceCatalog  # noqa: PLC0415  # a driver of its own

            self._catalog = SourceCatalog(self._postgres())
        facts: TableFacts = self._catalog(oid, table)
        return facts

    def _postgres(self) -> Session:
        from cdc_lake.source.connection import connect  # noqa: PLC0415  # a driver of its own

        session = connect(self.project.postgres, self.project.root, application="cdc_lake held retry")
        self._opened.callback(session.close)
        return session

    def family_facts(self, table: TableName) -> FamilyTableFacts | None:
        """See `decode.mppdb.facts.FamilyCatalog`. Raises SourceError."""
        if self._catalog is None and isinstance(self.project.pipeline.source, PostgresSource):
            from cdc_lake.source.decoded_tables import RowTables  # noqa: PLC0415  # a driver of its own

            self._catalog = RowTables(self._postgres())
        elif self._catalog is None:
            from cdc_lake.source.gaussdb.catalog import FamilyTables  # noqa: PLC0415
            from cdc_lake.source.gaussdb.connection import target_of  # noqa: PLC0415
            from cdc_lake.source.wire.connect import connect  # noqa: PLC0415

            target = target_of(self.project.family, self.project.root)
            session = connect(target, application="cdc_lake held retry")
            self._opened.callback(session.close)
            self._catalog = FamilyTables(session, skips_generated=self.project.family.skips_generated)
        facts: FamilyTableFacts | None = self._catalog(table)
        return facts
