"""The port of silver tables of any format: watermark, schema changes, commits, physical layout, and owner.

The watermark is read from the table's own commits and nowhere else, without a JVM. Delta stores it as the version of an
application transaction, Iceberg as a property of the snapshot's summary. The version of a compaction has no such
property, so Iceberg's ancestors are walked until one has it.

The application id names stream, table and **generation**: the number of the table's content. The single commit of a
rebuild begins the next generation, so the table itself contains the current one: on Delta as a property set by this
commit (querying unknown ids would read the whole log, tried), on Iceberg in our newest version.

A commit carries its data and its marker, or neither. `commit` passes the statement a table name; it does exactly one
writing statement on it. A commit based on a state that is no longer the newest is refused.

Transforms and layout unknown to the format are table properties, written with its DDL. So are its pipeline and the
stream for which it was created or adopted. A table of version 0.3.0 or earlier has neither: the marker of its newest
commit names the stream. A table with rows and without either was written by something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.config.silver_tables import PROPERTY, Partition
from cdc_lake.errors import CdcLakeError, SilverMissing
from cdc_lake.tables.catalog import catalog_address, is_there, open_catalog, reaching
from cdc_lake.tables.delta_log import entry_at
from cdc_lake.tables.types import SilverColumn, properties_sql, quote_identifier

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from cdc_lake.tables.schema_evolution import SchemaChange


FIRST = 1
"""The generation of a stream's first content."""

GENERATION_PROPERTY = "cdc_lake.generation"
"""Property of a Delta table whose content is not the first."""

POSITION_PROPERTY = "cdc-lake.position"
APP_PROPERTY = "cdc-lake.app"


@dataclass(frozen=True, slots=True)
class Marker:
    """The state of a silver table: watermark for one stream (None: never merged), version, generation."""

    position: int | None
    version: int | None
    generation: int = FIRST


def app_id(stream: str, target: Target, generation: int) -> str:
    """The application id under which a stream writes a generation of a silver table."""
    return f"{written_by(stream, target)}{generation}"


def layout_app_id(stream: str, target: Target, generation: int) -> str:
    """The application id of a stream's schema changes to a table, each done once, at its position."""
    return f"{laid_out_by(stream, target)}{generation}"


def laid_out_by(stream: str, target: Target) -> str:
    """Prefix of the application ids of a stream's schema changes to a table."""
    return f"cdc_lake_layout:{stream}:{target.label}:"


def written_by(stream: str, target: Target) -> str:
    """Prefix of the application ids of a stream's commits to a silver table."""
    return f"cdc_lake:{stream}:{target.label}:"


def planned_for(position: int | None) -> str:
    """Note in a commit to a Delta table: the watermark for which it was planned."""
    return f"cdc_lake: planned for {'no watermark' if position is None else position}"


def read_marker(project: Project, target: Target, stream: str, version: int | None = None) -> Marker:
    """The watermark and version of a silver table, now or at a version; both None if the table does not exist.

    Raises SilverMissing if the table exists and the version does not.
    """
    if target.format == "delta":
        return _delta_marker(project, target, stream, version)
    table = iceberg_table(project, target)
    if table is None:
        return Marker(None, None)
    head = table.current_snapshot() if version is None else table.snapshot_by_id(version)
    if head is None and version is not None:
        raise SilverMissing(target.label, version)
    return _iceberg_marker(table, head, written_by(stream, target))


def delta_table(project: Project, target: Target) -> DeltaTable | None:
    """The newest version of a Delta silver table, None if it does not exist."""
    try:
        return DeltaTable(str(project.silver_path(target)))
    except TableNotFoundError:
        return None


def iceberg_table(project: Project, target: Target) -> Table | None:
    """The current Iceberg silver table, None if it does not exist. Raises CatalogUnreachable."""
    address = catalog_address(project)
    if not is_there(address):
        return None
    catalog = open_catalog(address)
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra: a lake of Delta tables needs none

    with reaching(address):
        try:
            return catalog.load_table((target.namespace, target.name))
        except NoSuchTableError:
            return None


def _delta_marker(project: Project, target: Target, stream: str, version: int | None) -> Marker:
    try:
        table = DeltaTable(str(project.silver_path(target)), version=version)
    except TableNotFoundError:
        return Marker(None, None)
    except DeltaError as cause:
        if version is None:
            raise
        raise SilverMissing(target.label, version) from cause
    generation = int(table.metadata().configuration.get(GENERATION_PROPERTY, FIRST))
    return Marker(table.transaction_version(app_id(stream, target, generation)), table.version(), generation)


def _iceberg_marker(table: Table, head: Snapshot | None, writer: str) -> Marker:
    version = head
    while version is not None:
        summary = version.summary.additional_properties if version.summary else {}
        app = summary.get(APP_PROPERTY, "")
        if app.startswith(writer) and head is not None:
            return Marker(int(summary[POSITION_PROPERTY]), head.snapshot_id, int(app.removeprefix(writer)))
        version = table.snapshot_by_id(version.parent_snapshot_id) if version.parent_snapshot_id else None
    return Marker(None, head.snapshot_id if head else None)


_R = TypeVar("_R")


def repeat_on_conflict(
    work: Callable[[], _R], is_lost: Callable[[Exception], bool], error: CdcLakeError, tries: int
) -> _R:
    """The result of `work`, which is repeated while its commit is lost to another one; after `tries`, raise `error`."""
    for remaining in reversed(range(tries)):
        try:
            return work()
        except Exception as cause:
            if not is_lost(cause):
                raise
            if not remaining:
                raise error from cause
    raise AssertionError


Statement: TypeAlias = Callable[[str], str]
"""Returns the SQL of a writing statement, given the name of the table or branch to write to."""


class SilverStore(Protocol):
    """One silver table in one session."""

    @property
    def name(self) -> str:
        """The table as SQL reads it."""

    def marker(self, stream: str) -> Marker:
        """Its watermark and version, read from the table."""

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """Its columns, None if it does not exist."""

    def create(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """Create the table, owned by the pipeline from its first version on (`tables.silver_table`)."""

    def laid_out(self, stream: str, base: Marker) -> int | None:
        """The position of the last layout whose operations were all done; None if there is none."""

    def reshape(self, stream: str, base: Marker, position: int, changes: Sequence[SchemaChange], live: str) -> None:
        """Apply the changes of a new layout that begins at `position`, once, even if called repeatedly.

        `base`: the marker for which the changes were planned; `live`: SQL of the condition that a row exists in the
        source's table. Raises ConcurrentModification, Unconvertible.
        """

    def take_over(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """Adopt another owner's table: empty, with these columns, in one commit. Its earlier versions stay readable;
        none of its existing markers has its generation.
        """

    def cluster(self) -> None:
        """Cluster rows as the pipeline file says, from the next commit on."""

    def commit(self, stream: str, base: Marker, position: int, statement: Statement) -> int:
        """Run a statement whose commit carries `position`, in the generation of `base`; returns the new version.

        Raises ConcurrentModification.
        """

    def replace(
        self, stream: str, base: Marker, generation: int, position: int, columns: Sequence[SilverColumn], query: str
    ) -> int:
        """Replace the content by the rows of `query`, with these columns, in one commit that begins `generation` at
        `position`; returns the new version. Earlier versions stay readable, with their columns. A missing table is
        created. Raises ConcurrentModification if the table is not at `base` any more.
        """


CLUSTER: Final = "cdc_lake.cluster_by"
OWN: Final = frozenset({PROPERTY, CLUSTER})
"""Properties that record how a table was created."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """`transforms`: their fingerprint, empty if there are none. The others are as in the pipeline file."""

    transforms: str
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]


def actual_layout(project: Project, target: Target) -> TableLayout | None:
    """How the table was created, None if it does not exist. Without a JVM."""
    if target.format == "delta":
        delta = delta_table(project, target)
        if delta is None:
            return None
        metadata = delta.metadata()
        return _parse_layout(metadata.configuration, tuple(metadata.partition_columns))
    table = iceberg_table(project, target)
    if table is None:
        return None
    names = {field.field_id: field.name for field in table.schema().fields}
    parts = [_iceberg_partition(str(f.transform), names[f.source_id]) for f in table.spec().fields]
    return _parse_layout(table.properties, tuple(map(str, parts)))


def clustered_once(project: Project, target: Target) -> bool:
    """Whether the table is a Delta table that was ever clustered: Delta then refuses to partition it (tried)."""
    table = delta_table(project, target) if target.format == "delta" else None
    return table is not None and "clustering" in (table.protocol().writer_features or ())


def declared_layout(target: Target) -> TableLayout:
    """How the pipeline file wants the table created."""
    partitions = tuple(str(Partition.parse(text)) for text in target.partition_by)
    return TableLayout(target.transforms.fingerprint, partitions, target.cluster_by)


def own_properties(target: Target) -> dict[str, str]:
    """The layout as table properties; without those that do not apply."""
    return {key: value for key, value in _layout_properties(target).items() if value}


def partition_sql(target: Target) -> str:
    """The clause of a table's DDL that partitions it; empty if there is none."""
    parts = [_partition_sql(Partition.parse(text)) for text in target.partition_by]
    return f" PARTITIONED BY ({', '.join(parts)})" if parts else ""


def cluster_sql(target: Target) -> str:
    """The clustering columns as an SQL list."""
    return ", ".join(quote_identifier(name) for name in target.cluster_by)


def division_properties(target: Target) -> str:
    """All layout properties as DDL; empty if they do not apply."""
    return properties_sql(_layout_properties(target))


def _layout_properties(target: Target) -> dict[str, str]:
    # a silver name contains no comma (`tables.types`)
    return {PROPERTY: target.transforms.fingerprint, CLUSTER: ",".join(target.cluster_by)}


def _parse_layout(properties: Mapping[str, str], partitions: tuple[str, ...]) -> TableLayout:
    cluster = tuple(name for name in properties.get(CLUSTER, "").split(",") if name)
    return TableLayout(properties.get(PROPERTY, ""), partitions, cluster)


def _partition_sql(partition: Partition) -> str:
    if not partition.transform:
        return quote_identifier(partition.column)
    number = f"{partition.number}, " if partition.number else ""
    return f"{partition.transform}({number}{quote_identifier(partition.column)})"


def _iceberg_partition(transform: str, column: str) -> Partition:
    """Iceberg's name of a transform: `day`, `bucket[16]`, `identity`."""
    name, _, number = transform.rstrip("]").partition("[")
    if name == "identity":
        return Partition(column)
    words = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
    return Partition(column, words.get(name, name), int(number or 0))


PIPELINE: Final = "cdc_lake.pipeline"
STREAM: Final = "cdc_lake.stream"
OWNER: Final = frozenset({PIPELINE, STREAM})
"""Properties that record the owner of a table; replacing the table replaces them."""

_APP: Final = re.compile(r"cdc_lake:(?P<stream>.+):[^:]+:\d+", re.DOTALL)
_COMMENT: Final = re.compile(r"current rows of (?P<source>.+), by cdc_lake", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Owner:
    """`pipeline`, `stream`: from the table, None if not recorded. `unused`: created here, and never written. `source`:
    the source table of its rows, None if not recorded.
    """

    pipeline: str | None
    stream: str | None
    unused: bool = False
    source: str | None = field(default=None, compare=False)


def table_comment(source: object) -> str:
    """The comment of a silver table of a source table."""
    return f"current rows of {source}, by cdc_lake"


def owner_properties(project: Project, stream: str) -> dict[str, str]:
    """The properties that record the owner of a table created for a stream."""
    return {PIPELINE: project.name, STREAM: stream}


def read_owner(project: Project, target: Target) -> Owner | None:
    """The owner of a silver table; None if there is no table. Without a JVM."""
    if target.format == "delta":
        delta = delta_table(project, target)
        return None if delta is None else _delta_owner(delta, project.silver_path(target))
    table = iceberg_table(project, target)
    return None if table is None else _iceberg_owner(table)


def _delta_owner(table: DeltaTable, folder: Path) -> Owner:
    metadata = table.metadata()
    pipeline, stream = metadata.configuration.get(PIPELINE), metadata.configuration.get(STREAM)
    if stream is None:
        stream = next(_delta_streams(folder, table.version()), None)
    made_here = _COMMENT.fullmatch(metadata.description or "")
    unused = made_here is not None and stream is None and not table.file_uris()
    return Owner(pipeline, stream, unused, made_here and made_here["source"])


def _delta_streams(folder: Path, version: int) -> Iterator[str]:
    """The streams of the markers in a Delta table's log, newest commit first."""
    for number in range(version, -1, -1):
        text = entry_at(folder, number)
        if text is None:
            break
        for line in text.split("\n"):
            if '"txn"' in line and (stream := _stream_of(json.loads(line).get("txn", {}).get("appId", ""))):
                yield stream
    checkpoints = sorted((folder / "_delta_log").glob("*.checkpoint*.parquet"), reverse=True)
    newest = [checkpoint for checkpoint in checkpoints if checkpoint.name[:20] == checkpoints[0].name[:20]]
    marks: list[tuple[int, str]] = []
    for part in newest:
        if "txn" in pq.read_schema(part).names:
            rows = [row for row in pq.read_table(part, columns=["txn"])["txn"].to_pylist() if row is not None]
            marks += [(row.get("lastUpdated") or 0, row.get("appId") or "") for row in rows]
    yield from (stream for _, app in sorted(marks, reverse=True) if (stream := _stream_of(app)))


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
    app_match = _APP.fullmatch(app)
    return None if app_match is None else app_match["stream"]
