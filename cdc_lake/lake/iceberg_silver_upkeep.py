"""Upkeep of Iceberg silver tables: files rewritten, delete files and manifests with them, versions expired, orphans
removed.

A rewrite's version carries no marker, which is therefore found by walking up its parents (`lake.marker`). So versions
are expired one by one, by their ids, never by age alone: the way from the newest one to the newest with a marker, and
on to the newest that is kept, stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.iceberg import IcebergSilver
from cdc_lake.lake.marker import APP_PROPERTY, iceberg_table
from cdc_lake.lake.silver_upkeep import FULL_FILE, SMALL_FILE, Keep, Upkept, megabytes, stored, tried
from cdc_lake.lake.store import literal
from cdc_lake.model.counting import counted
from cdc_lake.observe.failpoint import SILVER_COMPACTED, SILVER_EXPIRED, failpoint

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

_MANIFESTS: Final = 20  # more of them than this are written anew: each is opened by every plan
_ORPHAN: Final = timedelta(
    days=1, minutes=5
)  # Iceberg refuses less than a day: what a commit is about to name is younger
_OPTIONS: Final = (
    f"map('min-input-files', '2', 'target-file-size-bytes', '{FULL_FILE}', 'min-file-size-bytes', '{SMALL_FILE}')"
)


class IcebergSilverUpkeep:
    """Upkeep of a table of format `iceberg` (`lake.silver_upkeep.SilverUpkeep`)."""

    def __init__(self, spark: SparkSession, project: Project, target: Target) -> None:
        self._spark = spark
        self._project = project
        self._target = target
        self._catalog = project.pipeline.lake.iceberg.catalog
        self._name = IcebergSilver(spark, project, target).name

    def planned(self, keep: Keep, now: datetime) -> Iterator[Upkept]:
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
            text = f"{counted(len(many), 'small file')} ({megabytes(sum(many))}) would be put together"
            yield Upkept("compaction", text, {"files": len(many), "bytes": sum(many)})
        if spent := spent_versions(table, keep):
            yield Upkept("expiry", f"{counted(len(spent), 'version')} would leave", {"versions": len(spent)})
        before = min(keep.since, now - _ORPHAN)
        found = self._call("remove_orphan_files", f"older_than => {_time(before)}, dry_run => true", many=True)
        if found:
            yield Upkept("removal", f"{counted(len(found), 'file')} would be removed", {"files": len(found)})

    def worked(self, keep: Keep, now: datetime) -> Iterator[Upkept]:
        """See SilverUpkeep."""
        table = self._table()
        if table is None or table.current_snapshot() is None:
            return
        folder = _folder(table)
        yield from self._rewritten(table)
        failpoint(SILVER_COMPACTED)
        table = self._table()
        assert table is not None  # nothing drops a silver table
        if spent := spent_versions(table, keep):
            had, bytes_ = _stored(folder)
            self._expire(spent)
            has, left = _stored(folder)
            files = f"{counted(had - has, 'file')} ({megabytes(bytes_ - left)})"
            text = f"{counted(len(spent), 'version')} left, and {files} with them"
            yield Upkept("expiry", text, {"versions": len(spent), "files": had - has, "bytes": bytes_ - left})
        failpoint(SILVER_EXPIRED)
        had, bytes_ = _stored(folder)
        before = min(keep.since, now - _ORPHAN)
        found = self._call("remove_orphan_files", f"older_than => {_time(before)}", many=True)
        if found:
            _, left = _stored(folder)
            text = f"{counted(len(found), 'file')} ({megabytes(bytes_ - left)}) that nobody needs removed"
            yield Upkept("removal", text, {"files": len(found), "bytes": bytes_ - left})

    def _rewritten(self, table: Table) -> Iterator[Upkept]:
        strategy = "sort" if table.sort_order().fields else "binpack"
        given = f"strategy => '{strategy}', options => {_OPTIONS}"
        done = tried(lambda: self._call("rewrite_data_files", given), self._target, _lost)[0]
        if done["rewritten_data_files_count"]:
            files, into = done["rewritten_data_files_count"], done["added_data_files_count"]
            text = f"{counted(files, 'file')} ({megabytes(done['rewritten_bytes_count'])}) became {into:,}"
            yield Upkept("compaction", text, {"files": files, "into": into, "bytes": done["rewritten_bytes_count"]})
        if table.format_version == 2 and _delete_files(table):
            deletes = tried(lambda: self._call("rewrite_position_delete_files", ""), self._target, _lost)[0]
            if files := deletes["rewritten_delete_files_count"]:
                into, size = deletes["added_delete_files_count"], deletes["rewritten_bytes_count"]
                text = f"{counted(files, 'delete file')} became {into:,}"
                yield Upkept("compaction", text, {"delete_files": files, "into": into, "bytes": size})
        now = self._table()
        head = None if now is None else now.current_snapshot()
        if now is not None and head is not None and len(head.manifests(now.io)) > _MANIFESTS:
            done = tried(lambda: self._call("rewrite_manifests", "use_caching => false"), self._target, _lost)[0]
            manifests, into = done["rewritten_manifests_count"], done["added_manifests_count"]
            text = f"{counted(manifests, 'manifest')} became {into:,}"
            yield Upkept("compaction", text, {"manifests": manifests, "into": into})

    def _expire(self, spent: list[int]) -> None:
        """By ids. `older_than` long ago takes Iceberg's own rule of age out of it."""
        listed = ", ".join(f"{version}L" for version in spent)
        given = f"older_than => TIMESTAMP '1970-01-01 00:00:00', snapshot_ids => array({listed})"
        tried(lambda: self._call("expire_snapshots", given), self._target, _lost)

    def _call(self, procedure: str, arguments: str, *, many: bool = False) -> list[Mapping[str, Any]]:
        table = literal(f"{self._target.namespace}.{self._target.name}")
        given = f"table => {table}{f', {arguments}' if arguments else ''}"
        rows = [row.asDict() for row in self._spark.sql(f"CALL {self._catalog}.system.{procedure}({given})").collect()]
        assert many or rows  # a procedure answers with its figures
        return rows

    def _table(self) -> Table | None:
        return iceberg_table(self._project, self._target)


def spent_versions(table: Table, keep: Keep) -> list[int]:
    """The versions that nobody needs, oldest first; none where no version has a marker."""
    ancestors: list[int] = []
    version, marked = table.current_snapshot(), False
    found: int | None = None  # how many ancestors have to stay
    while version is not None:
        ancestors.append(version.snapshot_id)
        summary = version.summary.additional_properties if version.summary else {}
        if not marked and APP_PROPERTY in summary:
            marked, found = True, len(ancestors)
        version = table.snapshot_by_id(version.parent_snapshot_id) if version.parent_snapshot_id else None
    if found is None:
        return []
    reached = next((n for n, one in enumerate(ancestors, start=1) if one in keep.versions), 0)
    stays = set(ancestors[: max(found, reached)]) | keep.versions
    stays |= {ref.snapshot_id for ref in table.refs().values()}
    young = keep.since.timestamp() * 1000
    versions = sorted(table.snapshots(), key=lambda one: one.timestamp_ms)
    return [one.snapshot_id for one in versions if one.snapshot_id not in stays and one.timestamp_ms < young]


def _delete_files(table: Table) -> bool:
    head = table.current_snapshot()
    summary = head.summary.additional_properties if head is not None and head.summary else {}
    return int(summary.get("total-delete-files", "0")) > 0


def _lost(cause: Exception) -> bool:
    """What Iceberg says where another commit came first."""
    text = str(cause)
    return any(word in text for word in ("CommitFailedException", "ValidationException", "Cannot commit"))


def _folder(table: Table) -> Path | None:
    """The table's folder, where it is on this machine."""
    parts = urlsplit(table.location())
    return Path(unquote(parts.path)) if parts.scheme in {"", "file"} else None


def _stored(folder: Path | None) -> tuple[int, int]:
    return (0, 0) if folder is None else stored(folder)


def _time(at: datetime) -> str:
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}'"  # sessions are in UTC
