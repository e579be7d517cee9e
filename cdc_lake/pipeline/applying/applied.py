"""What a run of apply did so far, in numbers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cdc_lake.config.project import Target
from cdc_lake.errors import CdcLakeError, GroupWaits
from cdc_lake.lake.control_rows import RunRow
from cdc_lake.lake.store import SilverColumn
from cdc_lake.pipeline.applying.merging import Merged
from cdc_lake.pipeline.applying.table_span import Prepared
from cdc_lake.pipeline.state.holds import WAITING
from cdc_lake.silver.projection import Projection

_SHOWN: Final = 20
"""Tables that an error names beside the first one that waits: a screen has room for so many."""


@dataclass(frozen=True, slots=True)
class TableApplied:
    """What was done to one table: what its rows were made of last, its columns then, and numbers over the run."""

    target: Target
    projection: Projection
    columns: tuple[SilverColumn, ...]
    changes: int
    files: int
    size: int


@dataclass
class Applied:
    """What was done so far, by which `run`; `top`: where the last walk was to go to, `upto`: where it got; `ways`: how
    often a table was written in which way (`pipeline.applying.strategy`); `written`: files and bytes (`lake.written`);
    `held_by`: changes that were held, by silver table and rule; `broken`: silver table → why it waits; `tables`: those
    that were written; `paused`: silver tables that somebody paused.
    """

    run: str = ""
    stream: str | None = None
    upto: int | None = None
    top: int | None = None
    spans: int = 0
    transactions: int = 0
    changes: int = 0
    merges: int = 0
    held: int = 0
    held_by: Counter[tuple[str, str]] = field(default_factory=Counter)
    ways: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    rules: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    broken: dict[str, CdcLakeError] = field(default_factory=dict)
    tables: dict[str, TableApplied] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()

    def error(self) -> CdcLakeError | None:
        """Why the first table waits, with a remedy that names the others too; None if no table waits.

        What a table waits for comes before the tables of its group that wait for it.
        """
        waiting = sorted(self.broken.items(), key=lambda item: isinstance(item[1], GroupWaits))
        if not waiting:
            return None
        (_, first), *others = waiting
        if others:
            shown = ", ".join(f"{label} ({error.code})" for label, error in others[:_SHOWN])
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            first.remedy += f"; {shown}{more} also wait: `cdc-lake status` says what for, and what to do"
        return first

    def count(self, prepared: Prepared) -> None:
        """Add how the rules of a table fared."""
        for one in prepared.counts:
            total = self.rules.setdefault((one.table, one.rule, one.on_fail), [0, 0])
            total[0] += one.evaluated
            total[1] += one.failed

    def count_held(self, prepared: Prepared) -> None:
        """Add what of a table is held; a change that breaks several rules once to each."""
        held, table = prepared.folded.held, prepared.job.target.label
        if held is None:
            return
        self.held += held.num_rows
        for rules in held["rules"].to_pylist():
            self.held_by.update((table, rule) for rule in rules or [WAITING])

    def count_merge(self, prepared: Prepared, merged: Merged) -> None:
        """Add a table that was written."""
        job, before = prepared.job, self.tables.get(prepared.job.target.label)
        self.tables[job.target.label] = TableApplied(
            job.target,
            prepared.projection,
            prepared.kind.columns(prepared.shape),
            prepared.seen.rows + (before.changes if before else 0),
            merged.written.files + (before.files if before else 0),
            merged.written.size + (before.size if before else 0),
        )
        self.merges += 1
        self.ways[merged.strategy.way] = self.ways.get(merged.strategy.way, 0) + 1
        for name, value in merged.written.facts.items():
            self.written[name] = self.written.get(name, 0) + value

    def rule_facts(self) -> list[dict[str, object]]:
        """The rules as the control table `runs` has them."""
        return [
            {"table": table, "rule": rule, "on_fail": on_fail, "evaluated": judged, "failed": failed}
            for (table, rule, on_fail), (judged, failed) in sorted(self.rules.items())
        ]

    def run_row(self, began: datetime, ended: datetime, outcome: str, seconds: float) -> RunRow:
        """The row of this run in the control table `runs`."""
        facts = {
            "rules": self.rule_facts(),
            "transactions": self.transactions,
            "changes": self.changes,
            "merges": self.merges,
            "ways": self.ways,
            **self.written,
            "spans": self.spans,
            "held": self.held,
            "upto": self.upto,
            "seconds": round(seconds, 3),
            "broken": {label: error.code for label, error in self.broken.items()},
        }
        return RunRow(self.run, "apply", began, ended, outcome, json.dumps(facts))
