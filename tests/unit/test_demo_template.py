"""The demo that `init demo` writes is the demo of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["shop.yaml", "shop_workload.py"])
def test_template_is_the_repositorys_own_file(name: str) -> None:
    template = ROOT / "cdc_lake" / "cli" / "templates" / "demo" / "pipelines" / name
    assert template.read_text() == (ROOT / "pipelines" / name).read_text()
