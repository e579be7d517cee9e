"""Loop 1: from the slot into bronze. Owns the replication slot; needs neither Spark nor a JVM.

    frames → whole transactions → in order → one commit, durable → only then is the server told it may forget

Here is what holds it up over losses of its connection and of the lake; what it does with one connection's stream is
`pipeline.receiving`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from cdc_lake.bronze.port import BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.errors import LakeError, Retry, SourceError
from cdc_lake.lake.control import ControlTables, control_tables
from cdc_lake.observe.failpoint import CONNECTED, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.beside_stream import beside_the_stream
from cdc_lake.pipeline.connect import open_stream
from cdc_lake.pipeline.copying import Stopped
from cdc_lake.pipeline.open_stream import PATIENCE, OpenStream
from cdc_lake.pipeline.outlasting import OutlastingBronze, retrying
from cdc_lake.pipeline.pulse import Pulse
from cdc_lake.pipeline.receiver_note import ReceiverNote
from cdc_lake.pipeline.receiving import ReceiveSummary, Receiving

ONCE_PATIENCE = 60.0
"""Seconds a run with a goal goes on trying to reconnect."""
_BACK_OFF = (0.5, 10.0)  # seconds: first and longest pause between attempts


def receive(
    project: Project,
    bronze: BronzeWriter,
    *,
    once: bool,
    stop: threading.Event,
    tell: Tell,
    control: ControlTables | None = None,
    slot_patience: float = PATIENCE,
    pulse: Pulse | None = None,
) -> ReceiveSummary:
    """Receive until `stop` is set or, with `once`, until bronze holds everything committed before the start.

    Reconnects by itself once it was connected: without end, or with `once` for at most `ONCE_PATIENCE` seconds. A lake
    that is away or full is waited for without end; with `once` the run ends. `pulse`: where the loop says how it does.
    Raises SourceError, DecodeError, LakeError, StateError; bronze is then whole up to its last commit.
    """
    control = control or control_tables(project, project.pipeline.bronze.durability)
    with ReceiverNote(project.lake, project.name, tell) as note:
        outlasting = None if once else OutlastingBronze(bronze, stop, tell, note)
        bronze, waiting = outlasting or bronze, outlasting or nullcontext()
        pulse = pulse or Pulse()
        with beside_the_stream(project, tell, once=once) as watch:
            run = Receiving(
                project, bronze, control,
                once=once, stop=stop, tell=tell, connected=waiting, pulse=pulse, watch=watch,
            )  # fmt: skip
            connect = partial(open_stream, project, bronze, control, stop, tell, patience=slot_patience, first=once)
            _connections(run, connect, note)
    return run.summary()


def _connections(run: Receiving, connect: Callable[[], AbstractContextManager[OpenStream]], note: ReceiverNote) -> None:
    """One connection after the other, until the run is done or nothing can be waited for."""
    give_up: float | None = None
    delay = _BACK_OFF[0]
    while not run.stop.is_set():
        run.heed()
        try:
            with connect() as stream:
                give_up, delay = None, _BACK_OFF[0]
                note.goes_on()
                failpoint(CONNECTED)
                run.follow(stream)
                return
        except Stopped:
            return
        except SourceError as error:
            now = time.monotonic()
            give_up = give_up or now + ONCE_PATIENCE
            if error.retry is Retry.NEVER or not run.connected or (run.once and now + delay > give_up):
                raise
            run.tell(Progress("retry", f"{error.message}; next attempt in {delay:g} s", facts={"code": error.code}))
        except LakeError as error:
            if error.retry is Retry.NEVER or not run.connected or run.once:
                raise
            note.waits(error)
            run.tell(retrying(error, delay))
        run.count(reconnects=1)
        run.stop.wait(delay)
        delay = min(2 * delay, _BACK_OFF[1])
