"""Decodes transactions again that landed as bytes, with the current version and settings.

The data needed for decoding was stored with the bytes; the source is queried only for what was unknown then. Bronze is
not rewritten: the result is stored separately (`bronze.reader`), and silver reads it in place of the bytes.
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
from cdc_lake.bronze.open import bronze_reader, decoded_transactions
from cdc_lake.bronze.reader import BronzeReader, CommitRow
from cdc_lake.bronze.row_builder import build
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.connectors.open_stream import codec_by_name, in_hex
from cdc_lake.connectors.redaction import redaction_of, with_redaction
from cdc_lake.control.streams import UndecodedTransaction, view
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.gaussdb import undecodable as family
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate as tabulate_family
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.pgoutput.relations import TableFacts
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.decode.undecodable import READING_FIELD, Frame, raw_of
from cdc_lake.errors import BronzeDamaged, DecodeError, NotInBronze
from cdc_lake.model.change import Boundaries
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import END, Span
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.base import chooses, format_stream_position

if TYPE_CHECKING:
    from cdc_lake.source.postgres.connection import Session


_PGOUTPUT = "pgoutput"


@dataclass(frozen=True, slots=True)
class Retried:
    """One retried transaction. `changes`: their number, None if it is still undecodable; then `code`, `message` and
    `where` are the error of this attempt.
    """

    position: str
    changes: int | None
    tables: tuple[str, ...]
    code: str = ""
    message: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class QuarantineRetry:
    """The result of a retry; `version`: the one used."""

    version: str
    tried: tuple[Retried, ...]

    @property
    def failed_count(self) -> int:
        """The number of transactions that are still undecodable."""
        return sum(attempt.changes is None for attempt in self.tried)


def retry(project: Project, position: int | None, report: ProgressReporter) -> QuarantineRetry:
    """Decode again all undecoded transactions of bronze, or one of them. Raises NotInBronze, SourceError, LakeError."""
    reader = bronze_reader(project)
    state = reader.state()
    if state is None:
        raise NotInBronze("bronze contains no stream", where=reader.place)
    span = Span(state.epoch, -1, END) if position is None else Span(state.epoch, position - 1, position)
    commits = reader.undecodable(span)
    if position is not None and not commits:
        position_text = format_stream_position(state.stream, position)
        raise NotInBronze(f"there is no undecodable transaction at {position_text}", where=reader.place)
    keeper, attempts, own_version = decoded_transactions(project), [], version("cdc_lake")
    with _Source(project) as source:
        for commit in commits:
            transaction = view(state.stream, commit)
            try:
                raw, changes = _decode_commit(project, reader, commit, source)
            except DecodeError as error:
                attempts.append(_failed_attempt(transaction, error))
                report(ProgressEvent("retry", f"{transaction.position} still cannot be decoded: {error.message}"))
                continue
            rows, counts = _rows(raw, changes, state.stream, commit)
            keeper.record(commit, rows, counts, own_version)
            attempts.append(Retried(transaction.position, len(changes), tuple(counts)))
            report(ProgressEvent("retry", f"{transaction.position} is decoded: {pluralize(len(changes), 'change')}"))
    return QuarantineRetry(own_version, tuple(attempts))


def _failed_attempt(transaction: UndecodedTransaction, error: DecodeError) -> Retried:
    return Retried(transaction.position, None, transaction.tables, error.code, error.message, error.where)


def _rows(
    raw: ReceivedTransaction, changes: ChangeColumns, stream: str, commit: CommitRow
) -> tuple[Any, dict[str, dict[str, int]]]:
    """The transaction's rows for bronze, and the counts of its COMMIT row."""
    now = time.time_ns() // 1000
    rows, _ = build([raw], changes, stream=stream, epoch=commit.epoch, previous=GENESIS, ingest_ts=now)
    return rows, json.loads(rows["info"][-1].as_py())["counts"]


def _decode_commit(
    project: Project, reader: BronzeReader, commit: CommitRow, source: _Source
) -> tuple[ReceivedTransaction, ChangeColumns]:
    """The transaction and its changes. Raises DecodeError, SourceError, BronzeDamaged."""
    position = commit.position
    layouts = reader.layouts(span=Span(commit.epoch, position - 1, position))
    rows = reader.rows(position, commit.epoch).to_pylist()
    frames = [_frame(row, layouts) for row in rows if row["op"] == UNDECODABLE]
    bounds = _bounds([row for row in rows if row["op"] in (BEGIN, COMMIT)])
    # for each table a relation from the same file, preferably from the frames themselves
    described = {r.table: r for r in (*layouts.values(), *(f.relation for f in frames if f.relation is not None))}
    redaction = redaction_of(project)
    if str(frames[0].info.get(READING_FIELD, "")).split(" ")[0] == _PGOUTPUT:

        def last_layout(_oid: int, table: TableName) -> Relation | None:
            return reader.last_layout(commit.epoch, table, before=position)

        raw = raw_of(bounds, frames, described, source.postgres_facts, last_layout)
        return raw, with_redaction(lambda batch: tabulate(batch, in_hex(project)), redaction)([raw])
    records = family.raw_of(bounds, frames)
    relations = family.layouts_of(
        frames,
        list(described.values()),
        lambda encoding: codec_by_name(project, encoding),
        source.family_facts,
        chooses(project.pipeline.source.tables),
        takes_back=isinstance(project.pipeline.source, FamilySource),
    )
    return records, with_redaction(lambda batch: tabulate_family(batch, relations), redaction)([records])


def _frame(row: dict[str, Any], layouts: dict[int, Relation]) -> Frame:
    relation = layouts.get(row["layout"]) if row["layout"] is not None else None
    if row["layout"] is not None and relation is None:
        raise BronzeDamaged(f"bronze has no description of layout {row['layout']}")
    try:
        info = json.loads(row["info"] or "{}")
    except ValueError as cause:
        raise BronzeDamaged("the data stored with an undecodable transaction cannot be read") from cause
    return Frame(row["raw"], row["lsn"], relation, info)


def _bounds(rows: Sequence[dict[str, Any]]) -> Boundaries:
    """From the transaction's B and C rows."""
    begin, commit = rows[0], rows[-1]
    info = json.loads(begin["info"] or "{}")
    time_ = commit["commit_ts"]
    return Boundaries(
        position=commit["position"],
        confirm=commit["position"],
        commit_lsn=commit["commit_lsn"],
        first_lsn=commit["first_lsn"],
        csn=commit["csn"],
        xid=commit["xid"],
        commit_ts=None if time_ is None else _micros(time_),
        user=info.get("user"),
        origin=info.get("origin"),
        empty_before=int(json.loads(commit["info"]).get("empty_before", 0)),
    )


def _micros(timestamp: Any) -> int:
    whole_seconds = timestamp.replace(microsecond=0)
    return int(whole_seconds.timestamp()) * 1_000_000 + int(timestamp.microsecond)


@dataclass
class _Source:
    """The source's catalog, connected on first use."""

    project: Project
    _opened: ExitStack = field(default_factory=ExitStack)
    _catalog: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def postgres_facts(self, oid: int, table: TableName) -> TableFacts:
        """The catalog facts of a table by its OID. Raises SourceError."""
        if self._catalog is None:
            from cdc_lake.source.postgres.catalog import SourceCatalog  # noqa: PLC0415  # a driver of its own

            self._catalog = SourceCatalog(self._postgres())
        facts: TableFacts = self._catalog(oid, table)
        return facts

    def _postgres(self) -> Session:
        from cdc_lake.source.postgres.connection import connect  # noqa: PLC0415  # a driver of its own

        session = connect(self.project.postgres, self.project.root, application="cdc_lake quarantine retry")
        self._opened.callback(session.close)
        return session

    def family_facts(self, table: TableName) -> GaussDbTableMetadata | None:
        """The catalog facts of a table by its name; None if it does not exist. Raises SourceError."""
        if self._catalog is None and isinstance(self.project.pipeline.source, PostgresSource):
            from cdc_lake.source.postgres.catalog import RowTables  # noqa: PLC0415  # a driver of its own

            self._catalog = RowTables(self._postgres())
        elif self._catalog is None:
            from cdc_lake.source.gaussdb.catalog import GaussDbCatalog  # noqa: PLC0415
            from cdc_lake.source.gaussdb.server import target_of  # noqa: PLC0415
            from cdc_lake.source.gaussdb.wire.session import connect  # noqa: PLC0415

            target = target_of(self.project.family, self.project.root)
            session = connect(target, application="cdc_lake quarantine retry")
            self._opened.callback(session.close)
            self._catalog = GaussDbCatalog(session, skips_generated=self.project.family.skips_generated)
        facts: GaussDbTableMetadata | None = self._catalog(table)
        return facts
