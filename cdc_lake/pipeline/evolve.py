"""Evolving: the silver table of a target brought to the columns that its next changes need."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lake.config.project import Target
from cdc_lake.lake.store import SilverColumn, SilverStore
from cdc_lake.silver.kinds import check_kind
from cdc_lake.silver.shape import check_evolution


def evolve(silver: SilverStore, columns: Sequence[SilverColumn], target: Target) -> None:
    """Make the silver table, or add the columns it lacks. Raises DestructiveChange for anything else."""
    have = silver.columns()
    if have is None:
        silver.create(columns)
        return
    check_kind([column.name for column in have], target)
    if missing := check_evolution(have, columns, target.label):
        silver.add(missing)
