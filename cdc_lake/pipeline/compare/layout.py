"""How the columns of a source table stand beside those of its silver table: which are compared, and in what form."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lake.config.project import Target
from cdc_lake.errors import NoKey, TransformUnfit
from cdc_lake.lake.canonical import beside, from_silver, from_source, with_zero
from cdc_lake.lake.row_hash import BUCKETS, RowForm
from cdc_lake.lake.types import is_numeric
from cdc_lake.lake.ways import Way
from cdc_lake.model.relation import Relation
from cdc_lake.pipeline.applying.point import Gap
from cdc_lake.pipeline.compare.job import Job, next_step
from cdc_lake.pipeline.compare.match import Key
from cdc_lake.pipeline.compare.transforms import View
from cdc_lake.silver.kind import RowIdentity
from cdc_lake.silver.kinds import kind_of, source_rows
from cdc_lake.silver.shape import default_keys
from cdc_lake.source.hash_sql import is_numbered


class TypesApart(Exception):
    """Silver's types are not those of the source's columns; the message names them."""


@dataclass(frozen=True)
class Layout:
    """What is compared of a table. `types`: type in silver by source column, `names`: silver's name by column of the
    source, or computed one; `computed`: type of each computed column.
    """

    target: Target
    relation: Relation
    view: View
    by_content: bool
    keys: tuple[str, ...]
    names: dict[str, str]
    types: dict[str, pa.DataType]
    computed: dict[str, pa.DataType]
    form: RowForm

    def source(self, rows: pa.Table, buckets: Any = None) -> tuple[pa.Table, pa.Table]:
        """Rows of the source in canonical text: those that silver should have, and all; `buckets` as in `silver`."""
        if buckets is not None:
            keys = self._canonical(rows.select(list(self.keys)))
            rows = rows.filter(pa.array(buckets[self.form.buckets(keys)]))
        seen = self.view.of(rows)
        whole = self._canonical(seen.whole)
        if not self.view.evaluates:
            return whole, whole
        computed = {f"compute.{n}": from_silver(seen.computed[n].cast(kind)) for n, kind in self.computed.items()}
        mine = self._canonical(seen.rows)
        return pa.table({**dict(zip(mine.column_names, mine.columns, strict=True)), **computed}), whole

    def silver(self, rows: pa.Table, buckets: Any = None) -> SilverRows:
        """Rows of silver, as its table has them: those of the source's table now. `buckets`: of which to take rows, a
        bool each; None: all.
        """
        rows = source_rows(rows, self.target, self.relation)
        found = SilverRows(self, rows)
        return found if buckets is None else found.only(buckets[found.buckets])

    def key_table(self, keys: Collection[Key]) -> pa.Table:
        """Keys in canonical text as a table."""
        columns = zip(*keys, strict=True) if keys else [()] * len(self.keys)
        return pa.table({n: pa.array(texts, pa.large_string()) for n, texts in zip(self.keys, columns, strict=True)})

    def buckets_of(self, keys: Collection[Key]) -> Any:
        """Of all buckets, whether one of these keys is in it: an ndarray of bool."""
        among = np.zeros(BUCKETS, bool)
        among[self.form.buckets(self.key_table(keys))] = True
        return among

    def text(self, column: str, values: Sequence[str | None]) -> list[str | None]:
        """Texts of a source column in canonical form; of a column that silver does not have, as they are."""
        kind = self.types.get(column)
        if kind is None:
            return list(values)
        found: list[str | None] = self.form_of(
            column, from_source(pa.array(values, pa.large_string()), kind)
        ).to_pylist()
        return found

    def _canonical(self, rows: pa.Table) -> pa.Table:
        try:
            return pa.table(
                {name: self.form_of(name, from_source(rows[name], self.types[name])) for name in rows.column_names}
            )
        except (TypeError, pa.ArrowInvalid) as apart:
            odd = (f"{n} {self.types[n]}" for n in rows.column_names if not _comparable(rows[n], self.types[n]))
            raise TypesApart(", ".join(odd)) from apart

    def form_of(self, column: str, texts: Any) -> Any:
        """Canonical texts of a column; of a number that may be printed in two ways the one."""
        return with_zero(texts) if column in self._printed_twice else texts

    @cached_property
    def _printed_twice(self) -> frozenset[str]:
        columns = self.relation.columns if self.target.types.bare_points else ()
        return frozenset(column.name for column in columns if is_numeric(column) and column.name in self.types)


@dataclass(frozen=True)
class SilverRows:
    """Some rows of silver as its table has them."""

    layout: Layout
    rows: pa.Table

    def only(self, wanted: Any) -> SilverRows:
        """Those that are wanted, a bool each."""
        return self if wanted.all() else SilverRows(self.layout, self.rows.filter(pa.array(wanted)))

    @cached_property
    def buckets(self) -> Any:
        """The bucket of each row, an ndarray of int64; of a key that is a number it is worked out without its text."""
        layout = self.layout
        keys = self.keys() if not layout.form.numbered else self.rows.select([layout.names[layout.keys[0]]])
        return layout.form.buckets(keys.rename_columns(list(layout.keys)))

    @property
    def astray(self) -> frozenset[str]:
        """Companions that are not what the text beside them says."""
        companions = self.layout.view.companions
        return frozenset(name for name, text in companions.items() if _astray(self.rows, text, name))

    def texts(self) -> pa.Table:
        """The rows in canonical text."""
        form = self.layout.form_of
        return pa.table({one: form(one, from_silver(self.rows[name])) for one, name in self.layout.names.items()})

    def keys(self, wanted: Any = None) -> pa.Table:
        """Their keys in canonical text; `wanted`: of some of them, a bool each."""
        keys = self.rows.select([self.layout.names[name] for name in self.layout.keys])
        some = keys if wanted is None else keys.filter(pa.array(wanted))
        columns = zip(self.layout.keys, some.columns, strict=True)
        return pa.table({one: self.layout.form_of(one, from_silver(column)) for one, column in columns})

    def hashes(self, ways: Mapping[str, Way]) -> Any:
        """The hash of each row, an ndarray of uint64."""
        columns = {
            one: self.layout.form_of(one, from_silver(self.rows[name]))
            if ways.get(one, Way.TEXT).by_text
            else self.rows[name]
            for one, name in self.layout.names.items()
        }
        return self.layout.form.hashes(pa.table(columns), ways)


def layout_of(job: Job, schema: pa.Schema) -> Layout | Gap:
    """How a table stands beside its silver table of this schema, or why it does not."""
    target = job.pinned.target
    relation = job.source.relation_of(job.pinned.published)
    by_content = kind_of(target, relation).identity is RowIdentity.CONTENT
    try:
        keys = relation.names if by_content else target.keys or default_keys(relation)
        view = View(job.project, target, relation)
    except (NoKey, TransformUnfit) as unfit:
        return Gap(unfit.message, unfit.remedy)
    there = source_rows(schema.empty_table(), target, relation).column_names
    names = {**view.names, **{f"compute.{name}": name for name in view.computed}}
    expected = {*names.values(), *view.companions}
    given = {name for name in there if target.on_drop == "drop" or name in expected}
    if (gap := _uneven(job, expected, given)) is not None:
        return gap
    types = {column: schema.field(name).type for column, name in view.names.items()}
    try:
        for kind in types.values():
            from_silver(pa.nulls(0, kind))
    except TypeError:
        return apart(", ".join(f"{c} {k}" for c, k in types.items() if not _comparable(_NO_TEXT, k)))
    columns = {column.name: column for column in relation.columns}
    form = RowForm(
        columns=tuple(names),
        keys=keys,
        numbered=len(keys) == 1 and keys[0] in types and is_numbered(columns[keys[0]], types[keys[0]]),
    )
    computed = {name: schema.field(name).type for name in view.computed}
    return Layout(target, relation, view, by_content, keys, names, types, computed, form)


def apart(columns: str) -> Gap:
    """Columns that cannot be compared because of their types."""
    return Gap(f"silver's types are not those of the source's columns: {columns}", "`cdc-lake explain LAK410`")


_NO_TEXT = pa.chunked_array([], pa.large_string())


def _astray(silver: pa.Table, text: str, decimal: str) -> bool:
    """Whether a companion is not what the text beside it says; that one is compared with the source."""
    values = silver[decimal]
    return not from_silver(values).equals(beside(silver[text], values.type))


def _uneven(job: Job, expected: set[str], given: set[str]) -> Gap | None:
    """Columns that only one side has."""
    if missing := sorted(expected - given):
        reason = f"silver has no column {', '.join(missing)} yet: it comes with the table's next change"
        return Gap(reason, next_step(job))
    if gone := sorted(given - expected):
        return Gap(f"the source no longer has column {', '.join(gone)}", next_step(job))
    return None


def _comparable(text: Any, kind: pa.DataType) -> bool:
    try:
        from_silver(pa.nulls(0, kind))
        from_source(text, kind)
    except (TypeError, pa.ArrowInvalid):
        return False
    return True
