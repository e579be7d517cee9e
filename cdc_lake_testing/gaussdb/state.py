"""The state of a server, as its sessions and answers see it."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from cdc_lake.decode.encoding import Codec
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.batches import Encoded
from cdc_lake_testing.gaussdb.dialect import Dialect, Product, Version, dialect_of, version_text
from cdc_lake_testing.gaussdb.faults import HeartbeatForm
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.shape import View
from cdc_lake_testing.gaussdb.slots import Slot, SlotOrder, Slots
from cdc_lake_testing.gaussdb.sql import Exported

Node: TypeAlias = Literal["single", "coordinator", "data_node"]


@dataclass(slots=True)
class ServerState:
    """The server's facts. `settings` are what SHOW and current_setting answer, beside the ones derived here.

    `node`: what it is in a distributed GaussDB; changes of `replicated` tables are sent by a data node only to those
    who name its slice.

    `sender_timeout`, `keepalive_every` and `heartbeat_every` are in seconds, the first 0 = never. `batch_bytes` is the
    size a batch must exceed to be sent, `batch_seconds` how long one that does not waits in silence. `lingering`:
    seconds a slot stays active after its client was cut off. `wal_start`: where the log begins; a slot that needs
    more is lost. `dispatchers`: places for parallel streams. `csn_export`: there is a function that exports a
    snapshot with its CSN. `prepared`: transactions encoded beforehand, by index in the ledger. `recordings`: CopyData
    messages that the streams of a slot send as they are, before anything else.
    """

    ledger: Ledger
    version: Version = "6.0.2"
    product: Product = "openGauss"
    encoding: str = "UTF8"
    compatibility: str = "PG"
    system: str = "7216310248822070380"
    timeline: int = 1
    in_recovery: bool = False
    node: Node = "single"
    replicated: frozenset[TableName] = frozenset()
    csn_export: bool = True
    thread_pool: bool = False
    sender_timeout: float = 30.0
    keepalive_every: float = 1.0
    batch_bytes: int = 1 << 20
    batch_seconds: float = 1.0
    heartbeat_every: float = 1.0
    heartbeat_form: HeartbeatForm = field(default_factory=HeartbeatForm)
    lingering: float = 0.0
    wal_start: int = 0
    dispatchers: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(20))
    settings: dict[str, str] = field(default_factory=dict)
    slots: Slots = field(default_factory=Slots)
    started: str = field(default_factory=lambda: str(datetime.now(UTC)))
    recordings: dict[str, list[bytes]] = field(default_factory=dict)
    prepared: dict[View, dict[int, Encoded]] = field(default_factory=dict)

    @property
    def dialect(self) -> Dialect:
        """How this version prints."""
        return dialect_of(self.version, self.product)

    @property
    def version_text(self) -> str:
        """What `version()` answers."""
        return version_text(self.version, self.product)

    @property
    def codec(self) -> str:
        """The Python codec of the database's encoding; raises UnknownEncoding."""
        return Codec(self.encoding).python

    def create_slot(
        self, name: str, plugin: str, database: str, exported: Exported, order: SlotOrder = SlotOrder.LSN
    ) -> Slot:
        """Make a slot that sends what comes after the snapshot; raises SlotError."""
        point = exported.consistent_point
        confirmed = exported.csn - 1 if order is SlotOrder.CSN else point
        slot = Slot(name, plugin, database, point, confirmed, order)
        self.slots.create(slot)
        self.ledger.reach(point)
        return slot

    def database_oid(self, database: str) -> int:
        """A stable OID for a database of this name."""
        return 16384 + int.from_bytes(hashlib.sha256(database.encode()).digest()[:2], "big")

    def setting(self, name: str) -> str | None:
        """The value of a server setting, None for one nobody knows."""
        return self.all_settings().get(name.lower())

    def all_settings(self) -> dict[str, str]:
        """Every setting that is known, in SHOW's words."""
        return {
            "server_version": "9.2.4",
            "server_version_num": "90204",
            "server_encoding": self.encoding,
            "client_encoding": "UTF8",
            "wal_level": "logical",
            "enable_thread_pool": "on" if self.thread_pool else "off",
            "sql_compatibility": self.compatibility,
            "logical_sender_timeout": f"{round(self.sender_timeout)}s",
            "wal_sender_timeout": "6s",
            "wal_writer_delay": "200ms",
            "max_replication_slots": "8",
            "max_wal_senders": "16",
            "datestyle": "ISO, MDY",
            "intervalstyle": "postgres",
            "timezone": "UTC",
            "bytea_output": "hex",
            "extra_float_digits": "0",
            "standard_conforming_strings": "on",
            "transaction_isolation": "read committed",
            "integer_datetimes": "on",
            "enable_slot_log": "off",
            "max_process_memory": "12GB",
            "logical_decode_options_default": "",
            "undo_retention_time": "0",
            "password_encryption_type": "2",
            **self.settings,
        }
