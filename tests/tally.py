"""What fault tests count, told where they run and, for `python -m tests.reliability`, written into the file that CDC_LAKE_TALLY names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

FILE = os.environ.get("CDC_LAKE_TALLY")
"""As it was at the start: a test may take it away from what it runs."""


def tally(promise: str, faults: Iterable[str] = (), **counts: int) -> None:
    """Of promise R1 to R24 what was counted just now (`kills=3, changes=512`); `faults`: the named ones that came about."""
    met = sorted({*faults})
    print(f"{promise}: {', '.join([*(f'{count:,} {what}' for what, count in counts.items()), *met])}")
    if FILE:
        line = json.dumps({"promise": promise, "faults": met, "counts": counts}) + "\n"
        with Path(FILE).open("a", encoding="utf-8") as out:  # one short write: processes side by side share the file
            out.write(line)
