"""How a server prints values: the settings every session of ours asks for, so that copy and stream print alike."""

from __future__ import annotations

PRINTING: dict[str, str] = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "3",  # the shortest text that reads back as the same float
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "lc_monetary": "C",
}
"""Whatever the role's or the database's own settings are."""
