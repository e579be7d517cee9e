"""Keeps versions of silver tables that pinned cuts need.

Iceberg keeps a version by a tag. Delta cannot keep single versions: two properties, used by VACUUM and log clean-up,
keep everything since the oldest pinned cut. They are reset to their former values when not needed any more, and not set
if the table keeps long enough already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import ConcurrentModification
from cdc_lake.tables.delta_table_log import DeltaTableLog
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.silver_table import table_ref
from cdc_lake.tables.types import literal, properties_sql

if TYPE_CHECKING:
    from pyiceberg.table import Table


TAG_PREFIX = "cut_"
"""Our tags are `cut_<name of the pin>`."""

_TRIES = 5  # of a commit that conflicts with another one in the catalog


def set_tags(project: Project, target: Target, wanted: Mapping[str, int]) -> tuple[str, ...]:
    """Make an Iceberg table's tags of cuts exactly these, tag → version; returns those whose version is missing.

    Raises ConcurrentModification if others keep committing to the table.
    """
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra

    overtaken: Exception | None = None
    for _ in range(_TRIES):
        table = iceberg_table(project, target)
        if table is None:
            return tuple(wanted)
        try:
            return _set_refs(table, wanted)
        except CommitFailedException as cause:
            overtaken = cause
    raise ConcurrentModification(f"another writer is committing to {target.label}") from overtaken


def _set_refs(table: Table, wanted: Mapping[str, int]) -> tuple[str, ...]:
    tags = {name: ref.snapshot_id for name, ref in table.refs().items() if name.startswith(TAG_PREFIX)}
    gone = tuple(name for name, version in wanted.items() if table.snapshot_by_id(version) is None)
    new_tags = {name: version for name, version in wanted.items() if name not in gone and tags.get(name) != version}
    left = [name for name in tags if name in new_tags or name not in wanted]
    for name in left:
        table.manage_snapshots().remove_tag(name).commit()
    for name, version in new_tags.items():
        table.manage_snapshots().create_tag(version, name).commit()
    return gone


FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_OURS = "cdc_lake.promised"  # JSON: the hours we set, and the former value
_DEFAULTS = {FILES: timedelta(days=7), LOG: timedelta(days=30)}  # Delta's defaults
_EVER = timedelta(days=36_500)
_DAY = timedelta(days=1)  # log clean-up uses whole days
_INTERVAL = re.compile(r"interval\s+([0-9]+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)


def retention_changes(project: Project, target: Target, needed: timedelta | None) -> tuple[str, ...]:
    """The SQL that makes a table keep old versions as long as pins need; nothing if it does already.

    `needed`: time from a cut until its pin ends; `timedelta.max` if one has no end, None if there are none.
    """
    have, name = DeltaTableLog(project, target).properties(), table_ref(project, target).sql
    if have is None:
        return ()
    own_record = json.loads(have.get(_OURS) or "{}")
    before = own_record.get("before") or {key: have.get(key) for key in (FILES, LOG)}
    if needed is None:
        return _put_back(name, before) if own_record else ()
    hours = _hours(min(needed, _EVER - _DAY) + _DAY)
    if own_record.get("hours") == hours or (
        not own_record and all(_retention_hours(before, k) >= hours for k in (FILES, LOG))
    ):
        return ()
    sets = {key: f"interval {max(hours, _retention_hours(before, key))} hours" for key in (FILES, LOG)}
    return (_set_properties(name, {**sets, _OURS: json.dumps({"hours": hours, "before": before})}),)


def _put_back(name: str, before: Mapping[str, str | None]) -> tuple[str, ...]:
    values = {key: value for key, value in before.items() if value is not None}
    gone = ", ".join(literal(key) for key in (_OURS, *(key for key in before if key not in values)))
    unset = f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ({gone})"
    return (_set_properties(name, values), unset) if values else (unset,)


def _set_properties(name: str, properties: Mapping[str, str]) -> str:
    return f"ALTER TABLE {name} SET TBLPROPERTIES ({properties_sql(properties)})"


def _retention_hours(have: Mapping[str, str | None], key: str) -> int:
    """The retention in hours."""
    interval = _INTERVAL.fullmatch((have.get(key) or "").strip())
    return _hours(_DEFAULTS[key] if interval is None else timedelta(**{f"{interval[2].lower()}s": int(interval[1])}))


def _hours(time: timedelta) -> int:
    return -(-time // timedelta(hours=1))
