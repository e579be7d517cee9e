"""Intentions: that a pipeline sets out to make a slot which bronze can know of only once it is there.

Where such a slot cannot be a temporary one first, the control table `snapshots` says so before it is made: one of the
pipeline's name that bronze does not know is ours then, left by a start that broke off.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import SnapshotRow
from cdc_lake.lake.control_rows import now as control_now
from cdc_lake.source.stream import Kind


@dataclass(frozen=True, slots=True)
class Intention:
    """To make a slot of this name, for a database of this server."""

    kind: Kind
    system: str
    database: str
    slot: str

    def after(self, control: ControlTables) -> int | None:
        """The epoch that bronze had when the pipeline last set out to make it; None where it never did."""
        mine = (self._snapshot, self._stream)
        return next((row.epoch for row in control.snapshots() if (row.snapshot, row.stream) == mine), None)

    def record(self, control: ControlTables, epoch: int) -> None:
        """Set out; `epoch` is the one that bronze has before that, 0 for none. Raises ControlNotWritten."""
        control.record(SnapshotRow(self._snapshot, self._stream, epoch, 0, "[]", "started", control_now()))

    @property
    def _snapshot(self) -> str:
        return f"slot:{self.slot}"

    @property
    def _stream(self) -> str:
        return f"{self.kind}:{self.system}:{self.database}:{self.slot}"
