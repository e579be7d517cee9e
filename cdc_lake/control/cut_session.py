"""Reads all silver tables as of one moment of the source, with or without Spark; and reads control tables.

The newest versions of two tables may show a transaction in one and not yet in the other. At a cut each table is read at
the version in the cut; a table that keeps its history (`silver.kinds`) can be read even if that version is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_, attrgetter
from typing import TYPE_CHECKING, Final, get_args

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Project, Target
from cdc_lake.control.cut_lookup import find_cut
from cdc_lake.control.cuts import ACTIVE, TableState, WrittenCut, parse_cut, relocate_target
from cdc_lake.errors import LakeError, NotInCut, SilverMissing, TableBehind, VersionGone
from cdc_lake.model.position import AsOf, Position
from cdc_lake.model.relation import TableName
from cdc_lake.silver.kinds import answers_alone, frame_as_of, rows_as_of, sql_as_of
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_schema import ControlName, schema_of
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import silver_frame, store, table_log
from cdc_lake.tables.spark_session import derive
from cdc_lake.tables.types import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


METADATA = b"cdc_lake"
"""Key of the JSON in a table's schema metadata that describes the cut."""


@dataclass(frozen=True)
class CutSession:
    """All silver tables as of one cut. It holds no connection and reads nothing until asked.

    Tables are named as in the source (`public.orders`, or `orders` for one of `public`) or by their silver name
    (`silver.orders`).
    """

    project: Project
    cut: WrittenCut
    allow_behind: bool = False

    def __repr__(self) -> str:
        """The cut and its pipeline."""
        return f"CutSession({self.project.name} at {self.position} of epoch {self.epoch}, {len(self.tables)} tables)"

    @property
    def position(self) -> str:
        """The cut's position, as commands print it."""
        return self.cut.position_text

    @property
    def epoch(self) -> int:
        """The number of its stream."""
        return self.cut.epoch

    @property
    def commit_ts(self) -> datetime | None:
        """The latest commit time up to it; None if it has only copied rows."""
        return self.cut.commit_ts

    @property
    def tables(self) -> Mapping[str, TableState]:
        """Its tables by source table: version, position, state, and number of quarantined keys."""
        return self.cut.tables

    @property
    def quarantined(self) -> Mapping[str, int]:
        """The tables with quarantined keys, whose rows are outdated or missing, and the number of these keys."""
        return {relation: table.quarantined_keys for relation, table in self.tables.items() if table.quarantined_keys}

    def read(self, table: str, *, versions: bool = False) -> pa.Table:
        """The rows of a table, in no order. Of a history those valid at the cut, or with `versions` all versions.

        The schema's metadata has the cut under `cdc_lake`. Raises NotInCut, TableBehind, VersionGone, SilverMissing.
        """
        place = self._place(table)
        try:
            rows = self._rows(place)
        except SilverMissing as cause:
            rows = self._newer(place, cause)
        rows = rows_as_of(rows, place.position, versions=versions)
        return rows.replace_schema_metadata(
            {**(rows.schema.metadata or {}), METADATA: self._describe_state(place.state)}
        )

    def frame(self, spark: SparkSession, table: str, *, versions: bool = False) -> DataFrame:
        """The same as a DataFrame, preferably of a session from `spark_session`. Raises the same."""
        place = self._place(table)
        version = place.state.version
        if version is None or table_log(self.project, place.target).is_readable(version):
            frame = silver_frame(spark, self.project, place.target, version)
        else:
            newest = self._newest(place)
            frame = silver_frame(spark, self.project, place.target, newest)
            if newest is None or not answers_alone(frame.columns):
                raise VersionGone(place.target.label, version, self.position)
        return frame_as_of(frame, place.position, versions=versions)

    def spark_session(self, spark: SparkSession, *, versions: bool = False) -> SparkSession:
        """A separate session of the same Spark, with a temporary view of each table under its silver name.

        The views stay at the cut while the tables advance. Raises what `frame` does.
        """
        own = derive(spark)
        for relation, state in self.tables.items():
            if state.version is None and state.state != ACTIVE:
                continue  # it never had content, and `allow_behind` was set
            self.frame(own, relation, versions=versions).createOrReplaceTempView(state.table.partition(".")[2])
        return own

    def create_views(self, spark: SparkSession, database: str) -> tuple[str, ...]:
        """Create a view of each table in a database of the metastore, or replace it; returns the names of the views.

        One after another: meanwhile some views may show the former cut. Raises TableBehind, VersionGone.
        """
        names = []
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(database)}")
        for relation, state in self.checked().tables.items():
            place = self._place(relation)
            if state.version is not None and not table_log(self.project, place.target).is_readable(state.version):
                raise VersionGone(place.target.label, state.version, self.position)
            name = ".".join(map(quote_identifier, (database, state.table.partition(".")[2])))
            table = store(spark, self.project, place.target).name
            version = "" if state.version is None else f" VERSION AS OF {state.version}"
            columns, condition = sql_as_of(spark.sql(f"SELECT * FROM {table}{version}").columns, place.position)
            listed = ", ".join(map(quote_identifier, columns))
            where = "false" if state.version is None else condition
            spark.sql(f"CREATE OR REPLACE VIEW {name} AS SELECT {listed} FROM {table}{version} WHERE {where}")
            names.append(name.replace("`", ""))
        return tuple(names)

    def checked(self) -> CutSession:
        """The session, if every table is at the cut or `allow_behind` is set. Raises TableBehind."""
        for relation in self.tables:
            self._place(relation)
        return self

    # ── one table ──

    def _place(self, table: str) -> _Place:
        relation = self._relation(table)
        state = self.tables[relation]
        is_behind = state.state != ACTIVE
        if is_behind and not self.allow_behind:
            position_text = format_stream_position(self.cut.stream, state.position)
            raise TableBehind(
                f"{state.table} is still at {position_text} in the cut at {self.position}", where=state.table
            )
        target = relocate_target(self.project.target(TableName.parse(relation)), state.table, state.format)
        return _Place(relation, state, target, Position(self.epoch, state.position if is_behind else self.cut.position))

    def _relation(self, table: str) -> str:
        for wanted in (table, f"public.{table}"):
            if wanted in self.tables:
                return wanted
        for relation, state in self.tables.items():
            if state.table == table:
                return relation
        raise NotInCut(f"the cut at {self.position} of epoch {self.epoch} contains no table `{table}`")

    def _rows(self, place: _Place) -> pa.Table:
        version = place.state.version
        if version is None:
            return table_log(self.project, place.target).read_empty()
        try:
            return table_log(self.project, place.target).read(version)
        except (pa.ArrowException, OSError) as cause:
            # a deletion vector may be missing although its data file exists: the engine reports it
            if table_log(self.project, place.target).is_readable(version) and "not found" not in str(cause):
                raise
            raise SilverMissing(place.target.label, version) from cause

    def _newer(self, place: _Place, cause: SilverMissing) -> pa.Table:
        """The rows of the missing version, derived from a newer one. Raises VersionGone, SilverMissing."""
        version = place.state.version
        if version is None:
            raise cause
        newest = self._newest(place)
        rows = None if newest is None else table_log(self.project, place.target).read(newest)
        if rows is None or not answers_alone(rows.column_names):
            raise VersionGone(place.target.label, version, self.position) from cause
        return rows

    def _newest(self, place: _Place) -> int | None:
        """The version of the same content in the stream's newest cut, None if it does not exist."""
        control = control_tables(self.project)
        row = control.last_cut(self.cut.stream)
        state = None if row is None else parse_cut(row).tables.get(place.relation)
        content = attrgetter("generation", "table", "format")
        if state is None or content(state) != content(place.state):
            return None
        readable = state.version is not None and table_log(self.project, place.target).is_readable(state.version)
        return state.version if readable else None

    def _describe_state(self, state: TableState) -> bytes:
        facts = {"epoch": self.epoch, "position": self.position, "version": state.version}
        facts |= {"state": state.state, "quarantined_keys": state.quarantined_keys}
        return json.dumps(facts).encode()


@dataclass(frozen=True, slots=True)
class _Place:
    """A table in a cut: its location, and the position for which it is read."""

    relation: str
    state: TableState
    target: Target
    position: Position


def open_session(project: Project, asked: AsOf, epoch: int | None, *, allow_behind: bool) -> CutSession:
    """All tables as of a request. Raises BeforeFirstCut, CutNotReached, CutUnknown, TableBehind."""
    return CutSession(project, find_cut(project, asked, epoch), allow_behind).checked()


def read_table(
    project: Project, table: str, asked: AsOf, epoch: int | None, *, allow_behind: bool, versions: bool
) -> pa.Table:
    """One table as of a request; the others may be behind."""
    return CutSession(project, find_cut(project, asked, epoch), allow_behind).read(table, versions=versions)


SHOWN: Final = "shown"
"""The column with a row's `position` as commands print it."""

_TIMES: Final = ("recorded_at", "started_at", "judged_at", "compared_at")


def read_history(
    project: Project,
    table: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Rows of a control table, oldest first: the newest `limit` of those from `since` on and before `until`.

    The columns are those of its page, and `shown` if it has a stream and a position. Raises LakeError for an unknown
    table, and for a time without a time zone.
    """
    names = get_args(ControlName)
    name: ControlName | None = next((control_name for control_name in names if control_name == table), None)
    if name is None:
        raise LakeError(f"there is no control table `{table}`", hint=f"one of: {', '.join(names)}")
    when = time_of(name)
    wanted = [pc.field(when) >= _require_zone(since)] if since is not None else []
    wanted += [pc.field(when) < _require_zone(until)] if until is not None else []
    rows = control_tables(project).read(name, reduce(and_, wanted) if wanted else None).sort_by(when)
    if limit is not None:
        rows = rows.slice(max(rows.num_rows - limit, 0))
    return _with_shown(rows)


def time_of(name: ControlName) -> str:
    """The column by which a control table is ordered."""
    columns = schema_of(name).names
    return next(column for column in _TIMES if column in columns)


def _require_zone(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise LakeError(f"the time {time.isoformat()} has no time zone", hint="add one, as in `datetime.now(UTC)`")
    return time


def _with_shown(rows: pa.Table) -> pa.Table:
    if not {"stream", "position"} <= set(rows.column_names):
        return rows
    pairs = zip(rows["stream"].to_pylist(), rows["position"].to_pylist(), strict=True)
    texts = [
        None if stream is None or position is None else format_stream_position(stream, position)
        for stream, position in pairs
    ]
    return rows.append_column(SHOWN, pa.array(texts, pa.string()))
