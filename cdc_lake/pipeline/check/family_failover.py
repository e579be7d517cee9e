"""The doctor's look at the next failover of the GaussDB family: whether it would be noticed what was lost.

What a new primary has is shown by what the slot sends again (`pipeline.gaussdb.rejoin`). Here it is said where that
shows less.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.project import Project
from cdc_lake.pipeline.check.line import CheckLine
from cdc_lake.pipeline.gaussdb.frames import reads_by_sql
from cdc_lake.source.gaussdb.server import FamilySettings
from cdc_lake.source.gaussdb.slot import FamilySlotFacts

_COMPARE = "run `cdc-lake compare` after a failover"


def failover_lines(project: Project, facts: FamilySettings, slot: FamilySlotFacts | None) -> Iterator[CheckLine]:
    """What a failover to another of the hosts would leave in doubt; nothing where one server alone is named."""
    source = project.family
    if len(source.addresses) < 2 and source.node != "coordinator":
        return
    if not facts.slots_logged and source.node != "coordinator":
        text = "slots are not in the log: a standby that takes over, or decodes, does not have this one"
        fix = 'gs_guc set -D <data folder> -c "enable_slot_log = on";  on every server of the cluster'
        yield CheckLine(ok=None, subject="failover", text=text, fix=fix)
    if source.slot_order == "csn":
        text = "the slot is in CSN order: that a standby never has it ahead of its log is taken on trust"
        yield CheckLine(ok=None, subject="failover", text=text, fix=_COMPARE)
    if slot is not None and not slot.exact:
        shown = "nothing that was lost is noticed" if reads_by_sql(project) else "only what differs is noticed"
        text = f"this release does not show what the slot has confirmed: {shown}"
        yield CheckLine(ok=None, subject="failover", text=text, fix=_COMPARE)
