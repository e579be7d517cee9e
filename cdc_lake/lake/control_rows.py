"""Rows of the control tables as values."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from cdc_lake.lake.control_columns import ControlName


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream's start: the hand-over from the epoch before, as bronze was then.

    `dense`: it shows every CSN; `last_position`, `last_hash`: where the stream before it ended. None where not known.
    """

    epoch: int
    stream: str
    start: int
    slot: str
    system_id: str
    database: str
    domain: str
    recorded_at: datetime
    dense: bool | None = None
    last_position: int | None = None
    last_hash: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A step in the life of a snapshot; `tables` is JSON."""

    snapshot: str
    stream: str
    epoch: int
    position: int
    tables: str
    state: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class CutRow:
    """One position across all silver tables; `tables` is JSON: relation → table, format, version, position, …"""

    epoch: int
    stream: str
    position: int
    commit_ts: datetime | None
    tables: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """A cut that stays readable `until` a time; None: until a later row of the name says when it ended."""

    name: str
    scheduled: bool
    epoch: int
    stream: str
    position: int
    commit_ts: datetime | None
    tables: str
    cut_at: datetime
    until: datetime | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class WithheldRow:
    """A cut that was not promised for what rules found of silver at it; `objections` is JSON."""

    name: str
    scheduled: bool
    epoch: int
    stream: str
    position: int
    cut_at: datetime
    objections: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class PauseRow:
    """That a source table is paused, or goes on; the newest row of a relation counts."""

    relation: str
    paused: bool
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class GapRow:
    """CSNs that were passed over; those that bronze holds came after all before it went on."""

    epoch: int
    stream: str
    first: int
    last: int
    below: int | None
    above: int | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A timeline of the server that a stream was read on from a position on; the newest row of a stream counts."""

    epoch: int
    stream: str
    timeline: int
    history: str | None
    held: int
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class MembershipRow:
    """By what the publication has each table, from then on; the newest row of a stream counts; `tables` is JSON."""

    epoch: int
    stream: str
    tables: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class ConfigurationRow:
    """What of a pipeline's configuration decides what bronze holds, from a position on; two columns are JSON."""

    number: int
    fingerprint: str
    settings: str
    changed: str
    epoch: int
    position: int | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class DecodedRow:
    """A transaction that was decoded after it had landed as bytes; `counts` is JSON."""

    epoch: int
    position: int
    content: str
    version: str
    counts: str
    file: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class QualityRow:
    """What a rule came to over silver at a cut."""

    judged_at: datetime
    table: str
    rule: str
    kind: str
    columns: str
    evaluated: int
    failed: int
    level: str
    observed: str
    broken: str


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """The verdict of a comparison about a generation of a silver table at a position."""

    stream: str
    epoch: int
    generation: int
    relation: str
    table: str
    position: int
    verdict: str
    held_keys: int
    compared_at: datetime


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of a verb; `facts` is JSON."""

    run: str
    verb: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str
    facts: str


ControlRow: TypeAlias = (
    StreamRow
    | SnapshotRow
    | CutRow
    | PromiseRow
    | WithheldRow
    | PauseRow
    | GapRow
    | TimelineRow
    | MembershipRow
    | ConfigurationRow
    | DecodedRow
    | QualityRow
    | VerifiedRow
    | RunRow
)
NAMES: dict[type, ControlName] = {
    StreamRow: "streams",
    SnapshotRow: "snapshots",
    CutRow: "cuts",
    PromiseRow: "promises",
    WithheldRow: "withheld",
    PauseRow: "pauses",
    GapRow: "gaps",
    TimelineRow: "timelines",
    MembershipRow: "memberships",
    ConfigurationRow: "configurations",
    DecodedRow: "decoded",
    QualityRow: "quality",
    VerifiedRow: "verified",
    RunRow: "runs",
}


def now() -> datetime:
    """The time as control rows have it."""
    return datetime.now(UTC)


def new_run() -> str:
    """An identifier for a run."""
    return uuid.uuid4().hex[:12]
