"""A comparison as text: one line a table with its verdict, then the whole."""

from __future__ import annotations

from typing import Any

from cdc_lake.cli.render import value_text


def differs(comparison: Any) -> bool:
    """Whether any table is different from its source."""
    return any(str(getattr(t.verdict, "value", t.verdict)).startswith("different") for t in comparison.tables)


def comparison_text(comparison: Any, width: int) -> str:
    """The verdicts."""
    return value_text(comparison, width)
