"""The two sides of a table in canonical text, or why they cannot be set side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from cdc_lake.errors import NoKey, TransformUnfit
from cdc_lake.lake.canonical import beside, from_silver, from_source
from cdc_lake.lake.read import read_silver, silver_exists
from cdc_lake.pipeline.compare_job import Job
from cdc_lake.pipeline.compare_transforms import Seen, seen
from cdc_lake.pipeline.match import COPIES, copies_of, counted
from cdc_lake.pipeline.point import Gap
from cdc_lake.silver.kind import RowIdentity
from cdc_lake.silver.kinds import kind_of, source_rows
from cdc_lake.silver.shape import default_keys


@dataclass(frozen=True)
class Sides:
    """Both sides in canonical text, columns named as in the source, and the keys in it. `whole`: all rows of the
    source, also those that a filter keeps out of silver, without computed columns.

    `astray`: decimals beside a column of text that are not what that text says.
    """

    source: pa.Table
    silver: pa.Table
    whole: pa.Table
    keys: tuple[str, ...]
    types: dict[str, pa.DataType]
    astray: tuple[str, ...] = ()

    @property
    def by_content(self) -> bool:
        """Whether rows have no key: each stands once on a side, with how often it is there."""
        return COPIES in self.source.column_names

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows the source has, and silver."""
        if not self.by_content:
            return self.source.num_rows, self.silver.num_rows
        return sum(copies_of(self.source).values()), sum(copies_of(self.silver).values())


def sides_of(job: Job) -> Sides | Gap:
    """Both sides, or why they cannot be set side by side."""
    pinned = job.pinned
    relation = job.source.relation_of(pinned.published)
    by_content = kind_of(pinned.target, relation).identity is RowIdentity.CONTENT
    try:
        keys = relation.names if by_content else pinned.target.keys or default_keys(relation)
        found = seen(job.project, pinned.target, relation, job.source.rows(relation, pinned.published))
    except (NoKey, TransformUnfit) as unfit:
        return Gap(unfit.message, unfit.remedy)
    if not silver_exists(job.project, pinned.target):
        if found.rows.num_rows:
            return Gap("the silver table has not been made yet", "run `cdc-lake run --once`")
        return Sides(found.rows, found.rows, found.rows, keys, {})
    silver = source_rows(read_silver(job.project, pinned.target, pinned.marker.version), pinned.target, relation)
    names = {**found.names, **{f"compute.{name}": name for name in found.computed.column_names}}
    expected = {*names.values(), *found.companions}
    given = {name for name in silver.column_names if pinned.target.on_drop == "drop" or name in expected}
    if (gap := _uneven(expected, given)) is not None:
        return gap
    return _beside(found, silver, names, keys, by_content=by_content)


def _beside(
    found: Seen, silver: pa.Table, names: Mapping[str, str], keys: tuple[str, ...], *, by_content: bool
) -> Sides | Gap:
    """`names`: column of the source, or computed one → silver's name of it."""
    types = {column: silver.schema.field(name).type for column, name in found.names.items()}
    try:
        one = pa.table({**_canonical(found.rows, types), **_computed(found.computed, silver)})
        other = pa.table({column: from_silver(silver[name]) for column, name in names.items()})
        whole = pa.table(_canonical(found.whole, types))
        if by_content:
            one, other = counted(one), counted(other)
        astray = (name for name, text in found.companions.items() if _astray(silver, text, name))
        return Sides(one, other, whole, keys, types, tuple(astray))
    except (TypeError, pa.ArrowInvalid):
        odd = ", ".join(f"{c} {k}" for c, k in types.items() if not _comparable(found.rows[c], k))
        return Gap(f"silver's types are not those of the source's columns: {odd}", "`cdc-lake explain LAK410`")


def _astray(silver: pa.Table, text: str, decimal: str) -> bool:
    """Whether a companion is not what the text beside it says; that one is compared with the source."""
    values = silver[decimal]
    return not from_silver(values).equals(beside(silver[text], values.type))


def _canonical(rows: pa.Table, types: dict[str, pa.DataType]) -> dict[str, pa.ChunkedArray]:
    return {column: from_source(rows[column], kind) for column, kind in types.items()}


def _computed(rows: pa.Table, silver: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Computed values, of the type that silver has them in."""
    types = {name: silver.schema.field(name).type for name in rows.column_names}
    return {f"compute.{name}": from_silver(rows[name].cast(kind)) for name, kind in types.items()}


def _uneven(expected: set[str], given: set[str]) -> Gap | None:
    """Columns that only one side has."""
    if missing := sorted(expected - given):
        reason = f"silver has no column {', '.join(missing)} yet: it comes with the table's next change"
        return Gap(reason, "change a row of the table, `cdc-lake run --once`, then compare again")
    if gone := sorted(given - expected):
        return Gap(f"the source no longer has column {', '.join(gone)}", "`cdc-lake explain LAK410`")
    return None


def _comparable(text: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        from_silver(pa.nulls(0, kind))
        from_source(text, kind)
    except (TypeError, pa.ArrowInvalid):
        return False
    return True
