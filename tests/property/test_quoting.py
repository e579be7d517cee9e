"""Names and texts inside SQL come out as they went in, and end where they end, whatever they hold.

The grammars are those of the servers: PostgreSQL's scan.l and repl_scanner.l, Spark's SqlBaseLexer.g4 with
`unescapeSQLString` behind it and `VariableSubstitution` before it.
"""

from __future__ import annotations

import os
import random
import re

import pytest

from cdc_lake.errors import PublicationUnfit
from cdc_lake.model.relation import TableName
from cdc_lake.source import sql_text
from cdc_lake.source.gaussdb.wire.auth import ServerMessage, startup_error
from cdc_lake.source.postgres.publication import check_published
from cdc_lake.source.refusals import connection_error
from cdc_lake.source.sql_text import start_command
from cdc_lake.tables import types
from tests.odd_names import PIECES, odd_name, odd_text
from tests.seeds import one_seed

SEED = one_seed()
COUNT = int(2000 * float(os.environ.get("CDC_LAKE_BUDGET", "1")))

SUBSTITUTED = re.compile(r"\$\{(?:\w+?:)?\S+?\}")
"""ConfigReader.scala: what Spark puts something else in place of, before it looks at anything."""
SPARK_STRING = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
SPARK_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([0-3][0-7]{2})|(.))", re.DOTALL)
SPARK_LETTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def texts() -> list[str]:
    rng = random.Random(SEED)
    return ["", *PIECES, *(odd_text(rng) for _ in range(COUNT))]


def in_spark(literal: str) -> str:
    assert SUBSTITUTED.search(literal) is None
    assert SPARK_STRING.fullmatch(literal)
    return SPARK_ESCAPE.sub(
        lambda m: chr(int(m[1], 16)) if m[1] else chr(int(m[2], 8)) if m[2] else SPARK_LETTERS.get(m[3], m[3]),
        literal[1:-1].replace("''", "'"),
    )


def identifier_of(sql: str, quote: str) -> str:
    """The name in a quoted identifier that is the whole of `sql`."""
    assert re.fullmatch(f"{quote}(?:[^{quote}]|{quote}{quote})+{quote}", sql), SEED
    return sql[1:-1].replace(quote * 2, quote)


def statements(sql: str) -> list[list[str]]:
    """The words of each statement, quoted names as names; PostgreSQL's scanner, as far as hints need it."""
    out: list[list[str]] = [[]]
    for name, word, end in re.findall(r'"((?:[^"]|"")+)"|([^\s";]+)|(;)', sql):
        if end:
            out.append([])
        else:
            out[-1].append(f"<{name.replace(chr(34) * 2, chr(34))}>" if name else word)
    return out


def test_a_text_is_read_by_spark_as_it_was() -> None:
    for text in texts():
        assert in_spark(types.literal(text)) == text, SEED


def test_a_name_is_read_by_spark_as_it_was() -> None:
    for name in filter(None, texts()):
        assert identifier_of(types.quote_identifier(name), "`") == name, SEED


def test_a_name_is_read_by_a_server_as_it_was() -> None:
    for name in filter(None, texts()):
        assert identifier_of(sql_text.identifier(name), '"') == name, SEED


def test_a_text_is_read_by_a_server_as_it_was() -> None:
    for text in texts():
        literal = sql_text.literal(text)
        escaped = literal.startswith(" E'")
        assert escaped == ("\\" in text)
        body = literal.removeprefix(" E")
        assert re.fullmatch(r"'(?:[^'\\]|''|\\\\)*'", body), SEED
        assert body[1:-1].replace("''", "'").replace("\\\\", "\\") == text, SEED


def test_a_text_in_a_replication_command_knows_no_escape_but_the_doubled_quote() -> None:
    for text in texts():
        literal = sql_text.command_literal(text)
        assert re.fullmatch("'(?:[^']|'')*'", literal), SEED
        assert literal[1:-1].replace("''", "'") == text, SEED


def test_a_stream_is_begun_with_any_value_of_an_option() -> None:
    assert start_command("s", 0, {'o"n': "a'b\\"}) == """START_REPLICATION SLOT "s" LOGICAL 0/0 ("o""n" 'a''b\\')"""


def test_the_statement_for_a_publication_names_tables_as_sql_does() -> None:
    rng = random.Random(SEED)
    for _ in range(100):
        one, other = (TableName(odd_name(rng), odd_name(rng)) for _ in range(2))
        with pytest.raises(PublicationUnfit) as raised:
            check_published("pub", [], [one, other])
        assert raised.value.remedy == "ALTER PUBLICATION " + '"pub" ADD TABLE ' + ", ".join(
            f"ONLY {sql_text.quote_table(table)}" for table in sorted({one, other})
        ), SEED


def test_the_statement_for_a_role_names_it_as_sql_does() -> None:
    rng = random.Random(SEED)
    for user in (odd_name(rng) for _ in range(100)):
        said = "FATAL:  permission denied to start WAL sender\nDETAIL:  Only roles with the REPLICATION attribute"
        remedy = connection_error(said, user=user, database="d", place="h:1/d").remedy
        assert statements(remedy.removeprefix("run as a superuser: ")) == [
            ["ALTER", "ROLE", f"<{user}>", "REPLICATION"]
        ]
        family = ServerMessage("FATAL", "42501", "must be system admin or replication role to use replication slots")
        remedy = startup_error(family, user=user, database="d", where="h:1/d").remedy
        assert f"ALTER ROLE {sql_text.identifier(user)} REPLICATION" in remedy, SEED
