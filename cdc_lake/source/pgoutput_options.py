"""What pgoutput is asked for beyond the publication: its protocol's version, and transactions that are under way."""

from __future__ import annotations

from cdc_lake.config.pgoutput import ORIGINS, PARALLEL, STREAMS, TWO_PHASE, newest_protocol
from cdc_lake.config.source import Pgoutput
from cdc_lake.errors import OptionRefused


def chosen(major: int, given: Pgoutput, called: str = "", *, streams: bool = True) -> dict[str, str]:
    """The options for a server: what is given, else the highest version it has, streaming. Raises OptionRefused.

    `called`: what people are told it is, where that is no PostgreSQL. Without `streams`, by SQL functions, nothing is
    streamed: they decode from the slot's position at every look, so what is under way would come again each time.
    """
    server = called or f"PostgreSQL {major}"
    newest = newest_protocol(major)
    version = newest if given.proto_version is None else given.proto_version
    if version > newest:
        text = f"{server} speaks versions 1 to {newest} of pgoutput's protocol, not {version}"
        raise OptionRefused(text, hint="take `proto_version` out of `source.decoding`")
    streaming = (given.streaming or ("on" if version >= STREAMS else "off")) if streams else "off"
    if streaming == "parallel" and version < PARALLEL:
        text = f"{server} has no `streaming 'parallel'`"
        raise OptionRefused(text, hint="set `streaming: on` in `source.decoding`: it carries the same changes")
    if given.two_phase and version < TWO_PHASE:
        text = f"`two_phase` needs version {TWO_PHASE} of pgoutput's protocol"
        raise OptionRefused(
            f"{text}; {server} is asked for version {version}",
            hint="take `two_phase` out of `source.decoding`: prepared transactions arrive whole at COMMIT PREPARED",
        )
    if given.origin == "none" and major < ORIGINS:
        text = f"{server} has no option `origin` of pgoutput: it came with PostgreSQL {ORIGINS}"
        raise OptionRefused(text, hint="take `origin` out of `source.decoding`: changes of every origin are sent then")
    asked = {"streaming": streaming, "origin": given.origin}
    asked = {name: value for name, value in asked.items() if value not in ("off", "any")}
    flags = {name: "true" for name in ("binary", "messages", "two_phase") if getattr(given, name)}
    return {"proto_version": str(version)} | asked | flags
