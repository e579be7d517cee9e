"""The source as `plan` and `status` see it, whatever the server. Nothing is made, locked or advanced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cdc_lake.bronze.port import BronzeState
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.slot_counters import SlotCounters
from cdc_lake.pipeline.ports.action import Action


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """The slot on the server: its confirmed position as people paste it, and bytes of WAL kept for it.

    `read_by`: who reads it, None where nobody does; `lost`: why it can no longer be used, None where it can; `safe`:
    bytes that may still be written before it is in danger of that, `counters`: what decoding it took, both None where
    the server does not tell.
    """

    confirmed: str | None
    retained: int | None
    read_by: str | None
    lost: str | None
    safe: int | None = None
    counters: SlotCounters | None = None


class SourceView(Protocol):
    """A short session on the source. Every method raises SourceError."""

    def tables(self) -> list[TableName]:
        """The tables that the stream carries, or would."""
        ...

    def origin(self) -> str:
        """Server, database and slot that a stream of this pipeline comes from (`StreamIdentity.origin`)."""
        ...

    def end(self, domain: OrderDomain) -> int:
        """The newest position: everything committed by now lies at or below it."""
        ...

    def received(self) -> int | None:
        """The position up to which the slot's receiver has read, as far as the server tells."""
        ...

    def slot(self) -> SlotSeen | None:
        """The pipeline's slot."""
        ...

    def steps(self, state: Callable[[], BronzeState | None]) -> Iterator[Action]:
        """What `run` would do at the source; `state`: what bronze holds, asked behind the slot: receivers land before
        they confirm. Raises StateError where it could not go on.
        """
        ...

    def layout(self, table: TableName) -> Relation | None:
        """The layout of a captured table now; None where it is none."""
        ...
