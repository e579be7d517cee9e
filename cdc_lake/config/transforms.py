"""What a silver table takes of its source table: which columns, under which names, what is computed, which rows.

Expressions are Spark SQL over the columns of one source row, under the names that silver gives them before `rename`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

PROPERTY = "cdc_lake.transforms"
"""Property of a silver table that holds the fingerprint it was made with."""


@dataclass(frozen=True, slots=True)
class Transforms:
    """`columns`: these only, None: all but `exclude`; `rename`: source name → silver name; `compute`: silver name →
    expression; `where`: rows for which it is true, None: all.
    """

    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    compute: tuple[tuple[str, str], ...] = ()
    where: str | None = None

    @property
    def any(self) -> bool:
        """Whether a silver row differs from its source row at all, or some have none."""
        return self != Transforms()

    @property
    def expressions(self) -> bool:
        """Whether something has to be evaluated."""
        return bool(self.compute) or self.where is not None

    @property
    def fingerprint(self) -> str:
        """The same for the same transforms; empty for none."""
        if not self.any:
            return ""
        told = {
            "columns": None if self.columns is None else sorted(self.columns),
            "exclude": sorted(self.exclude),
            "rename": sorted(self.rename),
            "compute": sorted(self.compute),
            "where": self.where,
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]

    def keeps(self, column: str) -> bool:
        """Whether silver has a source column."""
        return column in self.columns if self.columns is not None else column not in self.exclude

    def silver_name(self, column: str, name: str) -> str:
        """The silver name of a source column that is called `name` without a `rename`."""
        return dict(self.rename).get(column, name)
