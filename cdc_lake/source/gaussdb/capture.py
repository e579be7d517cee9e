"""Capturing a stream of the GaussDB family raw, for `record` (implements `source.capture.Capture`).

From a slot that is given, or from one of its own, made now and dropped at the end: these servers know no temporary
slots, so one whose recording was killed stays, and `SELECT * FROM pg_replication_slots` shows it by its name. Nothing
is confirmed: every reply says 0, which the server ignores.

Payloads are as they came. Of the header, start and end are the server's (it sends one number twice), the clock is
ours; keepalives, which hold rubbish in part, are answered and not kept.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

from cdc_lake.errors import ServerUnreachable
from cdc_lake.model.position import OrderDomain
from cdc_lake.source.gaussdb.slot import create_slot, create_slot_by_function, drop_slot_when_free
from cdc_lake.source.gaussdb.stream import GaussStream
from cdc_lake.source.quoting import literal
from cdc_lake.source.silence import LONGEST
from cdc_lake.source.wire.session import WireSession

_DATA: Final = struct.Struct(">cQQq")  # 'w', start, end, clock
_EPOCH_2000: Final = 946_684_800  # seconds from 1970 to the servers' own epoch
_PATIENCE: Final = 10.0  # seconds: a slot stays active for about one after its reader's end


class FamilyCapture:
    """An open stream; `start` is the position it began at, `0/0` where that is the slot's confirmed position.

    `dial` opens a session, for replication or not, and is asked again at the end where a slot is to be dropped.
    """

    def __init__(
        self,
        dial: Callable[[bool], WireSession],
        plugin: str,
        options: Mapping[str, str],
        *,
        slot: str | None,
        order: OrderDomain = OrderDomain.LSN,
        status_interval: float,
        silence: float = LONGEST,
    ) -> None:
        """`slot` None: one of its own, in the order that the options are for. `status_interval`, `silence`: as of
        GaussStream. Raises SourceError.
        """
        self._dial = dial
        self._own: str | None = None
        self.start = "0/0"
        if slot is None:
            slot = f"cdc_lake_record_{secrets.token_hex(4)}"
            self.start = self._made(slot, plugin, order)
            self._own = slot
        try:
            self._stream = GaussStream(
                dial(True), slot, 0, options,
                keepalives_confirm=False, status_interval=status_interval, silence=silence,
            )  # fmt: skip
        except BaseException:
            self._drop()
            raise

    def poll(self, timeout: float) -> list[bytes]:
        """See Capture."""
        clock = int((time.time() - _EPOCH_2000) * 1_000_000)
        return [_DATA.pack(b"w", lsn, lsn, clock) + payload for lsn, payload in self._stream.poll(timeout)]

    def close(self) -> None:
        """See Capture. Raises SourceError where the slot of its own cannot be dropped, which names it."""
        self._stream.close()
        self._drop()

    def _made(self, slot: str, plugin: str, order: OrderDomain) -> str:
        """Make the slot; its consistent point. One in CSN order is made by the SQL function only."""
        by_function = order is OrderDomain.CSN
        with closing(self._dial(not by_function)) as session:
            made = create_slot_by_function(session, slot, plugin, order) if by_function else None
            return str((made or create_slot(session, slot, plugin)).consistent)

    def _drop(self) -> None:
        if self._own is None:
            return
        try:
            session = self._dial(False)
        except ServerUnreachable as away:
            hint = f"when it is back: SELECT pg_drop_replication_slot({literal(self._own)})"
            raise ServerUnreachable(
                f"slot `{self._own}` of the recording is left: {away.message}", where=away.where, hint=hint
            ) from away
        try:
            drop_slot_when_free(session, self._own, _PATIENCE)
        finally:
            session.close()
        self._own = None
