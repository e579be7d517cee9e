"""A live PostgreSQL retold as openGauss: whole rows, old keys, dense CSNs, and snapshots at an exact CSN."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.decode.gaussdb.records import Ddl, Field, Operation, Row, Truncated
from cdc_lake.model.change import UNCHANGED
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.ledger import LedgerTransaction
from cdc_lake_testing.gaussdb.live import LivePostgres, SnapshotPoint
from cdc_lake_testing.gaussdb.live_setup import current_snapshot
from cdc_lake_testing.workload import SHAPES, Workload
from tests.conftest import Database
from tests.seeds import one_seed

pytestmark = pytest.mark.live

SEED = one_seed()
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))

State = dict[TableName, dict[tuple[Any, ...], dict[str, Any]]]


def live(database: Database, **given: Any) -> LivePostgres:
    return LivePostgres(database.server.dsn(database.name), **given)


def fold(state: State, transaction: LedgerTransaction, keys: dict[TableName, tuple[str, ...]]) -> None:
    """Apply a transaction; every row must be there before, and every value must have come."""
    for change in transaction.changes:
        if isinstance(change, Truncated):
            for table in change.tables:
                state[table] = {}
        if not isinstance(change, Row):
            continue
        rows, key = state.setdefault(change.table, {}), keys[change.table]
        if change.operation is not Operation.INSERT:
            assert change.old is not None
            del rows[tuple(values(change.old)[name] for name in key)]
        if change.new is not None:
            row = values(change.new)
            assert UNCHANGED not in row.values()
            assert rows.setdefault(tuple(row[name] for name in key), row) is row


def values(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {field.name: field.value for field in fields}


def read(session: psycopg.Connection, table: TableName, key: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """A table as the server prints it."""
    session.execute("SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = 'hex'")
    with session.cursor() as cursor:
        cursor.execute(f'SELECT * FROM "{table.schema}"."{table.name.replace(chr(34), chr(34) * 2)}"'.encode())
        result = cursor.pgresult
        assert result is not None
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        rows = [
            {name: None if (v := result.get_value(at, n)) is None else v.decode() for n, name in enumerate(names)}
            for at in range(result.ntuples)
        ]
    return {tuple(row[name] for name in key): row for row in rows}


def assert_dense(transactions: list[LedgerTransaction], first: int) -> None:
    assert sorted(t.csn for t in transactions) == list(range(first, first + len(transactions)))
    ends = [t.commit_end for t in transactions]
    assert ends == sorted(ends)


def test_the_ledger_folds_to_the_tables_of_the_workload(database: Database) -> None:
    print("CDC_LAKE_SEED =", SEED)
    keys = {TableName("public", shape.name): tuple(shape.key) for shape in SHAPES}
    with database.connect() as conn:
        workload = Workload(conn, SEED)
        workload.create_tables()
        workload.run(40)
        before: State = {table: read(conn, table, key) for table, key in keys.items()}
        with live(database, inversions=0.4, foreign=0.3, seed=SEED) as source:
            workload.run(300 * BUDGET)
            source.settled()
            transactions = source.ledger.since(0)
        after = {table: read(conn, table, key) for table, key in keys.items()}
    assert_dense(transactions, 2000)
    assert any(t.database == "other" and not t.changes for t in transactions)
    by_csn = sorted(transactions, key=lambda t: t.csn)
    distances = [abs(t.csn - 2000 - at) for at, t in enumerate(transactions)]
    assert 0 < max(distances) <= 9
    for order in (transactions, by_csn):  # the state is the same either way
        state = {table: dict(rows) for table, rows in before.items()}
        for transaction in order:
            fold(state, transaction, keys)
        assert state == after
    for change in (c for t in transactions for c in t.changes if isinstance(c, Row)):
        if change.operation is Operation.UPDATE:
            assert change.old is not None
            whole = change.table.name == "w_full"
            assert {f.name for f in change.old} == ({"x", "y", "body"} if whole else set(keys[change.table]))


def test_types_have_name_and_oid_and_a_keyless_table_no_old_rows(database: Database) -> None:
    with database.connect() as conn:
        generated_columns = conn.info.server_version >= 180000
        conn.execute("CREATE TYPE mood AS ENUM ('a', 'b')")
        conn.execute("CREATE TABLE bare (n numeric(4,2), m mood, t text[], w int GENERATED ALWAYS AS (7) STORED)")
        with live(database, keyless=[TableName("public", "bare")], leading_zero=False, ddl_marks=True) as source:
            conn.execute("INSERT INTO bare VALUES (0.5, 'a', '{x}'), (0, 'b', NULL), (-0.25, NULL, NULL)")
            conn.execute("UPDATE bare SET m = 'b' WHERE n = 0.5")
            conn.execute("DELETE FROM bare WHERE n = 0.5")
            with conn.transaction():
                conn.execute("ALTER TABLE bare ADD extra int")
                conn.execute("INSERT INTO bare VALUES (1, NULL, NULL, DEFAULT, 4)")
            source.settled()
            inserted, updated, deleted, altered = (t.changes for t in source.ledger.since(0))
    assert all(isinstance(row, Row) and row.new is not None for row in inserted)
    kinds = [(f.name, f.type_name) for f in inserted[0].new]  # type: ignore[union-attr]
    generated = [("w", "integer")] if generated_columns else []
    assert kinds == [("n", "numeric"), ("m", "mood"), ("t", "text[]"), *generated]
    assert all(f.type_oid for f in inserted[0].new)  # type: ignore[union-attr]
    assert [row.new[0].value for row in inserted] == [".50", "0.00", "-.25"]  # type: ignore[union-attr]
    assert [(c.operation, c.old) for c in (*updated, *deleted)] == [  # type: ignore[union-attr]
        (Operation.UPDATE, None),
        (Operation.DELETE, None),
    ]
    assert isinstance(altered[0], Ddl)
    assert altered[0].command == "ALTER TABLE"
    assert isinstance(altered[1], Row)


def test_a_snapshot_shows_exactly_the_transactions_below_its_csn(database: Database) -> None:
    """Writers move amounts between accounts meanwhile; every snapshot is compared with the fold of the ledger."""
    print("CDC_LAKE_SEED =", SEED)
    table, keys = TableName("public", "accounts"), {TableName("public", "accounts"): ("id",)}
    with database.connect() as conn:
        conn.execute("CREATE TABLE accounts (id int PRIMARY KEY, amount int)")
        conn.execute("INSERT INTO accounts SELECT n, 100 FROM generate_series(1, 60) n")
        start: State = {table: read(conn, table, ("id",))}
    stop = threading.Event()
    writers = [threading.Thread(target=move, args=(database, SEED + n, stop)) for n in range(4)]
    taken: list[tuple[SnapshotPoint, dict[Any, Any]]] = []
    with live(database, inversions=0.3, foreign=0.2, seed=SEED) as source:
        for writer in writers:
            writer.start()
        try:
            taken.extend(snapshot(database, source, table, aligned=at % 4 == 0) for at in range(20 * BUDGET))
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        source.settled()
        transactions = source.ledger.since(0)
    assert_dense(transactions, 2000)
    assert len({point.csn for point, _ in taken}) > 10
    state = {table: dict(start[table])}
    by_csn = iter(sorted(transactions, key=lambda t: t.csn))
    done = 2000
    for point, rows in sorted(taken, key=lambda pair: pair[0].csn):
        while done < point.csn:
            fold(state, next(by_csn), keys)
            done += 1
        assert state[table] == rows
        # what a slot made here sends holds all that the snapshot does not show
        assert all(t.commit_start >= point.lsn for t in transactions if t.csn >= point.csn)
    inverted = sum(a.csn > b.csn for a, b in itertools.pairwise(transactions))
    print(len(transactions), "transactions,", inverted, "inversions", Counter(len(t.changes) for t in transactions))
    assert inverted


def snapshot(
    database: Database, source: LivePostgres, table: TableName, *, aligned: bool
) -> tuple[SnapshotPoint, dict[Any, Any]]:
    """A point, and the table as another session sees it through the exported snapshot."""
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
    with database.connect() as exporter, database.connect() as reader:
        name = ""

        def take() -> Any:
            nonlocal name
            exporter.execute("ROLLBACK")
            exporter.execute(begin)
            name = exporter.execute("SELECT pg_export_snapshot()").fetchone()[0]  # type: ignore[index]
            return current_snapshot(exporter)

        point = source.snapshot(take, aligned=aligned)
        reader.execute(begin)
        reader.execute(f"SET TRANSACTION SNAPSHOT '{name}'".encode())
        rows = read(reader, table, ("id",))
        reader.execute("ROLLBACK")
        exporter.execute("ROLLBACK")
    return point, rows


def move(database: Database, seed: int, stop: threading.Event) -> None:
    """Transfers between two accounts, one transaction each."""
    chance = random.Random(seed)
    with database.connect() as conn:
        while not stop.is_set():
            one, other = sorted(chance.sample(range(1, 61), 2))
            amount = chance.randint(1, 9)
            time.sleep(chance.random() / 100)
            with conn.transaction():
                conn.execute("UPDATE accounts SET amount = amount - %s WHERE id = %s", (amount, one))
                conn.execute("UPDATE accounts SET amount = amount + %s WHERE id = %s", (amount, other))


def test_a_journal_goes_on_where_another_process_ended(database: Database, tmp_path: Path) -> None:
    print("CDC_LAKE_SEED =", SEED)
    keys = {TableName("public", shape.name): tuple(shape.key) for shape in SHAPES}
    given: dict[str, Any] = {"inversions": 0.4, "foreign": 0.3, "seed": SEED, "journal": tmp_path / "journal"}
    with database.connect() as conn:
        workload = Workload(conn, SEED)
        workload.create_tables()
        workload.run(20)
        before: State = {table: read(conn, table, key) for table, key in keys.items()}
        with live(database, **given) as source:
            workload.run(60)
            first = source.settled(), source.ledger.since(0)
        workload.run(60)  # nobody listens
        with (tmp_path / "journal").open("ab") as journal:
            journal.write(b"\x80\x05torn")
        with live(database, **given) as source:
            assert source.ledger.since(0)[: len(first[1])] == first[1]
            workload.run(60)
            source.settled()
            transactions = source.ledger.since(0)
        after = {table: read(conn, table, key) for table, key in keys.items()}
    assert_dense(transactions, 2000)
    for transaction in transactions:
        fold(before, transaction, keys)
    assert before == after
