"""Whether a stream that bronze holds can go on at a server, as far as every kind of server is asked alike."""

from __future__ import annotations

from cdc_lake.errors import OtherSource
from cdc_lake.errors.root import ANEW
from cdc_lake.source.stream import StreamIdentity


def check_fed_from(stream: StreamIdentity, *, system: str, database: str, slot: str) -> None:
    """Raise OtherSource where bronze, which holds `stream`, was not fed from this server, database and slot."""
    for what, was, now in (
        ("server's system identifier", stream.system, system),
        ("database", stream.database, database),
        ("slot", stream.slot, slot),
    ):
        if was != now:
            hint = f"set `source.slot.name: {was}` again, and nothing is lost; to have another slot: {ANEW}"
            text = f"the {what} is `{now}`, but bronze was fed from `{was}`"
            raise OtherSource(text, hint=hint if what == "slot" else None)
