"""How long a Delta table keeps its old versions: the two properties that VACUUM and log clean-up go by.

Delta cannot keep one version and let others go, so everything since the oldest promised cut stays. What we set goes
back to what stood before, and nothing is set that the table keeps already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta

from deltalake import DeltaTable

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.store import literal, quoted

FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_OURS = "cdc_lake.promised"  # JSON: the hours we set, and what stood before
_DEFAULTS = {FILES: timedelta(days=7), LOG: timedelta(days=30)}  # Delta's own
_EVER = timedelta(days=36_500)
_DAY = timedelta(days=1)  # log clean-up goes by whole days
_INTERVAL = re.compile(r"interval\s+([0-9]+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": _DAY,
    "week": timedelta(weeks=1),
}


def retention_changes(project: Project, target: Target, needed: timedelta | None) -> tuple[str, ...]:
    """The SQL that makes a table keep its old versions as long as promises need; nothing where it does already.

    `needed`: time from a cut until its promise ends; `timedelta.max` where one has no end, None where there are none.
    """
    path = project.silver_path(target)
    if not DeltaTable.is_deltatable(str(path)):
        return ()
    have = DeltaTable(str(path)).metadata().configuration
    name = f"delta.{quoted(str(path))}"
    ours = json.loads(have.get(_OURS) or "{}")
    before = ours.get("before") or {key: have.get(key) for key in (FILES, LOG)}
    if needed is None:
        return _put_back(name, before) if ours else ()
    hours = _hours(min(needed, _EVER - _DAY) + _DAY)
    if ours.get("hours") == hours or (not ours and all(_kept(before, k) >= hours for k in (FILES, LOG))):
        return ()
    sets = {key: f"interval {max(hours, _kept(before, key))} hours" for key in (FILES, LOG)}
    return (_set(name, {**sets, _OURS: json.dumps({"hours": hours, "before": before})}),)


def _put_back(name: str, before: Mapping[str, str | None]) -> tuple[str, ...]:
    given = {key: value for key, value in before.items() if value is not None}
    gone = ", ".join(literal(key) for key in (_OURS, *(key for key in before if key not in given)))
    unset = f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ({gone})"
    return (_set(name, given), unset) if given else (unset,)


def _set(name: str, properties: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    return f"ALTER TABLE {name} SET TBLPROPERTIES ({pairs})"


def _kept(have: Mapping[str, str | None], key: str) -> int:
    """Hours."""
    given = _INTERVAL.fullmatch((have.get(key) or "").strip())
    return _hours(_DEFAULTS[key] if given is None else int(given[1]) * _UNITS[given[2].lower()])


def _hours(time: timedelta) -> int:
    return -(-time // timedelta(hours=1))
