"""What a run of apply did so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc_lake.errors import CdcLakeError
from cdc_lake.pipeline.table_span import Prepared


@dataclass
class Applied:
    """What was done so far; `broken`: silver table → why it waits."""

    stream: str | None = None
    upto: int | None = None
    spans: int = 0
    transactions: int = 0
    changes: int = 0
    merges: int = 0
    held: int = 0
    rules: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    broken: dict[str, CdcLakeError] = field(default_factory=dict)

    def count(self, prepared: Prepared) -> None:
        """Add how the rules of a table fared."""
        for one in prepared.counts:
            total = self.rules.setdefault((one.table, one.rule, one.on_fail), [0, 0])
            total[0] += one.evaluated
            total[1] += one.failed

    def rule_facts(self) -> list[dict[str, object]]:
        """The rules as the control table `runs` has them."""
        return [
            {"table": table, "rule": rule, "on_fail": on_fail, "evaluated": judged, "failed": failed}
            for (table, rule, on_fail), (judged, failed) in sorted(self.rules.items())
        ]
