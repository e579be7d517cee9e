"""A silver table of any format: its watermark, what merging needs of it, how it was made, and whose it is.

The watermark is read from the table's own commits and from nowhere else, without a JVM. Delta keeps it as the version
of an application transaction, Iceberg as a property of the version's summary. A compaction's version carries no
property, so Iceberg's ancestors are walked until one has it.

The application id names stream, table and **generation**: the number of the table's content. A rebuild's one commit
begins the next generation, so which one is in force stands in the table itself: on Delta as a property that this
commit sets (asking for ids that the table does not know would read its log anew, tried), on Iceberg in our newest
version.

A commit carries its data and its marker, or neither. `commit` hands the work a table name to write to; the work does
exactly one writing statement on it. A commit made on a state that is no longer the newest is refused.

Transforms and layout that the format does not know stand in properties of the table, written with its DDL. So do its
pipeline and the stream that it was made or adopted for. A table made by version 0.3.0 or before has neither: the
marker of its newest commit names the stream. A table with rows and without either was written by something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.config.silver_tables import PROPERTY, Partition
from cdc_lake.errors import SilverMissing
from cdc_lake.tables.catalog import catalog_address, is_there, open_catalog, reaching
from cdc_lake.tables.types import SilverColumn, literal, quote_identifier

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from cdc_lake.tables.schema_evolution import SchemaChange


FIRST = 1
"""The generation that a stream's first content begins."""

GENERATION_PROPERTY = "cdc_lake.generation"
"""Property of a Delta table whose content is not the first."""

POSITION_PROPERTY = "cdc-lake.position"
APP_PROPERTY = "cdc-lake.app"


@dataclass(frozen=True, slots=True)
class Marker:
    """What a silver table says of itself: watermark for one stream (None: never merged), version, generation."""

    position: int | None
    version: int | None
    generation: int = FIRST


def app_id(stream: str, target: Target, generation: int) -> str:
    """The application id under which a stream writes a generation of a silver table."""
    return f"{written_by(stream, target)}{generation}"


def layout_app_id(stream: str, target: Target, generation: int) -> str:
    """The application id under which what a stream's layouts ask of a table is done, each once, at its position."""
    return f"{laid_out_by(stream, target)}{generation}"


def laid_out_by(stream: str, target: Target) -> str:
    """What the application ids of what a stream's layouts ask of a table begin with."""
    return f"cdc_lake_layout:{stream}:{target.label}:"


def written_by(stream: str, target: Target) -> str:
    """What the application ids of a stream's commits to a silver table begin with."""
    return f"cdc_lake:{stream}:{target.label}:"


def planned_for(position: int | None) -> str:
    """What a commit to a Delta table says of the watermark that it was planned for."""
    return f"cdc_lake: planned for {'no watermark' if position is None else position}"


def read_marker(project: Project, target: Target, stream: str, version: int | None = None) -> Marker:
    """The watermark and version of a silver table, now or at a version; both None where the table does not exist.

    Raises SilverMissing where it is there and the version is not.
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


def iceberg_catalog(project: Project) -> Catalog:
    """The pipeline's Iceberg catalog, the same that Spark opens."""
    return open_catalog(catalog_address(project))


def iceberg_table(project: Project, target: Target) -> Table | None:
    """An Iceberg silver table as it is now, None where it does not exist. Raises CatalogUnreachable."""
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


Statement: TypeAlias = Callable[[str], str]
"""The SQL of a statement that writes, from the name of the table or of the branch it writes to."""


class SilverStore(Protocol):
    """One silver table in one session."""

    @property
    def name(self) -> str:
        """The table as SQL reads it."""

    def marker(self, stream: str) -> Marker:
        """Its watermark and version, read from the table."""

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """Its columns, None where it does not exist."""

    def create(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """Make the table, the pipeline's own from its first version on (`tables.silver_table`)."""

    def laid_out(self, stream: str, base: Marker) -> int | None:
        """The position of the last layout whose operations were all done; None where there were none."""

    def reshape(self, stream: str, base: Marker, position: int, changes: Sequence[SchemaChange], live: str) -> None:
        """Do what a new layout that begins at `position` asks of the table, once, however often it is called.

        `base`: the marker the changes were worked out from; `live`: SQL of the condition under which a row is one that
        the source's table has. Raises ConcurrentModification, Unconvertible.
        """

    def take_over(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """Make a table that was somebody else's the pipeline's own: empty, with these columns, in one commit. Its
        versions before that stay readable; its generation is one that no marker of it names.
        """

    def cluster(self) -> None:
        """Keep rows together as the pipeline says now, from the next commit on."""

    def commit(self, stream: str, base: Marker, position: int, statement: Statement) -> int:
        """Run a statement whose commit carries `position`, in the generation of `base`; the version it made.

        Raises ConcurrentModification.
        """

    def replace(
        self, stream: str, base: Marker, generation: int, position: int, columns: Sequence[SilverColumn], query: str
    ) -> int:
        """Make the rows of `query` the whole content, with these columns, in one commit that begins `generation` at
        `position`; the version it made. Versions before it stay readable, with the columns they had. A table that is
        not there is made. Raises ConcurrentModification where it is not at `base` any more.
        """


CLUSTER: Final = "cdc_lake.cluster_by"
OWN: Final = frozenset({PROPERTY, CLUSTER})
"""Properties that say how a table was made."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """`transforms`: their fingerprint, empty for none. The others are as the pipeline file writes them."""

    transforms: str
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]


def actual_layout(project: Project, target: Target) -> TableLayout | None:
    """How the table was made, None where it does not exist. Without a JVM."""
    if target.format == "delta":
        try:
            metadata = DeltaTable(str(project.silver_path(target))).metadata()
        except TableNotFoundError:
            return None
        return _parse_layout(metadata.configuration, tuple(metadata.partition_columns))
    table = iceberg_table(project, target)
    if table is None:
        return None
    names = {field.field_id: field.name for field in table.schema().fields}
    parts = [_iceberg_partition(str(f.transform), names[f.source_id]) for f in table.spec().fields]
    return _parse_layout(table.properties, tuple(map(str, parts)))


def clustered_once(project: Project, target: Target) -> bool:
    """Whether the table is a Delta table that was clustered at any time: Delta never lets it be partitioned (tried)."""
    if target.format != "delta":
        return False
    try:
        features = DeltaTable(str(project.silver_path(target))).protocol().writer_features
    except TableNotFoundError:
        return False
    return "clustering" in (features or ())


def declared_layout(target: Target) -> TableLayout:
    """How the pipeline file says that it is to be made."""
    partitions = tuple(str(Partition.parse(text)) for text in target.partition_by)
    return TableLayout(target.transforms.fingerprint, partitions, target.cluster_by)


def own_properties(target: Target) -> dict[str, str]:
    """What a table says of itself by properties; nothing of what it is not."""
    properties = {PROPERTY: target.transforms.fingerprint, CLUSTER: _join_names(target.cluster_by)}
    return {key: value for key, value in properties.items() if value}


def partition_sql(target: Target) -> str:
    """The clause of a table's DDL that divides its files; empty for none."""
    parts = [_partition_sql(Partition.parse(text)) for text in target.partition_by]
    return f" PARTITIONED BY ({', '.join(parts)})" if parts else ""


def cluster_sql(target: Target) -> str:
    """The columns that rows are kept together by, as SQL lists them."""
    return ", ".join(quote_identifier(name) for name in target.cluster_by)


def division_properties(target: Target) -> str:
    """All that a table says of itself by properties, as DDL writes it; empty for what it is not."""
    properties = {PROPERTY: target.transforms.fingerprint, CLUSTER: _join_names(target.cluster_by)}
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())


def _parse_layout(properties: Mapping[str, str], partitions: tuple[str, ...]) -> TableLayout:
    cluster = tuple(name for name in properties.get(CLUSTER, "").split(",") if name)
    return TableLayout(properties.get(PROPERTY, ""), partitions, cluster)


def _join_names(names: tuple[str, ...]) -> str:
    return ",".join(names)  # a silver name holds no comma (`tables.types`)


def _partition_sql(partition: Partition) -> str:
    if not partition.transform:
        return quote_identifier(partition.column)
    number = f"{partition.number}, " if partition.number else ""
    return f"{partition.transform}({number}{quote_identifier(partition.column)})"


def _iceberg_partition(transform: str, column: str) -> Partition:
    """Iceberg's word for a transform: `day`, `bucket[16]`, `identity`."""
    name, _, number = transform.rstrip("]").partition("[")
    if name == "identity":
        return Partition(column)
    words = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
    return Partition(column, words.get(name, name), int(number or 0))


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
            if '"txn"' in line and (stream := _stream_of(json.loads(line).get("txn", {}).get("appId", ""))):
                yield stream
    checkpoints = sorted(log.glob("*.checkpoint*.parquet"), reverse=True)
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
