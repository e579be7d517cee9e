"""Creates, finds, validates and drops replication slots, which make the server keep the WAL from a position on.

A slot is created in two steps, so that a crash never leaves an unexplained one. First a *temporary* slot exports the
snapshot of its consistent point and ends with its connection; then, after the stream was begun in bronze, a permanent
copy is created under its real name. A slot of that name that bronze does not know was therefore not created by a
crashed receiver, and is never taken over.

Columns of `pg_replication_slots` depend on the version: `conflicting` since 16, `synced`, `inactive_since` since 17,
`two_phase_at` since 18. Missing ones are None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cdc_lake.errors import SlotActive, SlotAhead, SlotMissing, SlotNotTwoPhase, SlotTwoPhase
from cdc_lake.model.position import Lsn
from cdc_lake.source.base import SlotCounters, check_fits, dropped_when_free, useless
from cdc_lake.source.postgres.connection import Session, command, fetch, finished_within, for_replication
from cdc_lake.source.postgres.plugins import PGOUTPUT, TEST_DECODING
from cdc_lake.source.sql_text import identifier


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A slot in `pg_replication_slots`. `retained`: the bytes of WAL it holds back.

    `safe`: bytes that may still be written before it is at risk, None if WAL retention is unlimited; `failover`:
    standbys may keep a copy, None before PostgreSQL 17; `two_phase`: transactions are sent when they are prepared.
    """

    name: str
    kind: str
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    restart: Lsn | None
    confirmed: Lsn | None
    wal_status: str | None
    invalidation: str | None
    retained: int | None
    safe: int | None = None
    failover: bool | None = None
    two_phase: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether the server removed WAL that the slot needed."""
        return self.wal_status == "lost" or self.invalidation is not None


@dataclass(frozen=True, slots=True)
class ExportedSlot:
    """A new temporary slot: its consistent point, and the snapshot exported there.

    Other sessions can import the snapshot until the next command on the connection that created it.
    """

    name: str
    consistent: Lsn
    snapshot: str


# invalidation_reason and failover exist since PostgreSQL 17
_SLOTS = (
    "SELECT s.slot_name::text, s.slot_type, s.plugin, s.database, s.temporary, s.active_pid, s.restart_lsn::text, "
    "s.confirmed_flush_lsn::text, s.wal_status, to_jsonb(s) ->> 'invalidation_reason', "
    "CASE WHEN pg_is_in_recovery() THEN NULL "
    "ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint END, s.safe_wal_size, "
    "(to_jsonb(s) ->> 'failover')::bool, s.two_phase FROM pg_replication_slots AS s "
)


def find_slot(session: Session, name: str) -> SlotFacts | None:
    """The slot of a name."""
    rows = fetch(session, f"looking up slot `{name}`", f"{_SLOTS} WHERE s.slot_name = %s", name)
    return _facts(rows[0]) if rows else None


def all_slots(session: Session) -> list[SlotFacts]:
    """Every slot of the server, of all databases, including physical ones, by name."""
    return [_facts(row) for row in fetch(session, "listing the slots", f"{_SLOTS} ORDER BY s.slot_name")]


def _facts(row: Sequence[Any]) -> SlotFacts:
    positions = [None if lsn is None else Lsn.parse(lsn) for lsn in row[6:8]]
    return SlotFacts(*row[:6], *positions, *row[8:])


def slot_counters(session: Session, name: str) -> SlotCounters | None:
    """The server's decoding statistics of a slot; None if there is no such slot."""
    rows = fetch(
        session,
        f"reading the statistics of slot `{name}`",
        "SELECT spill_txns, spill_bytes, stream_txns, stream_bytes, total_txns, total_bytes, stats_reset "
        "FROM pg_stat_replication_slots WHERE slot_name = %s",
        name,
    )
    if not rows:
        return None
    *numbers, since = rows[0]
    return SlotCounters(*(*numbers, _in_utc(since)))


def temporary_name(slot: str) -> str:
    """The name of a slot's temporary form."""
    return f"{slot[:59]}_new"


def export_slot(replication: Session, slot: str, plugin: str = PGOUTPUT) -> ExportedSlot:
    """Create the temporary slot `<slot>_new` on a replication connection and export its snapshot."""
    name = temporary_name(slot)
    row = command(
        replication.pgconn,
        f"CREATE_REPLICATION_SLOT {identifier(name)} TEMPORARY LOGICAL {identifier(plugin)} EXPORT_SNAPSHOT",
        f"creating slot `{name}`",
    )[0]
    return ExportedSlot(name, Lsn.parse(row["consistent_point"] or ""), row["snapshot_name"] or "")


def slots_in_use(session: Session) -> tuple[int, int]:
    """The number of permanent slots, and the server's maximum. Raises SourceError."""
    [(used, most)] = fetch(
        session,
        "counting replication slots",
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE NOT temporary), "
        "current_setting('max_replication_slots')::int",
    )
    return used, most


def keep_slot(session: Session, exported: ExportedSlot, slot: str) -> None:
    """Create the permanent copy `slot` of a temporary slot, at the same position."""
    sql = "SELECT pg_copy_logical_replication_slot(%s, %s, false)"
    fetch(session, f"creating slot `{slot}`", sql, exported.name, slot)


def make_two_phase(session: Session, slot: str, plugin: str) -> Lsn:
    """Create a permanent slot with two-phase decoding; returns its starting point.

    By the function, which supports it since PostgreSQL 14, the command since 15. The server waits for all running
    transactions, including prepared ones.
    """
    sql = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, %s, false, true)"
    [(lsn,)] = fetch(session, f"creating slot `{slot}`", sql, slot, plugin)
    return Lsn.parse(lsn)


@contextmanager
def whole_copy(session: Session, slot: str) -> Iterator[str]:
    """The name of a copy of `slot` that is dropped at the end; works while `slot` is in use.

    The copy has no two-phase decoding: prepared transactions come completely at their end, even if `slot` is after
    their PREPARE. Raises SourceError.
    """
    copy = f"{slot[:51]}_{session.info.backend_pid}"
    fetch(session, f"copying slot `{slot}`", "SELECT pg_copy_logical_replication_slot(%s, %s, true)", slot, copy)
    yield copy
    drop_slot(session, copy)  # after an error the session is unusable, and the slot ends with it


def keep_on_standbys(replication: Session, name: str) -> None:
    """Let standbys keep a copy of an unused slot (PostgreSQL 17 and newer)."""
    command(replication.pgconn, f"ALTER_REPLICATION_SLOT {identifier(name)} (FAILOVER true)", f"altering slot `{name}`")


def drop_slot(session: Session, name: str) -> None:
    """Drop an unused slot."""
    fetch(session, f"dropping slot `{name}`", "SELECT pg_drop_replication_slot(%s)", name)


def drop_slot_when_free(session: Session, name: str, patience: float) -> None:
    """Drop a slot, waiting up to `patience` seconds until it is unused: on a replication connection at the server,
    otherwise by retries.

    Raises SlotActive if it is still in use then, and the server's errors.
    """
    doing = f"dropping slot `{name}`"
    if for_replication(session):
        text = f"DROP_REPLICATION_SLOT {identifier(name)}{' WAIT' if patience > 0 else ''}"
        if not finished_within(session.pgconn, text, patience, doing):
            raise SlotActive(f"{doing}: it was still being read after {patience:g} s")
        return
    dropped_when_free(lambda: drop_slot(session, name), patience)


def advance_slot(session: Session, name: str, upto: Lsn) -> Lsn:
    """Let an unused slot discard everything up to a position; returns its new position."""
    sql = "SELECT end_lsn::text FROM pg_replication_slot_advance(%s, %s)"
    [(end,)] = fetch(session, f"advancing slot `{name}`", sql, name, str(upto))
    return Lsn.parse(end)


def check_slot(
    facts: SlotFacts | None, name: str, database: str, held: int, plugin: str = PGOUTPUT, *, two_phase: bool = False
) -> SlotFacts:
    """The slot, if a stream that is in bronze up to `held` can resume from it; otherwise raises the error that fits.

    Whether another process uses it is not checked here; starting the stream finds out. If `two_phase` is requested and
    the slot does not have it yet, pgoutput enables it when the stream starts.
    """
    if facts is None:
        raise SlotMissing(f"slot `{name}` does not exist; bronze contains changes up to {Lsn(held)}")
    check_fits(name, facts.kind, (facts.plugin, facts.database), (plugin, database))
    if facts.is_lost or facts.confirmed is None:
        raise useless(name, facts.invalidation or facts.wal_status or "no confirmed position", str(Lsn(held)))
    if facts.confirmed.value > held:
        # The server would silently move our start forward.
        raise SlotAhead(
            f"{facts.confirmed.value - held} bytes are missing: slot `{name}` is confirmed up to {facts.confirmed}, "
            f"but bronze ends at {Lsn(held)}"
        )
    if facts.two_phase and not two_phase:
        raise SlotTwoPhase(f"slot `{name}` sends transactions at their PREPARE, but the pipeline does not ask for it")
    if two_phase and not facts.two_phase and plugin == TEST_DECODING:
        raise SlotNotTwoPhase(f"slot `{name}` was created without two-phase decoding, but the pipeline asks for it")
    return facts


_EXTRAS = (
    "SELECT NULLIF(a.application_name, ''), host(a.client_addr), s.catalog_xmin::text::bigint, age(s.catalog_xmin), "
    "current_setting('autovacuum_freeze_max_age')::bigint, (to_jsonb(s) ->> 'conflicting')::bool, "
    "(to_jsonb(s) ->> 'synced')::bool, to_jsonb(s) ->> 'two_phase_at', "
    "NULLIF(current_setting('max_slot_wal_keep_size'), '-1'), "
    "NULLIF(current_setting('idle_replication_slot_timeout', true), '0'), "
    "pg_is_in_recovery(), (to_jsonb(s) ->> 'inactive_since')::timestamptz "
    "FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid "
    "WHERE s.slot_name = %s"
)


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """`application`, `address`: of the reader; `catalog_age`: transactions since `catalog_xmin`.

    `freeze_age`, `keep_size` and `idle_timeout` are the server's settings, the last None if the server has no such
    limit (before 18) or it is off; `keep_size` is None if retention is unlimited.
    """

    application: str | None
    address: str | None
    catalog_xmin: int | None
    catalog_age: int | None
    freeze_age: int
    conflicting: bool | None
    synced: bool | None
    two_phase_at: str | None
    keep_size: str | None
    idle_timeout: str | None
    in_recovery: bool
    inactive_since: datetime | None


def slot_extras(session: Session, name: str) -> SlotStatistics | None:
    """The statistics; None if the slot does not exist. Raises SourceError."""
    rows = fetch(session, f"looking up slot `{name}`", _EXTRAS, name)
    if not rows:
        return None
    *statistics, inactive = rows[0]
    return SlotStatistics(*(*statistics, _in_utc(inactive)))


def _in_utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)
