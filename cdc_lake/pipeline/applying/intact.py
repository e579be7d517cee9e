"""Intact: whether only this pipeline changed the rows of a silver table since the last cut, and what is held of it is
recorded.
"""

from __future__ import annotations

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import CdcLakeError, HeldLost, OtherWriter, SilverLost, SilverPutBack
from cdc_lake.lake.marker import Marker
from cdc_lake.lake.strangers import stranger, taken
from cdc_lake.pipeline.state.cuts import TableState
from cdc_lake.pipeline.state.holds import HoldLog, recorded_keys


def damage(project: Project, target: Target, stream: str, listed: TableState, marker: Marker) -> CdcLakeError | None:
    """What became of a table that the last cut lists and whose marker is this now, None where all is well."""
    version, older = marker.version, marker.generation < listed.generation
    if listed.version is None or (listed.version == version and not older):
        return emptied(project, target, stream, listed, marker)
    if version is None:
        return SilverLost(f"the last cut lists {target.label}, and the table is gone")
    if older:  # at the same version, too: another program may have taken it
        text = f"it has generation {marker.generation}, and the last cut lists {listed.generation}"
        return SilverPutBack(f"{target.label} was put back to an older content: {text}", where=target.label)
    one = stranger(project, target, stream, listed.version, version, listed.generation)
    if one is None:
        return emptied(project, target, stream, listed, marker)
    if one.put_back:
        return SilverPutBack(f"{target.label} was put back to an older content: {one.text}", where=target.label)
    return OtherWriter(f"something else changed rows of {target.label}: {one.text}", where=target.label)


def doubted(project: Project, target: Target, stream: str, listed: TableState) -> bool:
    """Whether the last merge that the last cut counts may be gone: the quick question, by the version that it names."""
    if listed.version is None or listed.merged is None:
        return False
    return taken(project, target, stream, listed.version, listed.merged)


def overwritten(listed: TableState, marker: Marker) -> bool:
    """Whether the last merge that the last cut counts is not in the past of a Delta table at `marker`.

    Delta gives a commit its version by a rename that, in a folder, replaces what is there: of two processes that commit
    the same version at the same time both may think that it is theirs. What was merged is in bronze, so it is merged
    again.
    """
    if listed.format != "delta" or listed.merged is None or marker.position is None:
        return False
    return marker.generation == listed.generation and marker.position < listed.merged


def emptied(project: Project, target: Target, stream: str, listed: TableState, marker: Marker) -> SilverPutBack | None:
    """The same of the first merge of a table, behind which there is nothing to go on from."""
    if marker.version is None or marker.position is not None or not doubted(project, target, stream, listed):
        return None
    text = f"{target.label} is empty again: another program's commit took the version of its first merge"
    return SilverPutBack(text, where=target.label)


def forgotten(held: HoldLog, target: Target, epoch: int, listed: TableState) -> HeldLost | None:
    """What is missing of what is held of a table, by what the last cut counts; None where nothing is."""
    if not listed.held:
        return None
    there = len(recorded_keys(held, str(target.source), epoch, listed.generation, listed.position))
    if there >= listed.held:
        return None
    counts = f"the last cut counts {listed.held} held keys of {target.label}, and {there} are recorded"
    return HeldLost(counts, where=target.label)


def may_go_on(project: Project, error: CdcLakeError | None) -> bool:
    """Whether the pipeline merges into a table in spite of what became of it."""
    return error is None or (isinstance(error, OtherWriter) and project.pipeline.apply.other_writers == "warn")
