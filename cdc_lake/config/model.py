"""The pipeline file as frozen values. Field descriptions are the editor's help and the reference page.

A section is the constructor argument of what it configures; nothing below `config` reads a file or the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, Strict

from cdc_lake.config.fields import MILLISECONDS, Bytes, Count, Milliseconds, Name, Section, Text
from cdc_lake.config.rules import Rule
from cdc_lake.config.silver_tables import DeclaredType, NumericType, Redact, RedactKey
from cdc_lake.config.source import Source, host_and_port


class Quality(Section):
    """When silver is judged as it stands. Every change is judged before it is merged, whatever is set here."""

    every: Annotated[Milliseconds, Field(ge=60_000)] | None = None
    """How often apply judges silver at its last cut, for example `1 d`; by default only a report does."""
    promise_below: Literal["warn", "error", "critical"] | None = None
    """A cut is promised only where silver at it was judged and every rule stays below this level."""
    max_rows: Count = 500_000
    """Rows up to which a table is judged: it is read into memory."""
    sample_keys: Annotated[int, Field(ge=0, le=100)] = 0
    """Keys that a report names of the rows that break a rule, a rule at most so many; by default none."""


def _address(text: str) -> str:
    host_and_port(text)
    return text


class OpenLineage(Section):
    """Events of OpenLineage: which tables and columns a run of apply made silver from, and how it ended."""

    to: Annotated[str, Field(pattern=r"^(https?://[^@/?#\s]+(/[^@?#\s]*)?|[^:]+\.jsonl)$")]
    """Where events go: the address of a server, as `http://marquez:5000`, or a file, `*.jsonl`, a line an event,
    relative to the project; its folder is there already."""
    api_key: SecretStr | None = None
    """What a server asks for, sent as a bearer token."""
    namespace: Text = "cdc_lake"
    """Namespace of the jobs, `<pipeline>.apply` within it."""
    timeout: Annotated[int, MILLISECONDS, Field(ge=100, examples=["5 s"])] = 5000
    """How long a server may take, and how long the end of a run waits for it. Apply waits for nothing else."""
    every: Annotated[int, MILLISECONDS, Field(ge=1000, examples=["10 min"])] = 600_000
    """How often a run without end says how far it is."""


class Observe(Section):
    """What monitoring is shown of a run; nothing by default."""

    metrics: (
        Annotated[
            str,
            Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"),
            AfterValidator(_address),
        ]
        | None
    ) = None
    """Address, as `127.0.0.1:9187`, at which a receiver that runs without end serves `/metrics` and `/healthz`. It
    asks nobody who they are: name one of this machine or of a network of your own."""
    textfile: Annotated[str, Field(pattern=r"\.prom$")] | None = None
    """File that apply writes its metrics into, `*.prom`, relative to the project; its folder is there already."""
    log: Literal["text", "json"] = "text"
    """What commands say on standard error where that is no terminal: `text`, lines for people, or `json`, one object a
    line, an event with its fields."""
    openlineage: OpenLineage | None = None
    """Events of OpenLineage, of apply."""


# Bucket naming rules of Amazon S3; keys of ours stay within characters that every client writes alike in a URL.
_ADDRESS = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<key>[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*)/?"
)


class Storage(Section):
    """An S3-compatible object store, for the tables whose address starts with `s3://`."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$")] | None = None
    """Address of the store, `https://host:port`; Amazon's own for the region by default."""
    region: Text
    """Region that requests are signed for; a store that knows none takes any, for example `us-east-1`."""
    access_key_id: SecretStr
    """Key that names us, by reference (`${env:NAME}`, `${file:path}`)."""
    secret_access_key: SecretStr
    """Secret of the key, by reference."""
    session_token: SecretStr | None = None
    """Token of temporary credentials, by reference."""
    allow_http: Annotated[bool, Strict()] = False
    """Whether an endpoint without TLS is taken: data can then be read and changed on the way."""
    patience: Milliseconds = 60_000
    """How long a request is repeated while the store fails or does not answer."""


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A folder of a bucket."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> ObjectAddress:
        """From `s3://bucket/folder`. Raises ValueError."""
        match = _ADDRESS.fullmatch(text)
        if match is None or any(part in {".", ".."} for part in match["key"].split("/")):
            msg = "an address in an object store is s3://bucket/folder"
            raise ValueError(msg)
        return cls(match["bucket"], match["key"])

    @property
    def path(self) -> str:
        """As Arrow's file system has it."""
        return f"{self.bucket}/{self.key}"

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Snapshot(Section):
    """The initial copy."""

    mode: Literal["initial", "none"] = "initial"
    """`initial`: rows as of the slot's consistent point; `none`: changes only, silver starts empty."""
    chunk_rows: Annotated[int, Field(ge=1, le=10_000_000, strict=True)] = 100_000
    """Rows of one bronze commit of the copy."""
    parallelism: Annotated[int, Field(ge=1, le=16, strict=True)] = 2
    """Connections that copy at the same time, in one snapshot: each a table, from PostgreSQL also a part of one."""
    max_rows_per_second: Count | None = None
    """How quickly the copy may go, so that the source has room for its own work; without it as quickly as it can."""
    max_bytes_per_second: Bytes | None = None
    """The same in bytes of the values' text, for example `20 MiB`."""

    @property
    def copies(self) -> bool:
        """Whether rows that were there before are copied."""
        return self.mode == "initial"


class Batch(Section):
    """When a bronze batch is closed: whichever is reached first, always at a COMMIT."""

    max_bytes: Bytes = 32 << 20
    """Bytes received."""
    max_rows: Count = 100_000
    """Changes."""
    max_transactions: Count = 20_000
    """Transactions."""
    max_delay: Milliseconds = 200
    """Age of the oldest transaction in it; after a pause as long as this a transaction is landed at once."""


class Maintenance(Section):
    """Upkeep of the table by its receiver, beside its commits; `cdc-lake maintain` does it at once."""

    compact_after_files: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 100
    """Small files in a row that become one, which keeps commits and reads quick; 0: only by `cdc-lake maintain`."""
    keep_replaced: Annotated[Milliseconds, Field(ge=3_600_000)] = 86_400_000
    """How long files stay that were replaced, for those who read them still; at least `1 h`."""


class Retention(Section):
    """What may leave bronze, by `cdc-lake maintain`. Without it everything stays."""

    min_age: Milliseconds
    """Time since it landed below which nothing leaves, for example `90 d`; whole files leave, from the oldest on."""
    rebuilds: bool = True
    """True: what silver could be built again from stays, the newest stream from its initial copy on."""


class Spool(Section):
    """Disk for transactions that are not committed yet, or too large for memory; nothing in it lasts."""

    max_bytes: Bytes = 64 << 30
    """Bytes on disk beyond which the receiver stops."""
    part: Bytes = 4 << 20
    """Bytes of such transactions that are held in memory, and of a large one that are landed at a time, as one file."""
    path: Text | None = None
    """Folder on this machine, relative to the project; `<lake.path>/scratch/<pipeline>.spool` by default."""


class Bronze(Section):
    """The table that transactions land in."""

    format: Literal["delta", "iceberg"] = "delta"
    """Table format; an Iceberg table is `bronze.<pipeline>` in the catalog of `lake.iceberg`."""
    path: Text | None = None
    """Folder of a Delta table, relative to the project, `<lake.path>/bronze/<pipeline>` by default; or `s3://…`."""
    batch: Batch = Batch()
    """When a batch is closed."""
    spool: Spool = Spool()
    """Disk for transactions that are not committed yet, or too large for memory."""
    durability: Literal["fsync", "os"] = "fsync"
    """`fsync`: a commit survives power loss before it is confirmed; `os`: left to the operating system."""
    maintenance: Maintenance = Maintenance()
    """Upkeep of the table."""
    retention: Retention | None = None
    """How long landed transactions stay; for ever by default."""
    undecodable: Literal["stop", "land"] = "stop"
    """What becomes of a transaction that cannot be decoded: the receiver stops, or its bytes land and apply stops."""
    redact: list[Redact] = []  # noqa: RUF012  # pydantic copies defaults
    """Columns whose values never reach the lake. Logical messages are left out then as well."""
    redact_key: RedactKey | None = None
    """Key of `strategy: sha256` (HMAC), by reference (`${env:NAME}`, `${file:path}`), of 16 bytes or more."""


class Iceberg(Section):
    """The catalog of Iceberg tables, shared by Spark and pyiceberg."""

    catalog: Name = "lake"
    """Name of the catalog, the same for every program that opens it."""
    type: Literal["sql", "rest"] = "sql"
    """`sql`: a SQLite file or a PostgreSQL database (`postgresql+psycopg://…`); `rest`: a REST catalog server."""
    uri: Annotated[Text | None, Field(repr=False)] = None
    """Catalog address; SQLite in `<lake.path>/catalog.db` by default. A password in it is never shown."""
    warehouse: Text | None = None
    """Folder or address of the tables, `<lake.path>/warehouse` by default; of a REST catalog a warehouse's name."""
    properties: dict[str, SecretStr] = {}  # noqa: RUF012  # pydantic copies defaults
    """Further properties of the catalog as pyiceberg names them, for example `token`; their values are never shown."""


class Lake(Section):
    """Where tables live."""

    path: Text = "lake"
    """Root folder, relative to the project: bronze, silver, control tables, checkpoints."""
    control: Text | None = None
    """Folder of an object store for the control tables, `s3://bucket/folder`; a folder of `path` by default."""
    iceberg: Iceberg = Iceberg()
    """Catalog for tables of `format: iceberg`."""
    storage: Storage | None = None
    """The object store of addresses `s3://…`."""


TableKind = Literal["current", "history", "append"]

ColumnName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,126}$")]
"""A name that needs no quoting in either format."""


Misfit = Literal["quarantine", "stop"]


class DefaultTypes(Section):
    """Silver types where the source's type leaves a choice, and what becomes of a value that its type cannot hold."""

    numeric: NumericType = "string"
    """Numerics that no decimal holds whole: `string`, `decimal(p,s)` (others do not fit), `both(p,s)` (two columns)."""
    misfit: Misfit = "quarantine"
    """A value that does not fit: `quarantine` holds its change and later ones of its key, `stop` ends the run."""


class TableTypes(Section):
    """Silver types of one table, where the source's type leaves a choice."""

    numeric: NumericType | None = None
    """Numerics that no decimal holds whole: `string`, `decimal(p,s)` (others do not fit), `both(p,s)` (two columns)."""
    misfit: Misfit | None = None
    """A value that does not fit: `quarantine` holds its change and later ones of its key, `stop` ends the run."""
    columns: dict[str, DeclaredType] = {}  # noqa: RUF012  # pydantic copies defaults
    """Silver types by column: `string`, `int`, `decimal(p,s)`, `both(p,s)`, `array<int>` …"""


class TableDefaults(Section):
    """What a silver table is unless it says otherwise."""

    format: Literal["delta", "iceberg"] = "delta"
    """Table format."""
    namespace: Name = "silver"
    """Namespace (folder or database) of the tables."""
    kind: TableKind = "current"
    """What is kept: the current rows, every version of a row (history), or every change (append)."""
    deletes: Literal["hard", "soft"] = "hard"
    """What a delete does to a current row: it goes, or it stays and `_is_deleted` says so."""
    lineage: bool = False
    """Whether rows say which change made them, in `_csn`, `_lsn`, `_xid`, `_ordinal`, `_commit_ts`."""
    types: DefaultTypes = DefaultTypes()
    """Silver types where the source's type leaves a choice."""
    on_drop: Literal["keep", "drop"] = "keep"
    """What becomes of a column that the source drops: it stays, NULL in rows written from then on, or it goes, once
    a run is allowed to drop it."""
    old_values: bool = False
    """Whether rows of `kind: append` have the old row too, in `_old_<column>`, as far as the server logs it."""
    missing_row: Literal["stop", "hold"] = "stop"
    """How to handle an update that leaves values unsent (unchanged TOAST columns) if silver has no matching row: `stop`
    the table, or `hold` the change in quarantine, like one that breaks a rule."""


class SilverTable(Section):
    """One source table's silver table."""

    from_: Annotated[str, Field(alias="from")]
    """Source table, `schema.table`."""
    to: Name | None = None
    """Name of the silver table; the source table's name by default, with the schema before it outside `public`."""
    format: Literal["delta", "iceberg"] | None = None
    """Table format."""
    kind: TableKind | None = None
    """What is kept: the current rows, every version of a row (history), or every change (append)."""
    deletes: Literal["hard", "soft"] | None = None
    """What a delete does to a current row: it goes, or it stays and `_is_deleted` says so."""
    lineage: bool | None = None
    """Whether rows say which change made them, in `_csn`, `_lsn`, `_xid`, `_ordinal`, `_commit_ts`."""
    types: TableTypes = TableTypes()
    """Silver types where the source's type leaves a choice."""
    on_drop: Literal["keep", "drop"] | None = None
    """What becomes of a column that the source drops: it stays, NULL in rows written from then on, or it goes, once
    a run is allowed to drop it."""
    track: Annotated[list[Text], Field(min_length=1)] | None = None
    """Columns of which a change makes a new version, of `kind: history`; all by default. A change of others alone
    amends the version that holds."""
    old_values: bool | None = None
    """Whether rows of `kind: append` have the old row too, in `_old_<column>`, as far as the server logs it."""
    missing_row: Literal["stop", "hold"] | None = None
    """How to handle an update that leaves values unsent (unchanged TOAST columns) if silver has no matching row: `stop`
    the table, or `hold` the change in quarantine, like one that breaks a rule."""
    keys: Annotated[list[Text], Field(min_length=1)] | None = None
    """Columns that identify a row; the source's primary key by default."""
    columns: Annotated[list[Text], Field(min_length=1)] | None = None
    """Source columns that silver takes, keys among them; all by default."""
    exclude: list[Text] = []  # noqa: RUF012  # pydantic copies defaults
    """Source columns that silver leaves out."""
    rename: dict[Text, ColumnName] = {}  # noqa: RUF012  # pydantic copies defaults
    """Source column → its name in silver."""
    compute: dict[ColumnName, Text] = {}  # noqa: RUF012  # pydantic copies defaults
    """Further columns: name → Spark SQL over the source's columns of the same row, for example `price * qty`."""
    where: Text | None = None
    """Spark SQL over the source's columns of a row: silver has the rows for which it is true; all by default."""
    partition_by: list[Text] = []  # noqa: RUF012  # pydantic copies defaults
    """Silver columns that files are divided by; for Iceberg also `days(ts)`, `bucket(16, id)`, `truncate(4, name)`."""
    cluster_by: list[Text] = []  # noqa: RUF012  # pydantic copies defaults
    """Silver columns that rows are kept together by: liquid clustering on Delta, the sort order on Iceberg."""
    rules: list[Rule] = []  # noqa: RUF012  # pydantic copies defaults
    """What every change must satisfy, judged in order before changes are folded, and what the table must satisfy."""


class TableGroup(Section):
    """Tables whose transactions are held whole."""

    name: Name
    """What messages call the group."""
    tables: Annotated[list[Text], Field(min_length=2)]
    """Source tables, `schema.table`, each in one group only; of kinds `current` and `history`, with a key."""
    hold: Literal["transaction"]
    """What is held where a rule with `on_fail: quarantine` breaks: the whole transaction in these tables, and every
    later one that touches a key of it."""


class Cuts(Section):
    """Which cuts stay readable, whatever upkeep removes; `cdc-lake cuts promise` adds cuts by name."""

    promise_every: Annotated[Milliseconds, Field(ge=60_000)] | None = None
    """Time between two cuts that are promised by themselves, for example `1 h`; without it none is."""
    keep: Annotated[Milliseconds, Field(ge=60_000)] = 604_800_000
    """How long such a cut stays readable."""


class SilverMaintenance(Section):
    """Upkeep of silver tables by `cdc-lake maintain`."""

    keep_versions: Annotated[Milliseconds, Field(ge=86_400_000)] = 604_800_000
    """How long former versions of a table can be read that no promised cut needs; at least `1 d`."""


class Silver(Section):
    """The current tables. Every captured table gets one; `tables` says what differs."""

    defaults: TableDefaults = TableDefaults()
    """For all tables."""
    tables: list[SilverTable] = []  # noqa: RUF012  # pydantic copies defaults
    """Tables that differ."""
    groups: list[TableGroup] = []  # noqa: RUF012  # pydantic copies defaults
    """Tables that hold whole transactions."""
    cuts: Cuts = Cuts()
    """Which cuts stay readable."""
    maintenance: SilverMaintenance = SilverMaintenance()
    """Upkeep of the tables."""


class Apply(Section):
    """The loop from bronze to silver."""

    span_rows: Count = 500_000
    """Changes after which a span is closed, at a transaction."""
    span_bytes: Bytes = 128 << 20
    """Bytes of changes, as they were received, after which a span is closed, at a transaction."""
    row_marks: Literal["auto", "never"] = "auto"
    """Whether changed rows of a large silver table are marked in its files instead of these being rewritten: Delta's
    deletion vectors, Iceberg's position deletes. `never`: for readers that know no marks. A table keeps those it has.
    """
    idle: Milliseconds = 1_000
    """How often bronze is looked at when nothing wakes the loop."""
    parallelism: Annotated[int, Field(ge=1, le=64, strict=True)] = 4
    """Tables merged at the same time."""
    other_writers: Literal["stop", "warn"] = "stop"
    """What becomes of a silver table whose rows something else changed: it waits, or that is said and it goes on."""
    driver_memory: Bytes = 2 << 30
    """Heap of the Spark driver where cdc_lake starts Spark itself."""


class Pipeline(Section):
    """A pipeline file: one source slot, its bronze table, its silver tables."""

    version: Literal[1]
    """Version of this file format."""
    pipeline: Name
    """Name of the pipeline; unique in a lake."""
    source: Source
    """Where changes come from."""
    snapshot: Snapshot = Snapshot()
    """Initial copy."""
    lake: Lake = Lake()
    """Where tables live."""
    bronze: Bronze = Bronze()
    """Landed transactions."""
    silver: Silver = Silver()
    """Current tables."""
    apply: Apply = Apply()
    """From bronze to silver."""
    quality: Quality = Quality()
    """When silver is judged as it stands, and what that keeps back."""
    observe: Observe = Observe()
    """What monitoring is shown."""
