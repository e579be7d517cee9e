"""SQL text for every server: quoting, session settings, and the command that starts a stream.

All our sessions use the same settings, so that copy and stream print values alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName


def identifier(name: str) -> str:
    """A name as an SQL identifier, always in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_table(table: TableName) -> str:
    """A table's name in SQL."""
    return f"{identifier(table.schema)}.{identifier(table.name)}"


def command_literal(text: str) -> str:
    """A string constant for a replication command, whose scanner has no backslash escapes (repl_scanner.l)."""
    return "'" + text.replace("'", "''") + "'"


def literal(text: str) -> str:
    """An SQL string constant, for statements without parameters."""
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f" E{quoted}" if "\\" in text else quoted


PRINTING: dict[str, str] = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "3",  # the shortest text that reads back as the same float
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "lc_monetary": "C",
}
"""Independent of the role's and the database's settings."""


def start_command(slot: str, start: int, options: Mapping[str, str]) -> str:
    """START_REPLICATION of a slot after `start`. Option names are the server's or the plugin's; values are quoted."""
    option_list = ", ".join(f"{identifier(name)} {command_literal(value)}" for name, value in options.items())
    command = f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {Lsn(start)}"
    return f"{command} ({option_list})" if option_list else command
