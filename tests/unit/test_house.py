"""Names are the field's, as `tools/house.py` counts them, and the page of the architecture says what there is."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["house"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_measure_keeps_its_budget(house: ModuleType) -> None:
    measured = house.measure(house.read_modules())
    assert measured.keys() == house.BUDGETS.keys()
    assert {name: value for name, value in measured.items() if value > house.BUDGETS[name]} == {}


@pytest.mark.parametrize("name", ["told", "found", "whole", "behind", "anew", "settled", "of", "one"])
def test_a_name_that_says_nothing_is_counted(house: ModuleType, name: str) -> None:
    assert house.is_bare(name)


@pytest.mark.parametrize("name", ["read", "feed", "plan_span", "found_rows", "decode", "has_rows", "merge", "set"])
def test_a_name_of_the_field_is_not(house: ModuleType, name: str) -> None:
    assert not house.is_bare(name)


def test_every_use_of_an_identifier_is_counted(house: ModuleType) -> None:
    code = "def found(at, *, one=1):\n    told = self._at\n    return call(told, one=at)\nclass Made: ...\n"
    module = house.Module("m", Path("m.py"), 4, ast.parse(code))
    words = {name: count for name, count in Counter(house.identifiers([module])).items() if name in house.BANNED}
    assert words == {"found": 1, "at": 3, "one": 2, "told": 2}


def test_a_circle_of_imports_is_found_also_through_a_function_and_a_type(house: ModuleType) -> None:
    texts = {
        "p.a": "def f():\n    from p import b\n",
        "p.b": "if TYPE_CHECKING:\n    from p.c import C\n",
        "p.c": "import p.a\n",
        "p.d": "import p.a\n",
    }
    modules = [house.Module(name, Path(f"{name}.py"), 2, ast.parse(text)) for name, text in texts.items()]
    assert house.import_cycles(modules) == [["p.a", "p.b", "p.c"]]
    assert house.import_cycles(modules[1:]) == []


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


def test_only_the_package_of_tables_knows_where_a_silver_table_is() -> None:
    for module in (ROOT / "cdc_lake").rglob("*.py"):
        if module.parent.name != "tables" and module.name != "project.py":
            assert not re.search(r"silver_(path|address)", module.read_text()), module
