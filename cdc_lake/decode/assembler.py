"""From messages to whole transactions, without decoding a single value.

Changes stay the bytes the server sent until a batch is closed; only boundaries and layouts are read here. What leaves
has seen its COMMIT, so an aborted or torn transaction leaves no trace. This is the hot path of the receiver: a change
costs two slices, a look-up and three appends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cdc_lake.decode.pgoutput import parse
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.records import (
    Begin,
    Commit,
    LogicalMessage,
    OriginMessage,
    RelationMessage,
    TruncateMessage,
    TypeMessage,
)
from cdc_lake.errors import DecodeError, MalformedMessage, OutOfSequence, UnknownRelation, UnknownType
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Column, Relation, TableName
from cdc_lake.model.transaction import Boundaries


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What relation messages leave out: primary key names in key order, and type names by type OID."""

    primary_key: tuple[str, ...]
    type_names: Mapping[int, str]


Catalog: TypeAlias = Callable[[int, TableName], TableFacts] | Mapping[TableName, TableFacts]
"""Where facts come from: a function of (table OID, name), or a mapping by name. Asked at each relation message, by
the thread that feeds."""

_ROW_CHANGES: Final = frozenset(b"IUD")


@dataclass(slots=True)
class _Open:
    """The transaction whose COMMIT has not come yet."""

    begin: Begin
    origin: str | None = None
    truncated: dict[int, tuple[Relation, ...]] = field(default_factory=dict)


class Assembler:
    """Takes the messages of one pgoutput connection in order, gives transactions back as they commit.

    After a DecodeError, or when the connection is lost, `reset` before feeding again: the server then starts over
    with whole transactions and announces every relation anew. `outside_messages` counts non-transactional logical
    messages: they belong to no transaction, hence to no position, and are dropped deliberately.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.outside_messages = 0
        self._known: dict[TableName, Relation] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the open transaction and what this connection announced."""
        self._relations: dict[bytes, Relation] = {}
        self._types: dict[int, str] = {}
        self._open: _Open | None = None
        self._start()

    def _start(self) -> None:
        self._frames: list[bytes] = []
        self._lsns: list[int] = []
        self._layouts: list[Relation | None] = []
        self._bytes = 0

    @property
    def in_transaction(self) -> bool:
        """True between a BEGIN and its COMMIT."""
        return self._open is not None

    @property
    def open_csn(self) -> None:
        """PostgreSQL has no CSNs."""
        return

    @property
    def open_bytes(self) -> int:
        """Bytes of changes held for the open transaction."""
        return self._bytes

    def feed(self, payload: bytes, lsn: int) -> tuple[RawTransaction, ...]:
        """Take one message and the WAL position it came with; the transaction it completes, where it completes one.

        Transactions without changes come out too. Raises DecodeError, whose `where` names the position.
        """
        relation = self._relations.get(payload[1:5])  # a key of four bytes: where it is found, payload[0] exists
        if relation is not None and payload[0] in _ROW_CHANGES and self._open is not None:
            self._frames.append(payload)
            self._lsns.append(lsn)
            self._layouts.append(relation)
            self._bytes += len(payload)
            return ()
        try:
            return self._feed(payload, lsn)
        except DecodeError as error:
            error.where = error.where or f"the message at {Lsn(lsn)}"
            raise

    def _feed(self, payload: bytes, lsn: int) -> tuple[RawTransaction, ...]:
        """Everything but a change of a known relation in an open transaction."""
        match parse(payload):
            case Begin() as begin:
                if self._open is not None:
                    raise OutOfSequence("a BEGIN inside a transaction", offset=0)
                self._open = _Open(begin)
            case Commit() as commit:
                return (self._commit(commit),)
            case OriginMessage(name=name):
                self._transaction("an origin").origin = name
            case RelationMessage() as announced:
                self._announce(announced)
            case TypeMessage(oid=oid, schema=schema, name=name):
                self._types[oid] = name if schema == "pg_catalog" else f"{schema}.{name}"
            case LogicalMessage(transactional=False):
                self.outside_messages += 1
            case LogicalMessage():
                self._transaction("a message")
                self._keep(payload, lsn, None)
            case TruncateMessage(oids=oids):
                self._truncate(payload, lsn, oids)
            case change:
                self._transaction("a change")
                raise UnknownRelation(f"a change of table OID {change.oid}, which was not announced", offset=1)
        return ()

    def _transaction(self, what: str) -> _Open:
        if self._open is None:
            raise OutOfSequence(f"{what} outside a transaction", offset=0)
        return self._open

    def _keep(self, payload: bytes, lsn: int, relation: Relation | None) -> None:
        self._frames.append(payload)
        self._lsns.append(lsn)
        self._layouts.append(relation)
        self._bytes += len(payload)

    def _truncate(self, payload: bytes, lsn: int, oids: tuple[int, ...]) -> None:
        open_ = self._transaction("a truncate")
        tables = []
        for at, oid in enumerate(oids):
            if (relation := self._relations.get(oid.to_bytes(4, "big"))) is None:
                raise UnknownRelation(f"a truncate of table OID {oid}, which was not announced", offset=6 + 4 * at)
            tables.append(relation)
        open_.truncated[len(self._frames)] = tuple(tables)
        self._keep(payload, lsn, tables[0])

    def _commit(self, commit: Commit) -> RawTransaction:
        open_ = self._transaction("a COMMIT")
        begin = open_.begin
        if begin.final_lsn != commit.commit_lsn:
            announced, came = Lsn(begin.final_lsn), Lsn(commit.commit_lsn)
            raise MalformedMessage(f"a COMMIT at {came} for a BEGIN that announced {announced}", offset=2)
        if commit.end_lsn < commit.commit_lsn:
            raise MalformedMessage("a commit record that ends before it starts", offset=10)
        raw = RawTransaction(
            bounds=Boundaries(
                position=commit.end_lsn,
                confirm=commit.end_lsn,
                commit_lsn=commit.commit_lsn,
                xid=begin.xid,
                commit_ts=commit.commit_ts,
                origin=open_.origin,
            ),
            frames=self._frames,
            lsns=self._lsns,
            layouts=self._layouts,
            truncated=open_.truncated,
            size=self._bytes,
        )
        self._open = None
        self._start()
        return raw

    def _announce(self, message: RelationMessage) -> None:
        facts = self._facts(message)
        relation = Relation(
            table=message.table,
            columns=tuple(
                Column(c.name, self._type_name(facts, c.type_oid, c.name), c.type_oid, c.modifier, c.key)
                for c in message.columns
            ),
            identity=message.identity,
            primary_key=facts.primary_key,
        )
        # the same layout announced again keeps its object, and with it the cached hash
        if self._known.get(message.table) == relation:
            relation = self._known[message.table]
        self._known[message.table] = relation
        self._relations[message.oid.to_bytes(4, "big")] = relation

    def _facts(self, message: RelationMessage) -> TableFacts:
        if callable(self._catalog):
            return self._catalog(message.oid, message.table)
        if (facts := self._catalog.get(message.table)) is None:
            raise UnknownRelation(f"the catalog has no facts of {message.table}", offset=1)
        return facts

    def _type_name(self, facts: TableFacts, oid: int, column: str) -> str:
        # the catalog's spelling first: it is the one that casts are chosen by
        name = facts.type_names.get(oid) or self._types.get(oid)
        if name is None:
            raise UnknownType(f"column `{column}` is of type OID {oid}, whose name is not known")
        return name
