"""A parking for targets that read prepared transactions."""

from __future__ import annotations

from dataclasses import replace

from cdc_lake.decode.pgoutput.parser import Prepared
from cdc_lake.decode.pgoutput.spooled import PreparedContent
from cdc_lake.decode.transaction import MemoryFrames


class InMemory:
    """Parks in a dictionary (`decode.pgoutput.spooled.Parking`)."""

    def __init__(self) -> None:
        self._kept: dict[int, PreparedContent] = {}

    def park(self, prepared: Prepared, content: PreparedContent) -> None:
        frames = MemoryFrames()  # those that came are closed once they are parked
        for part in content.frames.parts():
            frames.extend(*part)
        self._kept[prepared.xid] = replace(content, frames=frames)

    def commit_prepared(self, xid: int, gid: str, end_lsn: int) -> PreparedContent | None:
        return self._kept.pop(xid, None)

    def has_changes(self, xid: int, end_lsn: int) -> bool:
        return xid % 2 == 0

    def rolled_back(self, xid: int, gid: str, end_lsn: int) -> None:
        self._kept.pop(xid, None)
