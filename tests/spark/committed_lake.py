"""A lake of one table that remembers what its source committed, so that the checker can judge it."""

from __future__ import annotations

from typing import Any

from cdc_lake.model.change import UNCHANGED, Change, Transaction, Update
from cdc_lake.model.relation import TableName
from cdc_lake_testing.committed import Committed, Fails
from cdc_lake_testing.invariants import Known, Verdict, invariants
from cdc_lake_testing.messages import boundaries
from cdc_lake_testing.oracle import Row

from .test_apply_cases import Lake, T

BETWEEN = {"rule": "between", "column": "amount", "min": 0, "max": 89, "on_fail": "quarantine"}
LOOKED_AT = ("I1", "I2", "I3", "I4", "I5", "I6")
"""What of a lake without a source can be looked at, where it is known what was committed."""


class Told(Lake):
    """A lake that remembers what the source committed."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.made: list[Transaction] = []

    def land(self, *changes: Change) -> int:
        position = super().land(*changes)
        self.made.append(Transaction(boundaries(position), changes))
        return position

    def judged(self, fails: Fails | None = None, *, applied: bool = False) -> Verdict:
        return invariants(self.project, Known(committed=Committed(self.made, fails), applied=applied))

    def assert_kept(self, fails: Fails | None = None) -> None:
        """Every invariant is looked at, and held; all that was committed is applied."""
        self.judged(fails, applied=True).assert_held(*LOOKED_AT)


def breaks(_: TableName, row: Row) -> bool:
    """Which rows `BETWEEN` holds."""
    return row["amount"] is not None and int(row["amount"]) > 89


def update(id_: str, amount: str, body: str | None = None) -> Update:
    """`body` None: not sent."""
    return Update(T, (id_, amount, UNCHANGED if body is None else body))
