"""A recording as a stream that the receive loop can read instead of a server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from cdc_lake.config.source import POSTGRES_TYPES
from cdc_lake.devtools.recording import Alive, Data, RecordingHeader, RecordingReader

_POLL_BYTES: Final = 1 << 20  # one call of poll returns after about this much


def confirms_by_keepalive(header: RecordingHeader) -> bool:
    """Whether a keepalive means that everything before its position was sent: not in parallel decoding."""
    return header.source in POSTGRES_TYPES or header.options.get("parallel-decode-num") == "1"


class RecordingSource:
    """A recording as a stream (implements `source.base.FrameSource`).

    It starts at the beginning whatever was confirmed before, as a server does that lost the position: what bronze
    holds already is a repeat. `ended` is True once everything was given out; `confirmed` is what `confirm` was told.
    """

    def __init__(self, path: Path, *, keepalives_confirm: bool | None = None) -> None:
        """`keepalives_confirm`: whether everything before a keepalive's position was sent, so that it may be confirmed.

        None: as the header says, False without one. True of PostgreSQL and of serial decoding of the GaussDB family,
        never of parallel decoding. Raises RecordingUnreadable.
        """
        self._reader = RecordingReader.open(path)
        header = self._reader.header
        self._keepalives_confirm = (
            header is not None and confirms_by_keepalive(header) if keepalives_confirm is None else keepalives_confirm
        )
        self._keepalive_end = 0
        self.ended = False
        self.confirmed = 0

    @property
    def header(self) -> RecordingHeader | None:
        """Where the recording comes from, as far as it says so."""
        return self._reader.header

    @property
    def keepalive_end(self) -> int:
        """The newest WAL position the server announced: everything committed before it has been sent."""
        return self._keepalive_end

    @property
    def reply_requested(self) -> bool:
        """See FrameSource: a file asks for nothing."""
        return False

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """See FrameSource; at the end it waits the whole `timeout`, as a silent server would."""
        frames: list[tuple[int, bytes]] = []
        size = 0
        while not self.ended and size < _POLL_BYTES:
            match self._reader.read_entry():
                case None:
                    self.ended = True
                case Alive(end=end):
                    # frames before it are given out first: they are in the same list
                    if self._keepalives_confirm:
                        self._keepalive_end = max(self._keepalive_end, end)
                case Data(lsn=lsn, payload=payload):
                    frames.append((lsn, payload))
                    size += len(payload)
        if not frames and timeout > 0:
            time.sleep(timeout)
        return frames

    def confirm(self, position: int) -> None:
        """See FrameSource; nothing is forgotten."""
        self.confirmed = max(self.confirmed, position)

    def tick(self, *, ping: bool = False) -> None:
        """See FrameSource: nobody waits for a status."""
        del ping

    def close(self) -> None:
        """Close the connection; the slot stays."""
        self._reader.close()
