"""The public names: what `cdc_lake.api` defines is what the package exports, each with its sentence."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import cdc_lake
from cdc_lake import api


def imported_for_types() -> set[str]:
    """What type checkers see of the package."""
    tree = ast.parse(Path(str(cdc_lake.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "cdc_lake.api"]
    return {alias.name for node in imports for alias in node.names}


def test_every_function_of_the_api_is_exported():
    defined = {n for n, f in inspect.getmembers(api, inspect.isfunction) if f.__module__ == api.__name__}
    public = {name for name in defined if not name.startswith("_")}
    assert public <= set(api.__all__)
    assert sorted(api.__all__) == sorted(cdc_lake.__all__)
    assert imported_for_types() == set(cdc_lake.__all__)


@pytest.mark.parametrize("name", cdc_lake.__all__)
def test_every_public_name_can_be_imported_and_says_what_it_does(name: str):
    assert getattr(cdc_lake, name) is getattr(api, name)
    assert (inspect.getdoc(getattr(api, name)) or "").strip()


def test_what_is_no_public_name_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'load_project'"):
        cdc_lake.load_project  # noqa: B018


def test_progress_is_reported_under_the_former_name_of_the_parameter_too():
    takers = [
        one
        for one in map(cdc_lake.__getattr__, cdc_lake.__all__)
        if "report_progress" in inspect.signature(one).parameters
    ]
    assert len(takers) == 9
    for function in takers:
        with pytest.warns(DeprecationWarning, match=rf"{function.__name__}\(report_progress"), pytest.raises(TypeError):
            function(tell=print, no_such_parameter=True)
