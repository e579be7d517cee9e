"""Columns that are added with a default: what the catalog says of old rows is what the server shows of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Missing, Relation, TableName
from cdc_lake.source.gaussdb.catalog import facts_of
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.sql_text import PRINTING, quote_table
from cdc_lake.tables.schema_evolution import operations

KEPT = {
    "bool": ["true", "false"],
    "int2": ["-32768"],
    "int4": ["7", "-1"],
    "int8": ["9223372036854775807"],
    "float4": ["0.1", "-1.5e30", "'NaN'"],
    "float8": ["0.1", "1e-300", "'-Infinity'"],
    "text": ["'plain'", "'it''s {a,\"b\"}'", "'名前 ü'", "''"],
    "varchar(20)": ["'twenty'"],
    "char(5)": ["'ab'"],
    "bytea": ["'\\x00ff5c'"],
    "numeric": ["0", "0.000123", "-1", "100000000", "12345.67890", "1e20", "'NaN'", "-0.5", "99999999999999999999.99"],
    "numeric(12,2)": ["5", "-0.05", "1234567890.12"],
    "timestamp": ["now()", "'2026-02-28 23:59:59.999999'", "'0001-01-01'", "'1999-12-31 12:00:00.5'"],
    "timestamptz": ["'2026-01-01 12:00:00+02'", "'1969-07-20 20:17:40+00'"],
    "int4 NOT NULL": ["3"],
}
"""Types and defaults that the server keeps beside old rows."""

NOBODY_CAN_SAY = [
    ("timestamp", "'infinity'"),
    ("interval", "'1 day'"),
    ("text", "repeat('x', 500)"),
    ("timestamp", "clock_timestamp()"),
]
"""Defaults that are not read, or not kept: the server writes the rows anew, and forgets what it kept before."""


def same(kind: str, found: Missing | None, text: str | None) -> bool:
    """Whether this is what the server prints; floats have several texts that read back as the same."""
    if found is None or found.text is None or text is None or not kind.startswith("float"):
        return found == Missing(text)
    of = np.float32 if kind == "float4" else np.float64
    return np.array_equal(of(found.text), of(text), equal_nan=True)


def check_old_rows(session: WireSession, table: TableName) -> None:
    """Add columns to a table with a row, and compare."""
    for name, value in PRINTING.items():
        session.query(f"SET {name} TO '{value}'")
    name = quote_table(table)
    session.query(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)")
    session.query(f"INSERT INTO {name} VALUES (1)")
    given = [(kind, default) for kind, defaults in KEPT.items() for default in defaults]
    add(session, name, given)
    found = missing(session, table)
    shown = session.query(f"SELECT * FROM {name}").rows[0]
    wrong = [
        (one, found[f"c{at}"], text)
        for at, (one, text) in enumerate(zip(given, shown[2:], strict=True))
        if not same(one[0], found[f"c{at}"], text)
    ]
    assert not wrong, wrong
    assert (found["id"], found["n"]) == (None, None)
    session.query(f"ALTER TABLE {name} ADD COLUMN later int")
    session.query(f"ALTER TABLE {name} ALTER COLUMN later SET DEFAULT 5")
    for at, one in enumerate(NOBODY_CAN_SAY):
        add(session, name, [one], len(given) + at)
        assert missing(session, table)[f"c{len(given) + at}"] == Missing(None), one
    assert missing(session, table)["later"] == Missing(None)


def add(session: WireSession, name: str, columns: Sequence[tuple[str, str]], first: int = 0) -> None:
    for at, (kind, default) in enumerate(columns, first):
        bare, _, more = kind.partition(" ")
        session.query(f"ALTER TABLE {name} ADD COLUMN c{at} {bare} DEFAULT {default} {more}")


def missing(session: WireSession, table: TableName) -> dict[str, Missing | None]:
    """What the catalog says, by column."""
    facts = facts_of(session, table)
    assert facts is not None
    assert [column.number for column in facts.columns] == list(range(1, len(facts.columns) + 1))
    return {column.name: column.missing for column in facts.columns}


CHANGES = [
    "ADD COLUMN b text DEFAULT E'it''s {a,\"b\"}'",
    "ADD COLUMN c numeric DEFAULT 1.50 NOT NULL",
    "ADD COLUMN d timestamp DEFAULT clock_timestamp()",
    "ADD COLUMN f int",
    "RENAME COLUMN a TO aa",
    "DROP COLUMN f, ADD COLUMN f int",
    "ALTER COLUMN f TYPE bigint",
    "DROP COLUMN aa",
]
"""Of a table with a key and `a text`, one after the other."""

WORDS = [
    ["add column b string to t"],
    ["add column c string to t"],
    ["add column d timestamp_ntz to t, rows before it unknown"],
    ["add column f int to t"],
    ["rename column a of t to aa"],
    ["take column f of t for a new one", "drop column f of t", "add column f int to t"],
    ["change column f of t from int to bigint"],
    ["keep column aa of t, NULL from now on"],
]
"""What they come to in silver."""


def altered(
    run: Callable[[str], object], receive: Callable[[], object], name: str, columns: str, changes: Sequence[str]
) -> None:
    """Make a table in SQL and alter it; a row of each of its layouts is received before the next one comes."""
    run(f"CREATE TABLE {name} (id int PRIMARY KEY, {columns})")
    receive()
    run(f"INSERT INTO {name} (id) VALUES (1)")
    receive()
    for n, change in enumerate(changes, start=2):
        run(f"ALTER TABLE {name} {change}")
        run(f"INSERT INTO {name} (id) VALUES ({n})")
        receive()


def layouts(project: Project, table: TableName) -> list[Relation]:
    """Those of a table's changes in bronze, in their order."""
    reader = bronze_reader(project)
    state = reader.state()
    assert state is not None
    found = reader.layouts([table])
    numbers = reader.changes(table, Span(state.epoch, 0, state.upto))["layout"].to_pylist()
    return [found[number] for number in dict.fromkeys(numbers)]


def words(before: Relation, after: Relation) -> list[str]:
    """What the second layout comes to in a silver table `t` of the first."""
    return [change.text("t") for change in operations(before, after)]
