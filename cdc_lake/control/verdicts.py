"""What comparisons of silver with the source found: the result as a value and a file, and the control table
`verified`.

A file names the keys of rows that differ, up to a few; other values only if they were asked for. Every comparison that
could judge a table leaves a row in `verified`, which counts for the stream and the generation of the content that it
judged: after a rebuild, or in a new stream, nothing is verified yet.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.tables.control_schema import QualityRow, VerifiedRow
from cdc_lake.tables.control_tables import ControlTables

SCHEMA = "cdc-lake/compare/1"
SAMPLE = 10
"""Keys named per kind of difference."""


class Verdict(enum.Enum):
    """What is proven of a table, worst last. `NOT_COMPARED`: a kind without rows to compare; it counts for nothing."""

    NOT_COMPARED = "not compared"
    EQUAL = "equal"
    EQUAL_BUT_HELD = "equal but for held keys"
    EQUAL_BUT_DISCARDED = "equal but for discarded keys"
    INCONCLUSIVE = "inconclusive"
    DIFFERENT = "different"


_WORST = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair does about the keys of a table that differ. `keys`: to be landed in bronze, or `landed` there, to
    come into force at `position`; `left`: not, and why.
    """

    keys: int = 0
    position: str = ""
    left: int = 0
    reason: str = ""
    landed: bool = False


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change in bronze that touched a key. `position`: of its transaction, as people paste it; `committed`: ISO 8601,
    None where bronze has no time of it; `note`: where it comes from, if not from the stream.
    """

    position: str
    op: str
    committed: str | None = None
    csn: int | None = None
    commit_lsn: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """One of the keys named as samples. `columns`: which differ; `changes`: the last ones in bronze that touched the
    key, of `touched` in all. `source`, `silver`: the row on each side by column, in canonical text (floats as numbers);
    None where there is none, or where values were not asked for.
    """

    kind: str
    key: tuple[str | None, ...]
    columns: tuple[str, ...] = ()
    changes: tuple[KeyChange, ...] = ()
    touched: int = 0
    source: dict[str, str | None] | None = None
    silver: dict[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table. `held_keys`: keys whose held changes, folded onto silver, give the source's row; `discarded_keys`:
    those of which changes were given up, where these do, and held ones behind them.

    `missing`, `extra`, `changed`, `repeated` count keys: only in the source, only in silver, with another value, in
    silver more than once; `unaccounted` held keys that folding does not explain. `columns` counts rows that differ by
    column. The samples are keys as texts in key order. `reason` and `hint` say why a verdict is inconclusive. `repair`:
    where one was asked for and keys differ. `differing`: what is known of the sample keys.

    `hashed_by`: who summed up the source's rows by bucket, `server` or `client`, empty where nobody did; `streamed`:
    why it was not the server. `rows_matched`: rows of the source that were read to be matched one by one.
    `rolled_forward`: by how many transactions silver was taken further, in memory, to be as of the snapshot.
    `sampled`: the part of the rows that was compared, None: all.
    """

    table: str
    silver: str
    verdict: Verdict
    source_rows: int | None = None
    silver_rows: int | None = None
    held_keys: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    repeated: int = 0
    unaccounted: int = 0
    columns: tuple[tuple[str, int], ...] = ()
    samples: tuple[tuple[str, tuple[tuple[str | None, ...], ...]], ...] = ()
    watermark: str = ""
    reason: str = ""
    hint: str = ""
    seconds: float = 0.0
    repair: Repair | None = None
    hashed_by: str = ""
    streamed: str = ""
    rows_matched: int = 0
    differing: tuple[DifferingKey, ...] = ()
    rolled_forward: int = 0
    sampled: float | None = None
    discarded_keys: int = 0

    @property
    def text(self) -> str:
        """The verdict as people read it."""
        return verdict_text(self.verdict, self.held_keys, self.discarded_keys, self.sampled)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All tables compared, in one snapshot of the source. `position`: nothing the snapshot shows lies above it.

    `values`: whether the rows of sample keys are told.
    """

    pipeline: str
    at: datetime
    position: str
    tables: tuple[TableComparison, ...]
    seconds: float
    values: bool = False

    @property
    def verdict(self) -> Verdict:
        """The worst of the tables' verdicts; inconclusive if none of them could be compared by its kind."""
        worst = max((t.verdict for t in self.tables), key=_WORST.index, default=Verdict.EQUAL)
        return Verdict.INCONCLUSIVE if worst is Verdict.NOT_COMPARED else worst

    @property
    def not_compared(self) -> int:
        """How many tables are of a kind that is not compared."""
        return sum(t.verdict is Verdict.NOT_COMPARED for t in self.tables)

    @property
    def held_keys(self) -> int:
        """Held keys over all tables."""
        return sum(t.held_keys for t in self.tables)

    @property
    def discarded_keys(self) -> int:
        """Keys of which changes were given up, over all tables."""
        return sum(t.discarded_keys for t in self.tables)

    @property
    def different(self) -> tuple[str, ...]:
        """Source tables whose verdict is different."""
        return tuple(t.table for t in self.tables if t.verdict is Verdict.DIFFERENT)

    @property
    def text(self) -> str:
        """The verdict of the whole as people read it."""
        shares = [t.sampled for t in self.tables if t.sampled is not None]
        return verdict_text(self.verdict, self.held_keys, self.discarded_keys, min(shares, default=None))

    def document(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        tables = [
            {
                **asdict(t),
                "verdict": t.verdict.value,
                "text": t.text,
                "columns": dict(t.columns),
                "samples": dict(t.samples),
            }
            for t in self.tables
        ]
        return {
            "schema": SCHEMA,
            "pipeline": self.pipeline,
            "at": self.at.isoformat(),
            "position": self.position,
            "verdict": self.verdict.value,
            "text": self.text,
            "held_keys": self.held_keys,
            "values": self.values,
            "discarded_keys": self.discarded_keys,
            "different": list(self.different),
            "tables": tables,
            "seconds": self.seconds,
        }

    def write(self, folder: Path) -> Path:
        """Write `compare.json` into the folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "compare.json"
        part = folder / f".compare.{os.getpid()}.json"
        part.write_text(json.dumps(self.document(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(file)
        return file


def verdict_text(verdict: Verdict, held_keys: int, discarded_keys: int = 0, sampled: float | None = None) -> str:
    """`equal but for 3 held keys and 1 discarded key`; of a sample, `equal in a sample of 5%`."""
    text = verdict.value
    if verdict in {Verdict.EQUAL_BUT_HELD, Verdict.EQUAL_BUT_DISCARDED}:
        many = [(held_keys, "held"), (discarded_keys, "discarded")]
        exceptions = [f"{number} {word} key{'' if number == 1 else 's'}" for number, word in many if number]
        text = f"equal but for {' and '.join(exceptions)}"
    return text if sampled is None or verdict is Verdict.INCONCLUSIVE else f"{text} in a sample of {sampled * 100:.3g}%"


RULE = "equal_to_source"
"""What the control table `quality` calls the result of a comparison."""

_JUDGED = (Verdict.EQUAL, Verdict.EQUAL_BUT_HELD, Verdict.EQUAL_BUT_DISCARDED, Verdict.DIFFERENT)


@dataclass(frozen=True, slots=True)
class Verified:
    """What comparisons found of a table. `through`: the highest position of silver that was found equal, when that was
    (`verified_at`), and how many keys were held then; `different_at`: when it was last found to differ there or beyond.
    None where that never was.
    """

    through: int | None = None
    verified_at: datetime | None = None
    held_keys: int = 0
    different_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """Which content of a silver table a comparison judged: a generation of it, at a position of a stream."""

    stream: str
    epoch: int
    generation: int
    position: int


def verified_state(rows: pa.Table, relation: str, stream: str, generation: int) -> Verified:
    """What counts of a table; `rows`: the control table `verified`."""
    own_rows = rows.filter(
        (pc.field("relation") == relation) & (pc.field("stream") == stream) & (pc.field("generation") == generation)
    )
    result = Verified()
    differed = -1
    for row in own_rows.sort_by("compared_at").to_pylist():
        position, compared_at = row["position"], row["compared_at"]
        if row["verdict"] == Verdict.DIFFERENT.value:
            result, differed = Verified(result.through, result.verified_at, result.held_keys, compared_at), position
        elif result.through is None or position >= result.through:
            still = result.different_at if position < differed else None
            result = Verified(position, compared_at, row["held_keys"], still)
    return result


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
