"""Quoting: names and texts inside SQL statements and replication commands, for every server of the family."""

from __future__ import annotations

from cdc_lake.model.relation import TableName


def identifier(name: str) -> str:
    """A name as an SQL identifier, always in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quoted(table: TableName) -> str:
    """A table's name in SQL."""
    return f"{identifier(table.schema)}.{identifier(table.name)}"


def command_literal(text: str) -> str:
    """A text as a string constant of a replication command, whose scanner knows no backslash (repl_scanner.l)."""
    return "'" + text.replace("'", "''") + "'"


def literal(text: str) -> str:
    """A text as an SQL string constant, for the statements that take no parameters."""
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f" E{quoted}" if "\\" in text else quoted
