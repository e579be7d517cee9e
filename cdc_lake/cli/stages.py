"""Stages of progress as text: which ones repeat, and how far one is."""

from __future__ import annotations

from cdc_lake.observe.progress import Progress

REPEATING = frozenset({"receive", "landed", "maintain", "apply", "merge", "cut"})
"""Stages told over and over while a loop runs: they have one line that changes."""

LOGGED = frozenset({"run"})
"""Stages that only programs read: people see a command begin and end."""


def count(told: Progress) -> str:
    """`12,000 of 40,000 rows`, as far as it is known."""
    if told.done is None:
        return ""
    of = f" of {told.total:,}" if told.total is not None else ""
    return f"{told.done:,}{of} {told.unit}".rstrip()


def line(told: Progress) -> str:
    """One line of narration."""
    counted = count(told)
    return f"{told.stage:<9} {told.text}{f' · {counted}' if counted else ''}"
