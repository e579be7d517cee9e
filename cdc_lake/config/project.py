"""A project: a pipeline with all defaults resolved and all paths absolute, which the loops take.

Paths in a pipeline file are relative to the project: the folder above `pipelines/` if the file is in a folder of that
name, otherwise the file's own folder. They never depend on the working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cdc_lake.config.fields import white_list
from cdc_lake.config.gaussdb_options import OPTIONS, Mode, OptionValue, as_number, as_sent
from cdc_lake.config.model import ObjectAddress, Pipeline, SilverTable, Storage, TableKind
from cdc_lake.config.rules import ROW_RULES, TABLE_RULES, RowRule, TableRule
from cdc_lake.config.silver_tables import UNDECLARED, Declared, Transforms, TypePolicy
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.errors import BronzeNotWritten, ControlNotWritten, LakeError, NotForThisSource
from cdc_lake.model.diagnostic import Diagnostic
from cdc_lake.model.relation import TableName


@dataclass(frozen=True, slots=True)
class Target:
    """The silver table of one source table, and its settings. `keys`: None for the source's own."""

    source: TableName
    namespace: str
    name: str
    format: str
    keys: tuple[str, ...] | None
    rules: tuple[RowRule | TableRule, ...]
    kind: TableKind = "current"
    deletes: Literal["hard", "soft"] = "hard"
    lineage: bool = False
    types: TypePolicy = UNDECLARED
    on_drop: Literal["keep", "drop"] = "keep"
    missing_row: Literal["stop", "hold"] = "stop"
    track: tuple[str, ...] | None = None
    old_values: bool = False
    transforms: Transforms = field(default_factory=Transforms)
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """`namespace.name`."""
        return f"{self.namespace}.{self.name}"

    @property
    def keeps_past(self) -> bool:
        """Whether the table records former states of rows, or that deleted rows existed."""
        return self.kind != "current" or self.deletes == "soft"

    @property
    def row_rules(self) -> tuple[RowRule, ...]:
        """The rules that are evaluated on changes."""
        return tuple(rule for rule in self.rules if isinstance(rule, ROW_RULES))

    @property
    def table_rules(self) -> tuple[TableRule, ...]:
        """The rules that are evaluated on the whole table."""
        return tuple(rule for rule in self.rules if isinstance(rule, TABLE_RULES))


@dataclass(frozen=True, slots=True)
class Group:
    """Tables whose transactions are quarantined as a whole."""

    name: str
    tables: tuple[TableName, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value: its location in a file, and the references (`env:NAME`) that it was resolved from."""

    file: str
    line: int
    column: int
    references: tuple[str, ...] = ()

    def __str__(self) -> str:
        through = f" through {', '.join(self.references)}" if self.references else ""
        return f"{self.file}:{self.line}{through}"


@dataclass(frozen=True)
class Project:
    """A loaded pipeline: its settings, its file, its project folder, and where each value was written.

    `origins`: by path of a value (`silver.tables[0].from`); values that are not in it are defaults. `warnings`:
    settings that have the name of an older version.
    """

    pipeline: Pipeline
    file: Path
    root: Path
    environment: str | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), compare=False, repr=False)

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline.pipeline

    @property
    def postgres(self) -> PostgresSource:
        """The source, if it is a PostgreSQL. Raises NotForThisSource."""
        source = self.pipeline.source
        if isinstance(source, PostgresSource):
            return source
        raise NotForThisSource(f"a source of `type: {source.type}` cannot be read here", where=str(self.file))

    @property
    def family(self) -> FamilySource:
        """The source, if it is a server of the GaussDB family. Raises NotForThisSource."""
        source = self.pipeline.source
        if isinstance(source, FamilySource):
            return source
        raise NotForThisSource(f"a source of `type: {source.type}` cannot be read here", where=str(self.file))

    @property
    def slot(self) -> str:
        """The slot's name on the server."""
        return self.pipeline.source.slot.name or self.name

    @property
    def publication(self) -> str:
        """The publication's name on the server. Raises NotForThisSource if the source has no publications."""
        return self.postgres.publication or self.slot

    @property
    def lake(self) -> Path:
        """Root folder of all tables that are on this machine, and of files that never leave it."""
        lake = self.pipeline.lake
        return self.root / (lake.path if self.lake_address is None else lake.work)

    @property
    def lake_address(self) -> ObjectAddress | None:
        """Prefix of all tables, if they are in an object store."""
        path = self.pipeline.lake.path
        return ObjectAddress.parse(path.rstrip("/")) if "://" in path else None

    @property
    def bronze(self) -> Path:
        """Folder of the bronze table, if it is a Delta table on this machine."""
        path = self.pipeline.bronze.path
        return self.root / path if path else self.lake / "bronze" / self.name

    @property
    def bronze_address(self) -> ObjectAddress | None:
        """Address of the bronze table, if it is a Delta table in an object store."""
        path = self.pipeline.bronze.path
        if path is None:
            return None if self.lake_address is None else self.lake_address / "bronze" / self.name
        return ObjectAddress.parse(path) if "://" in path else None

    @property
    def control(self) -> Path:
        """Folder of the control tables if they are on this machine, and of files that belong to them."""
        return self.lake / "control" / self.name

    @property
    def control_address(self) -> ObjectAddress | None:
        """Address of the control tables, if they are in an object store."""
        path = self.pipeline.lake.control
        if path is None:
            return None if self.lake_address is None else self.lake_address / "control" / self.name
        return ObjectAddress.parse(path.rstrip("/")) / self.name

    @property
    def storage(self) -> Storage | None:
        """The object store, with what an address says of it, and absolute paths; None if there is none."""
        storage, root = self.pipeline.lake.storage, self.iceberg_warehouse or ""
        if storage is None:
            return None
        address = self.lake_address or self.control_address or self.bronze_address
        if address is None and self.pipeline.lake.iceberg.type != "rest" and not root.startswith("file://"):
            address = ObjectAddress.parse(root)
        place = {} if address is None else {"provider": address.provider, "account": address.account}
        paths = {name: getattr(storage, name) for name in ("ca_file", "service_account_file")}
        return storage.model_copy(update={**place, **{n: str(self.root / path) for n, path in paths.items() if path}})

    def require_folders(self) -> None:
        """Raise BronzeNotWritten or ControlNotWritten if a file exists in place of a folder on this machine."""
        folders: list[tuple[Path, type[LakeError]]] = [(self.control, ControlNotWritten)]
        if self.bronze_address is None and self.pipeline.bronze.format == "delta":
            folders.append((self.bronze, BronzeNotWritten))
        for folder, error in folders:
            existing = next((candidate for candidate in (folder, *folder.parents) if candidate.exists()), None)
            if existing is not None and not existing.is_dir():
                hint = "is that file yours? move it away; otherwise set `lake.path` to another folder; then run again"
                raise error(f"a file exists in place of the lake's folder {folder}", where=str(existing), hint=hint)

    @property
    def checkpoint(self) -> Path:
        """Folder of Spark's checkpoint, which is only a hint."""
        return self.lake / "checkpoints" / self.name

    @property
    def scratch(self) -> Path:
        """Folder of temporary copies that a run makes."""
        return self.lake / "scratch" / self.name

    @property
    def scratch_address(self) -> ObjectAddress | None:
        """Address of those that every machine of a cluster reads, if the lake is in an object store."""
        return None if self.lake_address is None else self.lake_address / "scratch" / self.name

    @property
    def spool(self) -> Path:
        """Folder for transactions that are not committed yet."""
        path = self.pipeline.bronze.spool.path
        return self.root / path if path else self.scratch.with_name(f"{self.name}.spool")

    @property
    def reports(self) -> Path:
        """Folder of the reports."""
        return self.lake / "reports" / self.name

    @property
    def textfile(self) -> Path | None:
        """File that apply writes its metrics to."""
        path = self.pipeline.observe.textfile
        return None if path is None else self.root / path

    @property
    def iceberg_uri(self) -> str:
        """Address of the Iceberg catalog; empty for AWS Glue at its usual endpoint."""
        config = self.pipeline.lake.iceberg
        return config.uri or ("" if config.type == "glue" else f"sqlite:///{self.lake / 'catalog.db'}")

    @property
    def iceberg_warehouse(self) -> str | None:
        """Root URI of the Iceberg tables; for a REST catalog the name of its warehouse, None for its default."""
        warehouse = self.pipeline.lake.iceberg.warehouse
        if self.pipeline.lake.iceberg.type == "rest":
            return warehouse
        if warehouse and "://" in warehouse:
            return warehouse
        if warehouse is None and self.lake_address is not None:
            return str(self.lake_address / "warehouse")
        return f"file://{self.root / warehouse if warehouse else self.lake / 'warehouse'}"

    def silver_path(self, target: Target) -> Path:
        """Folder of a Delta silver table, if it is on this machine."""
        return self.lake / target.namespace / target.name

    def silver_address(self, target: Target) -> ObjectAddress | None:
        """Address of a Delta silver table, if it is in an object store."""
        address = self.lake_address
        return None if address is None else address / target.namespace / target.name

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of tables whose transactions are quarantined as a whole."""
        groups = self.pipeline.silver.groups
        return tuple(Group(group.name, tuple(map(TableName.parse, group.tables))) for group in groups)

    def group(self, table: TableName) -> Group | None:
        """The group of a table, None if it is in no group."""
        return next((group for group in self.groups if table in group.tables), None)

    def target(self, table: TableName) -> Target:
        """The silver table of a source table."""
        defaults = self.pipeline.silver.defaults
        entry = next(
            (t for t in self.pipeline.silver.tables if TableName.parse(t.from_) == table), SilverTable(from_=str(table))
        )
        return Target(
            source=table,
            namespace=defaults.namespace,
            name=entry.to or default_name(table),
            format=entry.format or defaults.format,
            keys=tuple(entry.keys) if entry.keys else None,
            rules=tuple(entry.rules),
            kind=entry.kind or defaults.kind,
            deletes=entry.deletes or defaults.deletes,
            lineage=defaults.lineage if entry.lineage is None else entry.lineage,
            types=TypePolicy(
                Declared.parse(entry.types.numeric or defaults.types.numeric),
                tuple((name, Declared.parse(text)) for name, text in entry.types.columns.items()),
                entry.types.misfit or defaults.types.misfit,
                bare_points=isinstance(self.pipeline.source, FamilySource),
            ),
            on_drop=entry.on_drop or defaults.on_drop,
            missing_row=entry.missing_row or defaults.missing_row,
            track=tuple(entry.track) if entry.track else None,
            old_values=defaults.old_values if entry.old_values is None else entry.old_values,
            transforms=Transforms(
                columns=None if entry.columns is None else tuple(entry.columns),
                exclude=tuple(entry.exclude),
                rename=tuple(entry.rename.items()),
                compute=tuple(entry.compute.items()),
                where=entry.where,
            ),
            partition_by=tuple(entry.partition_by),
            cluster_by=tuple(entry.cluster_by),
        )

    def key_location(self, target: Target, key: str) -> str:
        """Where a key of a silver table is written: `pipelines/shop.yaml:14`; its path if it is not."""
        return str(self.origin(target, key) or self._path(target, key))

    def place(self, target: Target, key: str) -> str:
        """The same with the column: `pipelines/shop.yaml:14:22`."""
        origin = self.origin(target, key)
        return self._path(target, key) if origin is None else f"{origin.file}:{origin.line}:{origin.column}"

    def origin(self, target: Target, key: str) -> Origin | None:
        """The origin of a key of a silver table, None if it is not written."""
        return self.origins.get(self._path(target, key))

    def _path(self, target: Target, key: str) -> str:
        """The path of a key of a silver table."""
        for index, table in enumerate(self.pipeline.silver.tables):
            if TableName.parse(table.from_) == target.source:
                return f"silver.tables[{index}].{key}"
        return key


def default_name(table: TableName) -> str:
    """The silver name of a source table: its name in lower case, prefixed with its schema unless that is `public`."""
    text = table.name if table.schema == "public" else f"{table.schema}_{table.name}"
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text.lower())


def effective_options(source: FamilySource, mode: Mode | None = None) -> dict[str, str]:
    """Options by name, as sent in `mode` (by default that of the source). The source must be valid.

    Options that determine the form of the stream are always sent, because a server may have other defaults: the number
    of decoders, style, batches, xids, times, empty transactions, and the order of a slot in CSN order. Configured
    options that do not exist in `mode` are omitted.
    """
    mode = mode or source.decoding_mode
    values: dict[str, OptionValue] = {
        name: o.sent_default for name, o in OPTIONS.items() if o.sent_default and mode in o.modes
    }
    if mode is Mode.SERIAL:
        values["parallel-decode-num"] = 1
    if source.slot_order == "csn" and source.node != "coordinator" and mode is not Mode.SQL:
        values["output-order"] = 1
    if (listed := white_list(source.tables)) is not None:
        values["white-table-list"] = listed
    for name, value in source.decoding.items():
        if name == "parallel-decode-num" and (as_number(value) == 1) != (mode is Mode.SERIAL):
            continue  # of another mode
        if name not in OPTIONS or mode in OPTIONS[name].modes:
            values[name] = value
    order = {name: i for i, name in enumerate(OPTIONS)}
    return {
        name: as_sent(OPTIONS.get(name), values[name])
        for name in sorted(values, key=lambda name: order.get(name, len(order)))
    }
