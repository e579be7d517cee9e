"""Results of comparing silver with the source: as a value, as a file, and in the control table `verified`.

A file contains the keys of some differing rows; other values only if they were requested. Every comparison that could
judge a table adds a row to `verified`, which counts for the stream and the generation of the compared content: after a
rebuild, or in a new stream, nothing is verified yet.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.tables.control_schema import QualityRow, VerifiedRow
from cdc_lake.tables.control_tables import ControlTables

SCHEMA = "cdc-lake/compare/1"
SAMPLE = 10
"""Maximum number of keys listed per kind of difference."""


class Verdict(enum.Enum):
    """What was proven of a table, worst last. `NOT_COMPARED`: a kind without comparable rows; it does not count."""

    NOT_COMPARED = "not compared"
    EQUAL = "equal"
    EQUAL_BUT_QUARANTINED = "equal but for quarantined keys"
    EQUAL_BUT_DISCARDED = "equal but for discarded keys"
    INCONCLUSIVE = "inconclusive"
    DIFFERENT = "different"


_WORST = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of a table's differing keys. `keys`: number to be landed in bronze, or `landed`, taking effect at
    `position`; `left`: those that are not, and why.
    """

    keys: int = 0
    position: str = ""
    left: int = 0
    reason: str = ""
    landed: bool = False


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change in bronze that touched a key. `position`: of its transaction, as printed; `committed`: ISO 8601, None if
    bronze has no time for it; `note`: its origin, if not the stream.
    """

    position: str
    op: str
    committed: str | None = None
    csn: int | None = None
    commit_lsn: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """One of the keys listed as samples. `columns`: those that differ; `changes`: the last changes in bronze that
    touched the key, of `touched` in total. `source`, `silver`: the row on each side by column, in canonical text
    (floats as numbers); None without a row, or if values were not requested.
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
    """The result for one table. `quarantined_keys`: keys whose quarantined changes, applied to silver, give the
    source's row; `discarded_keys`: keys for which discarded changes, and held ones after them, do.

    `missing`, `extra`, `changed`, `repeated` count keys: only in the source, only in silver, with another value, more
    than once in silver; `unaccounted`: quarantined keys that this does not explain. `columns` counts differing rows by
    column. The samples are keys as texts in key order. `reason` and `hint`: why a verdict is inconclusive. `repair`: if
    one was requested and keys differ. `differing`: details of the sample keys.

    `hashed_by`: what summed up the source's rows by bucket, `server`, `client` or empty; `streamed`: why it was not the
    server. `rows_matched`: source rows that were read to be matched one by one. `rolled_forward`: number of
    transactions applied to silver in memory. `sampled`: the compared share of the rows, None: all.
    """

    table: str
    silver: str
    verdict: Verdict
    source_rows: int | None = None
    silver_rows: int | None = None
    quarantined_keys: int = 0
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
        """The verdict in words."""
        return verdict_text(self.verdict, self.quarantined_keys, self.discarded_keys, self.sampled)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for all tables, in one snapshot of the source, which shows nothing above `position`.

    `values`: whether the rows of sample keys are included.
    """

    pipeline: str
    at: datetime
    position: str
    tables: tuple[TableComparison, ...]
    seconds: float
    values: bool = False

    @property
    def verdict(self) -> Verdict:
        """The worst of the tables' verdicts; inconclusive if no table has a comparable kind."""
        worst = max((t.verdict for t in self.tables), key=_WORST.index, default=Verdict.EQUAL)
        return Verdict.INCONCLUSIVE if worst is Verdict.NOT_COMPARED else worst

    @property
    def not_compared(self) -> int:
        """Number of tables whose kind is not compared."""
        return sum(t.verdict is Verdict.NOT_COMPARED for t in self.tables)

    @property
    def quarantined_keys(self) -> int:
        """Quarantined keys over all tables."""
        return sum(t.quarantined_keys for t in self.tables)

    @property
    def discarded_keys(self) -> int:
        """Keys with discarded changes over all tables."""
        return sum(t.discarded_keys for t in self.tables)

    @property
    def different(self) -> tuple[str, ...]:
        """Source tables whose verdict is different."""
        return tuple(t.table for t in self.tables if t.verdict is Verdict.DIFFERENT)

    @property
    def text(self) -> str:
        """The verdict of all tables in words."""
        shares = [t.sampled for t in self.tables if t.sampled is not None]
        return verdict_text(self.verdict, self.quarantined_keys, self.discarded_keys, min(shares, default=None))

    def document(self) -> dict[str, Any]:
        """The comparison as JSON."""
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
            "quarantined_keys": self.quarantined_keys,
            "values": self.values,
            "discarded_keys": self.discarded_keys,
            "different": list(self.different),
            "tables": tables,
            "seconds": self.seconds,
        }

    def write(self, folder: Path) -> Path:
        """Write `compare.json` to the folder, atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "compare.json"
        part = folder / f".compare.{os.getpid()}.json"
        part.write_text(json.dumps(self.document(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(file)
        return file


def verdict_text(verdict: Verdict, quarantined_keys: int, discarded_keys: int = 0, sampled: float | None = None) -> str:
    """`equal but for 3 quarantined keys and 1 discarded key`; of a sample, `equal in a sample of 5%`."""
    text = verdict.value
    if verdict in {Verdict.EQUAL_BUT_QUARANTINED, Verdict.EQUAL_BUT_DISCARDED}:
        many = [(quarantined_keys, "quarantined"), (discarded_keys, "discarded")]
        exceptions = [f"{number} {word} key{'' if number == 1 else 's'}" for number, word in many if number]
        text = f"equal but for {' and '.join(exceptions)}"
    return text if sampled is None or verdict is Verdict.INCONCLUSIVE else f"{text} in a sample of {sampled * 100:.3g}%"


RULE = "equal_to_source"
"""Name of a comparison's result in the control table `quality`."""

_JUDGED = (Verdict.EQUAL, Verdict.EQUAL_BUT_QUARANTINED, Verdict.EQUAL_BUT_DISCARDED, Verdict.DIFFERENT)


@dataclass(frozen=True, slots=True)
class Verified:
    """Results of comparisons of a table. `through`: silver's highest position that was found equal, when that was
    (`verified_at`), and the number of keys quarantined then; `different_at`: when it was last found to differ at or
    after it. None without such a result.
    """

    through: int | None = None
    verified_at: datetime | None = None
    quarantined_keys: int = 0
    different_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The compared content of a silver table: its generation, and its position in a stream."""

    stream: str
    epoch: int
    generation: int
    position: int


def verified_state(rows: pa.Table, relation: str, stream: str, generation: int) -> Verified:
    """The valid results for a table; `rows`: the control table `verified`."""
    own_rows = rows.filter(
        (pc.field("relation") == relation) & (pc.field("stream") == stream) & (pc.field("generation") == generation)
    )
    result = Verified()
    differed = -1
    for row in own_rows.sort_by("compared_at").to_pylist():
        position, compared_at = row["position"], row["compared_at"]
        if row["verdict"] == Verdict.DIFFERENT.value:
            result, differed = replace(result, different_at=compared_at), position
        elif result.through is None or position >= result.through:
            still = result.different_at if position < differed else None
            result = Verified(position, compared_at, row["quarantined_keys"], still)
    return result


def record(control: ControlTables, comparison: Comparison, judged: Iterable[Judged]) -> None:
    """Write the results of a comparison to `verified` and `quality`; `judged`: of its tables, in their order."""
    pairs = list(zip(comparison.tables, judged, strict=True))
    control.append("verified", [asdict(_row(comparison, *pair)) for pair in pairs if _proves(pair[0])])
    control.append("quality", [asdict(_quality(comparison, table)) for table, _ in pairs])


def _proves(table: TableComparison) -> bool:
    """Whether a verdict concerns the whole table: that of an equal sample does not."""
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
        quarantined_keys=table.quarantined_keys,
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
        error="" if table.verdict in _JUDGED else table.reason,
    )
