"""`check`: tests every prerequisite of a run separately, with a remedy for each problem.

Nothing is changed; a scratch table in an Iceberg catalog is removed. It checks this machine (Java, Spark, jars, Python
packages, the lake's folder; no network), the source, how commits to each table are fenced, and transforms and rules:
whether their columns exist and have suitable types. Checks that depend on a failed one (the tables of an unreachable
server) are skipped, so the first ✗ is the one to fix first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final

from cdc_lake import errors
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.loader import validate
from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import Expectation, rule_name
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.connectors.factory import source_view
from cdc_lake.control.ownership import Ownership
from cdc_lake.errors.base import install
from cdc_lake.model.diagnostic import Severity
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.ops.findings import CheckLine, captured_tables, failure_line, shape_of
from cdc_lake.ops.plan import TableLedger, lines, type_ledger
from cdc_lake.quality.table_suite import build_expectation
from cdc_lake.runtime.apply import schema_changes
from cdc_lake.runtime.receive.stream_setup import redacted_columns
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.transforms import silver_shape
from cdc_lake.source.postgres.plugins import PGOUTPUT
from cdc_lake.source.sql_text import quote_table
from cdc_lake.tables.catalog_fence import catalog_abilities, silver_fence
from cdc_lake.tables.spark_session import JAVA_MAJORS, SPARK_VERSION, java_found, java_version, packages_of
from cdc_lake.tables.types import silver_names

_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "glusterfs", "ceph", "lustre")
_LOW_SPACE = 1 << 30


def machine(project: Project, *, receives: bool = False) -> Iterator[CheckLine]:
    """Java, Spark and its jars, unless it only receives; packages, the lake's folder."""
    if not receives:
        yield _java()
        yield _spark()
        yield from _jars(project)
    yield from _packages(project, receives=receives)
    yield from _lake(project)


def _java() -> CheckLine:
    version = java_version()
    majors = " or ".join(map(str, JAVA_MAJORS))
    if version in JAVA_MAJORS:
        home = os.environ.get("JAVA_HOME")
        place = f"JAVA_HOME={home}" if home else "from PATH"
        return CheckLine(ok=True, subject="java", text=f"Java {version} ({place})")
    text = f"{java_found(version)}; Spark needs {majors}"
    return CheckLine(ok=False, subject="java", text=text, fix=errors.JavaMissing.hint, code=errors.JavaMissing.code)


def _spark() -> CheckLine:
    version = _version("pyspark")
    if version is None:
        text = "pyspark is not installed (receiving works without it)"
        return CheckLine(ok=False, subject="spark", text=text, fix=install("spark"), code=errors.SparkMissing.code)
    if version != SPARK_VERSION:
        fix = f"pip install 'pyspark=={SPARK_VERSION}': Delta and Iceberg are built for one minor version"
        return CheckLine(ok=None, subject="spark", text=f"pyspark {version}, tested with {SPARK_VERSION}", fix=fix)
    return CheckLine(ok=True, subject="spark", text=f"pyspark {version}")


def _jars(project: Project) -> Iterator[CheckLine]:
    packages = packages_of(project)
    if not packages:
        yield CheckLine(ok=True, subject="jars", text="expected in the image of the executors (`spark.packages`)")
        return
    missing = [package for package in packages if not _have(package)]
    if missing:
        names = ", ".join(p.split(":")[1] for p in missing)
        fix = (
            "the first start downloads them; behind a proxy or mirror, set spark.jars.ivySettings in "
            "spark-defaults.conf"
        )
        yield CheckLine(ok=None, subject="jars", text=f"not downloaded yet: {names}", fix=fix, code="LAK403")
    else:
        yield CheckLine(ok=True, subject="jars", text=f"{len(packages)} available")


def _have(package: str) -> bool:
    """Whether a jar is in a cache of Spark's resolver: Ivy's, or Maven's."""
    group, name, version = package.split(":")
    home = Path.home()
    if any(home.glob(f".ivy2*/jars/{group}_{name}-{version}.jar")):
        return True
    return (home / ".m2" / "repository" / Path(*group.split(".")) / name / version / f"{name}-{version}.jar").is_file()


def _packages(project: Project, *, receives: bool) -> Iterator[CheckLine]:
    silver, formats = project.pipeline.silver, {project.pipeline.bronze.format}
    iceberg = "iceberg" in (
        formats if receives else {*formats, silver.defaults.format, *(t.format for t in silver.tables)}
    )
    of_postgres = isinstance(project.pipeline.source, PostgresSource)
    wanted = [("psycopg", install("receive"), errors.DriverMissing.code, of_postgres)]
    if iceberg:
        wanted.append(("pyiceberg", install("iceberg"), "", True))
    rules = not receives and any(t.rules for t in silver.tables)
    wanted.append(("great-expectations", install("quality"), errors.QualityEngineMissing.code, rules))
    for name, fix, code, needed in wanted:
        version = _version(name)
        if version is not None:
            yield CheckLine(ok=True, subject="package", text=f"{name} {version}")
        elif needed:
            yield CheckLine(ok=False, subject="package", text=f"{name} is not installed", fix=fix, code=code)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lake(project: Project) -> Iterator[CheckLine]:
    setting = "path" if project.lake_address is None else "work"
    existing = next(p for p in (project.lake, *project.lake.parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        fix = f"give this user permission to write to {existing}, or set `lake.{setting}`"
        yield CheckLine(ok=False, subject="lake", text=f"{project.lake} is not writable", fix=fix, code="LAK420")
        return
    free = shutil.disk_usage(existing).free
    text = f"{project.lake}, {free / (1 << 30):.1f} GiB free"
    kind = _file_system(existing)
    if kind.startswith(_NETWORK_FILE_SYSTEMS):
        fix = (
            "a commit is durable when the folder's fsync is: use a local disk, or make sure that your server "
            "honours fsync"
        )
        yield CheckLine(ok=None, subject="lake", text=f"{text}, on a network file system ({kind})", fix=fix)
    elif free < _LOW_SPACE:
        fix = f"less than 1 GiB: free disk space or set `lake.{setting}`"
        yield CheckLine(ok=None, subject="lake", text=text, fix=fix)
    else:
        yield CheckLine(ok=True, subject="lake", text=text)


def _file_system(folder: Path) -> str:
    """The type of a folder's file system, empty if unknown."""
    mounts = Path("/proc/mounts")
    if not mounts.is_file():
        return ""
    best = ("", "")
    for line in filter(None, mounts.read_text(encoding="utf-8", errors="replace").split("\n")):
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if folder.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


_ALWAYS_SENT: Final = frozenset(
    {
        *("int2", "int4", "int8", "float4", "float8", "bool", "oid", "money", "char", "name"),
        *("date", "time", "timetz", "timestamp", "timestamptz", "interval", "uuid", "macaddr", "macaddr8"),
        *("smallint", "integer", "bigint", "real", "double precision", "boolean"),
        *("timestamp without time zone", "timestamp with time zone"),
    }
)
"""Fixed-size types, by the catalog's names and SQL's: their values are never TOASTed."""


def names(project: Project) -> Iterator[CheckLine]:
    """Source tables that would share a silver table."""
    try:
        with source_view(project) as source:
            shared = schema_changes.shared_names(project, source.tables())
    except errors.SourceError:
        return  # reported elsewhere
    yield from (failure_line("names", error) for error in {error.message: error for error in shared.values()}.values())


def transforms(project: Project) -> Iterator[CheckLine]:
    """Notes on tables with transforms. Spark's analyzer reports errors with the first row."""
    for target, layout in captured_tables(project, lambda table: table.transforms.any or bool(table.partition_by)):
        yield from _table(project, target, layout)


def _table(project: Project, target: Target, layout: Relation) -> Iterator[CheckLine]:
    table_transforms = target.transforms
    computed = {name: "string" for name, _ in table_transforms.compute}  # types do not matter here
    try:
        schema_changes.check_possible(project, target, kind_of(target, layout))
        shape = shape_of(target, layout)
        silver_shape(shape, table_transforms, computed, target.label, lambda key: project.key_location(target, key))
        schema_changes.check_layout_divisible(project, target, layout)
    except errors.TransformUnfit as unfit:
        yield failure_line("transforms", unfit)
        return
    except errors.CdcLakeError:
        return  # no key: reported elsewhere
    yield CheckLine(ok=True, subject="transforms", text=f"{target.label}: every named column exists")
    if target.kind == "append":
        return
    if doubtful := _doubtful(target, layout):
        text = (
            f"{layout.table}: an update may not send {', '.join(doubtful)}; if silver lacks the value, the update is "
            "held"
        )
        fix = f"ALTER TABLE {quote_table(layout.table)} REPLICA IDENTITY FULL;  or leave the columns out"
        yield CheckLine(ok=None, subject="transforms", text=text, fix=fix)


def _doubtful(target: Target, layout: Relation) -> list[str]:
    """Columns that an update may omit and whose value silver may be unable to determine."""
    if layout.identity is ReplicaIdentity.FULL:
        return []
    table_transforms = target.transforms
    words = schema_changes.words_read(target)
    doubtful_columns = []
    for column, name in zip(layout.columns, silver_names(layout), strict=True):
        read = name.casefold() in words or column.name.casefold() in words
        needed = (
            (table_transforms.keeps(column.name) or read)
            if table_transforms.where is not None
            else read and not table_transforms.keeps(column.name)
        )
        if needed and not column.key and column.type_name not in _ALWAYS_SENT:
            doubtful_columns.append(column.name)
    return doubtful_columns


def rules(project: Project) -> Iterator[CheckLine]:
    """Every rule that cannot evaluate its column. Errors in expressions are reported by Spark with the first row."""
    for table in project.pipeline.silver.tables:
        yield from expectations(project, project.target(TableName.parse(table.from_)))
    for target, layout in captured_tables(project, lambda table: bool(table.row_rules)):
        yield from of_table(project, target, layout)


def expectations(project: Project, target: Target) -> Iterator[CheckLine]:
    """Problems of a table's expectations: each is constructed, none is run."""
    for index, rule in enumerate(target.rules):
        if not isinstance(rule, Expectation):
            continue
        try:
            build_expectation(rule)
        except errors.QualityEngineMissing as missing:
            text = f"{target.label}, rule {rule_name(rule)}: {missing.message}; reports created here cannot evaluate it"
            yield CheckLine(ok=None, subject="rules", text=text, fix=missing.remedy)
        except errors.QualityError as problem:
            text = f"{project.place(target, f'rules[{index}].expectation')}: {problem.message}"
            yield CheckLine(ok=False, subject="rules", text=text, fix=problem.remedy, code=problem.code)


def of_table(project: Project, target: Target, layout: Relation) -> Iterator[CheckLine]:
    """Problems of a table's rules, by its layout."""
    try:
        shape = shape_of(target, layout)
    except errors.CdcLakeError:
        return  # no key: reported elsewhere
    wrong = list(schema_changes.misfits(project, target, shape, expressions=False))
    for problem in wrong:
        text = f"{problem.where}: {problem.message}"
        yield CheckLine(ok=False, subject="rules", text=text, fix=problem.remedy, code=problem.code)
    if not wrong:
        yield CheckLine(ok=True, subject="rules", text=f"{target.label}: every rule fits its column")


__all__ = ["CheckLine", "Examination", "check", "dba_sql", "examine"]


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings, and the mapping of every captured column if the server was reachable."""

    lines: tuple[CheckLine, ...]
    types: tuple[TableLedger, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing needs fixing."""
        return all(line.ok is not False for line in self.lines)


def examine(project: Project, *, receives: bool = False) -> Examination:
    """Check machine, lake, server, role, slot, tables and types; `receives`: only what a host needs that receives and
    does not apply. Failures are findings, not exceptions.
    """
    check_lines = [*_warnings(project), *machine(project, receives=receives), *_store(project), *_source(project)]
    check_lines += _redaction(project)
    if receives:
        return Examination(tuple(check_lines), ())
    check_lines += [*_owner_lines(project), *_fences(project), *names(project), *transforms(project), *rules(project)]
    try:
        types = type_ledger(project)
    except errors.SourceError:
        types = ()  # reported above
    return Examination((*check_lines, *lines(types)), types)


def check(project: Project) -> list[CheckLine]:
    """Only the findings, one line each."""
    return list(examine(project).lines)


def _warnings(project: Project) -> Iterator[CheckLine]:
    """The warnings of `validate`."""
    if not project.file.is_file():
        return  # defined in Python
    for diagnostic in validate([project.file], environment=project.environment):
        if diagnostic.severity is Severity.WARNING:
            text = f"{diagnostic.summary} ({diagnostic.location})" if diagnostic.location else diagnostic.summary
            yield CheckLine(ok=None, subject="configuration", text=text, fix=diagnostic.hint, code=diagnostic.code)


def _store(project: Project) -> Iterator[CheckLine]:
    if project.storage is None:
        return
    try:
        bronze = bronze_reader(project)
        text = "no bronze yet: the first run creates it" if bronze.version() is None else "bronze is readable"
        yield CheckLine(ok=True, subject="store", text=f"{bronze.place}: {text}")
    except errors.CdcLakeError as error:
        yield failure_line("store", error)


def _source(project: Project) -> Iterator[CheckLine]:
    # imported here: each kind of source needs its own driver only
    try:
        if isinstance(project.pipeline.source, FamilySource):
            from cdc_lake.ops.check.gaussdb import findings as of_family  # noqa: PLC0415

            yield from of_family(project)
        else:
            from cdc_lake.ops.check.postgres import findings as of_postgres  # noqa: PLC0415

            yield from of_postgres(project)
    except errors.CdcLakeError as error:
        yield failure_line("server", error)


def _owner_lines(project: Project) -> Iterator[CheckLine]:
    """Every silver table of another owner."""
    try:
        with source_view(project) as source:
            ownership, names = Ownership(project, source.origin), source.tables()
            refused = [error for name in names if (error := ownership.refusal(project.target(name))) is not None]
    except errors.CdcLakeError:
        return  # reported above
    yield from (failure_line("silver", error) for error in refused)


def _fences(project: Project) -> Iterator[CheckLine]:
    """By what the commits of each silver table are kept apart from those of others."""
    try:
        with source_view(project) as source:
            targets = [project.target(name) for name in source.tables()]
    except errors.CdcLakeError:
        return  # reported above
    for kind in ("delta", "iceberg"):
        if tables := ", ".join(sorted(target.label for target in targets if target.format == kind)):
            try:
                yield CheckLine(ok=True, subject="fence", text=f"{_fence(project, kind)}: {tables}")
                yield from catalog_limits(project) if kind == "iceberg" else ()
            except errors.CdcLakeError as refusal:
                yield replace(failure_line("fence", refusal), text=f"{refusal.message}: {tables}")


def _fence(project: Project, kind: str) -> str:
    if kind == "iceberg":
        return f"{silver_fence(project)} (Iceberg, catalog of type {project.pipeline.lake.iceberg.type})"
    if project.lake_address is not None:
        return "conditional put (Delta, log in the object store)"
    return "link without replacing (Delta, log in a local folder)"


def catalog_limits(project: Project) -> Iterator[CheckLine]:
    """What an Iceberg catalog that has a fence cannot do."""
    if (abilities := catalog_abilities(project)) is None:
        return
    if not abilities.tags:
        text = "the catalog keeps no tags: if another program expires snapshots, it may remove versions of pinned cuts"
        yield CheckLine(ok=None, subject="fence", text=text, fix="let only `cdc-lake maintain` expire snapshots")
    if not abilities.registers:
        text = "the catalog does not support `registerTable`: tables can be neither rebuilt nor replaced by a new copy"
        yield CheckLine(ok=None, subject="fence", text=text, fix="use a catalog that supports it", code="LAK439")


def _redaction(project: Project) -> Iterator[CheckLine]:
    if not project.pipeline.bronze.redact:
        return
    try:
        columns = redacted_columns(project)
    except errors.ConfigError as unfit:
        yield failure_line("redaction", unfit)
    except errors.SourceError:
        return  # reported above
    else:
        text = f"columns that are redacted: {columns}" if columns else "no column of a captured table is redacted yet"
        yield CheckLine(ok=True if columns else None, subject="redaction", text=text)


def ddl_sql(project: Project) -> str:
    """The SQL of the event trigger with which PostgreSQL reports altered tables. Raises NotForThisSource."""
    from cdc_lake.source.postgres.catalog import trigger_sql  # noqa: PLC0415

    database = project.postgres.database
    if (plugin := project.postgres.slot.plugin) != PGOUTPUT:
        words = f"altered tables are reported by logical messages, which `plugin: {plugin}` omits"
        raise errors.NotForThisSource(words, where=str(project.file), hint=f"with {plugin} the current catalog is read")
    return f"-- for pipeline {project.name}, as a superuser in {database}\n{trigger_sql()}"


def dba_sql(project: Project) -> str:
    """The SQL for a superuser that gives the pipeline's role all privileges. Raises SourceError for no connection."""
    if isinstance(project.pipeline.source, FamilySource):
        from cdc_lake.ops.check.gaussdb import dba_sql as for_family  # noqa: PLC0415

        return for_family(project)
    from cdc_lake.ops.check.postgres import dba_sql as for_postgres  # noqa: PLC0415

    return for_postgres(project)
