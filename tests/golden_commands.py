"""What a verb prints, kept in `tests/golden`: at 80 and 60 columns, as JSON, on a terminal, with NO_COLOR.

`CDC_LAKE_GOLDEN=write` writes the files again; the difference is for a person to read. Times, digests, paths and what
takes time are made the same; everything else is as it was printed over real tables.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake.observability.events import ProgressEvent, silent
from tools.docs.json_output import output_schema

GOLDEN = Path(__file__).parent / "golden"
SCRUBBED = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "<time>"),
    (r"\b[0-9a-f]{32,}\b", "<digest>"),
    (r"\b\d+\.\d+ s\b", "<seconds>"),
    (r'"(seconds|size|bytes)": [\d.]+', r'"\1": 0'),
    (r"\b\d+(\.\d+)? (h|d|min)\b(?= )", "<seconds>"),
)
"""What differs from run to run, and what stands for it."""

ERRORS, JSON = "--- standard error\n", "$ # --json\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Once:
    """A function that works once: asked again it tells and gives, or raises, what it did then."""

    def __init__(self, function: Callable[..., Any], **given: Any) -> None:
        self._function, self._given = function, given
        self._told: list[ProgressEvent] | None = None
        self._result: Any = None
        self._raised: Exception | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        call = inspect.signature(self._function).bind(*arguments, **named)
        tell = call.arguments.get("report", call.arguments.get("report_progress", silent))
        if self._told is None:
            self._told = []
            self._work(call)
        for progress in self._told:
            tell(progress)
        if self._raised is not None:
            raise self._raised
        return self._result

    def _work(self, call: inspect.BoundArguments) -> None:
        known = inspect.signature(self._function).parameters
        ours = (
            {**dict.fromkeys(("report", "report_progress"), self._told.append), **self._given}
            if self._told is not None
            else self._given
        )
        call.arguments.update({name: value for name, value in ours.items() if name in known})
        try:
            self._result = self._function(*call.args, **call.kwargs)
        except Exception as raised:  # noqa: BLE001  # raised each time it is asked
            self._raised = raised


class Shell:
    """Runs a command in a folder and gives what it printed; `fresh` makes the folder before each."""

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        fresh: Callable[[], object] = lambda: None,
        scrubbed: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._folder, self._patch, self._fresh = folder, patch, fresh
        self._scrubbed = (*scrubbed, *SCRUBBED)
        self._patch.delenv("NO_COLOR", raising=False)

    def __call__(
        self, arguments: list[str], code: int, *, width: int = 80, stream: type[io.StringIO] = io.StringIO
    ) -> str:
        self._fresh()
        self._patch.chdir(self._folder)
        self._patch.setenv("COLUMNS", str(width))
        out, err = stream(), io.StringIO()
        self._patch.setattr(sys, "stdout", out)
        self._patch.setattr(sys, "stderr", err)
        assert run_command(app, arguments) == code, err.getvalue()
        said = out.getvalue() + (f"{ERRORS}{err.getvalue()}" if err.getvalue() else "")
        return self._same(said)

    def _same(self, text: str) -> str:
        text = text.replace(str(self._folder), "<project>").replace(version("cdc_lake"), "<version>")
        for pattern, name in self._scrubbed:
            text = re.sub(pattern, name, text)
        return text

    def prints_what_is_kept(self, case: str, arguments: list[str], code: int) -> None:
        """Assert that a command looks as it is kept, in every form, and that its documents are as their schema says."""
        wide = self(arguments, code)
        narrow = self(arguments, code, width=60)
        documented = self([*arguments, "--json"], code)
        coloured = self(arguments, code, stream=Terminal)
        self._patch.setenv("NO_COLOR", "1")
        assert self(arguments, code, stream=Terminal) == wide, "NO_COLOR and no terminal print the same"
        self._patch.delenv("NO_COLOR")
        for one in documents(documented):
            check_document(one)
        if arguments[0] == "run":  # a line an event: how many there are is the machine's affair
            first, *_, last = documented.partition(ERRORS)[0].splitlines()
            documented = f"{first}\n{last}\n"
        parts = [f"$ cdc-lake {shlex.join(arguments)}   # exit code {code}\n{wide}"]
        parts += [f"$ # at 60 columns\n{narrow}"] if narrow != wide else []
        parts += [f"$ # on a terminal\n{coloured}".replace("\x1b", "\\e")] if coloured != wide else []
        parts += [f"{JSON}{documented}"]
        text, file = "\n".join(parts), GOLDEN / f"{case}.txt"
        if os.environ.get("CDC_LAKE_GOLDEN") == "write":
            GOLDEN.mkdir(exist_ok=True)
            file.write_text(text)
        other = "\n".join(
            unified_diff(file.read_text().splitlines(), text.splitlines(), "kept", "printed", lineterm="")
        )
        assert not other, f"where the change is meant, CDC_LAKE_GOLDEN=write writes the file again\n{other}"


def documents(printed: str) -> Iterator[dict[str, Any]]:
    """The documents that a command printed with `--json`: one, or one a line."""
    text, read = printed.partition(ERRORS)[0].strip(), json.JSONDecoder()
    while text:
        document, end = read.raw_decode(text)
        yield document
        text = text[end:].lstrip()


def kept_documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each document that is kept, with the command line that printed it."""
    for file in sorted(GOLDEN.glob("*.txt")):
        text = file.read_text()
        for document in documents(text.partition(JSON)[2]):
            yield text.partition("\n")[0].removeprefix("$ cdc-lake "), document


def _strict(schema: Any) -> Any:
    """The same schema without keys that it does not name."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **out} if "properties" in out else out


SCHEMA = _strict(output_schema())


def check_document(document: dict[str, Any]) -> str:
    """Assert that a document is as the definition of its name says; its name."""
    name = document["schema"].split("/")[1]
    Draft202012Validator({**SCHEMA["$defs"][name], "$defs": SCHEMA["$defs"]}).validate(document)
    return str(name)


def form_of(document: dict[str, Any]) -> tuple[str, int]:
    """The name of a document and which of the forms of that name it has."""
    name = document["schema"].split("/")[1]
    forms = SCHEMA["$defs"][name].get("anyOf", [SCHEMA["$defs"][name]])
    fits = [
        n for n, one in enumerate(forms) if Draft202012Validator({**one, "$defs": SCHEMA["$defs"]}).is_valid(document)
    ]
    assert fits, document
    return str(name), fits[0]
