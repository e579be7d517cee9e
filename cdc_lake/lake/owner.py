"""Owners: the pipeline that a silver table belongs to, as the table itself says.

A table names its pipeline, and the stream that it was made or adopted for, in two properties. A table made by version
0.3.0 or before has neither: the marker of its newest commit names the stream. A table with rows and without either was
written by something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.marker import APP_PROPERTY, iceberg_table

if TYPE_CHECKING:
    from pyiceberg.table import Table

PIPELINE: Final = "cdc_lake.pipeline"
STREAM: Final = "cdc_lake.stream"
OWNER: Final = frozenset({PIPELINE, STREAM})
"""Properties that say whose a table is; a property of a table that is replaced is replaced with it."""

_APP: Final = re.compile(r"cdc_lake:(?P<stream>.+):[^:]+:\d+", re.DOTALL)
_COMMENT: Final = re.compile(r"current rows of (?P<source>.+), by cdc_lake", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Owner:
    """`pipeline`, `stream`: as the table names them, None where it does not. `unused`: made here, and never written.
    `source`: the source table whose rows it was made for, None where it does not say so.
    """

    pipeline: str | None
    stream: str | None
    unused: bool = False
    source: str | None = field(default=None, compare=False)


def table_comment(source: object) -> str:
    """What a silver table of a source table says of itself."""
    return f"current rows of {source}, by cdc_lake"


def owner_properties(project: Project, stream: str) -> dict[str, str]:
    """What a table that is made for a stream says of whose it is."""
    return {PIPELINE: project.name, STREAM: stream}


def read_owner(project: Project, target: Target) -> Owner | None:
    """Whose a silver table is; None where there is no table. Without a JVM."""
    if target.format == "delta":
        return _delta_owner(project.silver_path(target))
    table = iceberg_table(project, target)
    return None if table is None else _iceberg_owner(table)


def _delta_owner(folder: Path) -> Owner | None:
    try:
        table = DeltaTable(str(folder))
    except TableNotFoundError:
        return None
    metadata = table.metadata()
    pipeline, stream = metadata.configuration.get(PIPELINE), metadata.configuration.get(STREAM)
    if stream is None:
        stream = next(_delta_streams(folder / "_delta_log", table.version()), None)
    made_here = _COMMENT.fullmatch(metadata.description or "")
    unused = made_here is not None and stream is None and not table.file_uris()
    return Owner(pipeline, stream, unused, made_here and made_here["source"])


def _delta_streams(log: Path, version: int) -> Iterator[str]:
    """The streams of the markers in a Delta table's log, of the newest commit first."""
    for number in range(version, -1, -1):
        try:
            text = (log / f"{number:020}.json").read_text()
        except FileNotFoundError:
            break
        for line in text.split("\n"):
            if '"txn"' in line and (found := _stream_of(json.loads(line).get("txn", {}).get("appId", ""))):
                yield found
    checkpoints = sorted(log.glob("*.checkpoint*.parquet"), reverse=True)
    newest = [one for one in checkpoints if one.name[:20] == checkpoints[0].name[:20]]
    marks: list[tuple[int, str]] = []
    for part in newest:
        if "txn" in pq.read_schema(part).names:
            rows = [row for row in pq.read_table(part, columns=["txn"])["txn"].to_pylist() if row is not None]
            marks += [(row.get("lastUpdated") or 0, row.get("appId") or "") for row in rows]
    yield from (found for _, app in sorted(marks, reverse=True) if (found := _stream_of(app)))


def _iceberg_owner(table: Table) -> Owner:
    pipeline, stream = table.properties.get(PIPELINE), table.properties.get(STREAM)
    version = head = table.current_snapshot()
    while stream is None and version is not None:
        app = version.summary.additional_properties.get(APP_PROPERTY, "") if version.summary else ""
        stream = _stream_of(app)
        version = table.snapshot_by_id(version.parent_snapshot_id) if version.parent_snapshot_id else None
    made_here = _COMMENT.fullmatch(table.properties.get("comment", ""))
    return Owner(
        pipeline, stream, made_here is not None and stream is None and head is None, made_here and made_here["source"]
    )


def _stream_of(app: str) -> str | None:
    found = _APP.fullmatch(app)
    return None if found is None else found["stream"]
