"""The section `source.wal_budget`: how much log the server may keep for the slot, and what is done about it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cdc_lake.config.quantity import MILLISECONDS, Bytes
from cdc_lake.config.section import Section


class WalBudget(Section):
    """How much WAL the server may keep for the slot, and what the receiver does about it; at least one limit."""

    max_bytes: Bytes | None = None
    """WAL kept for the slot, for example `50 GiB`; set it below the server's `max_slot_wal_keep_size`."""
    max_age: Annotated[int, MILLISECONDS, Field(ge=1000, examples=["2 h"])] | None = None
    """How old log may get that is not in bronze yet."""
    on_exceeded: Literal["alert", "bronze_only", "drop_slot"] = "bronze_only"
    """How far the ladder goes. `alert`: it is told. `bronze_only`: before that batches get smaller, then apply pauses.
    `drop_slot`: all of it, and when the budget stays exceeded the slot is dropped: the stream ends, the server goes
    on."""

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if self.max_bytes is None and self.max_age is None:
            msg = "a budget needs `max_bytes` or `max_age`"
            raise ValueError(msg)
        return self
