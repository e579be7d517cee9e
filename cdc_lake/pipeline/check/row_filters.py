"""The doctor's look at `source.row_filters`: what the server makes of them, and whether the publication has them."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import SourceError
from cdc_lake.lake.control import control_tables
from cdc_lake.pipeline.check.line import CheckLine, failed, listed
from cdc_lake.pipeline.postgres.captured import stated
from cdc_lake.pipeline.postgres.tables import check_filters
from cdc_lake.source.connection import Session


def row_filter_lines(project: Project, session: Session) -> Iterator[CheckLine]:
    """One line, where the pipeline states filters."""
    if not project.postgres.row_filters:
        return
    try:
        check_filters(project, session, bronze_reader(project).state(), control_tables(project))
    except SourceError as error:
        yield failed("row filters", error)
        return
    text = f"only rows that a condition takes are captured of {listed(sorted(stated(project)))}"
    yield CheckLine(ok=True, subject="row filters", text=text)
