"""Which kind a silver table is of."""

from __future__ import annotations

from typing import assert_never

from cdc_lake.config.project import Target
from cdc_lake.silver.append import Append
from cdc_lake.silver.current import Current
from cdc_lake.silver.history import History
from cdc_lake.silver.kind import Kind


def kind_of(target: Target) -> Kind:
    """The kind that the pipeline says."""
    match target.kind:
        case "current":
            return Current(soft=target.deletes == "soft")
        case "history":
            return History()
        case "append":
            return Append()
        case other:
            assert_never(other)
