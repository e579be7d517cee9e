"""What a server keeps for the pipeline's slot, as the watch over its budget needs it, whatever the server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from cdc_lake.pipeline.wal.ladder import WalLook


class KeptWal(Protocol):
    """The log that a slot holds back."""

    def looking(self) -> AbstractContextManager[Callable[[], WalLook | None]]:
        """Connect; each call looks once, None where there is no slot that could be read. Raises SourceError."""
        ...

    def drop(self, patience: float) -> None:
        """Drop the slot, once its reader has gone, waited for up to `patience` seconds. Raises SourceError."""
        ...
