"""What each verb prints over real tables, without a server and without Spark; those that need one are in
`tests/live/test_golden_live.py` and `tests/spark/test_golden_spark.py`. `CDC_LAKE_GOLDEN=write` writes the files of
`tests/golden` again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cdc_lake.cli import text
from cdc_lake.cli.app import app
from cdc_lake.control.cut_session import CutSession
from cdc_lake.ops import html_pages
from cdc_lake.tables import spark_session
from tests.golden_commands import GOLDEN, SCHEMA, Once, Shell, check_document, documents, form_of, kept_documents
from tests.golden_extras import beside
from tests.golden_lake import golden_lake
from tests.live.test_golden_live import LIVE
from tests.spark.test_golden_spark import SPARK
from tools.docs.json_output import DOCUMENTS, output_schema

CASES: dict[str, tuple[list[str], int]] = {
    "init": (["init", "postgres", "fresh"], 0),
    "init-not-writable": (["init", "postgres", "early.yaml/fresh"], 1),
    "validate": (["validate"], 0),
    "validate-broken": (["validate", "broken.yaml"], 3),
    "plan-away": (["plan"], 4),
    "status": (["status"], 0),
    "status-odd-names": (["status", "-p", "odd.yaml"], 0),
    "report": (["report"], 0),
    "rebuild-past": (["rebuild", "orders", "--to", "0/7D0"], 1),
    "held-list": (["quarantine", "list"], 0),
    "held-list-stuck": (["quarantine", "list", "-p", "stuck.yaml"], 0),
    "held-retry": (["quarantine", "retry", "-p", "stuck.yaml"], 1),
    "held-retry-nothing": (["quarantine", "retry"], 0),
    "held-release": (["quarantine", "release", "orders", "--key", "2", "--reason", "looked at"], 0),
    "held-discard": (["quarantine", "discard", "orders", "--all", "--reason", "a test", "--yes"], 0),
    "held-discard-none": (["quarantine", "discard", "items", "--all", "--reason", "a test", "--yes"], 0),
    "cuts-list": (["cuts", "list"], 0),
    "cuts-show": (["cuts", "show"], 0),
    "cuts-pin": (["cuts", "pin", "month_end"], 0),
    "cuts-views": (["cuts", "views", "month_end", "--database", "report", "-p", "named.yaml"], 0),
    "cuts-before-the-first": (["cuts", "show", "0/1"], 1),
    "inspect-span": (["inspect", "span"], 0),
    "inspect-tx": (["inspect", "tx", "0/BB8"], 0),
    "inspect-row": (["inspect", "row", "orders", "2"], 0),
    "inspect-parked": (["inspect", "prepared", "-p", "phased.yaml"], 0),
    "inspect-parked-off": (["inspect", "prepared"], 0),
    "inspect-chain": (["inspect", "chain"], 0),
    "inspect-failpoints": (["inspect", "failpoints"], 0),
    "pause": (["pause", "orders"], 0),
    "pause-unknown": (["pause", "order"], 1),
    "pause-too-early": (["pause", "orders", "-p", "early.yaml"], 1),
    "resume": (["resume", "items"], 0),
    "upgrade": (["upgrade"], 0),
    "upgrade-old": (["upgrade", "-p", "old/old.yaml"], 0),
    "maintain": (["maintain", "--only", "bronze", "--dry-run"], 0),
    "replay": (["replay", "shop.rec"], 0),
    "bundle": (["bundle", "jobs/pipelines/jobs.yaml"], 0),
    "explain": (["explain", "STA677"], 0),
}
ELSEWHERE = {
    ("error", 1): "a bug: `test_a_bug_is_told_as_one` has its document",
    ("explain", 1): "the list of codes: `test_the_list_of_codes_is_as_its_schema_says`",
    ("plan", 1): "the settings in force: `test_the_settings_in_force_are_as_their_schema_says`",
}
"""Forms of documents that no golden file has, and why."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("golden") / "shop"
    golden_lake(root)
    beside(root)
    return root


@pytest.fixture
def shell(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Each command has a fresh copy of the project."""
    folder = tmp_path / "shop"

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)

    return Shell(folder, monkeypatch, fresh)


@pytest.mark.parametrize("case", CASES)
def test_a_verb_prints_what_is_kept(case: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "report":  # it takes seconds
        monkeypatch.setattr(html_pages, "report", Once(html_pages.report))
    if case == "cuts-views":  # it takes Spark and a metastore
        names = ("report.items", "report.orders")
        monkeypatch.setattr(spark_session, "start", lambda *_: None)
        monkeypatch.setattr(CutSession, "create_views", lambda *_: names)
    shell.prints_what_is_kept(case, *CASES[case])


def test_nothing_is_kept_of_a_case_that_is_gone() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == CASES.keys() | LIVE.keys() | SPARK.keys()


def test_every_kept_document_is_as_its_schema_says_and_every_verb_and_form_has_one() -> None:
    raw = {"schema", "inspect payload"}  # a JSON Schema, and a line of JSON a record
    verbs = {verb: name for name, (verb, _) in DOCUMENTS.items()}
    kept, forms = set(), set()
    for command, document in kept_documents():
        name = check_document(document)
        forms.add(form_of(document))
        kept |= {verb for verb in verbs if verbs[verb] == name and f"{command} ".startswith(f"{verb} ")}
    assert kept == set(_commands(app)) - raw
    known = {(name, n) for name in DOCUMENTS for n in range(len(SCHEMA["$defs"][name].get("anyOf", [None])))}
    assert forms.isdisjoint(ELSEWHERE)
    assert forms | ELSEWHERE.keys() == known


def test_every_verb_with_documents_has_its_schema() -> None:
    raw = {"schema", "inspect payload"}
    verbs = set(_commands(app))
    assert {command for command, _ in DOCUMENTS.values()} - {"every command that ends with an error"} == verbs - raw
    Draft202012Validator.check_schema(output_schema())


def test_a_bug_is_told_as_one(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(code: str) -> str:
        raise ZeroDivisionError(code)

    monkeypatch.setattr(text, "page", wrong)
    said = shell(["explain", "STA677", "--json"], 70)
    assert form_of(next(documents(said))) == ("error", 1)
    assert "a bug in cdc-lake (ZeroDivisionError)" in said


def test_the_list_of_codes_is_as_its_schema_says(shell: Shell) -> None:
    (found,) = documents(shell(["explain", "--list", "--json"], 0))
    assert form_of(found) == ("explain", 1)
    assert [one["code"] for one in found["codes"]] == text.codes()


def test_the_settings_in_force_are_as_their_schema_says(shell: Shell) -> None:
    (found,) = documents(shell(["plan", "--show-config", "--json"], 0))
    assert form_of(found) == ("plan", 1)
    (port,) = (one for one in found["settings"] if one["path"] == "source.port")
    assert (port["value"], port["text"]) == (1, "1")


def _commands(of: Any, before: str = "") -> list[str]:
    names = [f"{before}{command.name}" for command in of.registered_commands if not command.hidden]
    for group in of.registered_groups:
        if group.hidden is True:
            continue
        names += _commands(group.typer_instance, f"{group.name} " if isinstance(group.name, str) else before)
    return names
