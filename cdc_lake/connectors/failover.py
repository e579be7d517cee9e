"""Checks whether the stream in bronze can continue at a server, especially one that took over after a failover.

The control table `timelines` records on which timeline of the server a stream was last read. Every start and reconnect
compares it with the server's: if a standby was promoted meanwhile, everything in bronze must precede the switch,
because the new primary does not have the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import BronzeReader, CommitRow
from cdc_lake.errors import BronzeAhead, OtherSource, OtherTimeline, TimelineUntold
from cdc_lake.errors.base import ANEW
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import Lsn, OrderDomain, Span
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.base import StreamIdentity, domain_of, format_stream_position
from cdc_lake.source.primary import Timeline
from cdc_lake.tables.control_schema import TimelineRow
from cdc_lake.tables.control_schema import utc_now as control_now
from cdc_lake.tables.control_tables import ControlTables

LISTED = 20
"""Maximum number of lost transactions that an error lists."""
_LOOK_BACK = 4096  # CSNs that are searched first
_INVERTED = 64  # maximum difference of CSN order and WAL order; at most 9 was measured


def last_timeline(control: ControlTables, state: StreamCheckpoint) -> Timeline | None:
    """The timeline on which the stream was last read; None if an older version began it."""
    stream_filter = (pc.field("stream") == state.stream) & (pc.field("epoch") == state.epoch)
    rows = control.read("timelines", stream_filter).to_pylist()
    if not rows:
        return None
    newest = max(rows, key=lambda row: row["recorded_at"])
    return Timeline.from_history(newest["timeline"], newest["history"])


def check_timeline(
    now: Timeline, last: Timeline | None, reader: BronzeReader, state: StreamCheckpoint
) -> StreamCheckpoint:
    """Raise unless bronze is part of the history of a server on timeline `now`; positions are LSNs.

    Returns the state from which to continue: if only announced positions of the old primary are after the switch, and
    no transaction of bronze, it is set back to the switch, because other WAL follows there. Raises OtherTimeline,
    TimelineUntold, BronzeAhead.
    """
    if last is None:
        return state
    check_not_older(now, last)
    if now.branches is None or last.branches is None:
        if now.number > last.number:
            raise TimelineUntold(
                f"the server is on timeline {now.number}, bronze was read on timeline {last.number}, and the server "
                "has no history of the switch between them"
            )
        return state
    common = now.common_with(last)
    if common is None:
        return state
    if now.number == last.number:
        raise OtherTimeline(
            f"the server's timeline {now.number} has another history than timeline {last.number}, on which bronze "
            f"was read: they diverge at {common}"
        )
    if max(state.confirm, state.upto) <= common.value:
        return state
    lost = lost_behind(reader, state, common)
    if lost or StreamIdentity.parse(state.stream).start > common.value:  # the initial copy has what was lost
        raise BronzeAhead(
            f"the server is on timeline {now.number}, which branched off timeline {last.number} at {common}, but "
            f"bronze was read on that timeline up to {Lsn(state.confirm)}: {lost_words(state, lost)}"
        )
    return replace(state, upto=min(state.upto, common.value), confirm=min(state.confirm, common.value))


def check_not_older(now: Timeline, last: Timeline) -> None:
    """Raise OtherTimeline if the server is on an earlier timeline than the one last read."""
    if now.number < last.number:
        text = f"the server is on timeline {now.number}, but bronze was already read on timeline {last.number}"
        raise OtherTimeline(text)


def check_log_reaches(flushed: Lsn, reader: BronzeReader, state: StreamCheckpoint) -> None:
    """Raise BronzeAhead if the server's WAL ends before what bronze acknowledged of it."""
    if state.confirm > flushed.value:
        raise BronzeAhead(
            f"bronze contains changes up to {Lsn(state.confirm)}, but the server's WAL ends at {flushed}: "
            f"{state.confirm - flushed.value} bytes were lost there; "
            f"{lost_words(state, lost_behind(reader, state, flushed))}"
        )


def check_csns_reach(next_csn: int, reader: BronzeReader, state: StreamCheckpoint) -> None:
    """Raise BronzeAhead if the server has not assigned all CSNs up to which bronze, ordered by CSN, is complete."""
    if next_csn <= state.upto:
        raise BronzeAhead(
            f"bronze is complete up to CSN {state.upto}, but the server's next CSN is {next_csn}: "
            f"{lost_words(state, reader.commits(Span(state.epoch, next_csn - 1, state.upto)))}"
        )


def lost_behind(reader: BronzeReader, state: StreamCheckpoint, end: Lsn) -> list[CommitRow]:
    """The transactions of the stream that end after `end`, by position."""
    if domain_of(state.stream) is OrderDomain.LSN:
        return reader.commits(Span(state.epoch, end.value, max(state.upto, end.value)))
    start = StreamIdentity.parse(state.stream).start
    back = _LOOK_BACK
    while True:
        after = max(start, state.upto - back)
        commits = reader.commits(Span(state.epoch, after, state.upto))
        # CSN order is nearly WAL order: some transactions before the end show that all after it have been found
        if after == start or len([commit for commit in commits if not _is_after(commit, end)]) > _INVERTED:
            return [commit for commit in commits if _is_after(commit, end)]
        back *= 8


def _is_after(commit: CommitRow, end: Lsn) -> bool:
    return commit.commit_lsn is not None and commit.commit_lsn > end.value


def lost_words(state: StreamCheckpoint, lost: Sequence[CommitRow]) -> str:
    """What bronze has and the server never had, for an error."""
    if not lost:
        return "bronze has no transaction there, but the server now has other positions there"
    named = ", ".join(_describe_commit(state, commit) for commit in lost[:LISTED])
    more = f" and {len(lost) - LISTED} more" if len(lost) > LISTED else ""
    many = pluralize(len(lost), "transaction")
    return f"the server does not have {many} of bronze: {named}{more}"


def note_timeline(now: Timeline, control: ControlTables, state: StreamCheckpoint, report: ProgressReporter) -> None:
    """Record that the stream is read on timeline `now` from here on. Raises ControlNotWritten."""
    last = last_timeline(control, state)
    if now == last:
        return
    control.record(TimelineRow(state.epoch, state.stream, now.number, now.history, state.confirm, control_now()))
    if last is not None and now.number != last.number:
        text = f"the server is now on timeline {now.number}, before that on {last.number}"
        report(ProgressEvent("connect", text, facts={"timeline": now.number, "before": last.number}))


def _describe_commit(state: StreamCheckpoint, commit: CommitRow) -> str:
    xid = "" if commit.xid is None else f"xid {commit.xid}, "
    committed_at = "at an unknown time" if commit.commit_ts is None else f"{commit.commit_ts:%Y-%m-%d %H:%M:%S.%f}Z"
    return f"{format_stream_position(state.stream, commit.position)} ({xid}{committed_at})"


def check_fed_from(stream: StreamIdentity, *, system: str, database: str, slot: str) -> None:
    """Raise OtherSource if `stream` in bronze does not come from this server, database and slot."""
    for what, was, now in (
        ("server's system identifier", stream.system, system),
        ("database", stream.database, database),
        ("slot", stream.slot, slot),
    ):
        if was != now:
            hint = f"set `source.slot.name: {was}` again, and nothing is lost; to use another slot: {ANEW}"
            text = f"the {what} is `{now}`, but bronze was fed from `{was}`"
            raise OtherSource(text, hint=hint if what == "slot" else None)
