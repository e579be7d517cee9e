"""Upkeep of Delta silver tables: OPTIMIZE, which clusters too, then VACUUM.

Delta cannot keep single versions: VACUUM removes files that left the table before a moment, so the oldest version that
has to stay decides. Log entries are removed by Delta itself, at its checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.delta import DeltaSilver
from cdc_lake.lake.json_lines import json_lines
from cdc_lake.lake.silver_upkeep import FULL_FILE, SMALL_FILE, Keep, Upkept, megabytes, stored, tried
from cdc_lake.model.counting import counted
from cdc_lake.observe.failpoint import SILVER_COMPACTED, failpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(FULL_FILE),
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_FILE),
    # How long files stay is decided here, by what is promised.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # It would commit twice for its own history: apply's next statement would meet that.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
}

_BEFORE: Final = timedelta(hours=1)
"""A file that a commit removes is stamped when the statement begins, which may be before the version that is kept."""


class DeltaSilverUpkeep:
    """Upkeep of a table of format `delta` (`lake.silver_upkeep.SilverUpkeep`)."""

    def __init__(self, spark: SparkSession, project: Project, target: Target, before: timedelta = _BEFORE) -> None:
        self._spark = spark
        self._target = target
        self._path = project.silver_path(target)
        self._name = DeltaSilver(spark, project, target).name
        self._before = before
        for key, value in _SETTINGS.items():
            spark.conf.set(key, value)

    def planned(self, keep: Keep, now: datetime) -> Iterator[Upkept]:
        """By the sizes of files; clustering may find more to do."""
        del now
        table = DeltaTable(str(self._path))
        parts = table.metadata().partition_columns
        files = pa.table(table.get_add_actions(flatten=True))
        small = files.filter(pc.less(files["size_bytes"], SMALL_FILE))
        groups = small.group_by([f"partition.{name}" for name in parts]).aggregate(
            [("size_bytes", "sum"), ("size_bytes", "count")]
        )
        many = groups.filter(pc.greater(groups["size_bytes_count"], 1))
        if many.num_rows:
            count, size = sum(many["size_bytes_count"].to_pylist()), sum(many["size_bytes_sum"].to_pylist())
            text = f"{counted(count, 'small file')} ({megabytes(size)}) would be put together"
            yield Upkept("compaction", text, {"files": count, "bytes": size})
        if (hours := self._hours(keep)) is not None:
            found = self._spark.sql(f"VACUUM {self._name} RETAIN {hours} HOURS DRY RUN").count()
            if found:
                text = f"{'1,000 files or more' if found >= 1000 else counted(found, 'file')} would be removed"
                yield Upkept("removal", text, {"files": found})

    def worked(self, keep: Keep, now: datetime) -> Iterator[Upkept]:
        """See SilverUpkeep."""
        del now
        done = tried(self._compacted, self._target, _lost)
        if done["numFilesRemoved"]:
            removed, added = done["numFilesRemoved"], done["numFilesAdded"]
            before, after = done["filesRemoved"]["totalSize"], done["filesAdded"]["totalSize"]
            text = f"{counted(removed, 'file')} ({megabytes(before)}) became {added:,} ({megabytes(after)})"
            facts = {"files": removed, "into": added, "bytes": before, "bytes_after": after}
            yield Upkept("compaction", text, facts)
        failpoint(SILVER_COMPACTED)
        if (hours := self._hours(keep)) is None:
            return
        had, bytes_ = stored(self._path)
        self._spark.sql(f"VACUUM {self._name} RETAIN {hours} HOURS").collect()
        has, left = stored(self._path)
        if has < had:
            text = f"{counted(had - has, 'file')} ({megabytes(bytes_ - left)}) that nobody needs removed"
            yield Upkept("removal", text, {"files": had - has, "bytes": bytes_ - left})

    def _compacted(self) -> dict[str, Any]:
        row = self._spark.sql(f"OPTIMIZE {self._name}").first()
        assert row is not None  # it answers with its figures
        return dict(row["metrics"].asDict(recursive=True))

    def _hours(self, keep: Keep) -> int | None:
        """How long files stay that left the table; None where it cannot be told, and all have to.

        From this moment on, as VACUUM counts it: putting files together may have taken long. In whole hours, upwards:
        VACUUM rounds to the nearest one (tried: 0.4 hours were none).
        """
        since = keep.since
        newest = DeltaTable(str(self._path)).version()
        for version in keep.versions:
            if version >= newest:
                continue
            made = self._made(version)
            if made is None:
                return None
            since = min(since, made - self._before)
        return max(0, math.ceil((datetime.now(UTC) - since).total_seconds() / 3600))

    def _made(self, version: int) -> datetime | None:
        """When a version was committed, None where its log entry is gone."""
        entry = self._path / "_delta_log" / f"{version:020}.json"
        try:
            actions = json_lines(entry.read_bytes())
        except FileNotFoundError:
            return None
        info = next((action["commitInfo"] for action in actions if "commitInfo" in action), None)
        return None if info is None else datetime.fromtimestamp(info["timestamp"] / 1000, UTC)


def _lost(cause: Exception) -> bool:
    return "Concurrent" in type(cause).__name__ or "DELTA_CONCURRENT" in str(cause)
