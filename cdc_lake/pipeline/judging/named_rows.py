"""Rows of silver named by their keys, for a report that is to say which rows break a rule."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import NoKey
from cdc_lake.lake.canonical import from_silver, readable
from cdc_lake.model.rows_by_key import Key
from cdc_lake.pipeline.state.cuts import TableState
from cdc_lake.pipeline.target.layout_changes import silver_names_of
from cdc_lake.silver.shape import default_keys


def key_columns(project: Project, target: Target, state: TableState | None) -> tuple[str, ...]:
    """What silver calls the columns of a table's key, as of a cut; none where it has no key, or not all of it.

    Raises LakeError.
    """
    if state is None or state.layout is None:
        return ()
    layout = bronze_reader(project).layouts([target.source])[state.layout]
    names = silver_names_of(layout, target)
    try:
        keys = target.keys or default_keys(layout)
    except NoKey:
        return ()
    return tuple(names[key] for key in keys) if set(keys) <= names.keys() else ()


def keys_of_rows(rows: pa.Table, columns: Sequence[str], numbers: Sequence[int]) -> tuple[Key, ...]:
    """The keys of rows of silver, as people read them, each once."""
    some = rows.take(pa.array(numbers, pa.int64()))
    parts = [[readable(t, some[name].type) for t in from_silver(some[name]).to_pylist()] for name in columns]
    return tuple(dict.fromkeys(zip(*parts, strict=True)))
