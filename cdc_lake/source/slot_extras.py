"""What a PostgreSQL says of a slot beside what reading it needs, for people who look at one.

Columns came with versions: `conflicting` with 16, `synced`, `inactive_since` with 17, `two_phase_at` with 18. What is
there is read; the rest is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_lake.source.connection import Session, named

_EXTRAS = (
    "SELECT a.application_name, host(a.client_addr), s.catalog_xmin::text, age(s.catalog_xmin), "
    "current_setting('autovacuum_freeze_max_age')::bigint, to_jsonb(s) ->> 'conflicting', to_jsonb(s) ->> 'synced', "
    "to_jsonb(s) ->> 'two_phase_at', (to_jsonb(s) ->> 'inactive_since')::timestamptz, "
    "current_setting('max_slot_wal_keep_size'), current_setting('idle_replication_slot_timeout', true), "
    "pg_is_in_recovery() FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid "
    "WHERE s.slot_name = %s"
)


@dataclass(frozen=True, slots=True)
class SlotExtras:
    """`application`, `address`: of who reads it; `catalog_age`: transactions since `catalog_xmin`.

    `freeze_age`, `keep_size` and `idle_timeout` are the server's settings, the last None where the server has no such
    limit (before 18) or it is off; `keep_size` is None where nothing bounds what is kept.
    """

    application: str | None
    address: str | None
    catalog_xmin: int | None
    catalog_age: int | None
    freeze_age: int
    conflicting: bool | None
    synced: bool | None
    two_phase_at: str | None
    inactive_since: datetime | None
    keep_size: str | None
    idle_timeout: str | None
    in_recovery: bool


def slot_extras(session: Session, name: str) -> SlotExtras | None:
    """Look; None where the slot is not there. Raises SourceError."""
    with named(f"looking at slot `{name}`"):
        row = session.execute(_EXTRAS.encode(), [name]).fetchone()
    if row is None:
        return None
    application, address, xmin, age, freeze, conflicting, synced, two_phase, inactive, keep, idle, standby = row
    return SlotExtras(
        application=str(application) if application else None,
        address=None if address is None else str(address),
        catalog_xmin=None if xmin is None else int(str(xmin)),
        catalog_age=None if age is None else int(str(age)),
        freeze_age=int(str(freeze)),
        conflicting=_flag(conflicting),
        synced=_flag(synced),
        two_phase_at=None if two_phase is None else str(two_phase),
        inactive_since=inactive.astimezone(UTC) if isinstance(inactive, datetime) else None,
        keep_size=None if keep == "-1" else str(keep),
        idle_timeout=None if idle in {None, "0"} else str(idle),
        in_recovery=bool(standby),
    )


def _flag(value: object) -> bool | None:
    return None if value is None else value == "true"
