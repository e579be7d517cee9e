"""The section `source`: a PostgreSQL, QHB or GaussDB-family server, and the protocol versions that each supports.

Rules across its fields are in `validation`. The versions of pgoutput's protocol are documented in PostgreSQL's manual,
"Logical Streaming Replication Parameters": version 2 streams in-progress transactions, version 3 adds two-phase commit,
version 4 parallel apply. QHB is based on PostgreSQL; the tables at the end list the protocol version of each release.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field, SecretStr, Strict, model_validator

from cdc_lake.config.fields import MILLISECONDS, Bytes, Count, Milliseconds, Port, Release, Section, Text
from cdc_lake.config.gaussdb_options import OPTIONS, Mode, as_boolean, as_number, decoding_schema, options_are_known


class WalBudget(Section):
    """How much WAL the server may keep for the slot, and how the receiver reacts; at least one limit is required."""

    max_bytes: Bytes | None = None
    """Maximum WAL kept for the slot, for example `50 GiB`; set it below the server's `max_slot_wal_keep_size`."""
    max_age: Annotated[int, MILLISECONDS, Field(ge=1000, examples=["2 h"])] | None = None
    """Maximum age of WAL that is not in bronze yet."""
    on_exceeded: Literal["alert", "bronze_only", "drop_slot"] = "bronze_only"
    """How far the receiver goes. `alert`: it only reports. `bronze_only`: before the limit, it also makes batches
    smaller, then pauses apply. `drop_slot`: it does all of this, and drops the slot if the budget stays exceeded: the
    stream ends, the server keeps running."""

    @model_validator(mode="after")
    def _require_limit(self) -> Self:
        if self.max_bytes is None and self.max_age is None:
            raise ValueError("a budget needs `max_bytes` or `max_age`")
        return self


class Tls(Section):
    """Encryption of the connections to the source."""

    mode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] = "prefer"
    """libpq's sslmode of the same name."""
    root_cert: Path | None = None
    """File of trusted certificate authorities, relative to the project."""
    cert: Path | None = None
    """Client certificate, relative to the project."""
    key: Path | None = None
    """Private key of the client certificate, relative to the project."""


class PostgresTls(Tls):
    """Encryption of the connections to a PostgreSQL."""

    channel_binding: Literal["disable", "prefer", "require"] = "prefer"
    """Whether SCRAM authentication is bound to the encrypted connection: libpq's setting of this name."""


class Slot(Section):
    """The logical replication slot this pipeline owns."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,63}$")] | None = None
    """Slot name on the server; the pipeline's name by default."""
    plugin: Literal["pgoutput", "test_decoding"] = "pgoutput"
    """Output plugin of the slot; use `test_decoding` only if you must: it supports no publication and sends every
    table."""
    failover: Annotated[bool, Strict()] = False
    """Synchronize the slot to standbys, so that the stream continues after a failover (PostgreSQL 17 and later)."""


class Polling(Section):
    """How to fetch changes by SQL functions, with `mode: polling`."""

    interval: Milliseconds = 1_000
    """How often to poll the server while it has no new changes."""
    max_changes: Count = 10_000
    """Rows after which one response ends, at the end of a transaction."""


Streaming: TypeAlias = Literal["off", "on", "parallel"]


class Pgoutput(Section):
    """Options of the output plugin pgoutput, under the server's own names; test_decoding has only `two_phase`."""

    proto_version: Annotated[int, Field(ge=1, le=4, strict=True)] | None = None
    """Version of its protocol; by default the highest that the server supports."""
    streaming: Streaming | None = None
    """Whether to stream large in-progress transactions; by default `on` if the protocol supports it (version 2)."""
    binary: Annotated[bool, Strict()] = False
    """Send values in binary format, which is not supported for all types (DEC325)."""
    messages: Annotated[bool, Strict()] = False
    """Store logical messages (`pg_logical_emit_message`) as rows of bronze."""
    origin: Literal["any", "none"] = "any"
    """`none`: only changes made on this server, not those replicated to it (PostgreSQL 16 and later)."""
    two_phase: Annotated[bool, Strict()] = False
    """Receive prepared transactions at PREPARE and keep them until COMMIT PREPARED (PostgreSQL 15 and later; with
    test_decoding 14 and later, set from the first run on)."""


POSTGRES_TYPES = ("postgres", "qhb")
"""Values of `type` for which `PostgresSource` is the model."""


class PostgresSource(Section):
    """The PostgreSQL or QHB database that changes are read from."""

    type: Literal["postgres", "qhb"]
    """Kind of server."""
    version: Annotated[str, Field(pattern=r"^1\.[0-9]{1,2}(\.[0-9]{1,2})?$")] | None = None
    """Release of a QHB that does not report its own, in quotes (`"1.5.3"`)."""
    host: Text | None = None
    """Host name, IP address, or directory of a Unix-domain socket; use `hosts` for several servers."""
    hosts: Annotated[list[Text], Field(min_length=1)] | None = None
    """Servers of one cluster, as `name` or `name:port`; the receiver finds the primary among them."""
    port: Port = 5432
    """Port of every host that does not specify its own."""
    database: Text
    """Database that contains the tables."""
    user: Text
    """Role with the REPLICATION attribute and SELECT on the tables."""
    password: SecretStr | None = None
    """Password of the role, as a reference (`${env:NAME}`, `${file:path}`); libpq's own rules apply if it is
    omitted."""
    service: Text | None = None
    """Service in libpq's connection service file, for parameters that are not given here, such as a password."""
    tls: PostgresTls = PostgresTls()
    """TLS settings."""
    slot: Slot = Slot()
    """Replication slot."""
    mode: Literal["stream", "polling"] = "stream"
    """A replication stream, or SQL functions if replication connections are not allowed."""
    polling: Polling = Polling()
    """How to fetch changes with `mode: polling`."""
    decoding: Pgoutput = Pgoutput()
    """Options of the output plugin."""
    publication: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] | None = None
    """Publication that the slot reads, created for `tables` if it does not exist; by default it has the slot's name."""
    tables: Annotated[list[Text], Field(min_length=1)]
    """Tables to capture, as `schema.table`; `*` and `?` match within a part, a leading `!` excludes tables."""
    row_filters: dict[Text, Text] = {}  # noqa: RUF012  # pydantic copies defaults
    """Row filters: SQL conditions by table (`schema.table`); only matching rows are copied and sent (PostgreSQL 15 and
    later)."""
    encoding_errors: Literal["stop", "hex"] = "stop"
    """How to handle text that is not valid UTF-8 (a database in SQL_ASCII): `stop` with an error, or store its bytes as
    `hex` digits."""
    hex_columns: list[Text] = []  # noqa: RUF012  # pydantic copies defaults
    """Columns, as `schema.table.column`, in which alone invalid text is stored as hexadecimal digits; `*` and `?` match
    within a part."""
    wal_budget: WalBudget | None = None
    """How much WAL the server may keep for the slot; monitored while a receiver runs."""
    heartbeat: Annotated[int, MILLISECONDS, Field(ge=1000, examples=["1 min"])] | None = None
    """How often a continuously running receiver writes a small logical message to the WAL of the source. It comes back
    through the slot, which shows that an idle source is still being read. By default nothing is written."""
    connect_timeout: Milliseconds = 10_000
    """Timeout of one connection attempt."""
    status_interval: Milliseconds = 10_000
    """How often the acknowledged position is reported to the server if it does not ask for it."""
    silence_timeout: Annotated[int, MILLISECONDS, Field(ge=1000, examples=["1 min"])] = 60_000
    """How long the server may send nothing before the receiver reconnects, but at least one and a half times its
    `wal_sender_timeout`; after half of this time the receiver asks for a keepalive. A host that does not even respond
    to TCP for this long is given up in any case, even while a statement runs."""

    @property
    def streams(self) -> bool:
        """Whether the slot is read, created and dropped through replication connections; otherwise by SQL functions."""
        return self.mode == "stream"

    @property
    def place(self) -> str:
        """Hosts, ports and database of the source, as displayed."""
        return f"{','.join(f'{host}:{port}' for host, port in self.addresses)}/{self.database}"

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of every server that may be the primary. Raises ValueError if a host is invalid."""
        if self.host is not None:
            return ((self.host, self.port),)
        return tuple((host, port or self.port) for host, port in map(host_and_port, self.hosts or ()))


@dataclass(frozen=True, slots=True)
class Address:
    """One server: its host, its port for SQL, and the one that accepts replication connections (the HA port)."""

    host: str
    port: int
    replication_port: int


class FamilySlot(Section):
    """The logical replication slot this pipeline owns, on a server of the GaussDB family."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_][a-z0-9_?.-]{0,62}$")] | None = None
    """Slot name on the server; the pipeline's name by default."""
    plugin: Literal[
        "mppdb_decoding",
        "test_decoding",
        "parallel_binary_decoding",
        "parallel_json_decoding",
        "parallel_text_decoding",
    ] = "mppdb_decoding"
    """Output plugin of the slot; parallel decoding uses formats of its own with any of them. `parallel_…`: only
    GaussDB."""
    output_order: Literal["lsn", "csn"] | None = None
    """Order of a slot of GaussDB, fixed when it is created: by commit LSN, or by CSN (always, through a
    coordinator)."""


class CsnGap(Section):
    """When a missing CSN counts as a lost transaction, in a stream ordered by CSN."""

    bound: Milliseconds = 60_000
    """How long after its turn a CSN may still arrive; a transaction has arrived once its BEGIN is received."""
    policy: Literal["stop", "record"] = "stop"
    """`stop` with an error that names the CSN, or `record` the gap, which stays open, and continue; a late arrival is
    then an error."""


class FamilySource(Section):
    """The GaussDB, openGauss or MogDB database that changes are read from."""

    model_config = ConfigDict(json_schema_extra=options_are_known())

    type: Literal["gaussdb", "opengauss", "mogdb"]
    """Kind of server."""
    version: Annotated[str, Field(pattern=r"^[0-9]{1,4}(\.[0-9A-Za-z-]{1,12}){0,4}$")] | None = None
    """Release of the server, in quotes (`"6.0.2"`, `"505.2"`), to check rules about releases without a connection."""
    node: Literal["single", "coordinator", "data_node"] | None = None
    """Node to connect to: `single` if the server is not distributed, otherwise a `coordinator` or a `data_node` of a
    distributed GaussDB. A coordinator has slots in CSN order only, which `mode: polling` cannot read."""
    host: Text | None = None
    """Host name or IP address; use `hosts` for several servers."""
    hosts: Annotated[list[Text], Field(min_length=1)] | None = None
    """Servers of one cluster, as `name` or `name:port`; the receiver finds the primary among them."""
    port: Port | None = None
    """SQL port of every host that does not specify its own."""
    replication_port: Port | None = None
    """Port for replication connections (HA port) of every host; by default the host's SQL port + 1."""
    database: Text
    """Database that contains the tables."""
    user: Text
    """User with the REPLICATION attribute (or membership in gs_role_replication) and SELECT on the tables."""
    password: SecretStr | None = None
    """Password of the user, as a reference (`${env:NAME}`, `${file:path}`)."""
    tls: Tls = Tls()
    """TLS settings."""
    slot: FamilySlot = FamilySlot()
    """Replication slot."""
    order: Literal["auto", "csn", "lsn"] = "auto"
    """Order of the stream, fixed at its start: by `csn`, by commit `lsn`, or by CSN if CSNs are dense (`auto`)."""
    mode: Literal["stream", "polling"] = "stream"
    """A replication stream, or SQL functions if replication connections are not allowed (serial decoding; not through a
    coordinator)."""
    decoding: Annotated[
        dict[str, Annotated[bool, Strict()] | Annotated[int, Strict()] | str],
        Field(json_schema_extra=decoding_schema()),
    ] = {}  # noqa: RUF012  # pydantic copies defaults
    """Options of logical decoding, under the server's own names; the page of decoding options lists all of them."""
    allow_unknown_options: Annotated[bool, Strict()] = False
    """Send options in `decoding` that cdc_lake does not know to the server as they are."""
    tables: Annotated[list[Text], Field(min_length=1)]
    """Tables to capture, as `schema.table`; `*` and `?` match within a part, a leading `!` excludes tables."""
    encoding_errors: Literal["stop", "hex"] = "stop"
    """How to handle text that is not valid in the database encoding: `stop` with an error, or store its bytes as `hex`
    digits."""
    hex_columns: list[Text] = []  # noqa: RUF012  # pydantic copies defaults
    """Columns, as `schema.table.column`, in which alone invalid text is stored as hexadecimal digits; `*` and `?` match
    within a part."""
    wal_budget: WalBudget | None = None
    """How much WAL the server may keep for the slot; monitored while a receiver runs."""
    csn_gap: CsnGap = CsnGap()
    """How to handle a missing CSN."""
    polling: Polling = Polling()
    """How to fetch changes with `mode: polling`."""
    connect_timeout: Milliseconds = 10_000
    """Timeout of one connection attempt."""
    status_interval: Milliseconds = 10_000
    """How often the acknowledged position is reported to the server if it does not ask for it."""
    silence_timeout: Annotated[int, MILLISECONDS, Field(ge=1000, examples=["1 min"])] = 60_000
    """How long the server may send nothing before the receiver reconnects; after half of this time the receiver asks
    for a keepalive. A host that does not even respond to TCP for this long is given up in any case, even while a
    statement runs."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Every server that may be the primary, in the order of the file. Raises ValueError if a host is invalid."""
        addresses = []
        for host, own in [(self.host, None)] if self.host else map(host_and_port, self.hosts or ()):
            if (port := own or self.port) is None:
                raise ValueError(f"no port for host {host}")
            addresses.append(Address(host, port, self.replication_port or port + 1))
        return tuple(addresses)

    @property
    def place(self) -> str:
        """Hosts, ports and database of the source, as displayed."""
        return f"{','.join(f'{a.host}:{a.port}' for a in self.addresses)}/{self.database}"

    @property
    def decoding_mode(self) -> Mode:
        """How the slot is read."""
        if self.mode == "polling":
            return Mode.SQL
        name = "parallel-decode-num"
        return Mode.SERIAL if as_number(self.decoding.get(name, OPTIONS[name].sent_default)) == 1 else Mode.PARALLEL

    @property
    def skips_generated(self) -> bool:
        """Whether the server omits generated columns from new rows."""
        return as_boolean(self.decoding.get("skip-generated-columns", False)) is True

    @property
    def on_standby(self) -> bool:
        """Whether the stream is decoded on a standby; everything else uses the primary."""
        return as_boolean(self.decoding.get("standby-connection", False)) is True

    @property
    def slot_order(self) -> Literal["lsn", "csn"]:
        """The order in which the slot itself sends transactions."""
        return self.slot.output_order or ("csn" if self.node == "coordinator" else "lsn")

    @property
    def reply_interval(self) -> int:
        """Milliseconds between replies in a stream: `status_interval`, or a third of `sender-timeout` if shorter."""
        timeout = as_number(self.decoding.get("sender-timeout", 0)) or 0
        return min(self.status_interval, timeout // 3) if timeout > 0 else self.status_interval


def host_and_port(text: str) -> tuple[str, int | None]:
    """Parse `name`, `name:port` or `[address]:port`: the host, and its port or None. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):  # also an address of IPv6
        host, port = text, ""
    if host.startswith("[") != host.endswith("]") or not host.strip("[]"):
        raise ValueError("expected `name`, `name:port` or `[address]:port`")
    if colon and host != text and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError("the port is not a number from 1 to 65535")
    return host.strip("[]"), int(port) if port else None


Source: TypeAlias = Annotated[PostgresSource | FamilySource, Field(discriminator="type")]
"""All types of sources."""


STREAMS: Final = 2
TWO_PHASE: Final = 3
PARALLEL: Final = 4
ORIGINS: Final = 16
"""First PostgreSQL release that distinguishes origins."""

FIRST_WITH: Final = {STREAMS: 14, TWO_PHASE: 15, PARALLEL: 16}
"""First PostgreSQL release that supports a version."""


def newest_protocol(major: int) -> int:
    """The highest protocol version that a PostgreSQL release supports."""
    return max((version for version, first in FIRST_WITH.items() if major >= first), default=1)


OLDEST_QHB: Final = "1.5.0"
"""Oldest supported release."""
_PROTOCOLS: Final[tuple[tuple[Release, int], ...]] = (((1, 5, 3), 4), ((1, 5, 2), 3), ((1, 5, 0), 2))
"""First releases that support a version of pgoutput's protocol: QHB's manual (1.5.3), page of that protocol."""
_BUILT_ON: Final = 12
"""PostgreSQL release on which earlier releases are based."""


def protocol_of(release: Release) -> int:
    """The highest version of pgoutput's protocol that a QHB release supports."""
    return next((version for first, version in _PROTOCOLS if release >= first), 1)


def read_as(release: Release) -> int:
    """The major version of PostgreSQL as which a QHB release is treated: the first that supports its protocol."""
    return FIRST_WITH.get(protocol_of(release), _BUILT_ON)
