"""The shop: an embedded PostgreSQL, its tables, and a workload with every kind of change.

    python pipelines/shop_workload.py start    start the server; load the shop the first time
    python pipelines/shop_workload.py live     make changes, more at every call
    python pipelines/shop_workload.py stop     stop the server; its data stays
    python pipelines/shop_workload.py remove   stop it and remove its data

The server lives in `.demo/` of the project and listens on 127.0.0.1 at a free port, written to `.demo/port`.

`start gaussdb` also starts a stand-in in front of it: a process that speaks as GaussDB and shows this PostgreSQL's
changes as GaussDB would. Its ports are written to `.demo/gaussdb-port` and `.demo/gaussdb-ha-port`. `live gaussdb`
leaves out what GaussDB's parallel decoding cannot show.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import psycopg

try:
    from cdc_lake_testing.gaussdb.standin import Settings, StandIn
    from cdc_lake_testing.server import HOST, EmbeddedServer
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: the demo's servers are in the package `cdc_lake_testing`; install it from a clone of cdc_lake: "
        "pip install ./cdc_lake_testing"
    ) from missing

DEMO = Path(__file__).resolve().parent.parent / ".demo"
GAUSSDB = DEMO / "gaussdb"
CUSTOMERS, ORDERS, NOTES = 2000, 8000, 600

SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, email text NOT NULL, name text, country char(2), since timestamptz);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id int REFERENCES customers ON UPDATE CASCADE,
                     status text, amount numeric(12,2), placed_at timestamptz);
CREATE TABLE notes (id int PRIMARY KEY, order_id bigint REFERENCES orders, pinned boolean, body text);
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL;
CREATE TABLE payments (id int PRIMARY KEY, order_id bigint REFERENCES orders, method text, amount numeric(12,2), day date);
CREATE TABLE prices (product text, currency char(3), price numeric(10,2), PRIMARY KEY (product, currency)
                     DEFERRABLE INITIALLY IMMEDIATE);
ALTER TABLE prices REPLICA IDENTITY FULL;
CREATE TABLE carts (id int PRIMARY KEY, customer_id int REFERENCES customers ON UPDATE CASCADE, items jsonb);
CREATE TABLE shop_runs (run int PRIMARY KEY);
"""


def main(verb: str, source: str = "postgres") -> None:
    """Do what the command line says."""
    server = EmbeddedServer(DEMO / "postgres")
    if source not in ("postgres", "gaussdb") or verb not in ("start", "live", "stop", "remove"):
        raise SystemExit(__doc__)
    if verb == "start":
        server.start()
        prepare(server)
        print(f"PostgreSQL runs on {HOST}:{server.port}, database shop")
        if source == "gaussdb":
            stand_in(server)
    elif verb == "live":
        with psycopg.connect(server.dsn("shop")) as db:
            live(db, parallel=source == "gaussdb")
    else:
        if GAUSSDB.exists():
            StandIn(GAUSSDB).stop()
        if verb == "stop":
            server.stop()
        else:
            server.remove()
            shutil.rmtree(GAUSSDB, ignore_errors=True)


def stand_in(server: EmbeddedServer) -> None:
    """Start the stand-in, and write down how to reach it."""
    password = (DEMO / "password").read_text()
    settings = Settings(server.dsn("shop"), server.dsn("shop", "cdc", password), "cdc", password)
    running = StandIn(GAUSSDB).start(settings)
    for name, value in (("port", running.port), ("ha-port", running.replication_port), ("password", password)):
        file = DEMO / f"gaussdb-{name}"
        file.touch(mode=0o600)
        file.write_text(str(value))
    print(f"in front of it, GaussDB on {HOST}:{running.port}, its stream on port {running.replication_port}")


def prepare(server: EmbeddedServer) -> None:
    """Database, role and tables, the first time; how to reach them, every time."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        new = admin.execute("SELECT 1 FROM pg_database WHERE datname = 'shop'").fetchone() is None
        if new:
            admin.execute("CREATE DATABASE shop")
            password = "".join(random.SystemRandom().choices("abcdefghijkmnpqrstuvwxyz23456789", k=20))
            (DEMO / "password").write_text(password)
            (DEMO / "password").chmod(0o600)
            admin.execute(f"CREATE ROLE cdc LOGIN REPLICATION PASSWORD '{password}'")
    (DEMO / "port").write_text(str(server.port))
    if new:
        with psycopg.connect(server.dsn("shop")) as db:
            db.execute(SCHEMA)
            load(db)
            db.execute("GRANT CREATE ON DATABASE shop TO cdc")
            for (table,) in db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
                db.execute(f'ALTER TABLE "{table}" OWNER TO cdc')


def load(db: psycopg.Connection) -> None:
    """The shop as it is before anybody reads it."""
    rng = random.Random(1)
    with db.cursor() as cursor:
        with cursor.copy("COPY customers FROM STDIN") as copy:
            for n in range(1, CUSTOMERS + 1):
                row = (
                    n,
                    f"c{n}@example.org",
                    f"Customer {n}",
                    rng.choice(["DE", "FR", "CN", "RU"]),
                    "2026-01-01 00:00+00",
                )
                copy.write_row(row)
        with cursor.copy("COPY orders FROM STDIN") as copy:
            for n in range(1, ORDERS + 1):
                amount = f"{rng.randrange(100, 90000) / 100:.2f}"
                copy.write_row(
                    (n, rng.randint(1, CUSTOMERS), rng.choice(["new", "paid"]), amount, "2026-02-03 10:11:12.345678+00")
                )
        with cursor.copy("COPY notes FROM STDIN") as copy:
            for n in range(1, NOTES + 1):
                copy.write_row((n, rng.randint(1, ORDERS), False, large(rng)))
        with cursor.copy("COPY payments FROM STDIN") as copy:
            for n in range(1, ORDERS // 2):
                copy.write_row((n, n, rng.choice(["card", "cash"]), "10.00", "2026-02-04"))
    reload_prices(db, rng)


def live(db: psycopg.Connection, *, parallel: bool = False) -> None:
    """One round of changes, each kind as its own transaction; which kinds is printed.

    With `parallel` nothing is truncated, and DDL has a transaction of its own: parallel decoding sends neither a
    TRUNCATE nor the rows behind a change of the catalog, and says so to nobody.
    """
    run = db.execute("INSERT INTO shop_runs SELECT count(*) + 1 FROM shop_runs RETURNING run").fetchone()[0]
    db.commit()
    rng = random.Random(run)
    kinds = (
        multi_row_insert,
        single_changes,
        updates_that_leave_large_text,
        key_changes,
        swapped_keys,
        deletes,
        delete_and_reload if parallel else truncate_and_reload,
        rolled_back_savepoint,
        aborted_transaction,
        column_added_apart if parallel else added_column,
        rows_that_break_a_rule,
    )
    for kind in kinds:
        kind(db, rng, run)
        db.commit()
    print(f"round {run}: " + ", ".join(kind.__name__.replace("_", " ") for kind in kinds))
    if parallel:
        print("left out, as parallel decoding does not show it: TRUNCATE, and changes behind DDL in one transaction")


def multi_row_insert(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """Many rows of one statement share one LSN."""
    first = 1_000_000 * run
    db.execute(
        "INSERT INTO orders SELECT %s + n, 1 + n %% 1000, 'new', n * 1.5, now() FROM generate_series(1, 500) n",
        (first,),
    )
    db.execute("INSERT INTO carts SELECT %s + n, 1 + n, '[{\"sku\": 1}]' FROM generate_series(1, 100) n", (first,))


def single_changes(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """Short transactions over related tables."""
    for n in range(150):
        order = rng.randint(1, ORDERS)
        db.execute(
            "UPDATE orders SET status = 'shipped', amount = amount + 1 WHERE id = %s AND amount BETWEEN 0 AND 90000",
            (order,),
        )
        db.execute("INSERT INTO payments VALUES (%s, %s, 'card', 12.5, current_date)", (1_000_000 * run + n, order))
        db.commit()


def updates_that_leave_large_text(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """The large body is not logged again: silver must keep the one it has."""
    db.execute("UPDATE notes SET pinned = NOT pinned WHERE id %% 3 = %s", (run % 3,))
    db.execute("UPDATE notes SET body = %s WHERE id = %s", (large(rng), rng.randint(1, NOTES)))
    db.execute("UPDATE notes SET pinned = true WHERE id % 7 = 0")


def key_changes(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """A customer's key moves, its orders follow by cascade; a note moves with its large body unsent."""
    for old in rng.sample(range(1001, 1900), 5):  # customers that no other change names
        db.execute("UPDATE customers SET id = id + %s WHERE id = %s", (10_000 * run, old))
    db.execute(
        "UPDATE notes SET id = id + %s WHERE id IN (SELECT id FROM notes WHERE id <= %s ORDER BY id LIMIT 5)",
        (10_000 * run, NOTES),
    )


def swapped_keys(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """Two prices take each other's key: for a moment, both have one."""
    db.execute("SET CONSTRAINTS ALL DEFERRED")
    db.execute(
        "UPDATE prices SET product = CASE product WHEN 'p1' THEN 'p2' ELSE 'p1' END WHERE product IN ('p1', 'p2')"
    )


def deletes(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """Rows go."""
    db.execute("DELETE FROM payments WHERE id IN (SELECT id FROM payments WHERE id < 1000000 ORDER BY id LIMIT 20)")


def truncate_and_reload(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """A TRUNCATE between changes of the same transaction; the swap of the round before goes with it."""
    if run % 2 == 0:
        reload_prices(db, rng)
    db.execute("TRUNCATE carts")
    db.execute("INSERT INTO carts SELECT n, n, '{}' FROM generate_series(1, 50) n")


def delete_and_reload(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """The same rows go and come, without a TRUNCATE."""
    if run % 2 == 0:
        reload_prices(db, rng, empty="DELETE FROM prices")
    db.execute("DELETE FROM carts")
    db.execute("INSERT INTO carts SELECT n, n, '{}' FROM generate_series(1, 50) n")


def rolled_back_savepoint(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """What was done inside the savepoint never happened."""
    try:
        with db.transaction():
            db.execute("DELETE FROM payments")
            raise psycopg.Rollback
    except psycopg.Rollback:
        pass
    db.execute("UPDATE customers SET name = 'kept ' || name WHERE id %% 500 = %s", (run % 500,))


def aborted_transaction(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """It leaves no trace."""
    db.execute("UPDATE customers SET name = 'never'")
    db.rollback()


def added_column(db: psycopg.Connection, rng: random.Random, run: int, *, there: bool = False) -> None:
    """A new column, and rows that have it."""
    if not there:
        db.execute("ALTER TABLE orders ADD COLUMN IF NOT EXISTS channel text")
    db.execute("UPDATE orders SET channel = 'web' WHERE id %% 400 = %s", (run % 400,))


def column_added_apart(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """The same, with the ALTER TABLE committed before any row has the new column."""
    db.execute("ALTER TABLE orders ADD COLUMN IF NOT EXISTS channel text")
    db.commit()
    added_column(db, rng, run, there=True)


def rows_that_break_a_rule(db: psycopg.Connection, rng: random.Random, run: int) -> None:
    """Quarantined rows (amount, email), a later change that waits behind one, and rows that only warn (status)."""
    first = 500_000 + 10 * run
    db.execute(
        "INSERT INTO orders VALUES (%s, 1, 'paid', -5, now()), (%s, 2, 'paid', 999999, now())", (first, first + 1)
    )
    db.execute("UPDATE customers SET email = 'no address' WHERE id = %s", (1900 + run % 100,))
    db.commit()
    db.execute("UPDATE orders SET amount = 5 WHERE id = %s", (first,))
    db.execute("UPDATE orders SET status = 'lost' WHERE id %% 900 = 7 AND id < %s", (ORDERS,))


def reload_prices(db: psycopg.Connection, rng: random.Random, *, empty: str = "TRUNCATE prices") -> None:
    """A new price list."""
    db.execute(empty)
    rows = [
        (f"p{n}", currency, f"{rng.randrange(100, 9999) / 100:.2f}")
        for n in range(1, 101)
        for currency in ("EUR", "CNY")
    ]
    with db.cursor() as cursor:
        cursor.executemany("INSERT INTO prices VALUES (%s, %s, %s)", rows)


def large(rng: random.Random) -> str:
    """Text that PostgreSQL stores outside the row."""
    return f"{rng.getrandbits(24_000):x}"


if __name__ == "__main__":
    main(*sys.argv[1:] or ["help"])
