"""From files to a project: read, lay over, resolve, check, and tell every problem at once.

`conf/<environment>.yaml` of the project is laid over the pipeline file key by key: what is present there replaces what
is here, also with null; lists are replaced whole. A value keeps the place where it was written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cdc_lake.config.checks import cross_field
from cdc_lake.config.model import Pipeline
from cdc_lake.config.problems import ConfigInvalid, Problem
from cdc_lake.config.project import Origin, Project
from cdc_lake.config.references import References, Secrets
from cdc_lake.config.schema import check
from cdc_lake.config.secret_checks import secret_rules
from cdc_lake.config.yaml_nodes import MappingNode, Mark, Node, ScalarNode, SequenceNode, join, parse
from cdc_lake.model.diagnostic import Diagnostic, Severity

PIPELINES = "pipelines"
CONF = "conf"


def load_project(file: Path, *, environment: str | None = None, secrets: Secrets | None = None) -> Project:
    """Load a pipeline file, with `conf/<environment>.yaml` laid over where one is named.

    `secrets` looks up `${secret:scope/key}` where the platform has a store. Raises ConfigInvalid with every problem.
    """
    loaded = _load(Path(file), environment, secrets)
    if loaded.pipeline is None:
        raise ConfigInvalid(loaded.found)
    return Project(
        pipeline=loaded.pipeline,
        file=Path(file).resolve(),
        root=loaded.root,
        environment=environment,
        origins=loaded.origins,
    )


def validate(
    files: Sequence[Path], *, environment: str | None = None, secrets: Secrets | None = None
) -> list[Diagnostic]:
    """Everything wrong with these pipeline files, warnings included; empty where all is well."""
    found = [d for file in files for d in _load(Path(file), environment, secrets).found]
    return list(dict.fromkeys(found))


def project_root(file: Path) -> Path:
    """The project a pipeline file belongs to: the folder above `pipelines/`, otherwise the file's own folder."""
    folder = file.resolve().parent
    return folder.parent if folder.name == PIPELINES else folder


@dataclass(slots=True)
class _Loaded:
    root: Path
    pipeline: Pipeline | None = None
    found: list[Diagnostic] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)


def _load(file: Path, environment: str | None, secrets: Secrets | None) -> _Loaded:
    loaded = _Loaded(project_root(file))
    tree, loaded.found = read_tree(file, environment)
    if tree is None:
        return loaded
    references = References(loaded.root, secrets)
    references.resolve(tree)
    pipeline, problems = check(tree)
    loaded.found += [*references.found, *problems, *cross_field(tree), *secret_rules(tree, loaded.root)]
    loaded.found.sort(key=reading_order(display(file)))
    if not any(d.severity is Severity.ERROR for d in loaded.found):
        loaded.pipeline = pipeline
    _origins(tree, "", loaded.origins)
    return loaded


def reading_order(first: str) -> Callable[[Diagnostic], tuple[bool, str, int, int]]:
    """The order to tell problems in: those of the file `first`, as it is shown, then by file, line and column."""

    def key(found: Diagnostic) -> tuple[bool, str, int, int]:
        place = found.location
        return (place.file != first, place.file, place.line, place.column) if place else (False, "", 0, 0)

    return key


def display(file: Path) -> str:
    """A file as it is shown: below the working directory from there, otherwise in full."""
    full = file.resolve()
    try:
        return full.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(full)


def read_tree(file: Path, environment: str | None) -> tuple[MappingNode | None, list[Diagnostic]]:
    """A pipeline file with its environment laid over it, references as written; and what hinders reading it."""
    found: list[Diagnostic] = []
    base = _read(file, found)
    over = _read_environment(project_root(file), environment, found) if environment is not None else None
    return (lay_over(base, over) if base is not None and over is not None else base), found


def _read(file: Path, found: list[Diagnostic]) -> MappingNode | None:
    shown = display(file)
    try:
        if file.is_dir():
            found.append(_unreadable(shown, "is a folder", "name a pipeline file in it"))
            return None
        data = file.read_bytes()
    except FileNotFoundError:
        found.append(_unreadable(shown, "does not exist", _others(file)))
        return None
    except OSError as bad:
        found.append(_unreadable(shown, f"cannot be read: {bad.strerror or 'input/output error'}", ""))
        return None
    tree, problems = parse(data, shown)
    found += problems
    return tree


def _unreadable(shown: str, why: str, hint: str) -> Diagnostic:
    return Diagnostic(Severity.ERROR, Problem.UNREADABLE, f"`{shown}` {why}", Mark(shown, 1, 1).location(), hint)


def _others(file: Path) -> str:
    try:
        names = sorted(f.name for f in file.parent.glob("*.yaml"))
    except OSError:
        names = []
    return f"that folder has {', '.join(names[:8])}" if names else "`cdc-lake init postgres DIR` writes a project"


def _read_environment(root: Path, environment: str, found: list[Diagnostic]) -> MappingNode | None:
    file = root / CONF / f"{environment}.yaml"
    known = sorted(f.stem for f in (root / CONF).glob("*.yaml"))
    if os.sep in environment or environment in {"", ".", ".."} or not file.is_file():
        shown = display(file)
        has = f"; this project has {', '.join(known)}" if known else ""
        hint = f"write {shown} with what differs there, `{{}}` for nothing; or leave the environment out{has}"
        summary = f"environment `{environment}` has no file"
        found.append(Diagnostic(Severity.ERROR, Problem.ENVIRONMENT, summary, Mark(shown, 1, 1).location(), hint))
        return None
    return _read(file, found)


def lay_over(base: MappingNode, over: MappingNode) -> MappingNode:
    """`over` on top of `base`, key by key; each value keeps its place."""
    merged = MappingNode(base.mark, dict(base.entries), dict(base.keys))
    for key, value in over.entries.items():
        below = merged.entries.get(key)
        if isinstance(below, MappingNode) and isinstance(value, MappingNode):
            merged.entries[key] = lay_over(below, value)
        else:
            merged.entries[key] = value
            merged.keys[key] = over.keys[key]
    return merged


def _origins(node: Node, path: str, into: dict[str, Origin]) -> None:
    if isinstance(node, ScalarNode):
        into[path] = Origin(node.mark.file, node.mark.line, node.mark.column, node.references)
    elif isinstance(node, SequenceNode):
        into[path] = Origin(node.mark.file, node.mark.line, node.mark.column)
        for i, item in enumerate(node.items):
            _origins(item, join(path, i), into)
    else:
        for key, value in node.entries.items():
            _origins(value, join(path, key), into)
