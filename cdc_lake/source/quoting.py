"""Quoting: names and texts inside SQL statements and replication commands, for every server of the family."""

from __future__ import annotations


def identifier(name: str) -> str:
    """A name as an SQL identifier, always in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL string constant, for the commands that take no parameters."""
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f" E{quoted}" if "\\" in text else quoted
