"""Servers that send whole transactions: PostgreSQL in commit order, the GaussDB family with CSNs in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering
from cdc_lake.connectors.open_stream import CommitLsnOrdering
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Record, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.undecodable import GaussDbFormat
from cdc_lake.decode.pgoutput import columnar
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.undecodable import PgoutputFormat, StopAtUndecodable
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Transaction, Update, Value
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, encode_payload
from cdc_lake_testing.messages import catalog_of, encode_transaction, oid_of, relation
from cdc_lake_testing.simulation.server import Opened
from cdc_lake_testing.simulation.table import Store
from cdc_lake_testing.simulation.world import World

BOUND = 60.0
"""Seconds a CSN may be late."""
DISTANCE = 9
"""How far CSNs are from the order of commit LSNs at most, as measured on running servers."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction in the stream: its position, where it may be confirmed, and its payloads with their LSNs; before
    its frame number `n` the tables `needs[n]` are announced.
    """

    position: int
    confirm: int
    payloads: Sequence[tuple[int, bytes]]
    needs: Sequence[Relation | None]


class InOrder:
    """What one connection is sent of whole transactions, in turn (`simulation.server.Sending`)."""

    def __init__(self, sent: Sequence[Sent], after: int, *, keepalives: bool) -> None:
        self._sent = sent
        self._after = after
        self._keepalives = keepalives
        self.reached = 0

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """See Sending."""
        told: set[TableName] = set()
        for sent in self._sent:
            if sent.confirm <= self._after:
                continue
            for (lsn, payload), needs in zip(sent.payloads, sent.needs, strict=True):
                if needs is not None and needs.table not in told:
                    told.add(needs.table)
                    yield lsn, relation(needs)
                yield lsn, payload
            self.reached = sent.confirm if self._keepalives else 0


class Postgres:
    """pgoutput: position and confirmed position are the end of the commit record (`simulation.server.Kind`)."""

    domain = OrderDomain.LSN
    fragile: bytes | None = None

    def __init__(self, transactions: Sequence[Transaction], relations: Sequence[Relation]) -> None:
        self._catalog = catalog_of(*relations)
        self._by_oid = {oid_of(one.table).to_bytes(4, "big"): one for one in relations}
        self._log = [self._sent(one) for one in transactions]
        self.expected = transactions
        self.landmarks = [(one.bounds.position, one.bounds.position) for one in transactions if one.changes]
        self.goal = transactions[-1].bounds.position
        self.start = (0, 0)

    def _sent(self, one: Transaction) -> Sent:
        payloads = encode_transaction(one, {relation.table: relation for relation in self._by_oid.values()})
        needs = [self._by_oid[_table_of(payload)] if payload[:1] in _OF_TABLES else None for _, payload in payloads]
        return Sent(one.bounds.position, one.bounds.position, payloads, needs)

    def open(self, state: StreamCheckpoint, after: int, world: World, store: Store) -> Opened:  # noqa: ARG002 - of the port
        """See Kind."""
        tabulate = StopAtUndecodable(PgoutputFormat(columnar.tabulate))
        return Opened(
            InOrder(self._log, after, keepalives=True), Assembler(self._catalog), CommitLsnOrdering(), tabulate
        )


_OF_TABLES = (b"I", b"U", b"D", b"T")


def _table_of(payload: bytes) -> bytes:
    """The OID in a change, or in a truncate of one table."""
    return payload[-4:] if payload[:1] == b"T" else payload[1:5]


class Gauss:
    """Style b: CSNs are dense and come out of order; every value is sent, and the key with every update."""

    domain = OrderDomain.CSN
    fragile: bytes | None = None

    def __init__(self, transactions: Sequence[Transaction], relations: Sequence[Relation], world: World) -> None:
        self._facts = {one.table: _facts(one) for one in relations}
        first = world.dice.choice((20, 1 << 40))
        csns = range(first + 1, first + 1 + len(transactions))
        numbered = [_in_family(one, csn) for csn, one in zip(csns, transactions, strict=True)]
        order = sorted(
            range(len(numbered)), key=lambda at: at + world.dice.choice((0, 0, 0, world.dice.random() * DISTANCE))
        )
        self._log, self.landmarks = list[Sent](), list[tuple[int, int]]()
        lsn = 1_000
        for one in (numbered[at] for at in order):
            lsn += world.dice.randint(10, 500)
            position = one.bounds.position
            self._log.append(Sent(position, lsn - 1, [(lsn, _payload(one, lsn))], [None]))
            if one.changes:
                self.landmarks.append((lsn - 1, position))
        self.expected = numbered
        self.goal = csns[-1]
        self.start = (first, 900)

    def open(self, state: StreamCheckpoint, after: int, world: World, store: Store) -> Opened:  # noqa: ARG002 - of the port
        """See Kind."""
        return Opened(
            InOrder(self._log, after, keepalives=False),
            GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN),
            CsnOrdering(state.upto, state.confirm, bound=BOUND, policy="stop", clock=world.clock, empty=state.empty),
            StopAtUndecodable(GaussDbFormat(RelationResolver(self._facts.get), "mppdb_decoding")),
        )


def _facts(relation: Relation) -> GaussDbTableMetadata:
    columns = tuple(GaussDbColumn(c.name, c.type_name, c.type_oid) for c in relation.columns)
    logged = tuple(c.name for c in relation.columns if c.key)
    return GaussDbTableMetadata(columns, relation.primary_key, relation.identity, identity_columns=logged)


def _in_family(one: Transaction, csn: int) -> Transaction:
    bounds = replace(one.bounds, position=csn, csn=csn)
    return Transaction(bounds, one.changes)


def _payload(one: Transaction, lsn: int) -> bytes:
    found: list[Record] = [Begin(lsn - 5, one.bounds.csn, lsn - 9, 7)]
    found += [_row(change, lsn) for change in one.changes]
    return encode_payload([*found, Commit(lsn, None, 7)], Print(Style.BINARY), Framing(True, Ending.SIZE))


def _row(change: Change, lsn: int) -> Row:
    match change:
        case Insert(relation=relation, new=new):
            return Row(Operation.INSERT, relation.table, _fields(relation, new), None, lsn)
        case Update(relation=relation, new=new, old=old):
            return Row(Operation.UPDATE, relation.table, _fields(relation, new), _key(relation, old), lsn)
        case Delete(relation=relation, old=old):
            return Row(Operation.DELETE, relation.table, None, _key(relation, old), lsn)
    raise NotImplementedError(type(change).__name__)


def _fields(relation: Relation, values: Sequence[Value]) -> tuple[Field, ...]:
    assert UNCHANGED not in values
    return tuple(Field(c.name, value, type_oid=c.type_oid) for c, value in zip(relation.columns, values, strict=True))


def _key(relation: Relation, old: Sequence[Value] | None) -> tuple[Field, ...] | None:
    return (
        None
        if old is None
        else tuple(field for field, c in zip(_fields(relation, old), relation.columns, strict=True) if c.key)
    )
