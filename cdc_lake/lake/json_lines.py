"""Lines of JSON, as entries of a Delta log are.

A line ends at a line feed and nowhere else: `str.splitlines` also cuts at the other line breaks of Unicode (U+0085,
U+2028, U+2029, and more), which JSON allows inside of a string and Spark writes into the statistics of a column.
"""

from __future__ import annotations

import json
from typing import Any


def json_lines(text: str | bytes) -> list[dict[str, Any]]:
    """The objects of a text of JSON lines, in order; empty lines are none. Raises ValueError."""
    lines = text.split("\n") if isinstance(text, str) else text.split(b"\n")
    return [json.loads(line) for line in lines if line.strip()]
