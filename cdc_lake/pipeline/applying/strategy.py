"""Strategies: how a table's part of a span is written, decided from facts before anything is.

What is written is the same whichever way is taken; only its cost differs. Nothing is assumed: an append is chosen where
the bounds of the table's files prove that no net change can meet a row of it, and the net change is sent to every task
where what was counted of it says that it is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from cdc_lake.bronze.outline import Outline
from cdc_lake.config.project import Project, Target
from cdc_lake.lake.marker import Marker
from cdc_lake.lake.store import quoted
from cdc_lake.lake.weight import all_below
from cdc_lake.pipeline.applying.judge import Survey
from cdc_lake.silver.kind import TablePart

Way: TypeAlias = Literal["overwrite", "append", "merge"]
"""A first content replaces what is there; new rows alone are put behind it; anything else is merged by key."""

_HEAP_SHARE: Final = 8
"""A net change may take the eighth part of the driver's heap where it is sent to every task: there it stands as it is
read, as a hash table and as the blocks that are sent. All tables of a span together are bounded by the span's size."""

_CELL: Final = 16  # bytes of a value in a row besides its text
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Strategy:
    """`sent`: the net change goes to every task where the join allows it, so that the table is not shuffled; `within`:
    conditions by which files of the table are passed over.
    """

    way: Way
    sent: bool
    within: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, object]:
        """As progress has it."""
        return {"way": self.way, "broadcast": self.sent, "bounded": bool(self.within)}


def choose(
    project: Project, target: Target, base: Marker, part: TablePart, seen: Outline, found: Survey, size: int | None
) -> Strategy:
    """The strategy for changes of a table with keys that stands at `base`. `size`: bytes that the changes took as they
    were received, at most; None where nobody knows.
    """
    if only_new(project, target, base, part, seen, found):
        return Strategy("append", sent=False)
    heap = project.pipeline.apply.driver_memory
    within = list(found.parts)
    if found.bounds is not None:
        low, high = rounded(*found.bounds)
        within.insert(0, f"t.{quoted(part.shape.key_columns[0].name)} BETWEEN {low} AND {high}")
    return Strategy("merge", sent=fits(part, seen, size, heap), within=tuple(within))


def rounded(low: int, high: int) -> tuple[int, int]:
    """Bounds around these, an eighth wider at most on either side, that spans over much of the same keys share: numbers
    stand in the code that Spark compiles, which it knows again only by its text.
    """
    step = 1 << max(0, (high - low).bit_length() - 4)
    return max(low // step * step, _LEAST), min(-(-high // step) * step, _MOST)


def only_new(project: Project, target: Target, base: Marker, part: TablePart, seen: Outline, found: Survey) -> bool:
    """Whether no change can be of a row that the table has at `base`: every key is above every key of its files.

    Only asked where there are inserts at all: what is only updated or deleted is there.
    """
    if found.bounds is None or part.truncated or not seen.inserts:
        return False
    return all_below(project, target, base.version, part.shape.key_columns[0].name, found.bounds[0])


def fits(part: TablePart, seen: Outline, size: int | None, heap: int) -> bool:
    """Whether the net change, which has at most one row a change, may be sent to every task."""
    if size is None:
        return False
    columns = len(part.shape.columns) + len(part.shape.carried)
    return (seen.rows * _CELL * columns + size) * _HEAP_SHARE <= heap
