"""What maintenance did, or would do, as text."""

from __future__ import annotations

from cdc_lake.model.counting import counted
from cdc_lake.pipeline.maintain import Maintenance


def maintenance_text(done: Maintenance) -> str:
    """A line a step, then what limits retention or what was given up; silver's tables last."""
    lines = [step.text for step in done.steps] or ["nothing to do"]
    lines.append(f"bronze has {counted(done.files, 'data file')}")
    if done.kept and not done.lost:
        lines.append(f"retention: {done.kept}")
    lines += [f"{'lost' if done.done else 'would be lost'}: {lost}" for lost in done.lost]
    for table in done.silver or ():
        lines += [f"{table.table}: {step.text}" for step in table.steps] or [f"{table.table}: nothing to do"]
    if not done.done:
        lines.append("nothing was changed")
    return "\n".join(lines)
