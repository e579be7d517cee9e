"""What the verbs of `slot` ask of a server, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cdc_lake.bronze.port import BronzeState
from cdc_lake.pipeline.ports.slot_details import SlotDetails
from cdc_lake.pipeline.ports.slot_values import SlotAdvanced, SlotFound, SlotView


class SlotCare(Protocol):
    """The slots of a server. Every method raises SourceError."""

    def views(self) -> list[SlotView]:
        """Every slot, of other databases and readers too, by name."""
        ...

    def find(self, name: str) -> SlotFound | None:
        """A slot, and where the server's log ends."""
        ...

    def inspect(self, name: str, state: Callable[[], BronzeState | None]) -> SlotDetails | None:
        """Everything of one slot; `state`: what bronze holds, asked behind it: receivers land before they confirm."""
        ...

    def advance(self, state: Callable[[], BronzeState], upto: int | None) -> SlotAdvanced:
        """Let the pipeline's slot forget what bronze holds; `state` is asked behind the slot. Raises AdvancePastBronze,
        SlotActive, StateError.
        """
        ...

    def drop(self, name: str, wait: float) -> None:
        """Drop a slot, waiting so many seconds for who reads it. Raises SlotActive."""
        ...
