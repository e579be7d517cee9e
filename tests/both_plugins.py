"""The same changes as PostgreSQL's two plugins send them, decoded: pgoutput is the oracle of test_decoding.

`python -m tests.both_plugins` records them anew into tests/data/test_decoding, of the machine's package and of Maven's.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pydantic import SecretStr

from cdc_lake.config.source import PostgresSource
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbTableMetadata
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate as tabulate_messages
from cdc_lake.decode.pgoutput.relations import ColumnFacts, TableFacts
from cdc_lake.decode.test_decoding import LineAssembler
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Missing, TableName
from cdc_lake.source.postgres.catalog import RowTables, SourceCatalog
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.postgres.plugins import LINE_OPTIONS, message_options
from cdc_lake_testing.server import HOST, SUPERUSER
from cdc_lake_testing.workload import Workload
from tests import type_cases
from tests.odd_names import odd_names, odd_text
from tests.postgres_with_test_decoding import start_decoding_server

FOLDER = Path(__file__).parent / "data" / "test_decoding"
SLOTS = {"both_messages": "pgoutput", "both_lines": "test_decoding"}


@dataclass(frozen=True)
class Sent:
    """What a server sent for the same transactions, as (position, payload), and what its catalog said afterwards."""

    messages: list[tuple[int, bytes]]
    lines: list[tuple[int, bytes]]
    facts: Mapping[TableName, GaussDbTableMetadata]
    announced: Mapping[TableName, TableFacts]

    def by_messages(self) -> list[BufferedTransaction]:
        """Transactions with changes, as pgoutput sends them."""
        assembler = Assembler(self.announced)
        return [raw for lsn, data in self.messages for raw in assembler.feed(data, lsn) if raw.count]

    def by_lines(self) -> list[RecordTransaction]:
        """Transactions with changes, as test_decoding prints them."""
        assembler = LineAssembler(Codec(), self.facts.__contains__)
        return [raw for lsn, data in self.lines for raw in assembler.feed(data, lsn) if raw.count]

    def layouts(self) -> RelationResolver:
        """Layouts that know nothing but the catalog."""
        return RelationResolver(self.facts.get, takes_back=False)


def changes(columns: ChangeColumns) -> list[dict[str, Any]]:
    """The changes one by one, relations in the place of their numbers."""
    lists = {name: getattr(columns, name).to_pylist() for name in ("new", "old", "old_kind", "unchanged", "info")}
    return [
        {
            "transaction": int(columns.transaction[at]),
            "op": chr(columns.op[at]),
            "relation": columns.relations[columns.relation[at]],
            "lsn": int(columns.lsn[at]),
            "digest": bytes(columns.digests[at]),
        }
        | {name: values[at] for name, values in lists.items()}
        for at in range(len(columns))
    ]


def expected(sent: Sent) -> tuple[list[dict[str, Any]], list[Any]]:
    """The changes and bounds as pgoutput has them, without the one number that lines do not have."""
    raws = sent.by_messages()
    bounds = [asdict(raw.bounds) | {"commit_lsn": None} for raw in raws]
    return changes(tabulate_messages(raws)), bounds


# ── what is done at a server ─────────────────────────────────────────────────────────────────────────────────────


def work(conn: psycopg.Connection[Any], seed: int) -> Iterator[None]:
    """Tables of every kind, then, behind the first step, changes of every kind in them."""
    dice = random.Random(seed)
    workload = Workload(conn, seed)
    workload.create_tables()
    type_cases.create_types(conn)
    columns = type_cases.every(conn)
    type_cases.create(conn, "every_type", columns)
    type_cases.create(conn, "whole_type", columns)
    conn.execute("ALTER TABLE whole_type REPLICA IDENTITY FULL")
    schema, table, key, other = odd_names(dice, 4)
    conn.execute(sql.SQL("CREATE SCHEMA {0}; GRANT USAGE ON SCHEMA {0} TO PUBLIC").format(sql.Identifier(schema)))
    odd = sql.Identifier(schema, table)
    definition = sql.SQL("CREATE TABLE {} ({} text PRIMARY KEY, {} text)")
    conn.execute(definition.format(odd, sql.Identifier(key), sql.Identifier(other)))
    conn.execute("CREATE TABLE later (id int PRIMARY KEY, a text)")
    yield
    workload.run(40)
    for name in ("every_type", "whole_type"):
        for half in (0, 1):
            type_cases.insert(conn, name, columns, half)
        conn.execute(f"UPDATE {name} SET note = 'it''s\nchanged' WHERE id % 3 = 0")
        conn.execute(f"UPDATE {name} SET id = -id WHERE id % 3 = 1")
        conn.execute(f"DELETE FROM {name} WHERE id % 3 = 2")
    for at in range(40):
        texts = sql.Literal(f"{odd_text(dice)}{at}"), sql.Literal(odd_text(dice))
        conn.execute(sql.SQL("INSERT INTO {} VALUES ({}, {})").format(odd, *texts))
    change = sql.SQL("UPDATE {} SET {} = {} || ' new-tuple:'")
    conn.execute(change.format(odd, sql.Identifier(key), sql.Identifier(key)))
    conn.execute(sql.SQL("DELETE FROM {} WHERE length({}) > 9").format(odd, sql.Identifier(other)))
    with conn.transaction():
        conn.execute("INSERT INTO later VALUES (1, 'a')")
        conn.execute("ALTER TABLE later ADD b bytea DEFAULT '\\x27'")
        conn.execute("INSERT INTO later VALUES (2, 'b')")
        conn.execute("SELECT pg_logical_emit_message(true, 'table public.later: INSERT: id[integer]:1', 'COMMIT 7')")
    conn.execute("UPDATE later SET a = NULL")
    conn.execute("TRUNCATE later, every_type RESTART IDENTITY CASCADE")
    conn.execute("SELECT pg_logical_emit_message(false, 'p', 'BEGIN 1')")


def send(conn: psycopg.Connection[Any], source: PostgresSource, seed: int) -> Sent:
    """Do the work and take what both plugins say of it. `conn` may make slots, in autocommit."""
    steps = work(conn, seed)
    next(steps)
    conn.execute("CREATE PUBLICATION both_everything FOR ALL TABLES")
    for slot, plugin in SLOTS.items():
        conn.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [slot, plugin])
    with contextlib.suppress(StopIteration):
        next(steps)
    with connect(source, Path("/")) as session, connect(source, Path("/")) as catalog:
        session.execute("SET search_path TO ''")
        messages = session.execute(*_taken("both_messages", "binary_", message_options("both_everything"))).fetchall()
        lines = session.execute(*_taken("both_lines", "", LINE_OPTIONS)).fetchall()
        tables = catalog.execute(
            "SELECT n.nspname, c.relname, c.oid::int FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind = 'r' AND c.oid >= 16384 AND n.nspname <> 'information_schema'"
        ).fetchall()
        row_tables, announced = RowTables(session), SourceCatalog(catalog)
        oids = {TableName(str(schema), str(name)): int(str(oid)) for schema, name, oid in tables}
        return Sent(
            [(Lsn.parse(str(lsn)).value, bytes(data)) for lsn, data in messages],  # type: ignore[call-overload]
            [(Lsn.parse(str(lsn)).value, str(data).encode()) for lsn, data in lines],
            {name: facts for name in oids if (facts := row_tables(name)) is not None},
            {name: announced(oid, name) for name, oid in oids.items()},
        )


def _taken(slot: str, kind: str, options: Mapping[str, str]) -> tuple[bytes, list[str]]:
    given = ", %s" * 2 * len(options)
    query = f"SELECT lsn::text, data FROM pg_logical_slot_get_{kind}changes(%s, NULL, NULL{given})"
    return query.encode(), [slot, *(word for pair in options.items() for word in pair)]


# ── recorded ─────────────────────────────────────────────────────────────────────────────────────────────────────


def recorded() -> Sequence[Path]:
    """The files."""
    return sorted(FOLDER.glob("*.json.xz"))


def read(file: Path) -> Sent:
    """What was recorded."""
    kept = json.loads(lzma.decompress(file.read_bytes()))
    return Sent(
        [(lsn, data.encode("latin-1")) for lsn, data in kept["messages"]],
        [(lsn, text.encode("latin-1")) for lsn, text in kept["lines"]],
        {TableName.parse(name): GaussDbTableMetadata.from_description(facts) for name, facts in kept["facts"].items()},
        {TableName.parse(name): _announced(facts) for name, facts in kept["announced"].items()},
    )


def write(sent: Sent, file: Path) -> None:
    """Keep it."""
    kept = {
        "messages": [(lsn, data.decode("latin-1")) for lsn, data in sent.messages],
        "lines": [(lsn, data.decode("latin-1")) for lsn, data in sent.lines],
        "facts": {str(name): facts.describe() for name, facts in sent.facts.items()},
        "announced": {
            str(name): [
                facts.primary_key,
                {oid: facts.type_names[oid] for oid in {c.type_oid for c in sent.facts[name].columns}},
                {column: [one.number, one.missing and [one.missing.text]] for column, one in facts.columns.items()},
            ]
            for name, facts in sent.announced.items()
        },
    }
    file.write_bytes(lzma.compress(json.dumps(kept).encode(), preset=9))


def _announced(kept: Any) -> TableFacts:
    key, types, columns = kept
    return TableFacts(
        tuple(key),
        {int(oid): name for oid, name in types.items()},
        {name: ColumnFacts(number, missing and Missing(*missing)) for name, (number, missing) in columns.items()},
    )


def main() -> None:
    """Record from both servers, each with a seed of its own."""
    FOLDER.mkdir(exist_ok=True)
    for fetched in (False, True):
        server = start_decoding_server(fetched=fetched)
        try:
            source = PostgresSource(
                type="postgres",
                host=HOST,
                port=server.port,
                database="postgres",
                user=SUPERUSER,
                password=SecretStr(server.password),
                tables=["public.*"],
            )
            with psycopg.connect(server.dsn(), autocommit=True) as conn:
                major = conn.info.server_version // 10_000
                write(send(conn, source, major), FOLDER / f"postgres_{major}.json.xz")
        finally:
            server.remove()


if __name__ == "__main__":
    main()
