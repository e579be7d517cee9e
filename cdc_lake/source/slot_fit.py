"""Whether a slot is one that a pipeline can read at all: its kind, its output plugin, its database."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lake.errors import SlotForeign, SlotInvalidated, SlotOfOtherDatabase, SlotOfOtherPlugin, WalGone
from cdc_lake.errors.root import ANEW

_WAL_GONE = frozenset({"wal_removed", "lost"})
_REMEDIES = {
    "idle_timeout": "raise idle_replication_slot_timeout on the server",
    "rows_removed": "set hot_standby_feedback = on at the standby that decodes",
    "wal_level_insufficient": "set wal_level = logical on the server again",
}
"""What to do first, by `pg_replication_slots.invalidation_reason` (PostgreSQL 17 and newer)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pipeline's slot must be."""

    plugin: str
    database: str


def check_fits(name: str, kind: str, plugin: str | None, database: str | None, wanted: Wanted) -> None:
    """Raise SlotForeign, SlotOfOtherPlugin or SlotOfOtherDatabase where a slot is none of the pipeline's."""
    if kind != "logical":
        raise SlotForeign(f"slot `{name}` is {kind}; expected a logical one")
    if plugin != wanted.plugin:
        raise SlotOfOtherPlugin(f"slot `{name}` writes by plugin {plugin}; the pipeline reads {wanted.plugin}")
    if database != wanted.database:
        raise SlotOfOtherDatabase(f"slot `{name}` is of database {database}; the pipeline reads {wanted.database}")


def useless(name: str, reason: str, held: str) -> SlotInvalidated:
    """The error for a slot that the server gave up, by its reason; `held`: how far bronze is."""
    words = f"slot `{name}` can no longer be used: {reason}; bronze holds changes up to {held}"
    if reason in _WAL_GONE:
        return WalGone(words)
    first = _REMEDIES.get(reason)
    hint = None if first is None else f"{first}; then {ANEW}"
    return SlotInvalidated(words, hint=hint)
