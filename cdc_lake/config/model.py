"""The models of the pipeline file. Field descriptions appear in editors and on the reference page.

A section is the constructor argument of what it configures; only `config` reads the file and the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, Strict

from cdc_lake.config.fields import MILLISECONDS, Bytes, Count, Milliseconds, Name, Section, Text
from cdc_lake.config.rules import Rule
from cdc_lake.config.silver_tables import DeclaredType, NumericType, Redact
from cdc_lake.config.source import Source, host_and_port


class Quality(Section):
    """When whole silver tables are checked against their rules. Changes are always checked before they are merged."""

    every: Annotated[Milliseconds, Field(ge=60_000)] | None = None
    """How often apply checks silver as of its last cut, for example `1 d`; by default only a report does."""
    pin_below: Literal["warn", "error", "critical"] | None = None
    """Pin a cut only if silver was checked as of that cut and every rule stayed below this level."""
    max_rows: Count = 500_000
    """Largest table that is checked, in rows; the table is read into memory."""
    sample_keys: Annotated[int, Field(ge=0, le=100)] = 0
    """Maximum number of keys of failing rows that a report lists for each rule; by default none."""


def _address(text: str) -> str:
    host_and_port(text)
    return text


class OpenLineage(Section):
    """OpenLineage events: the tables and columns a run of apply built silver from, and how the run ended."""

    to: Annotated[str, Field(pattern=r"^(https?://[^@/?#\s]+(/[^@?#\s]*)?|[^:]+\.jsonl)$")]
    """Where to send events: the URL of a server, for example `http://marquez:5000`, or a file `*.jsonl`, one event per
    line, relative to the project and in an existing directory."""
    api_key: SecretStr | None = None
    """API key of the server, sent as a bearer token."""
    namespace: Text = "cdc_lake"
    """Namespace of the job, which is named `<pipeline>.apply`."""
    timeout: Annotated[int, MILLISECONDS, Field(ge=100, examples=["5 s"])] = 5000
    """How long the server may take to respond, and how long the end of a run waits for it. Apply never waits
    otherwise."""
    every: Annotated[int, MILLISECONDS, Field(ge=1000, examples=["10 min"])] = 600_000
    """How often a continuous run reports its progress."""


class Observe(Section):
    """What a run exposes to monitoring; nothing by default."""

    metrics: (
        Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"), AfterValidator(_address)]
        | None
    ) = None
    """Address at which a continuously running receiver serves `/metrics` and `/healthz`, for example `127.0.0.1:9187`.
    There is no authentication: use an address of this machine or of a private network."""
    textfile: Annotated[str, Field(pattern=r"\.prom$")] | None = None
    """File `*.prom` that apply writes its metrics to, relative to the project and in an existing directory."""
    log: Literal["text", "json"] = "text"
    """Format of standard error if it is not a terminal: `text`, lines for people, or `json`, one event object per
    line."""
    openlineage: OpenLineage | None = None
    """OpenLineage events of apply."""


Provider = Literal["s3", "azure", "gcs"]

_KEY = r"/(?P<key>[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*)/?"  # only what every client encodes in the same way in a URL
_BUCKET = rf"(?P<bucket>[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9]){_KEY}"
_ADLS = rf"(?P<bucket>[a-z0-9][a-z0-9-]{{1,61}}[a-z0-9])@(?P<account>[a-z0-9]{{3,24}})\.dfs\.core\.windows\.net{_KEY}"
_PROVIDERS: dict[str, tuple[Provider, re.Pattern[str]]] = {
    "s3": ("s3", re.compile(_BUCKET)),
    "abfss": ("azure", re.compile(_ADLS)),
    "gs": ("gcs", re.compile(_BUCKET)),
}
"""Service and form of the addresses of a scheme."""


class Storage(Section):
    """Object store of the tables whose addresses are `s3://…` (Amazon S3 or compatible), `abfss://…` (ADLS Gen2) or
    `gs://…` (GCS). All addresses of a lake are in one of them.
    """

    provider: Provider = "s3"
    """Service, only needed if no address names it (tables of a REST catalog): `s3`, `azure` or `gcs`."""
    account: Text | None = None
    """Storage account of ADLS, only needed if no address names it."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$")] | None = None
    """URL of the store, `https://host:port`; by default that of Amazon S3 in the region, of ADLS or of GCS. Spark does
    not use it for ADLS."""
    region: Text | None = None
    """Region that requests to S3 are signed for; a store without regions accepts any, for example `us-east-1`."""
    credentials: Literal["keys", "environment", "role"] = "keys"
    """`keys`: those below. `environment`: what the process and its machine have: variables, a workload identity, the
    role of a container or an instance; renewed while a run lasts. `role`: temporary credentials of `role_arn`, which
    the credentials of the environment assume; renewed while a run lasts (S3)."""
    access_key_id: SecretStr | None = None
    """Access key ID of S3, as a reference (`${env:NAME}`, `${file:path}`)."""
    secret_access_key: SecretStr | None = None
    """Secret access key of S3, as a reference."""
    session_token: SecretStr | None = None
    """Session token of temporary credentials of S3, as a reference."""
    role_arn: Annotated[str, Field(pattern=r"^arn:[a-z-]+:iam::[0-9]{12}:role/\S+$")] | None = None
    """ARN of the role to assume, `arn:aws:iam::123456789012:role/lake`."""
    external_id: Annotated[str, Field(min_length=2)] | None = None
    """External ID that the role requires, if it does."""
    ca_file: Text | None = None
    """PEM file with the certificate authority of an S3 endpoint, relative to the project. Spark's driver gets it too;
    on a cluster, add it to the Java truststore of each machine."""
    account_key: SecretStr | None = None
    """Key of the storage account of ADLS, as a reference."""
    sas_token: SecretStr | None = None
    """SAS token for the container of ADLS, as a reference."""
    tenant_id: Text | None = None
    """Tenant of a service principal with access to ADLS."""
    client_id: Text | None = None
    """Client ID of the service principal."""
    client_secret: SecretStr | None = None
    """Client secret of the service principal, as a reference."""
    service_account_file: Text | None = None
    """Key file of a service account with access to GCS, JSON, relative to the project; on a cluster, at the same path
    on each machine."""
    allow_http: Annotated[bool, Strict()] = False
    """Allow an endpoint without TLS: data can then be read and modified in transit."""
    patience: Milliseconds = 60_000
    """How long to retry a request while the store fails or does not respond."""


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A folder in a bucket of S3 or GCS, or in a container of an ADLS account."""

    bucket: str
    key: str
    scheme: str = "s3"
    account: str | None = None

    @classmethod
    def parse(cls, text: str) -> ObjectAddress:
        """Parse `s3://bucket/folder`, `abfss://container@account.dfs.core.windows.net/folder`, or `gs://bucket/folder`.

        Raises:
            ValueError: It is none of them.
        """
        scheme, _, rest = text.partition("://")
        match = _PROVIDERS[scheme][1].fullmatch(rest) if scheme in _PROVIDERS else None
        if match is None or any(part in {".", ".."} for part in match["key"].split("/")):
            raise ValueError("not an address in an object store")
        return cls(match["bucket"], match["key"], scheme, match.groupdict().get("account"))

    @property
    def provider(self) -> Provider:
        """The service."""
        return _PROVIDERS[self.scheme][0]

    @property
    def path(self) -> str:
        """The path in Arrow's file system."""
        return f"{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> ObjectAddress:
        return replace(self, key=f"{self.key}/{name}")

    def __str__(self) -> str:
        host = "" if self.account is None else f"@{self.account}.dfs.core.windows.net"
        return f"{self.scheme}://{self.bucket}{host}/{self.key}"


class Snapshot(Section):
    """Initial snapshot of the captured tables."""

    mode: Literal["initial", "none"] = "initial"
    """`initial`: copy the rows as of the slot's consistent point; `none`: changes only, silver starts empty."""
    chunk_rows: Annotated[int, Field(ge=1, le=10_000_000, strict=True)] = 100_000
    """Rows per bronze commit of the snapshot."""
    parallelism: Annotated[int, Field(ge=1, le=16, strict=True)] = 2
    """Connections that copy in parallel, all in one snapshot: each a table, or a part of one (PostgreSQL)."""
    max_rows_per_second: Count | None = None
    """Maximum rate of the snapshot, which leaves the source capacity for its own workload; unlimited by default."""
    max_bytes_per_second: Bytes | None = None
    """Maximum rate in bytes of the values as text, for example `20 MiB`; unlimited by default."""

    @property
    def copies(self) -> bool:
        """Whether existing rows are copied."""
        return self.mode == "initial"


class Batch(Section):
    """Limits at which a bronze batch is closed, whichever is reached first, always at a COMMIT."""

    max_bytes: Bytes = 32 << 20
    """Bytes received in a batch."""
    max_rows: Count = 100_000
    """Changes in a batch."""
    max_transactions: Count = 20_000
    """Transactions in a batch."""
    max_delay: Milliseconds = 200
    """Age of the oldest transaction in a batch; after a pause of this length, a transaction is committed at once."""


class Maintenance(Section):
    """Maintenance of bronze by its receiver, concurrent with its commits; `cdc-lake maintain` does it at once."""

    compact_after_files: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 100
    """Number of consecutive small files to compact into one, which keeps commits and reads fast; 0: compact only in
    `cdc-lake maintain`."""
    keep_replaced: Annotated[Milliseconds, Field(ge=3_600_000)] = 86_400_000
    """How long replaced files are kept for readers that still use them; at least `1 h`."""


class Retention(Section):
    """What `cdc-lake maintain` removes from bronze; nothing without this section."""

    min_age: Milliseconds
    """Minimum age of transactions in bronze before they are removed, for example `90 d`; whole files are removed,
    oldest first."""
    rebuilds: bool = True
    """Keep what silver can be rebuilt from: the newest stream from its initial snapshot on."""


class Spool(Section):
    """Disk space for transactions that are in progress or too large for memory; its contents are temporary."""

    max_bytes: Bytes = 64 << 30
    """Maximum size on disk, beyond which the receiver stops."""
    part: Bytes = 4 << 20
    """Bytes of such transactions kept in memory, and bytes of a large one committed to bronze at a time, as one
    file."""
    path: Text | None = None
    """Local directory, relative to the project; `<lake.path>/scratch/<pipeline>.spool` by default."""


class Bronze(Section):
    """The table that holds transactions as received."""

    format: Literal["delta", "iceberg"] = "delta"
    """Table format; an Iceberg table is `bronze.<pipeline>` in the catalog of `lake.iceberg`."""
    path: Text | None = None
    """Directory of a Delta table, relative to the project, or its address in an object store;
    `<lake.path>/bronze/<pipeline>` by default."""
    batch: Batch = Batch()
    """Limits at which a batch is closed."""
    spool: Spool = Spool()
    """Disk space for transactions that are in progress or too large for memory."""
    durability: Literal["fsync", "os"] = "fsync"
    """`fsync`: a commit is flushed to disk before it is acknowledged, so that it survives power loss; `os`: flushing is
    left to the operating system."""
    maintenance: Maintenance = Maintenance()
    """Maintenance of the table."""
    retention: Retention | None = None
    """How long transactions are kept; forever by default."""
    undecodable: Literal["stop", "land"] = "stop"
    """How to handle a transaction that cannot be decoded: `stop` the receiver, or `land` its bytes in bronze, where
    apply stops."""
    redact: list[Redact] = []  # noqa: RUF012  # pydantic copies defaults
    """Columns whose values never reach the lake. Logical messages are then omitted as well."""
    redact_key: SecretStr | None = None
    """Key of `strategy: sha256` (HMAC), at least 16 bytes, as a reference (`${env:NAME}`, `${file:path}`)."""


class Iceberg(Section):
    """Catalog of the Iceberg tables, shared by Spark and pyiceberg."""

    catalog: Name = "lake"
    """Name of the catalog, the same in every program that opens it."""
    type: Literal["sql", "rest", "hive", "glue"] = "sql"
    """`sql`: a SQLite file or a PostgreSQL database (`postgresql+psycopg://…`); `rest`: a REST catalog server
    (`https://…`); `hive`: a Hive metastore (`thrift://…`); `glue`: AWS Glue."""
    uri: Annotated[Text | None, Field(repr=False)] = None
    """Address of the catalog; for `sql`, SQLite in `<lake.path>/catalog.db` by default; for `glue`, an endpoint other
    than that of the region. A password in it is never shown."""
    warehouse: Text | None = None
    """Directory or address of the tables, `<lake.path>/warehouse` by default; for a REST catalog, the name of the
    warehouse."""
    properties: dict[str, SecretStr] = {}  # noqa: RUF012  # pydantic copies defaults
    """Additional properties of the catalog, as named by pyiceberg, for example `token`; their values are never
    shown."""


class Delta(Section):
    """Names of the silver tables of `format: delta`, which are otherwise found by their addresses alone."""

    metastore: Text | None = None
    """Where they are registered as `namespace.name`: a Hive metastore, `thrift://host:9083`, or AWS Glue, `glue`."""

    @property
    def hive(self) -> str | None:
        """The Hive metastore, which Spark itself uses."""
        return None if self.metastore is None or self.metastore.startswith("glue") else self.metastore


class Lake(Section):
    """Where the tables are stored."""

    path: Text = "lake"
    """Root of bronze, silver and control tables: a directory, relative to the project, or a folder of an object store:
    `s3://bucket/folder`, `abfss://container@account.dfs.core.windows.net/folder`, `gs://bucket/folder`."""
    work: Text = "work"
    """Local directory of logs, reports and temporary files if `path` is in an object store, relative to the project."""
    control: Text | None = None
    """Address in an object store for the control tables, as for `path`; by default `control` in `path`."""
    delta: Delta = Delta()
    """Names of tables of `format: delta`."""
    iceberg: Iceberg = Iceberg()
    """Catalog for tables of `format: iceberg`."""
    storage: Storage | None = None
    """Object store of `s3://…`, `abfss://…` and `gs://…` addresses."""


TableKind = Literal["current", "history", "append"]

ColumnName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,126}$")]
"""A name that needs no quotes in either format."""


Misfit = Literal["quarantine", "stop"]


class DefaultTypes(Section):
    """Silver types for source types that leave a choice, and how to handle a value that its silver type cannot hold."""

    numeric: NumericType = "string"
    """Type of numerics that no decimal holds exactly: `string`, `decimal(p,s)` (other values do not fit), or
    `both(p,s)` (two columns)."""
    misfit: Misfit = "quarantine"
    """How to handle a value that does not fit: `quarantine` its change and later changes of its key, or `stop` the
    run."""


class TableTypes(Section):
    """Silver types of one table, for source types that leave a choice."""

    numeric: NumericType | None = None
    """Type of numerics that no decimal holds exactly: `string`, `decimal(p,s)` (other values do not fit), or
    `both(p,s)` (two columns)."""
    misfit: Misfit | None = None
    """How to handle a value that does not fit: `quarantine` its change and later changes of its key, or `stop` the
    run."""
    columns: dict[str, DeclaredType] = {}  # noqa: RUF012  # pydantic copies defaults
    """Silver types by column: `string`, `int`, `decimal(p,s)`, `both(p,s)`, `array<int>` …"""


class TableDefaults(Section):
    """Defaults for all silver tables."""

    format: Literal["delta", "iceberg"] = "delta"
    """Table format."""
    namespace: Name = "silver"
    """Namespace (directory or database) of the tables."""
    kind: TableKind = "current"
    """What the table keeps: the `current` rows, every version of a row (`history`), or every change (`append`)."""
    deletes: Literal["hard", "soft"] = "hard"
    """How to apply a delete to a current row: `hard` removes the row, `soft` keeps it and sets `_is_deleted`."""
    lineage: bool = False
    """Add columns that identify the change a row comes from: `_csn`, `_lsn`, `_xid`, `_ordinal`, `_commit_ts`."""
    types: DefaultTypes = DefaultTypes()
    """Silver types for source types that leave a choice."""
    on_drop: Literal["keep", "drop"] = "keep"
    """How to handle a column that the source drops: `keep` it, NULL in rows written from then on, or `drop` it, once a
    run is allowed to."""
    old_values: bool = False
    """For `kind: append`: also store the old row, in `_old_<column>`, as far as the server logs it."""
    missing_row: Literal["stop", "hold"] = "stop"
    """How to handle an update that leaves values unsent (unchanged TOAST columns) if silver has no matching row: `stop`
    the table, or `hold` the change in quarantine, like one that breaks a rule."""


class SilverTable(Section):
    """The silver table of one source table."""

    from_: Annotated[str, Field(alias="from")]
    """Source table, `schema.table`."""
    to: Name | None = None
    """Name of the silver table; by default that of the source table, prefixed with its schema unless that is
    `public`."""
    format: Literal["delta", "iceberg"] | None = None
    """Table format."""
    kind: TableKind | None = None
    """What the table keeps: the `current` rows, every version of a row (`history`), or every change (`append`)."""
    deletes: Literal["hard", "soft"] | None = None
    """How to apply a delete to a current row: `hard` removes the row, `soft` keeps it and sets `_is_deleted`."""
    lineage: bool | None = None
    """Add columns that identify the change a row comes from: `_csn`, `_lsn`, `_xid`, `_ordinal`, `_commit_ts`."""
    types: TableTypes = TableTypes()
    """Silver types for source types that leave a choice."""
    on_drop: Literal["keep", "drop"] | None = None
    """How to handle a column that the source drops: `keep` it, NULL in rows written from then on, or `drop` it, once a
    run is allowed to."""
    track: Annotated[list[Text], Field(min_length=1)] | None = None
    """For `kind: history`: columns whose change creates a new version; all by default. A change to other columns only
    updates the current version in place."""
    old_values: bool | None = None
    """For `kind: append`: also store the old row, in `_old_<column>`, as far as the server logs it."""
    missing_row: Literal["stop", "hold"] | None = None
    """How to handle an update that leaves values unsent (unchanged TOAST columns) if silver has no matching row: `stop`
    the table, or `hold` the change in quarantine, like one that breaks a rule."""
    keys: Annotated[list[Text], Field(min_length=1)] | None = None
    """Columns that identify a row; the source's primary key by default."""
    columns: Annotated[list[Text], Field(min_length=1)] | None = None
    """Source columns to include, among them the key; all by default."""
    exclude: list[Text] = []  # noqa: RUF012  # pydantic copies defaults
    """Source columns to exclude."""
    rename: dict[Text, ColumnName] = {}  # noqa: RUF012  # pydantic copies defaults
    """Names of columns in silver, by source column."""
    compute: dict[ColumnName, Text] = {}  # noqa: RUF012  # pydantic copies defaults
    """Computed columns: name → Spark SQL over the source columns of the same row, for example `price * qty`."""
    where: Text | None = None
    """Spark SQL condition over the source columns of a row; silver has the rows for which it is true. All by
    default."""
    partition_by: list[Text] = []  # noqa: RUF012  # pydantic copies defaults
    """Silver columns to partition by; for Iceberg also `days(ts)`, `bucket(16, id)`, `truncate(4, name)`."""
    cluster_by: list[Text] = []  # noqa: RUF012  # pydantic copies defaults
    """Silver columns to cluster rows by: liquid clustering on Delta, the sort order on Iceberg."""
    rules: list[Rule] = []  # noqa: RUF012  # pydantic copies defaults
    """Rules that every change must satisfy, evaluated in order before changes are folded, and rules that the table must
    satisfy."""


class TableGroup(Section):
    """Tables whose transactions are quarantined as a whole."""

    name: Name
    """Name of the group in messages."""
    tables: Annotated[list[Text], Field(min_length=2)]
    """Source tables, `schema.table`, of kind `current` or `history` and with a key; a table can be in one group
    only."""
    hold: Literal["transaction"]
    """What is held if a rule with `on_fail: quarantine` fails: the whole transaction in these tables, and every later
    one that touches one of its keys."""


class Cuts(Section):
    """Which cuts stay readable, whatever maintenance removes; `cdc-lake cuts pin` adds named cuts."""

    pin_every: Annotated[Milliseconds, Field(ge=60_000)] | None = None
    """Interval at which cuts are pinned automatically, for example `1 h`; by default none are."""
    keep: Annotated[Milliseconds, Field(ge=60_000)] = 604_800_000
    """How long an automatically pinned cut stays readable."""


class SilverMaintenance(Section):
    """Maintenance of silver tables by `cdc-lake maintain`."""

    keep_versions: Annotated[Milliseconds, Field(ge=86_400_000)] = 604_800_000
    """How long old versions of a table that no pinned cut needs stay readable; at least `1 d`."""


class Silver(Section):
    """The silver tables. Every captured table gets one; `tables` lists those with settings of their own."""

    defaults: TableDefaults = TableDefaults()
    """Defaults for all tables."""
    tables: list[SilverTable] = []  # noqa: RUF012  # pydantic copies defaults
    """Tables with settings of their own."""
    groups: list[TableGroup] = []  # noqa: RUF012  # pydantic copies defaults
    """Groups of tables whose transactions are quarantined as a whole."""
    cuts: Cuts = Cuts()
    """Which cuts stay readable."""
    maintenance: SilverMaintenance = SilverMaintenance()
    """Maintenance of the tables."""


class Apply(Section):
    """The loop from bronze to silver."""

    span_rows: Count = 500_000
    """Number of changes after which a span is closed, at a transaction boundary; on a cluster, by default, for each two
    cores, up to eight times as many."""
    span_bytes: Bytes = 128 << 20
    """Bytes of changes, as received, after which a span is closed, at a transaction boundary; on a cluster as for
    `span_rows`."""
    merge_on_read: Literal["auto", "never"] = "auto"
    """Whether changes to a large silver table mark rows as deleted (deletion vectors on Delta, position deletes on
    Iceberg) instead of rewriting files. `never`: for readers that do not support such marks; a table keeps those it
    has."""
    idle: Milliseconds = 1_000
    """How often to poll bronze when nothing wakes the loop."""
    parallelism: Annotated[int, Field(ge=1, le=64, strict=True)] = 4
    """Number of tables merged in parallel."""
    other_writers: Literal["stop", "warn"] = "stop"
    """How to handle a silver table whose rows another writer changed: `stop` the table, or `warn` and continue."""
    driver_memory: Bytes = 2 << 30
    """Heap of the Spark driver if cdc_lake starts Spark itself."""


def is_local(master: str) -> bool:
    """Whether a Spark with this `spark.master` runs its tasks in its own process."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


class Spark(Section):
    """The Spark that applies changes to silver."""

    master: Text | None = None
    """Cluster that runs the tasks: `spark://host:7077`, `yarn`, `k8s://https://…`; by default, the cores of this
    machine. The lake must be in an object store. With `spark-submit`, its `--master` counts."""
    packages: list[Text] | None = None
    """Maven coordinates of the JAR files that Spark loads; by default, those that the pipeline needs. `[]`: none,
    because the image of driver and executors contains them."""
    python_on_executors: Annotated[bool, Strict()] = False
    """The executors have Python with cdc-lake: `compare` then hashes large silver tables there."""
    conf: dict[str, SecretStr] = {}  # noqa: RUF012  # pydantic copies defaults
    """Additional settings of Spark, for example `spark.executor.memory: 8g`; their values are never shown."""


class Pipeline(Section):
    """A pipeline file: one source slot, its bronze table, its silver tables."""

    version: Literal[1]
    """Version of this file format."""
    pipeline: Name
    """Name of the pipeline; unique in a lake."""
    source: Source
    """Database that changes are read from."""
    snapshot: Snapshot = Snapshot()
    """Initial snapshot."""
    lake: Lake = Lake()
    """Where the tables are stored."""
    bronze: Bronze = Bronze()
    """Transactions as received."""
    silver: Silver = Silver()
    """Silver tables."""
    apply: Apply = Apply()
    """From bronze to silver."""
    spark: Spark = Spark()
    """The Spark that applies changes to silver."""
    quality: Quality = Quality()
    """When whole silver tables are checked, and what that holds back."""
    observe: Observe = Observe()
    """What a run exposes to monitoring."""
