"""The mistakes that must be perfect: what is printed of each, kept in `tests/golden/mistakes`.

Tests that provoke one for real hand its error here. `CDC_LAKE_GOLDEN=write` writes the files again; the page
`docs/reference/mistakes.md` lists them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cdc_lake.cli.text import error_text
from cdc_lake.errors import CdcLakeError

GOLDEN = Path(__file__).parent / "golden" / "mistakes"
KEPT_OF = "18"
"""The PostgreSQL whose words are kept: some say the same otherwise."""
SCRUBBED = (
    (r"(127\.0\.0\.1|localhost):\d+", "HOST:PORT"),
    (r"port \d{2,5}\b", "port PORT"),
    (r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b", "POSITION"),
    (r"\bPID \d+", "PID 1"),
    (r"process \d+", "process 1"),
)


def kept(name: str, error: CdcLakeError, **named: str) -> None:
    """Assert that an error is printed as it is kept; `named`: what differs from run to run, by what stands for it."""
    text = error_text(error, colour=False)
    for placeholder, value in named.items():
        text = text.replace(value, placeholder.upper())
    for pattern, placeholder in SCRUBBED:
        text = re.sub(pattern, placeholder, text)
    if os.environ.get("CDC_LAKE_TEST_POSTGRES", KEPT_OF) != KEPT_OF:
        return
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("CDC_LAKE_GOLDEN") == "write":
        GOLDEN.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert text + "\n" == file.read_text()
