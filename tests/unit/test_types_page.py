"""The reference page of types is what the code does."""

from __future__ import annotations

from pathlib import Path

from cdc_lake.cli.docs_generator import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "types.md"


def test_the_page_of_types_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m cdc_lake.cli.docs_generator docs/reference/types.md"
    )
