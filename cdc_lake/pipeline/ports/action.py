"""One step of a plan, and the steps that every kind of source has alike."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc_lake.config.project import Project
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import TableName


class ActionKind(enum.Enum):
    """Kinds of steps."""

    CREATE_PUBLICATION = "create publication"
    ALTER_PUBLICATION = "alter publication"
    CREATE_SLOT = "create slot"
    DECODE = "decode"
    SNAPSHOT = "snapshot"
    RESUME = "resume"
    CREATE_TABLE = "create table"
    RENEW = "renew"
    ADD_COLUMN = "add column"
    CHANGE_TYPE = "change type"
    DROP_COLUMN = "drop column"
    KEEP_COLUMN = "keep column"
    RENAME_COLUMN = "rename column"
    ASSUME_COLUMN = "assume column"
    ASSUME_KEY = "assume key"
    BEGIN_AGAIN = "begin again"
    TABLE_GONE = "table gone"
    TABLE_PAUSED = "table paused"
    TABLE_WAITS = "table waits"
    CLUSTER = "cluster"
    REMAKE = "remake"
    COPY_AGAIN = "copy again"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class Action:
    """One step: what it is about, in words, and its numbers where they are known.

    `changes` is false for what only goes on; `destructive` steps are never done without being allowed. `transactions`
    is how far a stream is behind where CSNs count it, `bytes` where its positions are LSNs.
    """

    kind: ActionKind
    subject: str
    text: str
    changes: bool = True
    destructive: bool = False
    rows: int | None = None
    bytes: int | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A captured table: rows as the planner estimates them (None: never analysed), size, and what the role may."""

    table: TableName
    rows: int | None
    size: int
    readable: bool
    owned: bool


def copies(project: Project, facts: Sequence[TableFacts]) -> Iterator[Action]:
    """The initial copy, a step a table."""
    if project.pipeline.snapshot.copies:
        for fact in facts:
            rows = "an unknown number of rows" if fact.rows is None else f"about {counted(fact.rows, 'row')}"
            text = f"snapshot {fact.table}: {rows}, {size(fact.size)} at the source"
            yield Action(ActionKind.SNAPSHOT, str(fact.table), text, rows=fact.rows, bytes=fact.size)


def size(value: int) -> str:
    """Bytes with a unit that fits."""
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):  # noqa: B007  # the last one is used
        if amount < 1024:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
