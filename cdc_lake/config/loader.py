"""Loads pipeline files: reads them, overlays the environment, resolves references, validates, reports all problems.

`conf/<environment>.yaml` of the project is overlaid on the pipeline file key by key: a value that is present in it,
even null, replaces the one in the pipeline file; lists are replaced entirely. Each value keeps the location at which it
was written.

Values may contain the references `${env:NAME}`, `${env:NAME:-default}`, `${file:path}` and `${secret:scope/key}`; `$${`
is a literal `${`. A value that consists of a single reference is interpreted as if the resolved text had been written
in its place. As in a shell, `:-` supplies a default for a variable that is unset or empty. File paths are relative to
the project, and one trailing newline is not part of the value. A malformed reference is not quoted in its problem,
because it may be part of a password. This is the only module that reads the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Origin, Project
from cdc_lake.config.schema import RENAMED, check
from cdc_lake.config.secrets import is_secret, secret_rules
from cdc_lake.config.validation.source import cross_field
from cdc_lake.config.yaml_tree import MappingNode, Mark, Node, ScalarNode, fault, nodes, parse, resolve_plain
from cdc_lake.model.diagnostic import ConfigInvalid, Diagnostic, Problem, Severity

Secrets: TypeAlias = Callable[[str, str], str]
"""Looks up `(scope, key)` in the platform's secret store."""

MAX_FILE_BYTES = 64 << 10
_REFERENCE = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^{}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRAMMAR = "references are ${env:NAME}, ${env:NAME:-default}, ${file:path} and ${secret:scope/key}; $${ is a literal ${"


def bodies(text: str) -> tuple[str, ...]:
    """The body of each reference in a text, that is, the text between `${` and `}`: `env:NAME:-default`."""
    return tuple(m["body"] for m in _REFERENCE.finditer(text) if not m["escape"])


class _Unresolved(Exception):  # never leaves this module
    def __init__(self, problem: Problem, summary: str, hint: str) -> None:
        super().__init__(summary)
        self.problem, self.summary, self.hint = problem, summary, hint


@dataclass(slots=True)
class References:
    """Resolves the references of a tree in place, and collects those that cannot be resolved."""

    root: Path
    secrets: Secrets | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def resolve(self, root: Node) -> None:
        """Replace all references below a node; one that cannot be resolved is reported, and its value becomes None."""
        for path, node, _ in nodes(root):
            if isinstance(node, ScalarNode) and isinstance(node.value, str) and "${" in node.value:
                self._scalar(node, path)

    def _scalar(self, node: ScalarNode, path: str) -> None:
        text = node.text
        names: list[str] = []
        pieces: list[str] = []
        position = 0
        ok = True
        for m in _REFERENCE.finditer(text):
            pieces.append(text[position : m.start()])
            position = m.end()
            if m["escape"]:
                pieces.append("${")
                continue
            try:
                if not m[0].endswith("}"):
                    raise _Unresolved(Problem.REFERENCE, "a reference is not closed by `}`", _GRAMMAR)  # noqa: TRY301
                pieces.append(self._value(m["body"]))
            except _Unresolved as missing:
                place, hint = node.mark, missing.hint
                if node.plain and "\n" not in text:
                    place = Mark(place.file, place.line, place.column + m.start())
                if missing.problem is Problem.ENV_MISSING and is_secret(path):
                    hint = f"`export {m['body'].removeprefix('env:')}=…`, or keep it in a file: ${{file:secrets/NAME}}"
                self.diagnostics.append(fault(missing.problem, missing.summary, place, path, hint))
                ok = False
            names.append(m["body"].split(":-")[0])
        pieces.append(text[position:])
        node.references = tuple(names)
        resolved = "".join(pieces)
        is_single = len(names) == 1 and node.plain and _REFERENCE.fullmatch(text) is not None
        node.text = resolved
        node.broken = not ok
        node.value = None if not ok else resolve_plain(resolved) if is_single and resolved else resolved

    def _value(self, body: str) -> str:
        kind, colon, rest = body.partition(":")
        if kind == "env" and colon:
            return self._env(rest)
        if kind == "file" and rest:
            return self._file(rest)
        if kind == "secret" and rest:
            return self._secret(rest)
        raise _Unresolved(Problem.REFERENCE, "`${…}` is not a valid reference", _GRAMMAR)

    def _env(self, rest: str) -> str:
        name, has_default, default = rest.partition(":-")
        if not _NAME.fullmatch(name):
            raise _Unresolved(Problem.REFERENCE, "`${env:…}` does not name an environment variable", _GRAMMAR)
        value = self.environ.get(name)
        if has_default:
            return value or default
        if value is None:
            hint = f"`export {name}=…`, or give a default: ${{env:{name}:-default}}"
            raise _Unresolved(Problem.ENV_MISSING, f"environment variable {name} is not set", hint)
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
            hint = f"paths in references are relative to the project folder, {self.root}"
            raise _Unresolved(Problem.FILE_MISSING, f"file `{rest}` cannot be read: {why}", hint) from bad
        return text.removesuffix("\n").removesuffix("\r")

    def _secret(self, rest: str) -> str:
        scope, slash, key = rest.partition("/")
        if not (scope and slash and key):
            raise _Unresolved(Problem.REFERENCE, "`${secret:…}` does not name scope/key", _GRAMMAR)
        if self.secrets is None:
            hint = "elsewhere use ${env:NAME} or ${file:path}; conf/ENVIRONMENT.yaml can set it for one environment"
            raise _Unresolved(Problem.SECRET, f"secret `{rest}` can only be read on Databricks", hint)
        return self.secrets(scope, key)


PIPELINES = "pipelines"
CONF = "conf"


def load_project(file: Path, *, environment: str | None = None, secrets: Secrets | None = None) -> Project:
    """Load a pipeline file, overlaid with `conf/<environment>.yaml` if an environment is named.

    `secrets` looks up `${secret:scope/key}` if the platform has a store. Raises ConfigInvalid with all problems.
    """
    pipeline, diagnostics, origins = _load(Path(file), environment, secrets)
    if pipeline is None:
        raise ConfigInvalid(diagnostics)
    return Project(
        pipeline=pipeline,
        file=Path(file).resolve(),
        root=project_root(Path(file)),
        environment=environment,
        origins=origins,
        warnings=tuple(d for d in diagnostics if d.code == Problem.RENAMED),
    )


def validate(files: Sequence[Path], *, environment: str | None = None) -> list[Diagnostic]:
    """All problems of these pipeline files, including warnings."""
    diagnostics = [d for file in files for d in _load(Path(file), environment, None)[1]]
    return list(dict.fromkeys(diagnostics))


def project_root(file: Path) -> Path:
    """The project of a pipeline file: the parent of its folder `pipelines/`, otherwise the file's own folder."""
    folder = file.resolve().parent
    return folder.parent if folder.name == PIPELINES else folder


def _load(
    file: Path, environment: str | None, secrets: Secrets | None
) -> tuple[Pipeline | None, list[Diagnostic], dict[str, Origin]]:
    tree, diagnostics = read_tree(file, environment)
    if tree is None:
        return None, diagnostics, {}
    diagnostics += rename_settings(tree)
    references = References(project_root(file), secrets)
    references.resolve(tree)
    pipeline, problems = check(tree)
    diagnostics += [*references.diagnostics, *problems, *cross_field(tree), *secret_rules(tree, references.root)]
    diagnostics.sort(key=reading_order(display(file)))
    origins = {}
    for path, node, _ in nodes(tree):
        if not isinstance(node, MappingNode):
            through = node.references if isinstance(node, ScalarNode) else ()
            origins[path] = Origin(node.mark.file, node.mark.line, node.mark.column, through)
    failed = any(d.severity is Severity.ERROR for d in diagnostics)
    return None if failed else pipeline, diagnostics, origins


def rename_settings(tree: MappingNode) -> Iterator[Diagnostic]:
    """Rename settings that still have their name of version 0.3, with a warning for each."""
    for path, name in RENAMED.items():
        *sections, former = path.split(".")
        node: Node | None = tree
        for section in sections:
            node = node.entries.get(section) if isinstance(node, MappingNode) else None
        if not isinstance(node, MappingNode) or former not in node.entries:
            continue
        mark = node.keys[former]
        if name in node.entries:
            summary = f"`{former}` and `{name}` are one setting"
            yield fault(Problem.RENAMED, summary, mark, path, f"remove `{former}`, its former name")
        else:
            node.entries[name], node.keys[name] = node.entries[former], mark
            summary = f"`{former}` is now called `{name}`"
            hint = f"rename it: version 0.6 will not know `{former}`"
            yield Diagnostic(Severity.WARNING, Problem.RENAMED, summary, mark.location(path), hint)
        del node.entries[former], node.keys[former]


def reading_order(first: str) -> Callable[[Diagnostic], tuple[bool, str, int, int]]:
    """The sort key of problems: those in the file `first`, as displayed, then by file, line and column."""

    def key(diagnostic: Diagnostic) -> tuple[bool, str, int, int]:
        place = diagnostic.location
        return (place.file != first, place.file, place.line, place.column) if place else (False, "", 0, 0)

    return key


def display(file: Path) -> str:
    """A file as displayed: relative to the working directory if it is below it, otherwise the full path."""
    full, folder = file.resolve(), Path.cwd()
    return full.relative_to(folder).as_posix() if full.is_relative_to(folder) else str(full)


def read_tree(file: Path, environment: str | None) -> tuple[MappingNode | None, list[Diagnostic]]:
    """A pipeline file overlaid with its environment, references unresolved; and the problems of reading it."""
    diagnostics: list[Diagnostic] = []
    base = _read(file, diagnostics)
    over = _read_environment(project_root(file), environment, diagnostics) if environment is not None else None
    return (lay_over(base, over) if base is not None and over is not None else base), diagnostics


def _read(file: Path, diagnostics: list[Diagnostic]) -> MappingNode | None:
    shown = display(file)
    try:
        data = file.read_bytes()
    except OSError as bad:
        match bad:
            case IsADirectoryError():
                why, hint = "is a folder", "name a pipeline file in it"
            case FileNotFoundError():
                why, hint = "does not exist", _sibling_files_hint(file)
            case _:
                why, hint = f"cannot be read: {bad.strerror or 'input/output error'}", ""
        diagnostics.append(fault(Problem.UNREADABLE, f"`{shown}` {why}", Mark(shown, 1, 1), "", hint))
        return None
    tree, problems = parse(data, shown)
    diagnostics += problems
    return tree


def _sibling_files_hint(file: Path) -> str:
    try:
        names = sorted(f.name for f in file.parent.glob("*.yaml"))
    except OSError:
        names = []
    return f"that folder has {', '.join(names[:8])}" if names else "`cdc-lake init postgres DIR` writes a project"


def _read_environment(root: Path, environment: str, diagnostics: list[Diagnostic]) -> MappingNode | None:
    file = root / CONF / f"{environment}.yaml"
    environments = sorted(f.stem for f in (root / CONF).glob("*.yaml"))
    if os.sep in environment or environment in {"", ".", ".."} or not file.is_file():
        shown = display(file)
        has = f"; this project has {', '.join(environments)}" if environments else ""
        hint = f"create {shown} with the settings that differ (`{{}}` if none do), or omit the environment{has}"
        summary = f"environment `{environment}` has no file"
        diagnostics.append(fault(Problem.ENVIRONMENT, summary, Mark(shown, 1, 1), "", hint))
        return None
    return _read(file, diagnostics)


def lay_over(base: MappingNode, over: MappingNode) -> MappingNode:
    """Overlay `over` on `base`, key by key; each value keeps its location."""
    merged = MappingNode(base.mark, dict(base.entries), dict(base.keys))
    for key, value in over.entries.items():
        below = merged.entries.get(key)
        if isinstance(below, MappingNode) and isinstance(value, MappingNode):
            merged.entries[key] = lay_over(below, value)
        else:
            merged.entries[key] = value
            merged.keys[key] = over.keys[key]
    return merged
