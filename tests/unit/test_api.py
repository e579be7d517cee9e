"""The public interface: what a pipeline can do."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import cdc_lake
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
