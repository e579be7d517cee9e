"""Parts of a table that the keys of a span lie in: conditions of the MERGE by which all other files are passed over.

Where a table is divided by a column of its key, or by Iceberg's `bucket` or `truncate` of one, a row and its changes
lie in the same part. Which parts a span touches is counted with its rules (`pipeline.applying.judge`). They become
literals, for no format looks at the other side of a MERGE before it chooses files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc_lake.config.partitioning import Partition
from cdc_lake.config.project import Project, Target
from cdc_lake.lake.store import literal, quoted
from cdc_lake.silver.shape import Shape

PARTS_AT_MOST: Final = 64
"""Parts that a MERGE names; where a span touches more of them, it looks into all."""

_WHOLE: Final = frozenset({"smallint", "int", "bigint", "string", "date", "boolean"})
"""Types whose texts are read back as the same values."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """`of_change`: SQL over a change, the part that its key lies in, as text; `of_row`: SQL over the table's row `t`,
    of type `type`.
    """

    of_change: str
    of_row: str
    type: str

    def condition(self, touched: Sequence[str]) -> str | None:
        """What every row in one of the parts meets; None where they are too many to be named."""
        if len(touched) > PARTS_AT_MOST:
            return None
        values = (f"CAST({literal(text)} AS {self.type})" for text in sorted(touched))
        return f"{self.of_row} IN ({', '.join(values)})"


def key_parts(project: Project, target: Target, shape: Shape) -> tuple[KeyPart, ...]:
    """How a table is divided by its key; `shape` has the source's columns. A key that may be NULL tells nothing."""
    keys = {
        target.transforms.silver_name(column.name, column.name): column
        for at, column in enumerate(shape.key_columns)
        if at not in shape.nullable and column.type in _WHOLE and shape.row_key(at, "x") == "x"
    }
    out = []
    for one in map(Partition.parse, target.partition_by):
        if (column := keys.get(one.column)) is None or one.transform not in {"", "bucket", "truncate"}:
            continue
        of_change, of_row = quoted(column.name), f"t.{quoted(one.column)}"
        kind = "int" if one.transform == "bucket" else column.type
        if one.transform:
            call = f"{project.pipeline.lake.iceberg.catalog}.system.{one.transform}({one.number}, "
            of_change, of_row = f"{call}{of_change})", f"{call}{of_row})"
        out.append(KeyPart(f"CAST({of_change} AS STRING)", of_row, kind))
    return tuple(out)
