"""The options of PostgreSQL's output plugins, the same for streams, SQL functions and recordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdc_lake.config.source import ORIGINS, PARALLEL, STREAMS, TWO_PHASE, Pgoutput, newest_protocol
from cdc_lake.errors import OptionRefused
from cdc_lake.source.sql_text import identifier

PGOUTPUT: Final = "pgoutput"
TEST_DECODING: Final = "test_decoding"

LINE_OPTIONS: Final[Mapping[str, str]] = {"include-xids": "1", "include-timestamp": "1", "skip-empty-xacts": "1"}
"""Options of test_decoding. Not `stream-changes`: streamed changes have no values."""

PHASED_LINE_OPTIONS: Final[Mapping[str, str]] = {**LINE_OPTIONS, "skip-empty-xacts": "0"}
"""The same for a slot with two-phase decoding. PostgreSQL 18.1 itself crashes, with all its sessions, if it should skip
an empty prepared transaction that only locked rows (pg_decode_prepare_txn).
"""


def message_options(publication: str) -> dict[str, str]:
    """Options of pgoutput."""
    return {"proto_version": "1", "publication_names": identifier(publication)}


def chosen(major: int, options: Pgoutput, called: str = "", *, streams: bool = True) -> dict[str, str]:
    """The options for a server: the configured ones, otherwise its highest version, streaming. Raises OptionRefused.

    `called`: the server's name for display if it is not PostgreSQL. Without `streams`, by SQL functions, nothing is
    streamed: they decode from the slot's position each time, so transactions in progress would be sent repeatedly.
    """
    server = called or f"PostgreSQL {major}"
    newest = newest_protocol(major)
    version = newest if options.proto_version is None else options.proto_version
    if version > newest:
        text = f"{server} supports versions 1 to {newest} of pgoutput's protocol, not {version}"
        raise OptionRefused(text, hint="remove `proto_version` from `source.decoding`")
    streaming = (options.streaming or ("on" if version >= STREAMS else "off")) if streams else "off"
    if streaming == "parallel" and version < PARALLEL:
        text = f"{server} does not support `streaming 'parallel'`"
        raise OptionRefused(text, hint="set `streaming: on` in `source.decoding`: it sends the same changes")
    if options.two_phase and version < TWO_PHASE:
        text = f"`two_phase` needs version {TWO_PHASE} of pgoutput's protocol"
        hint = (
            "remove `two_phase` from `source.decoding`: prepared transactions then arrive complete at COMMIT PREPARED"
        )
        raise OptionRefused(f"{text}; {server} is asked for version {version}", hint=hint)
    if options.origin == "none" and major < ORIGINS:
        text = f"{server} has no option `origin` of pgoutput, which PostgreSQL {ORIGINS} introduced"
        raise OptionRefused(text, hint="remove `origin` from `source.decoding`: changes of every origin are then sent")
    asked = {"streaming": streaming, "origin": options.origin}
    asked = {name: value for name, value in asked.items() if value not in ("off", "any")}
    flags = {name: "true" for name in ("binary", "messages", "two_phase") if getattr(options, name)}
    return {"proto_version": str(version)} | asked | flags
