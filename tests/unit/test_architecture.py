"""The page of the architecture: its files and names exist, and its packages stand in the order in which they import."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "cdc_lake"


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE))))
def test_a_file_of_the_page_exists(file: str) -> None:
    assert (PACKAGE / file).is_file() or (ROOT / file).is_file()


@pytest.mark.parametrize(
    "line", re.findall(r"^\d\. `([^`]+\.py)`: (?:a )?`(\w+)`", PAGE, re.MULTILINE), ids=lambda line: line[1]
)
def test_a_name_of_the_page_is_in_its_file(line: tuple[str, str]) -> None:
    file, name = line
    assert re.search(rf"^(class|def) {name}\b", (PACKAGE / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_the_packages_stand_in_the_order_in_which_they_import() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    listed = re.findall(r"^\| `([a-z]+)` \|", PAGE.partition("## Packages")[2].partition("## From")[0], re.MULTILINE)
    assert [f"cdc_lake.{name}" for name in reversed(listed)] == layers
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert {*listed} == found | {"api"}
