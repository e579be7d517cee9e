"""Density: whether a stream of the GaussDB family shows every CSN, which decides what orders it.

In parallel decoding with empty transactions the open source shows every CSN of the server, so that a missing one is a
lost transaction. Serial decoding shows its own database's only, and GaussDB's kernels may leave numbers out. So where
the pipeline says `order: auto`, what can be dense is read for a moment before the stream begins, and a hole that stays
makes it a stream ordered by LSN. The answer is part of the stream's identity: it is never decided again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.gaussdb_sent import effective_options
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.errors import ServerSettings
from cdc_lake.model.position import OrderDomain
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.gaussdb.frames import Dial, assembler_of, frames_of
from cdc_lake.pipeline.stream.copying import Stopped
from cdc_lake.source.gaussdb.snapshot import csn_now
from cdc_lake.source.wire.session import WireSession

SETTLE = 3.0
"""Seconds that are read at most."""
QUIET = 1.5
"""Seconds of silence after which nothing more is read: a server sends what waits in a batch after one."""
ENOUGH = 200
"""Transactions after which nothing more is read."""
LATE = 16
"""How far behind the highest CSN one may still come; inversions were measured at a distance of at most 9."""


def order_of(source: FamilySource, *, exports: bool) -> OrderDomain | None:
    """What orders a new stream; None where only a look at the stream itself decides.

    `exports`: the server gives a CSN with a snapshot, without which there is nothing to count CSNs from.
    """
    if source.slot_order == "csn":
        return OrderDomain.CSN
    if not exports:
        return OrderDomain.LSN
    if source.order != "auto":
        return OrderDomain(source.order)
    shows_all = source.decoding_mode is Mode.PARALLEL and effective_options(source)["skip-empty-xacts"] == "off"
    if not shows_all or source.node in ("coordinator", "data_node"):
        return OrderDomain.LSN
    return None


def decide(project: Project, dial: Dial, session: WireSession, stop: threading.Event, tell: Tell) -> OrderDomain:
    """The order domain of a new stream, whose slot is there and was not read, of a server that gives CSNs.

    Raises SourceError, Stopped.
    """
    order = order_of(project.family, exports=True)
    if order is not None:
        return order
    missing = _missing(project, dial, session, stop)
    if missing is None:
        return OrderDomain.CSN
    tell(Progress("connect", f"CSN {missing} is missing in the stream: it is ordered by LSN"))
    return OrderDomain.LSN


def refuse_csn(project: Project) -> None:
    """Raise where the pipeline asks for CSN order of a server that gives no CSN with a snapshot."""
    if project.family.order == "csn":
        raise ServerSettings(
            "the server has no function pg_export_snapshot_and_csn: there is no CSN to count from",
            where=project.family.place,
            hint="set `source.order: auto`; the stream is then ordered by LSN",
        )


def hole(csns: Iterable[int], base: int) -> int | None:
    """The first CSN from `base` on that is missing although one more than `LATE` above it is there."""
    seen = sorted({csn for csn in csns if csn >= base})
    expected = base
    for csn in seen:
        if csn != expected:
            return expected if seen[-1] - expected > LATE else None
        expected += 1
    return None


def _missing(project: Project, dial: Dial, session: WireSession, stop: threading.Event) -> int | None:
    # below the CSN of a snapshot taken after the slot was made, the slot may leave transactions out
    base = csn_now(session).value
    frames = frames_of(project, dial("density", True), 0)
    try:
        assembler = assembler_of(project, OrderDomain.LSN, "UTF8")
        csns: list[int] = []
        heard = begun = time.monotonic()
        while time.monotonic() < min(begun + SETTLE, heard + QUIET) and len(csns) < ENOUGH:
            if stop.is_set():
                raise Stopped
            for number, payload in frames.poll(0.2):
                heard = time.monotonic()
                csns += [raw.bounds.csn for raw in assembler.feed(payload, number) if raw.bounds.csn is not None]
    finally:
        frames.close()
    return hole(csns, base)
