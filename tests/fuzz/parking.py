"""A parking for targets that read prepared transactions."""

from __future__ import annotations

from dataclasses import replace

from cdc_lake.decode.frames import MemoryFrames
from cdc_lake.decode.parking import Parked
from cdc_lake.decode.pgoutput_prepared import Prepared


class InMemory:
    """Parks in a dictionary (`decode.parking.Parking`)."""

    def __init__(self) -> None:
        self._kept: dict[int, Parked] = {}

    def park(self, prepared: Prepared, content: Parked) -> None:
        frames = MemoryFrames()  # those that came are closed once they are parked
        for part in content.frames.parts():
            frames.extend(*part)
        self._kept[prepared.xid] = replace(content, frames=frames)

    def committed(self, xid: int, gid: str, end_lsn: int) -> Parked | None:
        return self._kept.pop(xid, None)

    def changed(self, xid: int, end_lsn: int) -> bool:
        return xid % 2 == 0

    def rolled_back(self, xid: int, gid: str, end_lsn: int) -> None:
        self._kept.pop(xid, None)
