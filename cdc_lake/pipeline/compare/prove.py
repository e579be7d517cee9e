"""Compare: prove silver equal to the source, row by row, by key.

One read-only snapshot of the source for all tables. What it shows and silver does not hold yet is folded onto silver
in memory (`pipeline.compare.forward`), transaction by transaction (`pipeline.applying.point`); where bronze does not
have it, the verdict is inconclusive and says what to do.
Silver's values are written as the server prints them by code that the projection does not use (`lake.canonical`), the
source is read by another reader than the initial copy's (`source.rows`), so that a mistake in either path shows. Keys
that a rule or a cast holds are accounted for one by one (`pipeline.held.accounting`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.errors import NoStream, NoTableMatches, SlotInvalidated, SlotMissing, WalGone
from cdc_lake.lake.control import control_tables
from cdc_lake.model.as_of import AsOf
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.applying.point import Point, point
from cdc_lake.pipeline.compare.job import Asked, Job, Pinned, pin, pin_at
from cdc_lake.pipeline.compare.repair import repair_run
from cdc_lake.pipeline.compare.sample import Sample
from cdc_lake.pipeline.compare.table import table_compared
from cdc_lake.pipeline.ports.side import CompareSource
from cdc_lake.pipeline.server import compare_source
from cdc_lake.pipeline.state.comparison import Comparison, TableComparison
from cdc_lake.pipeline.state.find_cut import find_cut
from cdc_lake.pipeline.state.source_table import source_table
from cdc_lake.pipeline.state.verified import Judged, record
from cdc_lake.pipeline.stream.redaction import RedactedSource, redaction_of
from cdc_lake.source.captured import Published, Shown, Unlanded
from cdc_lake.source.stream import shown


def compare(
    project: Project,
    tables: Sequence[str],
    tell: Tell,
    *,
    repair: bool = False,
    yes: bool = False,
    values: bool = False,
    at: AsOf | None = None,
    full: bool = False,
    sample: Sample | None = None,
    exclude: Sequence[str] = (),
) -> Comparison:
    """Compare the named source tables (`schema.table`, or a table of `public`), all published ones by default, without
    those of `exclude`.

    Writes `compare.json` into the project's reports. `repair`: what differs is to be landed in bronze, for the next run
    to merge; `yes`: do it (`pipeline.compare.repair`). `values`: the rows of keys that are named are told too. `at`:
    silver as the cut that is asked for has it, rolled forward to the source's snapshot, instead of as it is now.
    `full`: all rows are matched, none is hashed first. `sample`: some rows only.

    Raises SourceError, LakeError, StateError; TableNotKnown and NoTableMatches for a table that is not published;
    AnotherApply where a run would be in the way of a repair; CutUnknown, BeforeFirstCut, CutNotReached; ValueError for
    a repair of a cut.
    """
    if repair and at is not None:
        msg = "what differs in an older version of silver is not repaired"
        raise ValueError(msg)
    asked = Asked(repair, lands=repair and yes, values=values, full=full, sample=sample, now=at is None)
    if not asked.lands:
        return _compared(project, tables, exclude, tell, asked, at)
    with repair_run(project) as found:
        found.append(_compared(project, tables, exclude, tell, asked, at))
    return found[0]


def _compared(
    project: Project, tables: Sequence[str], exclude: Sequence[str], tell: Tell, asked: Asked, at: AsOf | None
) -> Comparison:
    began = time.monotonic()
    bronze, control = bronze_reader(project), control_tables(project)
    state = bronze.state()
    if state is None:
        raise NoStream("bronze holds no stream yet: there is nothing to compare")

    with compare_source(project, state) as opened:
        source = RedactedSource(opened, redaction_of(project))
        captured = source.captured()
        out = {one.table for one in _chosen(captured, exclude)} if exclude else set()
        chosen = [one for one in _chosen(captured, tables) if one.table not in out]
        cut = None if at is None else find_cut(project, at, state.epoch)
        pinned = pin(project, control, state, chosen) if cut is None else pin_at(project, cut, chosen)
        tell(Progress("compare", "taking a snapshot of the source"))
        with _snapshot(bronze, state, source, pinned, tell) as where:
            jobs = [Job(project, bronze, control, state, source, one, asked) for one in pinned]
            found = [_told(table_compared(job, where), tell) for job in jobs]
    position, seconds = shown(state.stream, where.shown.position), round(time.monotonic() - began, 3)
    comparison = Comparison(project.name, datetime.now(UTC), position, tuple(found), seconds, asked.values)
    stands = [Judged(state.stream, state.epoch, one.marker.generation, one.watermark) for one in pinned]
    record(control, comparison, stands)
    comparison.write(project.reports)
    return comparison


@contextmanager
def _snapshot(
    bronze: BronzeReader, state: BronzeState, source: CompareSource, pinned: Sequence[Pinned], tell: Tell
) -> Iterator[Point]:
    """A snapshot of the source. Another is taken where silver holds what it does not show: that is committed, and will
    be seen in a moment.
    """

    def ahead(seen: Shown, after: int) -> Sequence[Unlanded] | None:
        try:
            return source.ahead(seen, after)
        except (SlotMissing, SlotInvalidated, WalGone) as gone:
            # nothing more comes to bronze: what it lacks is what was lost, and shows as differences
            text = f"{gone.message}: changes that bronze does not have are shown as differences"
            tell(Progress("warning", text, facts={"code": gone.code}))
            return ()

    lowest = min((one.watermark for one in pinned), default=state.upto)
    for last in (False, False, True):
        with source.snapshot([one.target.source for one in pinned]) as seen:
            where = point(bronze, seen, lowest, partial(ahead, seen))
            if last or not any(where.beyond(one.target.source, one.watermark) for one in pinned):
                yield where
                return


def _told(result: TableComparison, tell: Tell) -> TableComparison:
    because = f" ({result.reason})" if result.reason else ""
    facts = {"table": result.table, "verdict": result.verdict.value}
    tell(Progress("compare", f"{result.table}: {result.text}{because}", result.source_rows, unit="rows", facts=facts))
    return result


def _chosen(captured: Sequence[Published], wanted: Sequence[str]) -> list[Published]:
    by_name = {one.table: one for one in captured}
    if not wanted:
        return list(captured)
    chosen = []
    for text in wanted:
        name = source_table(text)
        if name not in by_name:
            raise NoTableMatches(f"the stream carries no table {name}", hint="`cdc-lake plan` lists the tables")
        chosen.append(by_name[name])
    return chosen
