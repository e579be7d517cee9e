"""What bronze and the control tables contain about a pipeline's streams: how they began, and what stops silver.

A slot that cannot be temporary at first is announced in the control table `snapshots` before it is created: a slot of
the pipeline's name that bronze does not know is then ours, left by an interrupted start.

Silver stops before an undecodable transaction. A cut must be complete, so no table passes it, not even one that it
certainly does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeGuard

from cdc_lake.bronze.contract import BronzeWriter, StreamCheckpoint
from cdc_lake.bronze.reader import BronzeReader, CommitRow
from cdc_lake.control.snapshots import COMPLETE, STARTED, CopiedTable, snapshot_id, tables_json
from cdc_lake.errors import BronzeGone, CopyUnknown, TableNotKnown, TransactionUndecoded
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import SNAPSHOT_DONE, failpoint
from cdc_lake.source.base import Kind, StreamIdentity, format_stream_position
from cdc_lake.tables.control_schema import SnapshotRow, StreamRow
from cdc_lake.tables.control_schema import utc_now as control_now
from cdc_lake.tables.control_tables import ControlTables

_RESTART = "restart"
"""Name of the row of `snapshots` that requests a new stream; no stream has this name."""


def begin_stream(
    identity: StreamIdentity, confirm: int, bronze: BronzeWriter, control: ControlTables, *, dense: bool = False
) -> StreamCheckpoint:
    """Start a stream in bronze, after its start; `confirm` is the slot's position. Raises LakeError, StateError.

    `dense`: it shows every CSN. The end of the previous stream is recorded with it.
    """
    before = bronze.state()
    state = bronze.begin_stream(str(identity), identity.start, confirm, after=last_epoch(before, control))
    control.record(
        StreamRow(
            state.epoch,
            state.stream,
            identity.start,
            identity.slot,
            identity.system,
            identity.database,
            identity.domain,
            control_now(),
            dense,
            None if before is None else before.upto,
            None if before is None else before.head.hex(),
        )
    )
    record_copy(control, state, STARTED, ())
    return state


def record_copy(control: ControlTables, state: StreamCheckpoint, word: str, copied: Sequence[CopiedTable]) -> None:
    """Record the progress of a stream's initial copy, `started` or `complete`, and which tables are complete.

    Raises ControlNotWritten.
    """
    control.record(
        SnapshotRow(
            snapshot=snapshot_id(state.epoch),
            stream=state.stream,
            epoch=state.epoch,
            position=state.upto,
            tables=tables_json(copied),
            state=word,
            recorded_at=control_now(),
        )
    )


def finish_copy(
    control: ControlTables, state: StreamCheckpoint, copied: Sequence[CopiedTable], report: ProgressReporter
) -> int:
    """Record and report that a stream's initial copy is complete; returns its rows. Raises ControlNotWritten."""
    failpoint(SNAPSHOT_DONE)
    record_copy(control, state, COMPLETE, copied)
    rows = sum(table.rows for table in copied)
    text = f"copied {pluralize(len(copied), 'table')}"
    report(ProgressEvent("snapshot", text, rows, rows, "rows", facts={"epoch": state.epoch}))
    return rows


def is_complete(state: StreamCheckpoint | None, control: ControlTables) -> TypeGuard[StreamCheckpoint]:
    """True if bronze has a stream whose initial copy was recorded as complete."""
    if state is None or starts_over(state, control):
        return False
    wanted = (state.stream, state.epoch, snapshot_id(state.epoch))
    return any(row.state == COMPLETE and (row.stream, row.epoch, row.snapshot) == wanted for row in control.snapshots())


def last_epoch(state: StreamCheckpoint | None, control: ControlTables) -> int:
    """The epoch of the newest stream that bronze or the control tables know; 0 for none."""
    return max([0 if state is None else state.epoch, *(row.epoch for row in control.streams())])


def start_over(state: StreamCheckpoint | None, control: ControlTables) -> None:
    """Record that the next start begins a new stream instead of continuing. Raises ControlNotWritten."""
    epoch = last_epoch(state, control)
    control.record(SnapshotRow(_RESTART, _RESTART, epoch, 0, "[]", STARTED, control_now()))


def starts_over(state: StreamCheckpoint | None, control: ControlTables) -> bool:
    """Whether a new stream was requested, and none has begun since."""
    asked = next((row.epoch for row in control.snapshots() if row.snapshot == _RESTART), None)
    return asked is not None and asked == last_epoch(state, control)


def check_bronze_there(state: StreamCheckpoint | None, control: ControlTables, place: str) -> None:
    """Raise BronzeGone if bronze is empty although control tables say that it was not, unless it starts over."""
    streams = control.streams() if state is None else []
    if streams and not starts_over(state, control):
        text = f"bronze is empty, but the control tables contain stream {streams[-1].stream}, started "
        raise BronzeGone(f"{text}{streams[-1].recorded_at.isoformat(timespec='seconds')}", where=place)


def check_unfinished(state: StreamCheckpoint) -> StreamIdentity:
    """The stream of an incomplete copy. Raises CopyUnknown if changes were landed after it."""
    before = StreamIdentity.parse(state.stream)
    if state.upto != before.start:
        raise CopyUnknown(
            f"bronze contains changes of {state.stream} up to {format_stream_position(state.stream, state.upto)}, "
            "but no finished initial copy of it"
        )
    return before


@dataclass(frozen=True, slots=True)
class PendingSlot:
    """The intention to create a slot of this name, for a database of this server."""

    kind: Kind
    system: str
    database: str
    slot: str

    def recorded_epoch(self, control: ControlTables) -> int | None:
        """Bronze's epoch when the pipeline last recorded this intention; None if it never did."""
        own_key = (self._snapshot, self._stream)
        return next((row.epoch for row in control.snapshots() if (row.snapshot, row.stream) == own_key), None)

    def record(self, control: ControlTables, epoch: int) -> None:
        """Record the intention; `epoch` is bronze's before that, 0 for none. Raises ControlNotWritten."""
        control.record(SnapshotRow(self._snapshot, self._stream, epoch, 0, "[]", "started", control_now()))

    @property
    def _snapshot(self) -> str:
        return f"slot:{self.slot}"

    @property
    def _stream(self) -> str:
        return f"{self.kind}:{self.system}:{self.database}:{self.slot}"


def source_table(text: str) -> TableName:
    """Parse `schema.table`, escaped as `TableName` prints it, or a table of `public`. Raises TableNotKnown."""
    try:
        return TableName.parse(text if "." in text else f"public.{text}")
    except ValueError as wrong:
        raise TableNotKnown(str(wrong)) from wrong


@dataclass(frozen=True, slots=True)
class UndecodedTransaction:
    """One transaction that bronze has as bytes. `tables`: those it changes, as far as they could be read.

    `code`, `message`, `where`: the error from decoding it; `by`: the version that failed; `frames`: its rows `X`.
    """

    epoch: int
    position: str
    commit_ts: datetime | None
    xid: int | None
    tables: tuple[str, ...]
    frames: int
    bytes: int
    code: str
    message: str
    where: str
    by: str


def waiting(reader: BronzeReader, span: Span, stream: str) -> tuple[UndecodedTransaction, ...]:
    """The undecodable transactions of a span, in order."""
    return tuple(view(stream, commit) for commit in reader.undecodable(span))


def view(stream: str, commit: CommitRow) -> UndecodedTransaction:
    """The view of an undecodable transaction for users."""
    why = commit.undecoded
    assert why is not None
    return UndecodedTransaction(
        epoch=commit.epoch,
        position=format_stream_position(stream, commit.position),
        commit_ts=commit.commit_ts,
        xid=commit.xid,
        tables=why.tables,
        frames=why.frames,
        bytes=commit.size,
        code=why.code,
        message=why.message,
        where=why.where,
        by=why.by,
    )


def undecoded_error(stream: str, commit: CommitRow) -> TransactionUndecoded:
    """The error for stopping before a transaction."""
    transaction = view(stream, commit)
    return TransactionUndecoded(
        f"the transaction at {transaction.position} is in bronze as bytes: {transaction.message} "
        f"({transaction.code}, {_changes(transaction.tables)})",
        where=transaction.where,
    )


def _changes(tables: Sequence[str]) -> str:
    return f"it changes {', '.join(tables)}" if tables else "its changes could not be read"
