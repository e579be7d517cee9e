"""What each verb prints, kept beside the tests: at 80 and at 60 columns, as JSON, on a terminal, with NO_COLOR.

`CDC_LAKE_GOLDEN=write` writes the files of `tests/golden` again; the difference is for a person to read. Times, digests,
paths and what takes time are made the same; everything else is as it was printed over real tables.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cdc_lake.cli.app import app
from cdc_lake.cli.document import document, dumps
from cdc_lake.cli.documents import DOCUMENTS, output_schema
from cdc_lake.cli.process import run_command
from cdc_lake.pipeline.comparison import Comparison, TableComparison, Verdict
from tests.golden_lake import golden_lake

GOLDEN = Path(__file__).parents[1] / "golden"
PAYLOADS = Path(__file__).parents[1] / "data" / "opengauss"
CASES: dict[str, tuple[list[str], int]] = {
    "init": (["init", "postgres", "fresh"], 0),
    "validate": (["validate"], 0),
    "validate-broken": (["validate", "broken.yaml"], 3),
    "plan-away": (["plan"], 4),
    "status": (["status"], 0),
    "held-list": (["held", "list"], 0),
    "cuts-list": (["cuts", "list"], 0),
    "cuts-show": (["cuts", "show"], 0),
    "cuts-promise": (["cuts", "promise", "month_end"], 0),
    "cuts-before-the-first": (["cuts", "show", "0/1"], 1),
    "inspect-span": (["inspect", "span"], 0),
    "inspect-tx": (["inspect", "tx", "0/BB8"], 0),
    "inspect-row": (["inspect", "row", "orders", "2"], 0),
    "inspect-chain": (["inspect", "chain"], 0),
    "pause": (["pause", "orders"], 0),
    "pause-unknown": (["pause", "order"], 1),
    "resume": (["resume", "items"], 0),
    "upgrade": (["upgrade"], 0),
    "maintain": (["maintain", "--only", "bronze", "--dry-run"], 0),
    "explain": (["explain", "STA677"], 0),
}
SCRUBBED = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "<time>"),
    (r"\b[0-9a-f]{32,}\b", "<digest>"),
    (r"\b\d+\.\d+ s\b", "<seconds>"),
    (r'"(seconds|size|bytes)": [\d.]+', r'"\1": 0'),
    (r"\b\d+(\.\d+)? (h|d|min)\b(?= )", "<seconds>"),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("golden") / "shop"
    golden_lake(root)
    return root


class Shell:
    """Runs a command in a fresh copy of the project and gives what it printed."""

    def __init__(self, made: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._made, self._folder, self._patch = made, folder, monkeypatch
        self._patch.delenv("NO_COLOR", raising=False)

    def __call__(
        self, arguments: list[str], code: int, *, width: int = 80, stream: type[io.StringIO] = io.StringIO
    ) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._made, self._folder)
        self._patch.chdir(self._folder)
        self._patch.setenv("COLUMNS", str(width))
        out, err = stream(), io.StringIO()
        self._patch.setattr(sys, "stdout", out)
        self._patch.setattr(sys, "stderr", err)
        assert run_command(app, arguments) == code, err.getvalue()
        said = out.getvalue() + (f"--- standard error\n{err.getvalue()}" if err.getvalue() else "")
        return self._scrubbed(said)

    def _scrubbed(self, text: str) -> str:
        text = text.replace(str(self._folder), "<project>")
        for pattern, name in SCRUBBED:
            text = re.sub(pattern, name, text)
        return text


@pytest.fixture
def shell(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(made, tmp_path / "shop", monkeypatch)


def strict(schema: Any) -> Any:
    """The same schema without keys that it does not name."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **out} if "properties" in out else out


SCHEMA = strict(output_schema())


def check_document(text: str) -> str:
    """A document valid against the definition of its name; its name."""
    document = json.loads(text)
    name = document["schema"].split("/")[1]
    Draft202012Validator({**SCHEMA["$defs"][name], "$defs": SCHEMA["$defs"]}).validate(document)
    return str(name)


@pytest.mark.parametrize("case", CASES)
def test_a_verb_prints_what_is_kept(case: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, code = CASES[case]
    wide = shell(arguments, code)
    narrow = shell(arguments, code, width=60)
    documented = shell([*arguments, "--json"], code)
    coloured = shell(arguments, code, stream=Terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    assert shell(arguments, code, stream=Terminal) == wide, "NO_COLOR and no terminal print the same"
    check_document(documented.partition("--- standard error")[0])
    parts = [f"$ cdc-lake {' '.join(arguments)}   # exit code {code}\n{wide}"]
    parts += [f"$ # at 60 columns\n{narrow}"] if narrow != wide else []
    parts += [f"$ # on a terminal\n{coloured}".replace("\x1b", "\\e")] if coloured != wide else []
    parts += [f"$ # --json\n{documented}"]
    text, file = "\n".join(parts), GOLDEN / f"{case}.txt"
    if os.environ.get("CDC_LAKE_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_nothing_is_kept_of_a_case_that_is_gone() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(CASES)


def test_the_document_of_a_comparison_is_as_its_schema_says() -> None:
    table = TableComparison(
        "public.t",
        "silver.t",
        Verdict.DIFFERENT,
        3,
        2,
        missing=1,
        columns=(("a", 1),),
        samples=(("missing", (("7",),)),),
    )
    comparison = Comparison("shop", datetime.now(UTC), "0/1", (table,), 0.5)
    assert check_document(dumps(document("compare", comparison.document()))) == "compare"


def test_every_verb_with_documents_has_its_schema() -> None:
    raw = {"schema", "inspect payload"}  # a JSON Schema, and a line of JSON a record
    verbs = set(_commands(app))
    assert {command for command, _ in DOCUMENTS.values()} - {"every command that ends with an error"} == verbs - raw
    Draft202012Validator.check_schema(output_schema())


def _commands(of: Any, before: str = "") -> list[str]:
    names = [f"{before}{command.name}" for command in of.registered_commands]
    for group in of.registered_groups:
        names += _commands(group.typer_instance, f"{group.name} ")
    return names
