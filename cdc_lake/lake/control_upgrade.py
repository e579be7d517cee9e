"""The form of control tables, by version, and the steps from one to the next.

A table says in a property which version its form is; one that says nothing is of version 0, from before there was the
property. A column more is no new version: every version reads the columns it knows and leaves the others alone. A new
version is what an older one would read wrongly; it refuses the table then.

A step changes one table by one commit, finds nothing to do where it was done, and the property is written behind all
of them: a process that dies in between leaves a table that the same steps bring to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from cdc_lake.errors import ControlNewer, ControlNotWritten
from cdc_lake.lake.delta_log import NotLanded
from cdc_lake.lake.delta_place import DeltaPlace
from cdc_lake.observe.failpoint import CONTROL_STEP, failpoint

CONTROL_VERSION: Final = 1
CONTROL_PROPERTY: Final = "cdc_lake.control"


@dataclass(frozen=True, slots=True)
class UpgradeStep:
    """What a table needs on its way to a version. `needs`: in words, None where nothing; `do`: one commit."""

    to: int
    needs: Callable[[DeltaTable, pa.Schema], str | None]
    do: Callable[[DeltaTable, pa.Schema], None]


def version_of(table: DeltaTable) -> int:
    """The version of a table's form."""
    return int(table.metadata().configuration.get(CONTROL_PROPERTY, "0"))


def check_version(found: int, name: str, where: str) -> None:
    """Raise ControlNewer where a table is of a version that this one does not know."""
    if found > CONTROL_VERSION:
        text = f"the control table `{name}` is of version {found}, this version knows {CONTROL_VERSION}"
        raise ControlNewer(text, where=where)


def needed(table: DeltaTable, schema: pa.Schema) -> tuple[str, ...]:
    """What it takes to bring a table to this version's form, in words; nothing where it has it."""
    found = version_of(table)
    texts = [step.needs(table, schema) for step in STEPS]
    marked = () if found == CONTROL_VERSION else (f"version {CONTROL_VERSION} in its properties",)
    return (*(text for text in texts if text is not None), *marked)


def bring(place: DeltaPlace, name: str, schema: pa.Schema) -> None:
    """Bring a table to this version's form. Raises ControlNewer, ControlNotWritten; the same call then goes on."""
    table = place.open()
    assert table is not None, "it was looked at"
    found = version_of(table)
    check_version(found, name, place.name)
    try:
        for step in STEPS:
            if step.needs(table, schema) is not None:
                step.do(table, schema)
                place.settle(table)
                failpoint(CONTROL_STEP)
        if found < CONTROL_VERSION:
            place.set_properties(table, {CONTROL_PROPERTY: str(CONTROL_VERSION)}, {})
    except (DeltaError, NotLanded) as cause:
        raise ControlNotWritten(f"`{name}` was not upgraded", where=place.name) from cause


def _lacking(table: DeltaTable, schema: pa.Schema) -> list[str]:
    have = {field.name for field in table.schema().fields}
    return [name for name in schema.names if name not in have]


def _columns_needed(table: DeltaTable, schema: pa.Schema) -> str | None:
    lacking = _lacking(table, schema)
    return f"columns {', '.join(lacking)}" if lacking else None


def _add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    fields = pa.schema([schema.field(name) for name in _lacking(table, schema)])
    table.alter.add_columns(Schema.from_arrow(fields).fields)


STEPS: Final = (UpgradeStep(1, _columns_needed, _add_columns),)
"""Every step that there ever was, in order."""
