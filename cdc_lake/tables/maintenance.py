"""Maintains silver tables of both formats: compacts small files, then removes what nobody needs any more.

Rows do not change. Each step is a commit of its own, or removes files that no commit refers to: if the process dies,
the next maintenance continues. A step that conflicts with a commit of apply changes nothing and is retried.

Iceberg: data files, delete files and manifests are rewritten, snapshots expired, orphan files removed. The version of a
rewrite carries no marker, so the marker is found by walking up its parents (`tables.silver_table`). Versions are
therefore expired by id, never by age alone: the path from the newest version to the newest with a marker, and to the
newest that is kept, stays complete.

Delta: OPTIMIZE, which also clusters, then VACUUM. Delta cannot keep single versions: VACUUM removes files that left the
table before a point in time, so the oldest version to keep decides. Delta removes log entries itself, at checkpoints.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import ConcurrentModification, SilverBusy
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.observability.failpoints import SILVER_COMPACTED, SILVER_EXPIRED, failpoint
from cdc_lake.tables.delta_silver import is_conflict, register
from cdc_lake.tables.delta_table_log import DeltaTableLog
from cdc_lake.tables.iceberg_silver import is_commit_lost
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.silver_table import APP_PROPERTY, repeat_on_conflict, table_ref
from cdc_lake.tables.types import literal, properties_sql

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession


Part: TypeAlias = Literal["compaction", "expiry", "removal"]
_R = TypeVar("_R")

FULL_FILE: Final = 256 << 20
"""Target size of compaction in bytes."""

SMALL_FILE: Final = 128 << 20
"""Size in bytes below which a file is small. A larger one is not rewritten because of a few small ones."""

_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class MaintenanceStep:
    """One step: a description of what was done, and figures."""

    part: Part
    text: str
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays readable: the versions in `versions`, and every one made after `since`."""

    versions: frozenset[int]
    since: datetime


class SilverTableMaintenance(Protocol):
    """Maintenance of one table. Both methods raise SilverBusy if apply always committed first."""

    def plan_steps(self, keep: Keep, now: datetime) -> Iterator[MaintenanceStep]:
        """The steps that would be done."""

    def run_steps(self, keep: Keep, now: datetime) -> Iterator[MaintenanceStep]:
        """Do the steps one by one."""


def silver_upkeep(spark: SparkSession, project: Project, target: Target) -> SilverTableMaintenance:
    """The maintenance of a table's format; `spark` is used for nothing else meanwhile."""
    if target.format == "delta":
        return DeltaSilverMaintenance(spark, project, target)
    return IcebergSilverMaintenance(spark, project, target)


def retry_on_conflict(work: Callable[[], _R], target: Target, lost: Callable[[Exception], bool]) -> _R:
    """The result of `work`, which is repeated if it conflicted with another commit. Raises SilverBusy."""
    text = f"maintenance of {target.label} conflicted with a commit of apply {_TRIES} times"
    return repeat_on_conflict(work, lost, SilverBusy(text), _TRIES)


def measure_files(filesystem: pafs.FileSystem, folder: str) -> tuple[int, int]:
    """Data files below a folder, and their bytes; zeros if there is none."""
    files = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True, recursive=True))
    sizes = [f.size for f in files if f.extension in {"parquet", "bin", "puffin"} and "/_delta_log/" not in f.path]
    return len(sizes), sum(size or 0 for size in sizes)  # a file without a size was removed meanwhile


def megabytes(size: int) -> str:
    """Bytes in megabytes, for display."""
    return f"{size / 1e6:,.1f} MB"


_MANIFESTS: Final = 20  # more manifests than this are rewritten: each plan opens all of them
# Iceberg refuses less than a day: a younger file may belong to a commit in progress
_ORPHAN: Final = timedelta(days=1, minutes=5)
_OPTIONS: Final = (
    f"map('min-input-files', '2', 'target-file-size-bytes', '{FULL_FILE}', 'min-file-size-bytes', '{SMALL_FILE}')"
)


class IcebergSilverMaintenance:
    """Maintenance of a table of format `iceberg` (`tables.maintenance.SilverTableMaintenance`)."""

    def __init__(self, spark: SparkSession, project: Project, target: Target) -> None:
        self._spark = spark
        self._project = project
        self._target = target
        self._catalog = project.pipeline.lake.iceberg.catalog

    def plan_steps(self, keep: Keep, now: datetime) -> Iterator[MaintenanceStep]:
        """By the sizes of files."""
        table = self._table()
        if table is None or table.current_snapshot() is None:
            return
        groups: dict[str, list[int]] = {}
        for task in table.scan().plan_files():
            if task.file.file_size_in_bytes < SMALL_FILE:
                groups.setdefault(repr(task.file.partition), []).append(task.file.file_size_in_bytes)
        many = [size for sizes in groups.values() if len(sizes) > 1 for size in sizes]
        if many:
            text = f"{pluralize(len(many), 'small file')} ({megabytes(sum(many))}) would be compacted"
            yield MaintenanceStep("compaction", text, {"files": len(many), "bytes": sum(many)})
        if spent := spent_versions(table, keep):
            yield MaintenanceStep(
                "expiry", f"{pluralize(len(spent), 'version')} would be expired", {"versions": len(spent)}
            )
        before = min(keep.since, now - _ORPHAN)
        orphans = self._call("remove_orphan_files", f"older_than => {_time(before)}, dry_run => true", many=True)
        if orphans:
            yield MaintenanceStep(
                "removal", f"{pluralize(len(orphans), 'file')} would be removed", {"files": len(orphans)}
            )

    def run_steps(self, keep: Keep, now: datetime) -> Iterator[MaintenanceStep]:
        """Do it, step by step."""
        table = self._table()
        if table is None or table.current_snapshot() is None:
            return
        yield from self._rewrite_files(table)
        failpoint(SILVER_COMPACTED)
        table = self._table()
        assert table is not None  # nothing drops a silver table
        if spent := spent_versions(table, keep):
            had, bytes_ = _measure_table(table)
            # a very old `older_than` disables Iceberg's own rule of age
            listed = ", ".join(f"{version}L" for version in spent)
            arguments = f"older_than => TIMESTAMP '1970-01-01 00:00:00', snapshot_ids => array({listed})"
            self._call_again("expire_snapshots", arguments)
            has, left = _measure_table(table)
            files = f"{pluralize(had - has, 'file')} ({megabytes(bytes_ - left)})"
            text = f"{pluralize(len(spent), 'version')} expired, and {files} with them"
            yield MaintenanceStep("expiry", text, {"versions": len(spent), "files": had - has, "bytes": bytes_ - left})
        failpoint(SILVER_EXPIRED)
        had, bytes_ = _measure_table(table)
        before = min(keep.since, now - _ORPHAN)
        orphans = self._call("remove_orphan_files", f"older_than => {_time(before)}", many=True)
        if orphans:
            _, left = _measure_table(table)
            text = f"{pluralize(len(orphans), 'file')} ({megabytes(bytes_ - left)}) no longer needed removed"
            yield MaintenanceStep("removal", text, {"files": len(orphans), "bytes": bytes_ - left})

    def _rewrite_files(self, table: Table) -> Iterator[MaintenanceStep]:
        strategy = "sort" if table.sort_order().fields else "binpack"
        result = self._call_again("rewrite_data_files", f"strategy => '{strategy}', options => {_OPTIONS}")
        if result["rewritten_data_files_count"]:
            files, into = result["rewritten_data_files_count"], result["added_data_files_count"]
            text = f"{pluralize(files, 'file')} ({megabytes(result['rewritten_bytes_count'])}) compacted into {into:,}"
            yield MaintenanceStep(
                "compaction", text, {"files": files, "into": into, "bytes": result["rewritten_bytes_count"]}
            )
        head = table.current_snapshot()
        summary = head.summary.additional_properties if head is not None and head.summary else {}
        if table.format_version == 2 and int(summary.get("total-delete-files", "0")) > 0:
            deletes = self._call_again("rewrite_position_delete_files", "")
            if files := deletes["rewritten_delete_files_count"]:
                into, size = deletes["added_delete_files_count"], deletes["rewritten_bytes_count"]
                text = f"{pluralize(files, 'delete file')} compacted into {into:,}"
                yield MaintenanceStep("compaction", text, {"delete_files": files, "into": into, "bytes": size})
        now = self._table()
        head = None if now is None else now.current_snapshot()
        if now is not None and head is not None and len(head.manifests(now.io)) > _MANIFESTS:
            result = self._call_again("rewrite_manifests", "use_caching => false")
            manifests, into = result["rewritten_manifests_count"], result["added_manifests_count"]
            text = f"{pluralize(manifests, 'manifest')} rewritten into {into:,}"
            yield MaintenanceStep("compaction", text, {"manifests": manifests, "into": into})

    def _call_again(self, procedure: str, arguments: str) -> Mapping[str, Any]:
        """The figures of a procedure, which is repeated if apply committed first. Raises SilverBusy."""
        return retry_on_conflict(lambda: self._call(procedure, arguments), self._target, is_commit_lost)[0]

    def _call(self, procedure: str, arguments: str, *, many: bool = False) -> list[Mapping[str, Any]]:
        table = literal(f"{self._target.namespace}.{self._target.name}")
        all_arguments = f"table => {table}{f', {arguments}' if arguments else ''}"
        rows = [
            row.asDict()
            for row in self._spark.sql(f"CALL {self._catalog}.system.{procedure}({all_arguments})").collect()
        ]
        assert many or rows  # a procedure answers with its figures
        return rows

    def _table(self) -> Table | None:
        return iceberg_table(self._project, self._target)


def spent_versions(table: Table, keep: Keep) -> list[int]:
    """The versions that nobody needs, oldest first; none if no version has a marker."""
    ancestors: list[int] = []
    version, marked = table.current_snapshot(), False
    kept_ancestors: int | None = None  # number of ancestors to keep
    while version is not None:
        ancestors.append(version.snapshot_id)
        summary = version.summary.additional_properties if version.summary else {}
        if not marked and APP_PROPERTY in summary:
            marked, kept_ancestors = True, len(ancestors)
        version = table.snapshot_by_id(version.parent_snapshot_id) if version.parent_snapshot_id else None
    if kept_ancestors is None:
        return []
    reached = next((n for n, snapshot in enumerate(ancestors, start=1) if snapshot in keep.versions), 0)
    stays = set(ancestors[: max(kept_ancestors, reached)]) | keep.versions
    stays |= {ref.snapshot_id for ref in table.refs().values()}
    young = keep.since.timestamp() * 1000
    versions = sorted(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
    return [
        snapshot.snapshot_id
        for snapshot in versions
        if snapshot.snapshot_id not in stays and snapshot.timestamp_ms < young
    ]


def _measure_table(table: Table) -> tuple[int, int]:
    from cdc_lake.tables.iceberg_io import arrow_io  # noqa: PLC0415 - imports pyiceberg

    scheme, netloc, path = arrow_io(table).parse_location(table.location(), table.io.properties)
    return measure_files(arrow_io(table).fs_by_scheme(scheme, netloc), path)


def _time(moment: datetime) -> str:
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}'"  # sessions are in UTC


_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(FULL_FILE),
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_FILE),
    # Retention is decided here, by pinned cuts.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # It would commit twice for its own history, and conflict with apply's next statement.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
}

_BEFORE: Final = timedelta(hours=1)
"""A file removed by a commit is stamped when the statement begins, possibly before the version that is kept."""


class DeltaSilverMaintenance:
    """Maintenance of a table of format `delta` (`tables.maintenance.SilverTableMaintenance`)."""

    def __init__(self, spark: SparkSession, project: Project, target: Target, before: timedelta = _BEFORE) -> None:
        self._spark = spark
        self._target = target
        self._log = DeltaTableLog(project, target)
        register(spark, project, target)
        self._name = table_ref(project, target).sql
        self._before = before
        for key, value in _SETTINGS.items():
            spark.conf.set(key, value)

    def plan_steps(self, keep: Keep, now: datetime) -> Iterator[MaintenanceStep]:
        """By the sizes of files; clustering may do more."""
        del now
        table = self._log.open()
        assert table is not None, "only existing tables are maintained"
        parts = table.metadata().partition_columns
        files = pa.table(table.get_add_actions(flatten=True))
        small = files.filter(pc.less(files["size_bytes"], SMALL_FILE))
        groups = small.group_by([f"partition.{name}" for name in parts]).aggregate(
            [("size_bytes", "sum"), ("size_bytes", "count")]
        )
        many = groups.filter(pc.greater(groups["size_bytes_count"], 1))
        if many.num_rows:
            count, size = sum(many["size_bytes_count"].to_pylist()), sum(many["size_bytes_sum"].to_pylist())
            text = f"{pluralize(count, 'small file')} ({megabytes(size)}) would be compacted"
            yield MaintenanceStep("compaction", text, {"files": count, "bytes": size})
        if (hours := self._hours(keep)) is not None:
            orphan_count = self._spark.sql(f"VACUUM {self._name} RETAIN {hours} HOURS DRY RUN").count()
            if orphan_count:
                files = "1,000 files or more" if orphan_count >= 1000 else pluralize(orphan_count, "file")
                text = f"{files} would be removed"
                yield MaintenanceStep("removal", text, {"files": orphan_count})

    def run_steps(self, keep: Keep, now: datetime) -> Iterator[MaintenanceStep]:
        """Do it, step by step."""
        del now
        row = retry_on_conflict(lambda: self._spark.sql(f"OPTIMIZE {self._name}").first(), self._target, is_conflict)
        assert row is not None  # it answers with its figures
        metrics = row["metrics"].asDict(recursive=True)
        if metrics["numFilesRemoved"]:
            removed, added = metrics["numFilesRemoved"], metrics["numFilesAdded"]
            before, after = metrics["filesRemoved"]["totalSize"], metrics["filesAdded"]["totalSize"]
            text = f"{pluralize(removed, 'file')} ({megabytes(before)}) compacted into {added:,} ({megabytes(after)})"
            facts = {"files": removed, "into": added, "bytes": before, "bytes_after": after}
            yield MaintenanceStep("compaction", text, facts)
        failpoint(SILVER_COMPACTED)
        if (hours := self._hours(keep)) is None:
            return
        storage = self._log.storage
        had, bytes_ = measure_files(storage.filesystem, storage.path(""))
        self._spark.sql(f"VACUUM {self._name} RETAIN {hours} HOURS").collect()
        has, left = measure_files(storage.filesystem, storage.path(""))
        if has < had:
            text = f"{pluralize(had - has, 'file')} ({megabytes(bytes_ - left)}) no longer needed removed"
            yield MaintenanceStep("removal", text, {"files": had - has, "bytes": bytes_ - left})

    def _hours(self, keep: Keep) -> int | None:
        """How long files that left the table stay; None if unknown, and then all of them stay.

        Counted from now, as VACUUM counts it, because compaction may have taken long. In whole hours, rounded up:
        VACUUM rounds to the nearest hour (tried: 0.4 hours became 0).
        """
        since = keep.since
        newest = self._log.version()
        for version in keep.versions:
            if newest is not None and version >= newest:
                continue
            committed = self._log.committed_at(version)
            if committed is None:
                return None
            since = min(since, committed - self._before)
        return max(0, math.ceil((datetime.now(UTC) - since).total_seconds() / 3600))


TAG_PREFIX = "cut_"
"""Our tags are `cut_<name of the pin>`."""

_TAG_TRIES = 5  # of a commit that conflicts with another one in the catalog


def set_tags(project: Project, target: Target, wanted: Mapping[str, int]) -> tuple[str, ...]:
    """Make an Iceberg table's tags of cuts exactly these, tag → version; returns those whose version is missing.

    Raises ConcurrentModification if others keep committing to the table.
    """
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra

    overtaken: Exception | None = None
    for _ in range(_TAG_TRIES):
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
    have, name = DeltaTableLog(project, target).properties(), table_ref(project, target).by_address
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
