"""The doctor's look at the WAL budget: what is used of it now, and whether the server's own limit comes first."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.project import Project
from cdc_lake.errors import WalBudgetExceeded
from cdc_lake.pipeline.action import size
from cdc_lake.pipeline.check_line import CheckLine
from cdc_lake.source import slot
from cdc_lake.source.connection import Session


def budget_lines(project: Project, session: Session) -> Iterator[CheckLine]:
    """Where the pipeline has a budget in bytes and its slot is there. Raises SourceError."""
    budget, found = project.postgres.wal_budget, slot.find_slot(session, project.slot)
    most = None if budget is None else budget.max_bytes
    if most is None or found is None or found.retained is None:
        return
    kept = found.retained
    text = f"{size(kept)} of {size(most)} are kept for {found.name}"
    fix = "" if kept < most else WalBudgetExceeded.hint
    yield CheckLine(ok=kept < most, subject="WAL budget", text=text, fix=fix, code=WalBudgetExceeded.code)
    if found.safe is not None and (limit := kept + found.safe) < most:
        text = f"the server gives slots up at about {size(limit)}, before the budget of {size(most)} is used"
        fix = "raise max_slot_wal_keep_size, or lower `source.wal_budget.max_bytes`"
        yield CheckLine(ok=None, subject="WAL budget", text=text, fix=fix)
