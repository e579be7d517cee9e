"""The table and the changes of the benchmarks with a server: ten columns, about 270 bytes a row, as SQL.

Peers and all scenarios of PostgreSQL have it; the same rows without a server are `workload_spans.py`.
"""

from __future__ import annotations

from typing import Any

import psycopg

BLOCK = 1_000
"""Changes of a transaction of the backlog."""
INSERTS = 800
"""How many of them are inserts, of consecutive keys."""

TABLE = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer bigint NOT NULL, state text NOT NULL, amount numeric(12,2), quantity int,
  note text, email text, created timestamptz, changed timestamp, paid boolean)
"""
FILL = """
INSERT INTO orders SELECT
  n, n::bigint * 7919 % 100003, (ARRAY['new', 'packed', 'sent', 'returned'])[1 + n % 4], (n % 99999) / 100.0,
  n % 17, md5(n::text) || md5((n + 1)::text) || md5((n + 2)::text), 'customer' || n % 100003 || '@example.org',
  timestamptz '2026-01-01 00:00+00' + n * interval '1 second', timestamp '2026-01-01' + n * interval '1 ms', n % 3 = 0
  FROM generate_series(1, {rows}) AS n
"""
# One transaction: 800 inserts, 150 updates and 50 deletes of rows of the transaction before it.
WORKLOAD = """
CREATE PROCEDURE backlog(first int, last int) LANGUAGE plpgsql AS $$
BEGIN
  FOR block IN first .. last LOOP
    INSERT INTO orders SELECT
      n, n::bigint * 7919 % 100003, (ARRAY['new', 'packed', 'sent', 'returned'])[1 + n % 4], (n % 99999) / 100.0,
      n % 17, md5(n::text) || md5((n + 1)::text) || md5((n + 2)::text), 'customer' || n % 100003 || '@example.org',
      timestamptz '2026-01-01 00:00+00' + n * interval '1 second', timestamp '2026-01-01' + n * interval '1 ms',
      n % 3 = 0
      FROM generate_series(block * 800 + 1, block * 800 + 800) AS n;
    UPDATE orders SET state = 'changed', quantity = quantity + 1
      WHERE id > (block - 1) * 800 AND id <= (block - 1) * 800 + 150;
    DELETE FROM orders WHERE id > (block - 1) * 800 + 750 AND id <= block * 800;
    COMMIT;
  END LOOP;
END $$
"""


def publish(admin: psycopg.Connection[Any]) -> None:
    """Make the table, what writes the backlog, the rows of its first block, and the publication `bench`."""
    admin.execute(TABLE)
    admin.execute(WORKLOAD)
    admin.execute("CALL backlog(0, 0)")
    admin.execute("CREATE PUBLICATION bench FOR TABLE orders")


def fill(admin: psycopg.Connection[Any], rows: int) -> None:
    """Make the table with that many rows."""
    admin.execute(TABLE)
    admin.execute(FILL.format(rows=rows))
    admin.execute("VACUUM (ANALYZE, FREEZE) orders")
