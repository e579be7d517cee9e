"""Writes the HTML pages of a pipeline: its status with past cuts and runs, and its report.

The status page reads what `status` reads, and history, and shows no row values. The report includes its JSON and Great
Expectations' own results.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, parse_cut
from cdc_lake.observability import html
from cdc_lake.observability.html import Headline, environment, write_page
from cdc_lake.ops.report_data import Evidence
from cdc_lake.ops.status import status
from cdc_lake.quality.report import render_html, render_json
from cdc_lake.runtime.receive.lag import Status, TableStatus
from cdc_lake.tables.control_schema import RunRow
from cdc_lake.tables.control_tables import ControlTables, control_tables

SHOWN: Final = 8
"""Cuts and runs in the lists."""
DRAWN: Final = 60
"""Cuts and runs in the charts."""
_REMEMBERED: Final = 500
"""Number of runs in which errors are counted."""


@dataclass(frozen=True, slots=True)
class PastCut:
    """A cut: the age of its newest transaction at that time, None if unknown; its number of tables."""

    position: str
    written_at: datetime
    age: float | None
    tables: int
    there: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run of a command. `changes`: applied to silver or, by a receiver, landed in bronze; None for other commands."""

    run: str
    verb: str
    started_at: datetime
    seconds: float | None
    outcome: str
    changes: int | None
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PastError:
    """An error of runs or failed tables: its count, and the last time."""

    code: str
    times: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class StatusPage:
    """The page's content. Cuts, runs and errors newest first; `ages` and `changes` for the charts, oldest first."""

    status: Status
    cuts: tuple[PastCut, ...]
    runs: tuple[PastRun, ...]
    errors: tuple[PastError, ...]
    ages: tuple[float, ...]
    changes: tuple[int, ...]


def write_status_page(project: Project, status: Status, file: Path) -> StatusPage:
    """Write a status page, replacing the file atomically. Raises ReportNotWritten, LakeError."""
    page = remember(project, status)
    write_page(file, render(page))
    return page


def remember(project: Project, status: Status) -> StatusPage:
    """Add the history in the control tables to a status. Raises LakeError."""
    control = control_tables(project)
    places = control.cut_places()
    drawn = places.slice(max(places.num_rows - DRAWN, 0))
    ages = [_age(**place) for place in drawn.select(["commit_ts", "recorded_at"]).to_pylist()]
    cuts = [parse_cut(row) for row in control.cuts(drawn.slice(max(drawn.num_rows - SHOWN, 0)))]
    runs = _runs(control)
    applied = [run.changes for run in runs if run.verb == "apply" and run.changes]
    return StatusPage(
        status=status,
        cuts=tuple(
            PastCut(
                cut.position_text,
                cut.written_at,
                _age(cut.commit_ts, cut.written_at),
                len(cut.tables),
                sum(table.state == ACTIVE for table in cut.tables.values()),
                sum(table.quarantined_keys for table in cut.tables.values()),
            )
            for cut in reversed(cuts)
        ),
        runs=tuple(reversed(runs[-SHOWN:])),
        errors=_errors(runs),
        ages=tuple(age for age in ages if age is not None),
        changes=tuple(applied[-DRAWN:]),
    )


def render(page: StatusPage) -> str:
    """The page as one HTML document without scripts or external addresses."""
    headlines = list(findings(page.status))
    template = environment("cdc_lake.ops").get_template("status.html.j2")
    return template.render(page=page, status=page.status, headline=headlines[0], also=headlines[1:])


def findings(status: Status) -> Iterator[Headline]:
    """The headlines for the reader, worst first; at least one."""
    headlines = [*_of_slot(status), *_of_budget(status), *_of_tables(status), *_of_the_ways(status)]
    if status.stream is None:
        first = "cdc-lake run --once takes the initial copy of the tables."
        headlines = [Headline("unknown", "Nothing has been received yet", first)]
        headlines += _of_the_ways(status)
    rank = ("bad", "attention", "unknown", "good")
    return iter(sorted(headlines or [_quiet(status)], key=lambda headline: rank.index(headline.state)))


def _quiet(status: Status) -> Headline:
    """The headline without problems: everything is applied, or in progress."""
    if lagging := [table for table in status.tables if table.state != "live"]:
        return Headline("unknown", "Silver is catching up", f"{_names(lagging)}: {lagging[0].reason}.")
    tables = html.plural(len(status.tables), "table")
    text = f"All {tables} are live" if len(status.tables) > 1 else f"{tables} live"
    return Headline("good", text, f"Everything received is applied, up to {status.silver_position}.")


def _of_slot(status: Status) -> Iterator[Headline]:
    slot = status.slot
    if slot.state in {"lost", "missing"}:
        text = f"The slot is {slot.state}"
        detail = f"{slot.name}: {slot.reason}. Changes since then can only be obtained by a new copy."
        yield Headline("bad", text, detail)


def _of_budget(status: Status) -> Iterator[Headline]:
    budget = status.wal_budget
    if budget is not None and budget.used >= 1:
        yield Headline("bad", "The server retains too much WAL", f"{budget.used:.0%} of the budget: {budget.reason}.")
    elif budget is not None and budget.pauses_apply:
        yield Headline("attention", "Silver waits for bronze", f"{budget.used:.0%} of the WAL budget: {budget.reason}.")


def _of_tables(status: Status) -> Iterator[Headline]:
    if failed := [table for table in status.tables if table.state == "failed"]:
        text = f"{html.plural(len(failed), 'table')} cannot continue"
        yield Headline("bad", text, f"{_names(failed)}: {failed[0].reason}.")
    if different := [table for table in status.tables if table.different_at is not None]:
        detail = f"According to the latest comparison: {_names(different)}."
        yield Headline("bad", "Silver differs from the source", detail)
    if status.undecodable:
        transaction = status.undecodable[0]
        detail = f"{transaction.message} ({transaction.code})."
        yield Headline("bad", f"Silver stops before {transaction.position}", detail)
    if paused := [table for table in status.tables if table.state == "paused"]:
        yield Headline("attention", f"{html.plural(len(paused), 'table')} paused", f"{_names(paused)}.")
    if quarantined := sum(table.quarantined for table in status.tables):
        names = _names([table for table in status.tables if table.quarantined])
        yield Headline("attention", f"{html.plural(quarantined, 'change')} held by rules", f"In {names}.")
    if (withheld := status.withheld) is not None:
        detail = f"{withheld.position} as {withheld.name}: {withheld.reason}."
        yield Headline("attention", "A cut is not pinned", detail)


def _of_the_ways(status: Status) -> Iterator[Headline]:
    if (waits := status.receiver_waits) is not None:
        detail = f"Since {html.moment(waits.since)}: {waits.message} ({waits.code}). It continues by itself."
        yield Headline("attention", "The receiver waits", detail)
    if not status.reachable:
        yield Headline("attention", "The source cannot be reached", f"{status.unreachable_because}.")


def _names(tables: Sequence[TableStatus]) -> str:
    return ", ".join(table.table for table in tables)


def _age(commit_ts: datetime | None, recorded_at: datetime | None) -> float | None:
    """Seconds from a commit until its cut was written."""
    return None if commit_ts is None or recorded_at is None else max(0.0, (recorded_at - commit_ts).total_seconds())


def _runs(control: ControlTables) -> list[PastRun]:
    """The newest runs, oldest first."""
    rows = [RunRow(**row) for row in control.read("runs").sort_by("started_at").to_pylist()]
    return [_run(row) for row in rows[-_REMEMBERED:]]


def _run(row: RunRow) -> PastRun:
    facts: dict[str, Any] = json.loads(row.facts or "{}")
    received = facts.get("receive") or {}
    failed: dict[str, str] = facts.get("failed") or facts.get("broken") or {}  # `broken`: the name in 0.3
    codes = {str(code) for code in (facts.get("error"), *failed.values()) if code}
    return PastRun(
        row.run,
        row.verb,
        row.started_at,
        None if row.ended_at is None else (row.ended_at - row.started_at).total_seconds(),
        row.outcome,
        facts.get("changes", received.get("changes")),
        tuple(sorted(codes)),
    )


def _errors(runs: Sequence[PastRun]) -> tuple[PastError, ...]:
    errors: dict[str, PastError] = {}
    for run in runs:
        for code in run.codes:
            times = errors[code].times + 1 if code in errors else 1
            errors[code] = PastError(code, times, run.started_at)
    return tuple(sorted(errors.values(), key=lambda error: error.last_at, reverse=True))


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """The files of a report: the page, the same as JSON, and Great Expectations' results by silver table."""

    html: Path
    json: Path
    suites: tuple[Path, ...] = ()


def report(project: Project, *, when: dt.datetime | None = None) -> ReportFiles:
    """Write the report of a pipeline into its reports folder, and the results of rules into the control table
    `quality`.

    Needs no JVM, and the source only for the lags. `when`: the time of generation, now by default. Raises
    ReportNotWritten, LakeError.
    """
    control = control_tables(project)
    evidence = Evidence(project, control, status(project, checked_at=when))
    data = evidence.collect()
    control.append("quality", [asdict(row) for row in evidence.results])
    folder = project.reports
    files = ReportFiles(folder / "report.html", folder / "report.json", tuple(folder / f for f in data.suites.values()))
    for file, table in zip(files.suites, data.suites, strict=True):
        write_page(file, json.dumps(evidence.suites[table].raw, indent=2, ensure_ascii=False) + "\n")
    write_page(files.json, render_json(data))
    write_page(files.html, render_html(data))
    return files
