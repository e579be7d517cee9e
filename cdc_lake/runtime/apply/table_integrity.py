"""Intact: whether only this pipeline changed the rows of a silver table since the last cut, and what is held of it is
recorded.

What a run may do to silver tables although it would lose something: operations that were allowed by their words.

It remembers which of them a table waited with, so that words which nothing waited for can be said: mostly they have an
error in them, and the table waits on.
"""

from __future__ import annotations

from collections.abc import Iterable

from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import TableState
from cdc_lake.control.quarantine import QuarantineLog, recorded_keys
from cdc_lake.errors import CdcLakeError, HeldLost, OtherWriter, SilverLost, SilverPutBack
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.tables.commit_audit import find_foreign_commit, is_version_replaced
from cdc_lake.tables.silver_table import Marker


def damage(project: Project, target: Target, stream: str, listed: TableState, marker: Marker) -> CdcLakeError | None:
    """What became of a table that the last cut lists and whose marker is this now, None where all is well."""
    version, older = marker.version, marker.generation < listed.generation
    if listed.version is None or (listed.version == version and not older):
        return first_merge_was_lost(project, target, stream, listed, marker)
    if version is None:
        return SilverLost(f"the last cut lists {target.label}, and the table is gone")
    if older:  # at the same version, too: another program may have taken it
        text = f"it has generation {marker.generation}, and the last cut lists {listed.generation}"
        return SilverPutBack(f"{target.label} was put back to an older content: {text}", where=target.label)
    foreign_commit = find_foreign_commit(project, target, stream, listed.version, version, listed.generation)
    if foreign_commit is None:
        return first_merge_was_lost(project, target, stream, listed, marker)
    if foreign_commit.put_back:
        return SilverPutBack(
            f"{target.label} was put back to an older content: {foreign_commit.text}", where=target.label
        )
    return OtherWriter(f"something else changed rows of {target.label}: {foreign_commit.text}", where=target.label)


def merge_may_be_lost(project: Project, target: Target, stream: str, listed: TableState) -> bool:
    """Whether the last merge that the last cut counts may be gone: the quick question, by the version that it names."""
    if listed.version is None or listed.merged is None:
        return False
    return is_version_replaced(project, target, stream, listed.version, listed.merged)


def merge_was_lost(listed: TableState, marker: Marker) -> bool:
    """Whether the last merge that the last cut counts is not in the past of a Delta table at `marker`.

    Delta gives a commit its version by a rename that, in a folder, replaces what is there: of two processes that commit
    the same version at the same time both may think that it is theirs. What was merged is in bronze, so it is merged
    again.
    """
    if listed.format != "delta" or listed.merged is None or marker.position is None:
        return False
    return marker.generation == listed.generation and marker.position < listed.merged


def first_merge_was_lost(
    project: Project, target: Target, stream: str, listed: TableState, marker: Marker
) -> SilverPutBack | None:
    """The same of the first merge of a table, behind which there is nothing to go on from."""
    if marker.version is None or marker.position is not None or not merge_may_be_lost(project, target, stream, listed):
        return None
    text = f"{target.label} is empty again: another program's commit took the version of its first merge"
    return SilverPutBack(text, where=target.label)


def missing_quarantine_rows(held: QuarantineLog, target: Target, epoch: int, listed: TableState) -> HeldLost | None:
    """What is missing of what is held of a table, by what the last cut counts; None where nothing is."""
    if not listed.held:
        return None
    recorded = len(recorded_keys(held, str(target.source), epoch, listed.generation, listed.position))
    if recorded >= listed.held:
        return None
    counts = f"the last cut counts {listed.held} held keys of {target.label}, and {recorded} are recorded"
    return HeldLost(counts, where=target.label)


def may_go_on(project: Project, error: CdcLakeError | None) -> bool:
    """Whether the pipeline merges into a table in spite of what became of it."""
    return error is None or (isinstance(error, OtherWriter) and project.pipeline.apply.other_writers == "warn")


class ApprovedOperations:
    """The words that were given. Asking for words (`in`) is to need them."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(words)
        self._needed: set[str] = set()

    def __contains__(self, words: object) -> bool:
        self._needed.add(str(words))
        return words in self._words

    @property
    def idle(self) -> tuple[str, ...]:
        """The words that nothing waited for up to now."""
        return tuple(sorted(self._words - self._needed))

    def say(self, report: ProgressReporter) -> None:
        """Tell of idle words."""
        for words in self.idle:
            text = f"no table waits with `{words}`, which was allowed: `cdc-lake plan` has the words of what waits"
            report(ProgressEvent("warning", text, facts={"operation": words}))
