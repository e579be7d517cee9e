"""When silver is judged by its rules as it stands, and what that keeps back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cdc_lake.config.quantity import Milliseconds
from cdc_lake.config.section import Count, Section


class Quality(Section):
    """When silver is judged as it stands. Every change is judged before it is merged, whatever is set here."""

    every: Annotated[Milliseconds, Field(ge=60_000)] | None = None
    """How often apply judges silver at its last cut, for example `1 d`; by default only a report does."""
    promise_below: Literal["warn", "error", "critical"] | None = None
    """A cut is promised only where silver at it was judged and every rule stays below this level."""
    max_rows: Count = 500_000
    """Rows up to which a table is judged: it is read into memory."""
    sample_keys: Annotated[int, Field(ge=0, le=100)] = 0
    """Keys that a report names of the rows that break a rule, a rule at most so many; by default none."""
