"""Style b of the GaussDB family: both decoders agree on any stream, and no bytes fail otherwise than by a DecodeError."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import columnar, framing, row_templates
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction, tabulate_plain
from cdc_lake.decode.gaussdb.binary import record_of, records_binary
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata, Storage
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Record, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, binary_record, encode_payload
from tests.damage import damaged
from tests.decoded_columns import assert_same
from tests.seeds import one_seed
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEED = one_seed()
ROWS = 60_000 if BUDGET > 1 else 25_000


def some(by_default: int, by_budget: int) -> range:
    """Seeds: a few by default, as every change is tried with them, and with a greater budget so many times it."""
    return range(SEED, SEED + (by_default if BUDGET == 1 else by_budget * BUDGET))


BINARY = Print(Style.BINARY)
CODEC = Codec()


def facts(*names: str, key: Sequence[str] = (), **more: object) -> GaussDbTableMetadata:
    columns = tuple(GaussDbColumn(name, "text", 25) for name in names)
    return GaussDbTableMetadata(columns, tuple(key), identity_columns=tuple(key), **more)  # type: ignore[arg-type]


CATALOG = {
    TableName("public", "a"): facts("id", "note", key=("id",)),
    TableName("public", "wide"): facts(*(f"c{n}" for n in range(6)), key=("c1", "c4")),
    TableName('S"', "fullest table of all"): facts(
        'k"', "v", "a name of 7", "a_column_with_a_long_name_x", identity=ReplicaIdentity.FULL
    ),
    TableName("u", "u"): facts("x", "fifteen_letters", storage=Storage.USTORE),
    TableName("public", "ü"): facts("id", "ö"),
}
UNKNOWN = TableName("not", "there")
MORE = TableName("public", "a")
NAMES = {table: [column.name for column in one.columns] for table, one in CATALOG.items()} | {UNKNOWN: ["one", "two"]}
VALUES = (None, "", "a", "é", "日本", "𝄞", "x" * 40, "0", "t", "n")


def layouts() -> RelationResolver:
    return RelationResolver(CATALOG.get)


def random_fields(rng: random.Random, names: Sequence[str]) -> tuple[Field, ...]:
    return tuple(Field(name, rng.choice(VALUES), type_oid=25) for name in names)


def random_old(rng: random.Random, table: TableName, names: Sequence[str]) -> tuple[Field, ...] | None:
    """What the server sends of an old row; 3.0.x leaves NULLs out."""
    known = CATALOG.get(table)
    logged = ["one"] if known is None else names if known.logs_full_rows else known.identity_columns
    if not logged:
        return None
    old = random_fields(rng, logged)
    return tuple(f for f in old if f.value is not None) or old if rng.random() < 0.3 else old


def random_row(rng: random.Random, *, altered: bool) -> Row:
    table = rng.choice(list(NAMES))
    names = NAMES[table]
    if altered and table == MORE and rng.random() < 0.5:
        names = [*names, "more"]
    pick = rng.randrange(10)
    if pick < 4:
        return Row(Operation.INSERT, table, random_fields(rng, names))
    if pick < 7:
        old = random_old(rng, table, names) if altered or table in CATALOG else None
        return Row(Operation.UPDATE, table, random_fields(rng, names), old)
    return Row(Operation.DELETE, table, None, random_old(rng, table, names))


class Pool:
    """Encoded rows of a seed, drawn from again and again, until others take their place."""

    def __init__(self, seed: int, size: int = 1500, *, altered: bool = False) -> None:
        self.rng = random.Random(seed)
        self.size, self.altered = size, altered
        self.cancels = {table: binary_record(Row(Operation.DELETE, table), "utf-8")[12:] for table in CATALOG}
        self.renew()

    def renew(self) -> None:
        """Other rows."""
        made = [random_row(self.rng, altered=self.altered) for _ in range(self.size)]
        self.rows = [
            row for row in made if row.operation is not Operation.DELETE or row.old or row.table not in CATALOG
        ]
        self.encoded = [(binary_record(row, "utf-8")[12:], row.operation, row.table) for row in self.rows]

    def transaction(self, position: int, size: int, *, upserts: bool = True) -> RecordTransaction:
        """A transaction of so many rows at least; with `upserts` some INSERTs are taken back."""
        records: list[bytes] = []
        inserts: Counter[TableName] = Counter()
        for data, operation, table in self.rng.choices(self.encoded, k=size):
            records.append(data)
            inserts[table] += operation is Operation.INSERT
            if upserts and table in CATALOG and inserts[table] and self.rng.random() < 0.01:
                records.append(self.cancels[table])
                inserts[table] -= 1
        lsns = list(range(position, position + len(records)))
        return RecordTransaction(Boundaries(position, position), Style.BINARY, records, lsns, sum(map(len, records)))


@pytest.fixture(autouse=True)
def columnar_from_the_first_row(monkeypatch):
    monkeypatch.setattr(columnar, "SMALL", 1)  # none at all is the plain decoder's
    monkeypatch.setattr(row_templates, "SOME", 1 << 30)


@pytest.mark.parametrize("seed", some(2, 5))
def test_the_columnar_decoder_equals_the_plain_one(seed, monkeypatch):
    """Rows of any size of transaction and their keyless deletes; no batch of these takes the way back."""
    print(f"seed {seed}")
    pool, rows = Pool(seed), 0
    plain, fast = layouts(), layouts()
    first = [pool.transaction(0, 5_000)]  # a DELETE of a table nobody knows has another layout until its first INSERT
    assert_same(tabulate(first, fast), tabulate_plain(first, plain))
    monkeypatch.setattr(columnar, "tabulate_plain", None)
    different: set[bytes] = set()
    while rows < ROWS:
        batch = []
        for nth in range(8):
            pool.renew()
            batch.append(pool.transaction(1_000_000 * nth, pool.rng.randrange(10_000)))
        different.update(record for raw in batch for record in raw.records)
        rows += sum(raw.count for raw in batch)
        assert_same(tabulate(batch, fast), tabulate_plain(batch, plain))
        assert fast.latest() == plain.latest()
    tally("R7", **{"rows": rows, "different rows": len(different)})


@pytest.mark.parametrize("seed", some(8, 20))
def test_layouts_that_change_in_between_are_the_same_in_both_decoders(seed, monkeypatch):
    print(f"seed {seed}")
    monkeypatch.setattr(columnar, "CHUNK_BYTES", random.Random(seed).choice([1, 300, 20_000]))
    pool = Pool(seed, 100, altered=True)
    plain, fast = layouts(), layouts()
    for _ in range(8):
        batch = [pool.transaction(1_000 * nth, pool.rng.randrange(30)) for nth in range(6)]
        assert_same(tabulate(batch, fast), tabulate_plain(batch, plain))
        assert fast.latest() == plain.latest()


def learning_row(rng: random.Random) -> Row:
    """A row of a table in which the catalog explains nothing: columns change their names, old rows bring any key."""
    columns = ("id", rng.choice(["note", "nite"]), *(["more"] if rng.random() < 0.3 else []))
    new = tuple(Field(name, "1", type_oid=25) for name in columns)
    match rng.randrange(8):
        case 0 | 1 | 2 | 3:
            return Row(Operation.INSERT, UNKNOWN, new)
        case 4 | 5 | 6:
            key = rng.choice([("id",), (columns[1],), columns])
            return Row(Operation.UPDATE, UNKNOWN, new, tuple(Field(name, "0", type_oid=25) for name in key))
        case _:
            return Row(Operation.DELETE, UNKNOWN, None, (Field("id", "0", type_oid=25),))


@pytest.mark.parametrize("seed", some(4, 10))
def test_what_no_catalog_explains_is_learned_row_by_row_in_both_decoders(seed):
    """Each seed 150 streams of a few rows: keys that no catalog tells are those of the row before, of whatever shape."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(150):
        plain, fast = layouts(), layouts()
        for _ in range(2):
            records = [binary_record(learning_row(rng), "utf-8")[12:] for _ in range(rng.randrange(1, 9))]
            batch = [RecordTransaction(Boundaries(9, 9), Style.BINARY, records, list(range(len(records))), 9)]
            assert_same(tabulate(batch, fast), tabulate_plain(batch, plain))
            assert fast.latest() == plain.latest()


TELLING = b'NOIUDPFTX"\x00\x01\x7f\x80\xc3\xff'


def outcome(decode, batch):
    known = layouts()
    try:
        return decode(batch, known), known.latest()
    except DecodeError as error:
        return type(error), str(error), error.offset, error.where, error.__cause__


@pytest.mark.parametrize("seed", some(2, 5))
def test_damaged_rows_give_the_same_result_or_the_same_error_in_both_decoders(seed):
    """Each seed 2,000 damaged rows, each between two that are whole."""
    print(f"seed {seed}")
    pool = Pool(seed, 200)
    rng, refused = pool.rng, 0
    for _ in range(200):
        raw = pool.transaction(5_000, 3, upserts=False)
        whole = list(raw.records)
        for _ in range(10):
            at = rng.randrange(len(whole))
            raw.records[:] = whole
            raw.records[at] = damaged(rng, whole[at], TELLING)
            plain, fast = outcome(tabulate_plain, [raw]), outcome(tabulate, [raw])
            if isinstance(plain[0], ChangeColumns) and isinstance(fast[0], ChangeColumns):
                assert_same(fast[0], plain[0])
                assert fast[1] == plain[1]
            else:
                refused += 1
                assert fast == plain, f"seed {seed}, record {raw.records[at].hex()}"
    assert 0 < refused < 2_000


def random_records(rng: random.Random, pool: Pool, most: int = 4) -> list[Record]:
    out: list[Record] = []
    for nth in range(1 + rng.randrange(3)):
        options = {"xid": rng.choice([None, 9]), "time": rng.choice([None, "2026-11-21 15:00:00+00"])}
        out.append(Begin(csn=nth, lsn=100, first_lsn=100, origin_id=rng.choice([None, 1]), **options))
        out += rng.choices(pool.rows, k=rng.randrange(most))
        out.append(Commit(lsn=200 + nth, **options))
    return out


def read(payload: bytes) -> list[Record] | DecodeError:
    try:
        return records_binary(payload, CODEC)
    except DecodeError as error:
        return error


def feed(assembler: GaussDbAssembler, payload: bytes) -> list[RecordTransaction] | DecodeError:
    """The transactions of a payload, if all of their rows can be read."""
    try:
        fed = list(assembler.feed(payload, 5))
        for raw in fed:
            for data in raw.records:
                record_of(data, CODEC)
    except DecodeError as error:
        return error
    return fed


@pytest.mark.parametrize("seed", some(1, 3))
def test_rows_found_in_runs_are_those_found_one_by_one(seed, monkeypatch):
    """Whole and damaged payloads, runs of two rows and more; values may end in what looks like a separator."""
    print(f"seed {seed}")
    pool = Pool(seed, 100)
    rng, in_runs = pool.rng, 0
    tricky = [
        Field("id", rng.choice(["P", "GBP", "xF"]), type_oid=25),
        Field("P", "P", type_oid=0x50),
        Field("I", "P", type_oid=25),
    ]
    pool.rows += [Row(Operation.INSERT, UNKNOWN, (*tricky,)), Row(Operation.DELETE, TableName("P", "P"))] * 3
    for nth in range(600):
        payload = encode_payload(
            random_records(rng, pool, 12), BINARY, Framing(True, rng.choice([Ending.SIZE, Ending.TIMER]))
        )
        for _ in range(nth % 3):
            payload = damaged(rng, payload, TELLING)
        results = []
        for least in (1 << 60, 0):
            monkeypatch.setattr(framing, "SMALL", least)
            monkeypatch.setattr(framing, "LONG", 2)
            one = GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN)
            results.append((outcome_of_feed(one, payload), one.open_bytes, one.open_csn))
        (expected, *_), (found, *_) = results
        assert results[0] == results[1]
        if isinstance(expected, list):
            in_runs += sum(isinstance(raw.records, framing.Rows) for raw in found)
            batch = [raw for raw in expected if raw.count], [raw for raw in found if raw.count]
            with_runs, without = outcome(tabulate, batch[1]), outcome(tabulate, batch[0])
            if isinstance(without[0], ChangeColumns):
                assert_same(with_runs[0], without[0])
            else:
                assert with_runs == without
    assert in_runs > 200


def outcome_of_feed(assembler: GaussDbAssembler, payload: bytes) -> object:
    try:
        return list(assembler.feed(payload, 5))
    except DecodeError as error:
        return type(error), str(error), error.offset


def transactions_of(records: list[Record]) -> list[tuple[int | None, int]]:
    """CSN and rows of each transaction, as the plain decoder sees them."""
    out: list[tuple[int | None, int]] = []
    for record in records:
        match record:
            case Begin():
                out.append((record.csn, 0))
            case Row():
                out[-1] = (out[-1][0], out[-1][1] + 1)
    return out


@pytest.mark.parametrize("seed", some(4, 10))
def test_damaged_payloads_are_transactions_or_decode_errors(seed):
    """Each seed 1,000 payloads: what the assembler takes for whole, the plain decoder reads the same or refuses."""
    print(f"seed {seed}")
    pool = Pool(seed, 100)
    rng, refused = pool.rng, 0
    for _ in range(1_000):
        how = Framing(batch=True, ending=rng.choice([Ending.SIZE, Ending.TIMER]))
        payload = encode_payload(random_records(rng, pool), BINARY, how)
        for _ in range(rng.randrange(3)):
            payload = damaged(rng, payload, TELLING)
        if rng.random() < 0.05:
            payload = rng.randbytes(rng.randrange(40))
        one = GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN)
        plain, fed = read(payload), feed(one, payload)
        if isinstance(plain, DecodeError):
            assert 0 <= plain.offset <= len(payload)
            refused += 1
            # of a row of a transaction that is still open: it is read when the transaction is complete
            assert isinstance(fed, DecodeError) or one.in_transaction
        elif not isinstance(fed, DecodeError):  # what is read may still be out of sequence, too large, or no style b
            assert [(raw.bounds.csn, raw.count) for raw in fed] == transactions_of(plain)[: len(fed)]
    assert 0 < refused < 1_000
