"""The generated reference pages are current."""

from __future__ import annotations

import json
import re

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from cdc_lake.cli.app import ORDER, app
from cdc_lake.cli.text import codes
from cdc_lake.config.model import Pipeline
from tools.docs import REFERENCE
from tools.docs.command_line import EXIT_CODES
from tools.docs.pages import PAGES


@pytest.mark.parametrize("name", sorted(PAGES.keys() - {"licences.md"}))
def test_a_generated_page_is_current(name):
    """All but the page of licences: what is installed differs a little from machine to machine (test_licences.py)."""
    assert (REFERENCE / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_every_key_has_a_description():
    schema = json.loads(PAGES["pipeline.schema.json"]())
    for name, node in [("Pipeline", schema), *schema["$defs"].items()]:
        for key, value in node.get("properties", {}).items():
            assert value.get("description") or "$ref" in value, f"{name}.{key}"


def test_the_schema_knows_every_top_level_key():
    schema = json.loads(PAGES["pipeline.schema.json"]())
    assert set(schema["properties"]) == {i.alias or n for n, i in Pipeline.model_fields.items()}
    assert schema["additionalProperties"] is False


def test_the_page_of_errors_has_every_code_once_with_its_exit_code():
    rows = dict(re.findall(r"^\| \[(\w+)\]\(\S+\) \| .+ \| (\d+) \| (?:yes)? \|$", PAGES["errors.md"](), re.MULTILINE))
    assert sorted(rows) == codes()
    assert {rows["SRC201"], rows["CFG104"], rows["QUA501"], rows["STA612"]} == {"4", "3", "5", "1"}
    assert {int(code) for code in rows.values()} <= {code for code, _, _ in EXIT_CODES}


def test_every_verb_has_its_place_in_the_list():
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    assert {name for name, command in group.commands.items() if not command.hidden} == set(ORDER)
