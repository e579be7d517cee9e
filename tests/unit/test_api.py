"""The public interface: what a pipeline can do, and the functions of 0.3 that still do it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cdc_lake
from cdc_lake import METHODS, errors
from cdc_lake.api import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.errors.base import kinds
from tests.cut_lake import CutLake

PUBLIC = {name: member for name, member in vars(Pipeline).items() if not name.startswith("_")}
SECTIONS = re.compile(r"^(?:Args|Returns|Raises):$", re.MULTILINE)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return CutLake(tmp_path).project


def test_the_package_has_its_public_names_and_no_others() -> None:
    assert cdc_lake.__all__ == ["Pipeline", "validate"]
    assert cdc_lake.Pipeline is Pipeline
    assert inspect.getdoc(cdc_lake.validate)
    with pytest.raises(AttributeError, match="no attribute 'load_project'"):
        cdc_lake.load_project  # noqa: B018


@pytest.mark.parametrize("name", PUBLIC)
def test_every_method_says_what_it_does_and_what_its_arguments_are(name: str) -> None:
    method = getattr(Pipeline, name)
    told, _, sections = (inspect.getdoc(method) or "").partition("\n\n")
    assert told.endswith((".", ":")), told
    arguments = {one for one in inspect.signature(method).parameters if one != "self"}
    if "Args:" in sections:
        assert set(re.findall(r"^    (\w+): ", sections.partition("Raises:")[0], re.MULTILINE)) == arguments
    else:
        assert len(arguments) <= 4, "what so many arguments mean is said in `Args`"


def test_every_error_that_a_method_names_is_one() -> None:
    names = {kind.__name__ for kind in kinds(CdcLakeError)}
    for name in PUBLIC:
        for raised in re.findall(
            r"^    (\w+): ", (inspect.getdoc(getattr(Pipeline, name)) or "").partition("Raises:")[2], re.MULTILINE
        ):
            assert raised in names, f"{name}: {raised}"


@pytest.mark.parametrize("name", METHODS)
def test_a_function_of_0_3_calls_its_method_and_warns(
    name: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    method: Callable[..., Any] = getattr(Pipeline, METHODS[name])

    def called(pipeline: Pipeline, *given: Any, **named: Any) -> str:
        seen.append((pipeline.project, given, named))
        return "the result"

    called.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    monkeypatch.setattr(Pipeline, METHODS[name], called)
    with pytest.warns(DeprecationWarning, match=rf"cdc_lake\.{name}\(project, …\)` is now .*\.{METHODS[name]}\("):
        assert getattr(cdc_lake, name)(project, "a", tell=print, promised=True) == "the result"
    assert seen == [(project, ("a",), {"report_progress": print, "pinned": True})]


def test_the_functions_of_0_3_take_what_they_took(project: Project, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="cuts"):
        assert cdc_lake.cuts(project, limit=3, promised=True).total == 0
    file = tmp_path / "p.yaml"
    file.write_text(
        "version: 1\npipeline: p\nsource: {type: postgres, host: h, database: d, user: u, tables: [public.a]}\n"
    )
    assert isinstance(cdc_lake.load_pipeline(file), Project)
    with pytest.warns(DeprecationWarning, match="history"):
        assert cdc_lake.history(str(file), "runs").num_rows == 0


def test_an_error_is_found_under_its_name_of_0_3_with_a_warning_that_says_the_new_one() -> None:
    for former, name in errors._FORMER.items():
        with pytest.warns(DeprecationWarning, match=f"`cdc_lake.errors.{former}` is now `{name}`"):
            assert getattr(errors, former) is getattr(errors, name)
    with pytest.raises(AttributeError, match="Nonsense"):
        errors.Nonsense  # type: ignore[attr-defined]  # noqa: B018
