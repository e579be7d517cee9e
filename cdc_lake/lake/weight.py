"""What a silver table weighs and which values it cannot hold, read from its metadata without Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.marker import iceberg_table

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

_MAPPED = "delta.columnMapping.physicalName"
_NOTHING = -(1 << 63)  # below every value: what holds no row
_TOPS: dict[tuple[str, int], int | None] = {}
_TOPS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Weight:
    """Data files of the newest version, their bytes, and whether rows that go are marked in them (`lake.row_marks`)."""

    files: int
    size: int
    marked: bool


def weight(project: Project, target: Target) -> Weight:
    """The weight of a silver table; nothing where it does not exist or holds nothing yet."""
    if target.format == "delta":
        return _delta_weight(str(project.silver_path(target)))
    table = iceberg_table(project, target)
    if table is None:
        return Weight(0, 0, marked=False)
    marked = table.properties.get("write.merge.mode") == "merge-on-read"
    head = table.current_snapshot()
    totals = head.summary.additional_properties if head is not None and head.summary is not None else {}
    return Weight(int(totals.get("total-data-files", 0)), int(totals.get("total-files-size", 0)), marked)


def all_below(project: Project, target: Target, version: int | None, column: str, low: int) -> bool:
    """Whether every value of an integer column at `version` (None: the table holds nothing) is known to be below `low`.

    Proven by the bounds of each data file; a file without them proves nothing.
    """
    if version is None:
        return True
    if target.format == "delta":
        return _delta_below(DeltaTable(str(project.silver_path(target)), version=version), column, low)
    table = iceberg_table(project, target)
    return table is not None and _iceberg_below(table, version, column, low)


def _delta_weight(path: str) -> Weight:
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return Weight(0, 0, marked=False)
    sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"]
    marked = table.metadata().configuration.get("delta.enableDeletionVectors") == "true"
    return Weight(len(sizes), int(pc.sum(sizes).as_py() or 0), marked)


def _delta_below(table: DeltaTable, column: str, low: int) -> bool:
    actions = pa.table(table.get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return True
    fields = json.loads(table.schema().to_json())["fields"]
    physical = next((f["metadata"].get(_MAPPED, column) for f in fields if f["name"] == column), None)
    # With mapped columns bounds may be listed under another column's name.
    if physical != column or f"max.{column}" not in actions.column_names:
        return False
    below = pc.less(actions[f"max.{column}"], low)
    return bool(pc.all(pc.fill_null(below, fill_value=False)).as_py())


def _iceberg_below(table: Table, version: int, column: str, low: int) -> bool:
    from pyiceberg.manifest import ManifestContent  # noqa: PLC0415 - an extra: a lake of Delta tables needs none

    snapshot = table.snapshot_by_id(version)
    field = next((f.field_id for f in table.schema().fields if f.name == column), None)
    if snapshot is None or field is None:
        return False
    manifests = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DATA]
    tops = [_top(table.io, manifest, field) for manifest in manifests]
    return all(top is not None and top < low for top in tops)


def _top(io: FileIO, manifest: ManifestFile, field: int) -> int | None:
    """The greatest upper bound of an integer field in a manifest's files, None where one has none.

    A manifest never changes, and reading one takes milliseconds: what was found is kept.
    """
    known = (manifest.manifest_path, field)
    if known not in _TOPS:
        if len(_TOPS) >= _TOPS_KEPT:
            _TOPS.clear()
        bounds = [(e.data_file.upper_bounds or {}).get(field) for e in manifest.fetch_manifest_entry(io)]
        found = [None if bound is None else int.from_bytes(bound, "little", signed=True) for bound in bounds]
        _TOPS[known] = None if None in found else max((b for b in found if b is not None), default=_NOTHING)
    return _TOPS[known]
