"""The doctor's look at the WAL budget: what is used of it now, and whether the server's own limit comes first."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.project import Project
from cdc_lake.errors import WalBudgetExceeded
from cdc_lake.pipeline.check.line import CheckLine
from cdc_lake.pipeline.ports.action import size


def budget_lines(project: Project, kept: int | None, safe: int | None = None) -> Iterator[CheckLine]:
    """Where the pipeline has a budget in bytes. `kept` for its slot, None where that is not known; `safe`: what may
    still be written before the server gives the slot up, None where nothing bounds it.
    """
    budget = project.pipeline.source.wal_budget
    most = None if budget is None else budget.max_bytes
    if most is None or kept is None:
        return
    text = f"{size(kept)} of {size(most)} are kept for {project.slot}"
    fix = "" if kept < most else WalBudgetExceeded.hint
    yield CheckLine(ok=kept < most, subject="WAL budget", text=text, fix=fix, code=WalBudgetExceeded.code)
    if safe is not None and (limit := kept + safe) < most:
        text = f"the server gives slots up at about {size(limit)}, before the budget of {size(most)} is used"
        fix = "raise max_slot_wal_keep_size, or lower `source.wal_budget.max_bytes`"
        yield CheckLine(ok=None, subject="WAL budget", text=text, fix=fix)
