"""Whether a stream that bronze holds can go on at a server, as far as every kind of server is asked alike."""

from __future__ import annotations

from cdc_lake.errors import BronzeAhead, OtherSource
from cdc_lake.model.position import Lsn
from cdc_lake.source.stream import StreamIdentity


def check_fed_from(stream: StreamIdentity, *, system: str, database: str, slot: str) -> None:
    """Raise OtherSource where bronze, which holds `stream`, was not fed from this server, database and slot."""
    for what, was, now in (
        ("server's system identifier", stream.system, system),
        ("database", stream.database, database),
        ("slot", stream.slot, slot),
    ):
        if was != now:
            raise OtherSource(f"the {what} is `{now}`, but bronze was fed from `{was}`")


def check_log_reaches(held: int, flushed: Lsn, timeline: int) -> None:
    """Raise BronzeAhead where the server's log ends before what bronze holds."""
    if held > flushed.value:
        raise BronzeAhead(
            f"bronze holds changes up to {Lsn(held)}, the server's log ends at {flushed}: "
            f"{held - flushed.value} bytes were lost there (timeline {timeline})"
        )
