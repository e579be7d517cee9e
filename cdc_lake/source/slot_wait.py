"""Dropping a slot by attempts, where the server cannot be asked to wait for who reads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cdc_lake.errors import SlotActive

_LOOK: Final = 0.2  # seconds between two attempts


def dropped_when_free(drop: Callable[[], None], patience: float) -> None:
    """Call `drop` until nobody reads the slot, for up to `patience` seconds. Raises what it does, SlotActive too."""
    until = time.monotonic() + patience
    while True:
        try:
            return drop()
        except SlotActive:
            if time.monotonic() + _LOOK > until:
                raise
        time.sleep(_LOOK)
