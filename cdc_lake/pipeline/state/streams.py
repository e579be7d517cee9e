"""Streams of a pipeline: what bronze and the control tables say of how they were begun, whatever the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.errors import BronzeGone, CopyUnknown
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import SnapshotRow, StreamRow
from cdc_lake.lake.control_rows import now as control_now
from cdc_lake.model.counting import counted
from cdc_lake.observe.failpoint import SNAPSHOT_DONE, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.state.copies import COMPLETE, STARTED, CopiedTable, snapshot_id, told
from cdc_lake.source.stream import StreamIdentity, shown

_RESTART = "restart"
"""Name of the row of `snapshots` that asks for a new stream; it names no stream that there is."""


def begin_stream(
    identity: StreamIdentity, confirm: int, bronze: BronzeWriter, control: ControlTables, *, dense: bool = False
) -> BronzeState:
    """Start a stream in bronze, behind its start; `confirm` is the slot's position. Raises LakeError, StateError.

    `dense`: it shows every CSN. Where the stream before it ended is recorded with it.
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


def record_copy(control: ControlTables, state: BronzeState, word: str, copied: Sequence[CopiedTable]) -> None:
    """Record how far a stream's initial copy is, `started` or `complete`, and which tables are whole.

    Raises ControlNotWritten.
    """
    control.record(
        SnapshotRow(
            snapshot=snapshot_id(state.epoch),
            stream=state.stream,
            epoch=state.epoch,
            position=state.upto,
            tables=told(copied),
            state=word,
            recorded_at=control_now(),
        )
    )


def finish_copy(control: ControlTables, state: BronzeState, copied: Sequence[CopiedTable], tell: Tell) -> int:
    """Record that a stream's initial copy is whole, and tell of it; the rows of all its tables. Raises
    ControlNotWritten.
    """
    failpoint(SNAPSHOT_DONE)
    record_copy(control, state, COMPLETE, copied)
    rows = sum(one.rows for one in copied)
    text = f"copied {counted(len(copied), 'table')}"
    tell(Progress("snapshot", text, rows, rows, "rows", facts={"epoch": state.epoch}))
    return rows


def is_complete(state: BronzeState | None, control: ControlTables) -> TypeGuard[BronzeState]:
    """True where bronze holds a stream, and its initial copy was recorded as complete."""
    if state is None or starts_over(state, control):
        return False
    wanted = (state.stream, state.epoch, snapshot_id(state.epoch))
    return any(row.state == COMPLETE and (row.stream, row.epoch, row.snapshot) == wanted for row in control.snapshots())


def last_epoch(state: BronzeState | None, control: ControlTables) -> int:
    """The epoch of the newest stream that bronze or the control tables know; 0 for none."""
    return max([0 if state is None else state.epoch, *(row.epoch for row in control.streams())])


def start_over(state: BronzeState | None, control: ControlTables) -> None:
    """Record that the next start begins a new stream in place of the newest one. Raises ControlNotWritten."""
    epoch = last_epoch(state, control)
    control.record(SnapshotRow(_RESTART, _RESTART, epoch, 0, "[]", STARTED, control_now()))


def starts_over(state: BronzeState | None, control: ControlTables) -> bool:
    """Whether somebody asked for a new stream in place of the newest one, and none has begun since."""
    asked = next((row.epoch for row in control.snapshots() if row.snapshot == _RESTART), None)
    return asked is not None and asked == last_epoch(state, control)


def check_bronze_there(state: BronzeState | None, control: ControlTables, place: str) -> None:
    """Raise BronzeGone where bronze holds nothing, and the control tables say that it did, unless it starts over."""
    known = control.streams() if state is None else []
    if known and not starts_over(state, control):
        text = f"bronze holds nothing, and the control tables know stream {known[-1].stream}, begun "
        raise BronzeGone(f"{text}{known[-1].recorded_at.isoformat(timespec='seconds')}", where=place)


def check_unfinished(state: BronzeState) -> StreamIdentity:
    """The stream of a copy that was not finished; raises CopyUnknown where changes were landed after it."""
    before = StreamIdentity.parse(state.stream)
    if state.upto != before.start:
        raise CopyUnknown(
            f"bronze holds changes of {state.stream} up to {shown(state.stream, state.upto)}, "
            "but no finished initial copy of it"
        )
    return before
