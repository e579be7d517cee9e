"""A pipeline as it is read on another machine: what its files say, and what they leave to the place they are read at.

Values behind `${env:NAME}` and `${secret:scope/key}` are not known here, and are not asked for: the same files give the
same answer whoever reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cdc_lake.config.checks import cross_field
from cdc_lake.config.load import display, project_root, read_tree, reading_order
from cdc_lake.config.node_values import at
from cdc_lake.config.problems import ConfigInvalid, Problem
from cdc_lake.config.references import References, bodies
from cdc_lake.config.schema import check
from cdc_lake.config.secret_checks import is_secret
from cdc_lake.config.yaml_nodes import MappingNode, Mark, Node, ScalarNode, SequenceNode, join
from cdc_lake.model.diagnostic import Severity

_STAND_IN = "a secret that is not known here"
_ONLY_THERE = frozenset({str(Problem.ENV_MISSING), str(Problem.SECRET)})


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference of a value. `kind`: `env`, `file` or `secret`; `default`: None where it has none."""

    kind: str
    name: str
    default: str | None
    path: str
    mark: Mark

    @property
    def secret(self) -> bool:
        """Whether the value is a secret."""
        return is_secret(self.path)


@dataclass(frozen=True, slots=True)
class Written:
    """One value as it is written, references and all."""

    path: str
    text: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Deployed:
    """A pipeline file with one environment laid over it."""

    name: str
    file: Path
    root: Path
    environment: str
    values: tuple[Written, ...]
    references: tuple[Reference, ...]

    def value(self, path: str) -> Written | None:
        """What is written at a path (`lake.path`), None where nothing is."""
        return next((v for v in self.values if v.path == path), None)


def deployed(file: Path, environment: str) -> Deployed:
    """Read a pipeline file as it is read elsewhere. Raises ConfigInvalid with what is wrong wherever that is."""
    tree, found = read_tree(file, environment)
    if tree is None:
        raise ConfigInvalid(found)
    values = tuple(_values(tree, ""))
    references = References(project_root(file), lambda _scope, _key: _STAND_IN, environ={})
    references.resolve(tree)
    _, problems = check(tree)
    found += [d for d in references.found if d.code not in _ONLY_THERE] + problems
    found += [d for d in cross_field(tree) if d.code not in _ONLY_THERE]
    found.sort(key=reading_order(display(file)))
    name = _name(tree)
    if any(d.severity is Severity.ERROR for d in found) or not name:
        raise ConfigInvalid(found or references.found)
    return Deployed(
        name=name,
        file=file.resolve(),
        root=project_root(file),
        environment=environment,
        values=values,
        references=tuple(r for value in values for r in _references(value)),
    )


def _name(tree: MappingNode) -> str:
    """Its name, empty where that is known elsewhere only."""
    node = at(tree, "pipeline")
    return node.text if isinstance(node, ScalarNode) and not node.broken else ""


def _values(node: Node, path: str) -> Iterator[Written]:
    if isinstance(node, ScalarNode):
        yield Written(path, node.text, node.mark)
    elif isinstance(node, SequenceNode):
        for i, item in enumerate(node.items):
            yield from _values(item, join(path, i))
    else:
        for key, value in node.entries.items():
            yield from _values(value, join(path, key))


def _references(value: Written) -> Iterator[Reference]:
    for body in bodies(value.text):
        kind, _, rest = body.partition(":")
        name, has_default, default = rest.partition(":-") if kind == "env" else (rest, "", "")
        yield Reference(kind, name, default if has_default else None, value.path, value.mark)
