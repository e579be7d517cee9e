"""The command that begins a stream, for every server of the family."""

from __future__ import annotations

from collections.abc import Mapping

from cdc_lake.model.position import Lsn
from cdc_lake.source.quoting import command_literal, identifier


def start_command(slot: str, start: int, options: Mapping[str, str]) -> str:
    """START_REPLICATION of a slot after `start`. Option names are the server's or the plugin's; values go quoted."""
    given = ", ".join(f"{identifier(name)} {command_literal(value)}" for name, value in options.items())
    return f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {Lsn(start)}" + (f" ({given})" if given else "")
