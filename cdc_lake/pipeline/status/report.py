"""The report of a pipeline, written: one HTML page, its JSON, and Great Expectations' own results beside them."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cdc_lake.config.project import Project
from cdc_lake.lake.control import control_tables
from cdc_lake.page.html import write_page
from cdc_lake.pipeline.status.evidence import Evidence
from cdc_lake.pipeline.status.standing import status
from cdc_lake.quality.report import render_html, render_json


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where the report is: a page for people, the same as JSON, and Great Expectations' results by silver table."""

    html: Path
    json: Path
    suites: tuple[Path, ...] = ()


def report(project: Project, *, when: dt.datetime | None = None) -> ReportFiles:
    """Write the report of a pipeline into its folder of reports, and what rules found into the control table `quality`.

    Needs no JVM, and the source only for the lags.

    `when` is the time it says it was generated at, now by default. Raises ReportNotWritten, LakeError.
    """
    control = control_tables(project)
    evidence = Evidence(project, control, status(project, at=when))
    data = evidence.collect()
    control.append("quality", [asdict(row) for row in evidence.results])
    folder = project.reports
    files = ReportFiles(folder / "report.html", folder / "report.json", tuple(folder / f for f in data.suites.values()))
    for file, table in zip(files.suites, data.suites, strict=True):
        write_page(file, json.dumps(evidence.suites[table].raw, indent=2, ensure_ascii=False) + "\n")
    write_page(files.json, render_json(data))
    write_page(files.html, render_html(data))
    return files
