"""What a server counts of a slot's decoding: transactions it spilled to its own disk, or streamed before their end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SlotCounters:
    """`pg_stat_replication_slots`: transactions and bytes since the statistics were reset, or first kept.

    `spilled`: larger than `logical_decoding_work_mem`, so written to the server's disk while they were decoded;
    `streamed`: sent before their COMMIT instead; `total`: all that were decoded. `since`: when the statistics were
    reset; None: never, so they begin with the slot, or where a crash of the server took them.
    """

    spilled_transactions: int
    spilled_bytes: int
    streamed_transactions: int
    streamed_bytes: int
    total_transactions: int
    total_bytes: int
    since: datetime | None = None

    @property
    def counted_since(self) -> str:
        """The same in words."""
        return "since the slot's statistics began" if self.since is None else f"since {self.since:%Y-%m-%dT%H:%M:%SZ}"
