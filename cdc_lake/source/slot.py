"""Whether a pipeline can read a slot (its kind, plugin, database), and dropping one that is still being read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc_lake.errors import SlotActive, SlotForeign, SlotInvalidated, SlotOfOtherDatabase, SlotOfOtherPlugin, WalGone
from cdc_lake.errors.base import ANEW

_WAL_GONE = frozenset({"wal_removed", "lost"})
_REMEDIES = {
    "idle_timeout": "raise idle_replication_slot_timeout on the server",
    "rows_removed": "set hot_standby_feedback = on at the standby that decodes",
    "wal_level_insufficient": "set wal_level = logical on the server again",
}
"""What to do first, by `pg_replication_slots.invalidation_reason` (PostgreSQL 17 and newer)."""


@dataclass(frozen=True, slots=True)
class RequiredSlot:
    """What a pipeline's slot must be."""

    plugin: str
    database: str


def check_fits(name: str, kind: str, plugin: str | None, database: str | None, wanted: RequiredSlot) -> None:
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


_LOOK: Final = 0.2  # seconds between two attempts


def dropped_when_free(drop: Callable[[], None], patience: float) -> None:
    """Call `drop` until nobody reads the slot, for up to `patience` seconds. Raises what it does, SlotActive too."""
    until = time.monotonic() + patience
    while True:
        try:
            return drop()
        except SlotActive:
            if time.monotonic() + _LOOK > until:
                raise
        time.sleep(_LOOK)
