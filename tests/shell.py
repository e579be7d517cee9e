"""A shell in a folder, as somebody has it who knows nothing but the documentation: programs, or the same in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command

CDC_LAKE = str(Path(sys.executable).with_name("cdc-lake"))


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints in this process, or what it says of its failure."""
    assert run_command(app, [*arguments]) == code
    heard = capsys.readouterr()
    return heard.out if code == 0 else heard.err


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Shell:
    """A shell in a folder: nothing but commands, their output and their exit codes."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "CDC_LAKE"))}
        return {**plain, "NO_COLOR": "1", "COLUMNS": "160", **self.env}

    def __call__(self, *words: str) -> Said:
        done = subprocess.run(
            [CDC_LAKE, *words],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    def fine(self, *words: str) -> str:
        said = self(*words)
        assert said.code == 0, f"cdc-lake {' '.join(words)}: {said.code}\n{said.out}\n{said.err}"
        return said.out

    def status(self) -> dict[str, Any]:
        return json.loads(self.fine("status", "--json"))


class QuickShell(Shell):
    """The same commands in this process, where nothing is imported and started again: a tenth of the time."""

    def __call__(self, *words: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        with self._inside(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command(app, list(words))
        assert "Traceback" not in out.getvalue() + err.getvalue(), err.getvalue()
        return Said(code, out.getvalue(), err.getvalue())

    def script(self, text: str) -> str:
        """Do the lines of a page one after another; what they print. `cd` and programs are a shell's own."""
        here, said = self, ""
        for words in filter(None, (shlex.split(line, comments=True) for line in text.splitlines())):
            match words:
                case ["cdc-lake", *verb]:
                    said += here.fine(*verb)
                case ["cd", folder]:
                    here = QuickShell((here.folder / folder).resolve(), self.env)
                case _:
                    subprocess.run(words, cwd=here.folder, check=True, timeout=60)
        return said

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        before, given = dict(os.environ), self.environment()
        try:
            os.environ.clear()
            os.environ.update(given)
            with contextlib.chdir(self.folder):
                yield
        finally:
            os.environ.clear()
            os.environ.update(before)
