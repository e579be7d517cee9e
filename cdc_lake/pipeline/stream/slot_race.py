"""A slot ahead of what was read of bronze a moment ago: changes are missing, or another receiver landed them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import SlotActive, SlotAhead


@contextmanager
def bronze_may_go_on(project: Project, state: BronzeState, confirmed: int | None) -> Iterator[None]:
    """Take a SlotAhead for what it is where bronze holds by now what the slot has confirmed. Raises SlotActive."""
    try:
        yield
    except SlotAhead as ahead:
        now = bronze_reader(project).state()
        if now is None or confirmed is None or now.stream != state.stream or now.confirm < confirmed:
            raise
        text = f"slot `{project.slot}` is read by another receiver: bronze went on while it was looked at"
        raise SlotActive(text) from ahead
