"""Verified: how far each silver table was last proven equal to its source, and whether it was found to differ since.

Every comparison that could judge a table leaves a row in the control table `verified`. A row counts for the stream and
the generation of the content that it judged: after a rebuild, or in a new stream, nothing is verified yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import QualityRow, VerifiedRow
from cdc_lake.pipeline.state.comparison import Comparison, TableComparison, Verdict

RULE = "equal_to_source"
"""What the control table `quality` calls the result of a comparison."""

_JUDGED = (Verdict.EQUAL, Verdict.EQUAL_BUT_HELD, Verdict.EQUAL_BUT_DISCARDED, Verdict.DIFFERENT)


@dataclass(frozen=True, slots=True)
class Verified:
    """What comparisons found of a table. `through`: the highest position of silver that was found equal, when that was
    (`at`), and how many keys were held then; `different_at`: when it was last found to differ there or beyond. None
    where that never was.
    """

    through: int | None = None
    at: datetime | None = None
    held_keys: int = 0
    different_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """Which content of a silver table a comparison judged: a generation of it, at a position of a stream."""

    stream: str
    epoch: int
    generation: int
    position: int


def verified(rows: pa.Table, relation: str, stream: str, generation: int) -> Verified:
    """What counts of a table; `rows`: the control table `verified`."""
    mine = rows.filter(
        (pc.field("relation") == relation) & (pc.field("stream") == stream) & (pc.field("generation") == generation)
    )
    found = Verified()
    differed = -1
    for row in mine.sort_by("compared_at").to_pylist():
        position, at = row["position"], row["compared_at"]
        if row["verdict"] == Verdict.DIFFERENT.value:
            found, differed = Verified(found.through, found.at, found.held_keys, at), position
        elif found.through is None or position >= found.through:
            still = found.different_at if position < differed else None
            found = Verified(position, at, row["held_keys"], still)
    return found


def record(control: ControlTables, comparison: Comparison, judged: Iterable[Judged]) -> None:
    """Write what a comparison found into `verified` and `quality`; `judged`: of its tables, in their order."""
    pairs = list(zip(comparison.tables, judged, strict=True))
    control.append("verified", [asdict(_row(comparison, *pair)) for pair in pairs if _proves(pair[0])])
    control.append("quality", [asdict(_quality(comparison, table)) for table, _ in pairs])


def _proves(table: TableComparison) -> bool:
    """Whether a verdict says something of the whole table: a sample that is equal does not."""
    return table.verdict in _JUDGED and (table.sampled is None or table.verdict is Verdict.DIFFERENT)


def _row(comparison: Comparison, table: TableComparison, judged: Judged) -> VerifiedRow:
    return VerifiedRow(
        stream=judged.stream,
        epoch=judged.epoch,
        generation=judged.generation,
        relation=table.table,
        table=table.silver,
        position=judged.position,
        verdict=table.verdict.value,
        held_keys=table.held_keys,
        compared_at=comparison.at,
    )


def _quality(comparison: Comparison, table: TableComparison) -> QualityRow:
    differing = table.missing + table.extra + table.changed + table.repeated + table.unaccounted
    different = table.verdict is Verdict.DIFFERENT
    return QualityRow(
        judged_at=comparison.at,
        table=table.silver,
        rule=RULE,
        kind="compare",
        columns="",
        evaluated=table.source_rows or 0,
        failed=max(differing, int(different)),
        level="critical" if different else "none",
        observed=f"{table.text} at {table.watermark}" if table.verdict in _JUDGED else "",
        broken="" if table.verdict in _JUDGED else table.reason,
    )
