"""Compares what a silver table's own commits say with the last cut, and names the case.

`find_violation` reads commits and control tables; `reconcile` reads nothing. `ApprovedOperations` remembers which
approved operations a table needed, so that unused ones, mostly typing errors, can be reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import ACTIVE, TableState
from cdc_lake.control.quarantine import QuarantineLog, recorded_keys
from cdc_lake.errors import CdcLakeError, OtherWriter, QuarantineLost, SilverLost, SilverRestored
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import Marker


@dataclass(frozen=True, slots=True)
class InSync:
    """The table is where it is expected."""


@dataclass(frozen=True, slots=True)
class CommitUnrecorded:
    """The table is ahead of the last cut: the process that merged it ended before it wrote the cut."""

    position: int


@dataclass(frozen=True, slots=True)
class CommitLost:
    """The table is behind the last cut: another program's commit replaced our last merge.

    Delta publishes a version by a rename that, in a folder, silently replaces an existing file, so two writers of the
    same version both believe that they won. What was merged is in bronze, and is merged again. Iceberg cannot lose a
    commit this way: its catalog swaps the metadata pointer atomically.
    """

    position: int


@dataclass(frozen=True, slots=True)
class GenerationReplaced:
    """A rebuild or a resync published new content that no cut lists yet."""

    position: int


@dataclass(frozen=True, slots=True)
class Violated:
    """Another writer changed the table or restored an older version, or quarantine rows are gone: the table waits."""

    error: CdcLakeError


Reconciliation: TypeAlias = InSync | CommitUnrecorded | CommitLost | GenerationReplaced | Violated


def reconcile(
    recorded: TableState | None, committed: Marker, violation: CdcLakeError | None, expected: int
) -> Reconciliation:
    """Compare what the last cut says of a silver table with what the table's own commits say.

    Args:
        recorded: The table in the last cut; None if no cut lists it yet.
        committed: Position, version and generation that the table itself has.
        violation: What the table has to wait for (`find_violation`, `missing_quarantine_rows`), None if nothing.
        expected: The position of `recorded`, or where a table that no cut lists begins.
    """
    if recorded is not None and violation is not None:
        return Violated(violation)
    if committed.position is None:
        return InSync()
    if recorded is not None and committed.generation > recorded.generation:
        return GenerationReplaced(committed.position)
    if (
        recorded is not None
        and recorded.format == "delta"
        and recorded.merged is not None
        and committed.generation == recorded.generation
        and committed.position < recorded.merged
    ):
        return CommitLost(committed.position)
    return CommitUnrecorded(committed.position) if committed.position > expected else InSync()


def find_violation(
    project: Project, target: Target, stream: str, recorded: TableState, committed: Marker
) -> CdcLakeError | None:
    """What others did to a table since the last cut, None if nothing: a version restored, rows changed, the table gone.

    Commits of maintenance, which change no rows, do not count.
    """
    version, older = committed.version, committed.generation < recorded.generation
    if recorded.version is None or (recorded.version == version and not older):
        return first_merge_was_lost(project, target, stream, recorded, committed)
    if version is None:
        return SilverLost(f"the latest cut lists {target.label}, but the table no longer exists")
    if older:  # at the same version, too: another program may have replaced it
        text = f"it has generation {committed.generation}, but the latest cut lists {recorded.generation}"
        return SilverRestored(f"{target.label} was restored to older content: {text}", where=target.label)
    foreign_commit = table_log(project, target).foreign_commit(stream, recorded.version, version, recorded.generation)
    if foreign_commit is None:
        return first_merge_was_lost(project, target, stream, recorded, committed)
    if foreign_commit.put_back:
        text = f"{target.label} was restored to older content: {foreign_commit.text}"
        return SilverRestored(text, where=target.label)
    return OtherWriter(f"{target.label} was modified outside cdc_lake: {foreign_commit.text}", where=target.label)


def merge_may_be_lost(project: Project, target: Target, stream: str, recorded: TableState) -> bool:
    """Cheap check whether another writer replaced the commit of our last merge; `reconcile` confirms it.

    Reads the one log entry that the last cut names. False if the entry was cleaned up: a checkpoint covers it then.
    """
    if recorded.version is None or recorded.merged is None:
        return False
    return table_log(project, target).is_replaced(stream, recorded.version, recorded.merged)


def was_merged_again(project: Project, target: Target, stream: str, recorded: TableState, committed: Marker) -> bool:
    """Whether another writer replaced the commit of our last merge, which was repeated since: cuts were lost, and the
    last one is older than that.
    """
    if committed.version == recorded.version or committed.position is None or recorded.merged is None:
        return False
    reached = recorded.merged <= committed.position <= recorded.position
    return reached and merge_may_be_lost(project, target, stream, recorded)


def first_merge_was_lost(
    project: Project, target: Target, stream: str, recorded: TableState, committed: Marker
) -> SilverRestored | None:
    """The error if another writer replaced the first merge of a table: no position is left to continue from."""
    if committed.version is None or committed.position is not None:
        return None
    if not merge_may_be_lost(project, target, stream, recorded):
        return None
    text = f"{target.label} is empty again: another program's commit replaced the version of its first merge"
    return SilverRestored(text, where=target.label)


def missing_quarantine_rows(
    quarantine: QuarantineLog, target: Target, epoch: int, recorded: TableState
) -> QuarantineLost | None:
    """The error if the control tables have fewer quarantined keys of a table than the last cut counts."""
    if not recorded.quarantined_keys:
        return None
    present = len(recorded_keys(quarantine, str(target.source), epoch, recorded.generation, recorded.position))
    if present >= recorded.quarantined_keys:
        return None
    keys = f"{recorded.quarantined_keys} quarantined keys of {target.label}"
    return QuarantineLost(f"the latest cut counts {keys}, but {present} are recorded", where=target.label)


def is_untouched(
    project: Project, target: Target, state: StreamCheckpoint, recorded: TableState, quarantine: QuarantineLog
) -> bool:
    """Whether a table is certainly as in the last cut, judged by its version alone."""
    return (
        recorded.state == ACTIVE
        and recorded.version is not None
        and table_log(project, target).is_latest(recorded.version)
        and not merge_may_be_lost(project, target, state.stream, recorded)
        and missing_quarantine_rows(quarantine, target, state.epoch, recorded) is None
    )


def is_tolerated(project: Project, violation: CdcLakeError) -> bool:
    """Whether the pipeline merges into a table in spite of a violation (`apply.other_writers: warn`)."""
    return isinstance(violation, OtherWriter) and project.pipeline.apply.other_writers == "warn"


class ApprovedOperations:
    """The approved operations. A look-up (`in`) marks one as needed."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(words)
        self._needed: set[str] = set()

    def __contains__(self, words: object) -> bool:
        self._needed.add(str(words))
        return words in self._words

    @property
    def idle(self) -> tuple[str, ...]:
        """The operations that nothing has needed so far."""
        return tuple(sorted(self._words - self._needed))

    def say(self, report: ProgressReporter) -> None:
        """Report unused operations."""
        for words in self.idle:
            text = (
                f"no table waits for `{words}`, which was allowed: `cdc-lake plan` prints the operations that tables "
                "wait for"
            )
            report(ProgressEvent("warning", text, facts={"operation": words}))
