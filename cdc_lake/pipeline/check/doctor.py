"""The doctor: everything a run needs, each looked at on its own, each with what to do where it is not right.

Nothing is changed. What needs something that is missing itself (the tables of a server that does not answer) is left
out, so the first ✗ is the one to fix first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.load import validate
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.errors import CdcLakeError, ConfigError, NotForThisSource, SourceError
from cdc_lake.model.diagnostic import Severity
from cdc_lake.pipeline.check.line import CheckLine, failed
from cdc_lake.pipeline.check.machine import machine
from cdc_lake.pipeline.check.rules import rules
from cdc_lake.pipeline.check.transforms import names, transforms
from cdc_lake.pipeline.check.type_ledger import TableLedger, lines, type_ledger
from cdc_lake.pipeline.receiving.configuration import redacted_columns
from cdc_lake.pipeline.server import source_view
from cdc_lake.pipeline.state.ownership import Ownership
from cdc_lake.source.plugins import PGOUTPUT

__all__ = ["CheckLine", "Examination", "check", "dba_sql", "examine"]


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, and what becomes of every captured column, as far as the server could be asked."""

    lines: tuple[CheckLine, ...]
    types: tuple[TableLedger, ...]

    @property
    def ok(self) -> bool:
        """Nothing to fix."""
        return all(line.ok is not False for line in self.lines)


def examine(project: Project, *, receives: bool = False) -> Examination:
    """Look at machine, lake, server, role, slot, tables and types; `receives`: only at what a host that receives, and
    does not apply, needs. Raises nothing that it can say.
    """
    found = [*_warnings(project), *machine(project, receives=receives), *_store(project), *_source(project)]
    found += _redaction(project)
    if receives:
        return Examination(tuple(found), ())
    found += [*_owned(project), *names(project), *transforms(project), *rules(project)]
    try:
        types = type_ledger(project)
    except SourceError:
        types = ()  # said above
    return Examination((*found, *lines(types)), types)


def check(project: Project) -> list[CheckLine]:
    """The findings alone, one line each."""
    return list(examine(project).lines)


def _warnings(project: Project) -> Iterator[CheckLine]:
    """What `validate` warns of."""
    if not project.file.is_file():
        return  # made in Python
    for found in validate([project.file], environment=project.environment):
        if found.severity is Severity.WARNING:
            text = f"{found.summary} ({found.location})" if found.location else found.summary
            yield CheckLine(ok=None, subject="configuration", text=text, fix=found.hint, code=found.code)


def _store(project: Project) -> Iterator[CheckLine]:
    if project.pipeline.lake.storage is None:
        return
    try:
        bronze = bronze_reader(project)
        text = "no bronze yet: the first run makes it" if bronze.version() is None else "bronze can be read"
        yield CheckLine(ok=True, subject="store", text=f"{bronze.place}: {text}")
    except CdcLakeError as error:
        yield failed("store", error)


def _source(project: Project) -> Iterator[CheckLine]:
    # imported here: each kind of source needs its own driver only
    try:
        if isinstance(project.pipeline.source, FamilySource):
            from cdc_lake.pipeline.check.family import findings as of_family  # noqa: PLC0415

            yield from of_family(project)
        else:
            from cdc_lake.pipeline.check.postgres import findings as of_postgres  # noqa: PLC0415

            yield from of_postgres(project)
    except CdcLakeError as error:
        yield failed("server", error)


def _owned(project: Project) -> Iterator[CheckLine]:
    """Every silver table that belongs to somebody else."""
    try:
        with source_view(project) as source:
            ownership, names = Ownership(project, source.origin), source.tables()
            refused = [error for name in names if (error := ownership.refusal(project.target(name))) is not None]
    except CdcLakeError:
        return  # said above
    yield from (failed("silver", error) for error in refused)


def _redaction(project: Project) -> Iterator[CheckLine]:
    if not project.pipeline.bronze.redact:
        return
    try:
        columns = redacted_columns(project)
    except ConfigError as unfit:
        yield failed("redaction", unfit)
    except SourceError:
        return  # said above
    else:
        some = f"columns that are redacted: {columns}" if columns else "no column of a captured table is redacted yet"
        yield CheckLine(ok=True if columns else None, subject="redaction", text=some)


def ddl_sql(project: Project) -> str:
    """The SQL of the event trigger by which a PostgreSQL tells its altered tables. Raises NotForThisSource."""
    from cdc_lake.source.ddl import trigger_sql  # noqa: PLC0415

    database = project.postgres.database
    if (plugin := project.postgres.slot.plugin) != PGOUTPUT:
        words = f"altered tables are told by logical messages, which `plugin: {plugin}` leaves out"
        raise NotForThisSource(words, where=str(project.file), hint=f"with {plugin} the catalog of now is asked")
    return f"-- for pipeline {project.name}, as a superuser in {database}\n{trigger_sql()}"


def dba_sql(project: Project) -> str:
    """The SQL a superuser runs so that the pipeline's role can do everything. Raises SourceError for no connection."""
    if isinstance(project.pipeline.source, FamilySource):
        from cdc_lake.pipeline.check.family import dba_sql as for_family  # noqa: PLC0415

        return for_family(project)
    from cdc_lake.pipeline.check.postgres import dba_sql as for_postgres  # noqa: PLC0415

    return for_postgres(project)
