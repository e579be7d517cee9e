"""A sample of a table: some of its buckets, other ones each time."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdc_lake.lake.row_hash import BUCKETS


@dataclass(frozen=True, slots=True)
class Sample:
    """How much of a table is compared: a part of its rows, or about so many; one of the two."""

    share: float | None = None
    rows: int | None = None

    @classmethod
    def parse(cls, text: str) -> Sample:
        """Read `5%`, `0.5 %` or `10000`. Raises ValueError."""
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%|([0-9]+)", text.strip())
        if found is None or not 0 < float(found[1] or found[2]) <= (100 if found[1] else float("inf")):
            msg = f"`{text}` is neither a part, such as 5%, nor a number of rows"
            raise ValueError(msg)
        return cls(share=float(found[1]) / 100) if found[1] else cls(rows=int(found[2]))

    def buckets(self, rows: int) -> Any:
        """The buckets of a sample of a table with about so many rows, a bool each, by chance."""
        share = self.share if self.share is not None else (self.rows or 0) / max(rows, 1)
        number = min(BUCKETS, max(1, round(share * BUCKETS)))
        among = np.zeros(BUCKETS, bool)
        among[random.sample(range(BUCKETS), number)] = True
        return among
