"""Opens the stream of a pipeline, with everything that rows pass on their way to bronze.

A transaction that the server sends again is dropped by its position if bronze has it with the same xid and content: a
different one at a landed position means that server and bronze have different histories. Content may differ if it was
landed under another configuration, or if layouts changed and the stream's bytes are not self-contained (the GaussDB
family, whose rows are decoded with the current catalog); this is reported. A transaction that bronze does not have (it
is in the initial copy, or retention removed it) is not compared. Only bronze's newest files are read, and the content
of a limited number of transactions, so a restart stays fast.

The configuration of a pipeline (captured tables, redaction, text encoding) determines what bronze contains of a
transaction, so each COMMIT row has its number. A changed configuration gets the next number in the control table
`configurations` before anything is landed under it. It contains only a fingerprint of the hash key.

Tables are copied again in parallel with the stream, each at a known position:

    copied into bronze, chunk by chunk → `snapshots` records the tables and their position

Silver adopts a copy when it reaches that position (`runtime.apply.resync_swap`). A process that dies before the last
step leaves rows that nobody reads.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow.compute as pc

from cdc_lake.bronze.contract import COMMIT, BronzeWriter, InParts, StreamCheckpoint, Tabulate
from cdc_lake.bronze.open import bronze_beside, bronze_reader
from cdc_lake.bronze.reader import BronzeReader, span_filter
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ReceiverContext
from cdc_lake.connectors.factory import copy_again, opened_stream, source_view
from cdc_lake.connectors.open_stream import PATIENCE, OpenStream, OrderedTransaction, TransactionOrdering, do_nothing
from cdc_lake.connectors.redaction import (
    NOTHING,
    RedactedBronze,
    changed_columns,
    check_columns,
    redaction_of,
    with_redaction,
)
from cdc_lake.control.coordination import copy_lease
from cdc_lake.control.snapshots import CopiedTable, record_recopied
from cdc_lake.decode.hashing import content_of
from cdc_lake.decode.redaction import Hasher
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import DecodeError, DuplicateMismatch, TableNotKnown
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import RECOPIED, failpoint
from cdc_lake.source.base import format_stream_position
from cdc_lake.source.socket_io import Opened, ignore_open
from cdc_lake.tables.control_schema import ConfigurationRow, utc_now
from cdc_lake.tables.control_tables import ControlTables

_FILES: Final = 8  # of bronze, the newest ones
_CONTENTS: Final = 1000  # repeated transactions of a connection whose content is compared
_LARGEST: Final = 1 << 20  # maximum bytes of such a transaction


class DuplicateVerifier:
    """Compares repeated transactions with bronze, and wraps another ordering (implements
    `connectors.open_stream.TransactionOrdering`).

    `reader` is created at the first repeated transaction; `configuration`: the pipeline's number; `by_catalog`: content
    can be compared only if the layouts are the same.
    """

    def __init__(
        self,
        order: TransactionOrdering,
        reader: Callable[[], BronzeReader],
        state: StreamCheckpoint,
        *,
        configuration: int,
        tabulate: Tabulate,
        by_catalog: bool = False,
        report: ProgressReporter,
    ) -> None:
        self._order = order
        self._reader = reader
        self._state = state
        self._configuration = configuration
        self._tabulate = tabulate
        self._by_catalog = by_catalog
        self._report = report
        self._landed: dict[int, dict[str, Any]] | None = None
        self._left = _CONTENTS
        self._noted = False

    @property
    def repeats(self) -> int:
        """Number of transactions dropped because they were closed before."""
        return self._order.repeats

    @property
    def waiting(self) -> int:
        """Number of transactions that arrived and are not closed yet."""
        return self._order.waiting

    def add(self, transaction: ReceivedTransaction) -> Sequence[OrderedTransaction]:
        """Take a committed transaction, and compare a repeated one with bronze. Raises DuplicateMismatch."""
        closed = self._order.add(transaction)  # its error about a server that lost something is more specific
        if transaction.bounds.position <= self._state.upto and transaction.count:
            self._check(transaction)
        return closed

    def expire_gaps(self, opened: Collection[int] = ()) -> Sequence[OrderedTransaction]:
        """Check the clock, after each read of the stream; returns what is closed by passing over a gap."""
        return self._order.expire_gaps(opened)

    def _check(self, transaction: ReceivedTransaction) -> None:
        if self._landed is None:
            self._landed = self._read(transaction.bounds.position)
        row = self._landed.get(transaction.bounds.position)
        if row is None:
            return
        if None not in (row["xid"], transaction.bounds.xid) and row["xid"] != transaction.bounds.xid:
            raise self._differs(transaction, f"as transaction {transaction.bounds.xid}, but was {row['xid']}")
        info = json.loads(row["info"])
        if info["configuration"] != self._configuration:
            text = f"repeated transactions landed under configuration {info['configuration']}, and are kept as they are"
            self._note(text, configuration=info["configuration"])
        elif "undecodable" not in info and self._affords(transaction):
            self._compare(transaction, info["content"])

    def _compare(self, transaction: ReceivedTransaction, content: str) -> None:
        try:
            columns = self._tabulate([transaction])
        except DecodeError as error:
            if not self._by_catalog:
                raise
            text = f"repeated transactions cannot be read with the current catalog: {error.message}"
            self._note(text, code=error.code)
            return
        if columns.undecoded or content_of(columns.digests).hex() == content:
            return
        position = transaction.bounds.position
        layouts = {columns.relations[n].layout for n in columns.relation if n >= 0} if self._by_catalog else set()
        if self._by_catalog and layouts != self._layouts(position):
            text = "repeated transactions have other layouts in the current catalog, and are kept as they are"
            self._note(text, position=format_stream_position(self._state.stream, position))
            return
        raise self._differs(transaction, "with other content")

    def _layouts(self, position: int) -> set[int]:
        """The layouts with which the changes of a transaction in bronze are decoded."""
        span = Span(self._state.epoch, position - 1, position)
        files = self._reader().files()
        paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto)
        rows = files.read(paths, ["layout"], span_filter(span) & pc.field("op").isin([*"IUDTM"]))
        return {layout for layout in rows["layout"].unique().to_pylist() if layout is not None}

    def _affords(self, transaction: ReceivedTransaction) -> bool:
        self._left -= 1
        return self._left >= 0 and transaction.size <= _LARGEST and not isinstance(transaction, InParts)

    def _read(self, first: int) -> dict[int, dict[str, Any]]:
        """COMMIT rows from a position on, by their position."""
        span = Span(self._state.epoch, first - 1, self._state.upto)
        files = self._reader().files()
        paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto, op=COMMIT)[-_FILES:]
        rows = files.read(paths, ["position", "xid", "info"], span_filter(span) & (pc.field("op") == COMMIT))
        return {row["position"]: row for row in rows.to_pylist()}

    def _note(self, text: str, **facts: int | str) -> None:
        if not self._noted:
            self._noted = True
            self._report(ProgressEvent("receive", text, facts=dict(facts)))

    def _differs(self, transaction: ReceivedTransaction, how: str) -> DuplicateMismatch:
        position = format_stream_position(self._state.stream, transaction.bounds.position)
        return DuplicateMismatch(f"the transaction at {position} is sent again {how}")


_LABEL = b"cdc_lake key of redaction"


def settings_of(project: Project) -> str:
    """The settings that determine bronze's content, as canonical JSON without secrets."""
    bronze, source = project.pipeline.bronze, project.pipeline.source
    key = bronze.redact_key
    used = key is not None and any(rule.strategy == "sha256" for rule in bronze.redact)
    settings = {
        "tables": list(source.tables),
        "encoding": source.model_dump(include={"encoding_errors", "hex_columns"}, exclude_defaults=True),
        "redact": sorted([column, rule.strategy] for rule in bronze.redact for column in rule.columns),
        "key": Hasher(key.get_secret_value().encode()).text(_LABEL) if key is not None and used else None,
    }
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)


def redacted_columns(project: Project) -> int:
    """How many columns of the captured tables are redacted now. Raises RedactionUnfit, SourceError."""
    with source_view(project) as source:
        layouts = [layout for table in source.tables() if (layout := source.layout(table)) is not None]
    return check_columns(project, layouts)


def number_configuration(
    project: Project, state: StreamCheckpoint | None, control: ControlTables, report: ProgressReporter
) -> int:
    """The number of the pipeline's configuration; a new configuration is recorded.

    A new one is first compared with the source's tables. Raises ConfigError if it does not fit them, SourceError,
    ControlNotWritten.
    """
    settings = settings_of(project)
    fingerprint = hashlib.sha256(settings.encode()).hexdigest()
    last = next(reversed(control.configurations()), None)
    if last is not None and last.fingerprint == fingerprint:
        return last.number
    redacts = bool(project.pipeline.bronze.redact)
    if redacts:
        columns = redacted_columns(project)
        report(ProgressEvent("connect", f"columns that are redacted: {columns}", facts={"columns": columns}))
    # what was landed before configurations were recorded has the number 1, and was not redacted
    number = 1 + (last.number if last is not None else int(state is not None and redacts))
    before = json.loads(last.settings) if last is not None else NOTHING
    changed = changed_columns(
        before, json.loads(settings), lambda: () if state is None else bronze_reader(project).layouts().values()
    )
    epoch, position = (0, None) if state is None else (state.epoch, state.upto)
    control.record(ConfigurationRow(number, fingerprint, settings, json.dumps(changed), epoch, position, utc_now()))
    if number > 1:
        words = f"; redacted differently from now on: {', '.join(changed)}" if changed else ""
        text = f"configuration {number} begins{words}"
        report(ProgressEvent("connect", text, facts={"configuration": number, "changed": changed}))
    return number


def recopy(
    project: Project,
    state: StreamCheckpoint,
    tables: Sequence[TableName],
    control: ControlTables,
    stop: threading.Event,
    report: ProgressReporter,
    opened: Opened = ignore_open,
) -> tuple[CopiedTable, ...]:
    """Copy tables of a stream in one snapshot, and activate the copies. `opened`: called with connections.

    Raises AnotherCopy, TableNotKnown, CopyUnplaced, ConfigError, SourceError, LakeError, StateError, Stopped.
    """
    with copy_lease(project):
        number = number_configuration(project, state, control, report)
        bronze = RedactedBronze(bronze_beside(project), redaction_of(project, number))
        name, copied = copy_again(ReceiverContext(project, bronze, control, stop, report), state, tables, opened)
        if missing := sorted(set(tables) - {copy.relation for copy in copied}):
            raise TableNotKnown(f"the stream does not contain {', '.join(map(str, missing))}")
        failpoint(RECOPIED)
        record_recopied(control, state, name, copied)
    position = format_stream_position(state.stream, copied[0].position)
    text = (
        f"copied {pluralize(len(copied), 'table')} while the stream continued, as of {position}: silver takes over "
        "the copy when it reaches that position"
    )
    report(ProgressEvent("snapshot", text, facts={"epoch": state.epoch}))
    return copied


@contextmanager
def open_stream(
    project: Project,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    report: ProgressReporter,
    *,
    patience: float = PATIENCE,
    first: bool = False,
    enforce_wal_budget: Callable[[], object] = do_nothing,
) -> Iterator[OpenStream]:
    """Connect, start or check the stream, start replication with redaction. `first`: copy added tables before anything
    is read, while `enforce_wal_budget` is called regularly.

    Raises ConfigError, SourceError, LakeError, StateError, Stopped.
    """
    number = number_configuration(project, bronze.state(), control, report)
    redaction = redaction_of(project, number)
    context = ReceiverContext(project, RedactedBronze(bronze, redaction), control, stop, report)
    with opened_stream(context, patience, recopy, first=first, enforce_wal_budget=enforce_wal_budget) as stream:
        tabulate = with_redaction(stream.tabulate, redaction)
        order = DuplicateVerifier(
            stream.ordering,
            partial(bronze_reader, project),
            stream.state,
            configuration=number,
            tabulate=with_redaction(stream.again, redaction),
            # rows that contain their column names are decoded with the current catalog
            by_catalog=project.pipeline.source.slot.plugin != "pgoutput",
            report=report,
        )
        yield replace(stream, tabulate=tabulate, ordering=order)
