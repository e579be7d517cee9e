"""References inside values: `${env:NAME}`, `${env:NAME:-default}`, `${file:path}`, `${secret:scope/key}`.

One grammar for every value. `$${` writes a literal `${`. A value that is one reference as a whole stands as if its
text had been written there; `:-` gives the default where the variable is unset or empty, as in a shell. File paths are
relative to the project, and one trailing line end is not part of the value. What is no reference is not repeated in its
problem: it may be a part of a password. This is the only place that reads the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from cdc_lake.config.problems import Problem
from cdc_lake.config.secret_checks import is_secret
from cdc_lake.config.yaml_nodes import Mark, Node, ScalarNode, SequenceNode, join, resolve_plain
from cdc_lake.model.diagnostic import Diagnostic, Severity

Secrets: TypeAlias = Callable[[str, str], str]
"""Looks up `(scope, key)` in the secret store of the platform."""

MAX_FILE_BYTES = 64 << 10
_REFERENCE = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^{}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRAMMAR = "references are ${env:NAME}, ${env:NAME:-default}, ${file:path} and ${secret:scope/key}; $${ is a literal ${"


def bodies(text: str) -> tuple[str, ...]:
    """What stands between `${` and `}` in a text, reference by reference: `env:NAME:-default`."""
    return tuple(m["body"] for m in _REFERENCE.finditer(text) if not m["escape"])


class _Unresolved(Exception):  # never leaves this module
    def __init__(self, problem: Problem, summary: str, hint: str) -> None:
        super().__init__(summary)
        self.problem, self.summary, self.hint = problem, summary, hint


@dataclass(slots=True)
class References:
    """Resolves the references of a tree in place and collects what is missing."""

    root: Path
    secrets: Secrets | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    found: list[Diagnostic] = field(default_factory=list)

    def resolve(self, node: Node, path: str = "") -> None:
        """Replace every reference below a node; a missing one becomes a diagnostic and leaves None."""
        if isinstance(node, ScalarNode):
            if isinstance(node.value, str) and "${" in node.value:
                self._scalar(node, path)
        elif isinstance(node, SequenceNode):
            for i, item in enumerate(node.items):
                self.resolve(item, join(path, i))
        else:
            for key, value in node.entries.items():
                self.resolve(value, join(path, key))

    def _scalar(self, node: ScalarNode, path: str) -> None:
        text = node.text
        names: list[str] = []
        pieces: list[str] = []
        at = 0
        ok = True
        for m in _REFERENCE.finditer(text):
            pieces.append(text[at : m.start()])
            at = m.end()
            if m["escape"]:
                pieces.append("${")
                continue
            try:
                if not m[0].endswith("}"):
                    raise _Unresolved(Problem.REFERENCE, "a reference is not closed by `}`", _GRAMMAR)  # noqa: TRY301
                pieces.append(self._value(m["body"]))
            except _Unresolved as missing:
                place, hint = _shift(node.mark, m.start(), node), missing.hint
                if missing.problem is Problem.ENV_MISSING and is_secret(path):
                    hint = f"`export {m['body'].removeprefix('env:')}=…`, or keep it in a file: ${{file:secrets/NAME}}"
                found = Diagnostic(Severity.ERROR, missing.problem, missing.summary, place.location(path), hint)
                self.found.append(found)
                ok = False
            names.append(m["body"].split(":-")[0])
        pieces.append(text[at:])
        node.references = tuple(names)
        resolved = "".join(pieces)
        whole = len(names) == 1 and node.plain and _REFERENCE.fullmatch(text) is not None
        node.text = resolved
        node.broken = not ok
        node.value = None if not ok else resolve_plain(resolved) if whole and resolved else resolved

    def _value(self, body: str) -> str:
        kind, colon, rest = body.partition(":")
        if kind == "env" and colon:
            return self._env(rest)
        if kind == "file" and rest:
            return self._file(rest)
        if kind == "secret" and rest:
            return self._secret(rest)
        raise _Unresolved(Problem.REFERENCE, "`${…}` is not a reference", _GRAMMAR)

    def _env(self, rest: str) -> str:
        name, has_default, default = rest.partition(":-")
        if not _NAME.fullmatch(name):
            raise _Unresolved(Problem.REFERENCE, "`${env:…}` does not name an environment variable", _GRAMMAR)
        value = self.environ.get(name)
        if has_default:
            return value or default
        if value is None:
            raise _Unresolved(
                Problem.ENV_MISSING,
                f"environment variable {name} is not set",
                f"`export {name}=…`, or give a default: ${{env:{name}:-default}}",
            )
        return value

    def _file(self, rest: str) -> str:
        file = self.root / rest
        try:
            with file.open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise _Unresolved(Problem.FILE_MISSING, f"file `{rest}` is larger than 64 KiB", "name a smaller file")
            text = data.decode("utf-8")
        except (OSError, ValueError) as bad:
            why = bad.strerror if isinstance(bad, OSError) and bad.strerror else "not UTF-8 text"
            raise _Unresolved(
                Problem.FILE_MISSING,
                f"file `{rest}` cannot be read: {why}",
                f"paths in references are relative to the project folder, {self.root}",
            ) from bad
        return text.removesuffix("\n").removesuffix("\r")

    def _secret(self, rest: str) -> str:
        scope, slash, key = rest.partition("/")
        if not (scope and slash and key):
            raise _Unresolved(Problem.REFERENCE, "`${secret:…}` does not name scope/key", _GRAMMAR)
        if self.secrets is None:
            raise _Unresolved(
                Problem.SECRET,
                f"secret `{rest}` can only be read on Databricks",
                "elsewhere use ${env:NAME} or ${file:path}; conf/ENVIRONMENT.yaml can set it for one place",
            )
        return self.secrets(scope, key)


def _shift(mark: Mark, by: int, node: ScalarNode) -> Mark:
    """The place of a reference inside a plain scalar of one line; the scalar's own place otherwise."""
    return Mark(mark.file, mark.line, mark.column + by) if node.plain and "\n" not in node.text else mark
