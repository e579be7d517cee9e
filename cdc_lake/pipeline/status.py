"""Status: where a pipeline stands, as a frozen value. The terminal, JSON, metrics and reports are views of it.

Read from bronze, the control tables, the silver tables' own markers and, where it can be reached, the source. It works
without the source and without Spark, and then says what it could not see.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader, CommitRow
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, SourceError
from cdc_lake.lake.control import ControlTables, CutRow
from cdc_lake.lake.marker import read_marker
from cdc_lake.model.position import OrderDomain, format_position
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.holds import open_holds
from cdc_lake.pipeline.streams import is_complete
from cdc_lake.source.stream import domain_of


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one stage is behind the source's newest position; None where it cannot be known.

    `bytes` of WAL, not known in the csn domain; `seconds` since the oldest transaction that waits was committed, 0
    where none does, for what is not in bronze at most since the last one that is; `transactions` that wait: to be
    applied as far as they are in bronze, to be received or landed as far as CSNs count them.
    """

    bytes: int | None = None
    seconds: float | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The slot: `active`, `idle`, `missing`, `lost` or `unknown`; bytes of WAL the server keeps for it."""

    name: str
    state: str
    reason: str
    retained_bytes: int | None = None
    confirmed: str | None = None


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: `pending → snapshot → catching-up → live`, or `held`, `broken`; why; how far; rows held."""

    source: str
    table: str
    format: str
    state: str
    reason: str
    position: str | None
    version: int | None
    held: int


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of a table kept back by a rule; `rule` is `waiting` for those behind a held change of their key."""

    table: str
    rule: str
    rows: int


@dataclass(frozen=True, slots=True)
class Status:
    """Where a pipeline stands at `at`. Positions are as people paste them."""

    pipeline: str
    at: datetime
    source: str
    reachable: bool
    unreachable_because: str
    stream: str | None
    epoch: int | None
    source_position: str | None
    bronze_position: str | None
    silver_position: str | None
    last_commit: datetime | None
    received: Lag
    landed: Lag
    applied: Lag
    slot: SlotStatus
    tables: tuple[TableStatus, ...]
    held: tuple[HeldRows, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """What the source said: positions, its slot, and the tables it would send."""

    error: CdcLakeError | None = None
    end: int | None = None
    sent: int | None = None
    slot: Any = None
    tables: tuple[TableName, ...] = ()


@dataclass(frozen=True, slots=True)
class _Lake:
    """What the lake says."""

    state: BronzeState | None
    copied: bool
    cut: CutRow | None
    tables: Mapping[str, Mapping[str, Any]]
    waiting: Sequence[CommitRow]
    last_commit: datetime | None
    captured: tuple[TableName, ...]

    @property
    def domain(self) -> OrderDomain:
        return domain_of(self.state.stream) if self.state else OrderDomain.LSN

    @property
    def silver(self) -> int | None:
        return self.cut.position if self.cut is not None else None


def status(project: Project, *, at: datetime | None = None) -> Status:
    """Look at everything. A source that cannot be reached is part of the answer, not an error. Raises LakeError."""
    now = at or datetime.now(UTC)
    source, lake = _ask_source(project), _ask_lake(project)
    held = ControlTables(project.control).read("held")
    names = sorted({*lake.captured, *source.tables})
    tables, held_rows = [], []
    for name in names:
        tables.append(_table(project, lake, name, held))
        held_rows += _held(project, lake, name, held)
    return Status(
        pipeline=project.name,
        at=now,
        source=project.pipeline.source.place,
        reachable=source.error is None,
        unreachable_because=source.error.message if source.error else "",
        stream=lake.state.stream if lake.state else None,
        epoch=lake.state.epoch if lake.state else None,
        source_position=_shown(source.end, lake.domain),
        bronze_position=_shown(lake.state.upto if lake.state else None, lake.domain),
        silver_position=_shown(lake.silver, lake.domain),
        last_commit=lake.last_commit,
        **_lags(source, lake, now),
        slot=_slot(project, source, lake),
        tables=tuple(tables),
        held=tuple(held_rows),
    )


def _ask_source(project: Project) -> _Source:
    try:
        from cdc_lake.pipeline import source_facts  # noqa: PLC0415  # without a driver the rest is still shown
        from cdc_lake.source.slot import find_slot  # noqa: PLC0415

        with source_facts.session_of(project) as session:
            end = source_facts.wal_position(session).value
            sent = source_facts.sent_position(session, project.slot)
            found = find_slot(session, project.slot)
            try:
                tables = tuple(source_facts.captured(project, session))
            except SourceError:
                tables = ()  # nothing matches any more: bronze still says which tables there were
            return _Source(None, end, sent.value if sent else None, found, tables)
    except SourceError as error:
        return _Source(error)


def _ask_lake(project: Project) -> _Lake:
    reader, control = BronzeReader(project.bronze), ControlTables(project.control)
    state = reader.state()
    if state is None:
        return _Lake(None, copied=False, cut=None, tables={}, waiting=(), last_commit=None, captured=())
    copied = is_complete(control, state.stream, state.epoch)
    cut = control.last_cut(state.stream)
    waiting = reader.commits(Span(state.epoch, cut.position, state.upto)) if cut and cut.position < state.upto else []
    if cut is None and copied:
        waiting = reader.commits(Span(state.epoch, 0, state.upto))
    captured = sorted({layout.table for layout in reader.layouts().values()})
    tables = json.loads(cut.tables) if cut is not None else {}
    last = _last_commit(reader, state, waiting, cut)
    return _Lake(state, copied, cut, tables, waiting, last, tuple(captured))


def _last_commit(
    reader: BronzeReader, state: BronzeState, waiting: Sequence[CommitRow], cut: CutRow | None
) -> datetime | None:
    if waiting:
        return waiting[-1].commit_ts
    if cut is not None and cut.commit_ts is not None:
        return cut.commit_ts
    highest = reader.highest_commit(state.epoch)
    if highest is None:
        return None
    found = reader.commits(Span(state.epoch, highest - 1, highest))
    return found[-1].commit_ts if found else None


def _lags(source: _Source, lake: _Lake, now: datetime) -> dict[str, Lag]:
    """Received, landed, applied: each counted from the source's newest position, as far as it is known."""
    landed_at = lake.state.upto if lake.state else None
    received_at = max(p for p in (source.sent, landed_at) if p is not None) if landed_at is not None else source.sent
    known_end = source.end if source.end is not None else landed_at
    behind_landed = _behind(source.end, landed_at)
    waiting = len(lake.waiting) if lake.state and lake.copied else None
    oldest = next((c.commit_ts for c in lake.waiting if c.commit_ts), None)
    applied_seconds = (now - oldest).total_seconds() if oldest else 0.0 if waiting == 0 else None
    landed_seconds = _landed_seconds(behind_landed, lake, now)
    received, received_seconds = _behind(source.end, received_at), landed_seconds if received_at == landed_at else None
    if lake.domain is OrderDomain.CSN:  # the distance of two CSNs is a number of transactions
        return {
            "received": Lag(None, received_seconds, received),
            "landed": Lag(None, landed_seconds, behind_landed),
            "applied": Lag(None, applied_seconds, waiting),
        }
    return {
        "received": Lag(received, received_seconds),
        "landed": Lag(behind_landed, landed_seconds),
        "applied": Lag(_behind(known_end, lake.silver), applied_seconds, waiting),
    }


def _landed_seconds(behind: int | None, lake: _Lake, now: datetime) -> float | None:
    """Zero where nothing is missing; otherwise at most the time since the last commit that landed."""
    if behind == 0:
        return 0.0
    if behind is None or lake.last_commit is None:
        return None
    return max(0.0, (now - lake.last_commit).total_seconds())


def _behind(end: int | None, at: int | None) -> int | None:
    return max(0, end - at) if end is not None and at is not None else None


def _slot(project: Project, source: _Source, lake: _Lake) -> SlotStatus:
    found = source.slot
    if source.error is not None:
        return SlotStatus(project.slot, "unknown", "the source cannot be reached")
    if found is None:
        reason = "it is made by the first run" if lake.state is None else "bronze was fed from it, and it is gone"
        return SlotStatus(project.slot, "missing", reason)
    confirmed = str(found.confirmed) if found.confirmed is not None else None
    if found.lost:
        why = found.invalidation or found.wal_status
        return SlotStatus(project.slot, "lost", f"the server dropped WAL it needed ({why})", found.retained, confirmed)
    if found.active_pid is not None:
        return SlotStatus(
            project.slot, "active", f"read by server process {found.active_pid}", found.retained, confirmed
        )
    return SlotStatus(
        project.slot, "idle", "nobody reads it: the server keeps WAL until a run does", found.retained, confirmed
    )


def _table(project: Project, lake: _Lake, name: TableName, held: Any) -> TableStatus:
    target = project.target(name)
    in_cut = lake.tables.get(str(name), {})
    marker = read_marker(project, target, lake.state.stream) if lake.state else None
    cut_position = int(in_cut["position"]) if in_cut else None
    reached = [p for p in (marker.position if marker else None, cut_position) if p is not None]
    at = max(reached) if reached else None
    waiting = _open_rows(lake, name, held, at)
    state, reason = _state(lake, name, at, in_cut, waiting)
    version = marker.version if marker else None
    return TableStatus(str(name), target.label, target.format, state, reason, _shown(at, lake.domain), version, waiting)


def _state(lake: _Lake, name: TableName, at: int | None, in_cut: Mapping[str, Any], held: int) -> tuple[str, str]:  # noqa: PLR0911  # one return a state
    if lake.state is None:
        return "pending", "nothing has been received yet"
    if not lake.copied:
        return "snapshot", "the initial copy is under way or was broken off"
    if in_cut.get("state") == "broken":
        return "broken", "it could not go on at its last span; the next run says why and tries again"
    behind = [c for c in lake.waiting if str(name) in c.counts and (at is None or c.position > at)]
    if at is None:
        return "catching-up", "received, not applied yet"
    if held:
        return "held", "1 change waits in quarantine" if held == 1 else f"{held} changes wait in quarantine"
    if behind:
        return "catching-up", f"{len(behind)} transactions to apply"
    return "live", "everything received is applied"


def _open_rows(lake: _Lake, name: TableName, held: Any, at: int | None) -> int:
    if lake.state is None or at is None:
        return 0
    return int(open_holds(held, str(name), lake.state.epoch, at).rows.num_rows)


def _held(project: Project, lake: _Lake, name: TableName, held: Any) -> list[HeldRows]:
    if lake.state is None:
        return []
    rows = open_holds(held, str(name), lake.state.epoch, lake.silver or 0).rows
    rules: Counter[str] = Counter()
    for broken in rows["rules"].to_pylist():
        rules.update(broken or ["waiting"])
    return [HeldRows(project.target(name).label, rule, count) for rule, count in sorted(rules.items())]


def _shown(position: int | None, domain: OrderDomain) -> str | None:
    return None if position is None else format_position(position, domain)
