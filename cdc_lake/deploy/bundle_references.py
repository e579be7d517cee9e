"""References inside a bundle, `${var.NAME}` and `${resources.jobs.NAME…}`: each names something that is defined."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from cdc_lake.config.yaml_nodes import MappingNode, Node, ScalarNode, SequenceNode, join
from cdc_lake.deploy.flaw import flaw
from cdc_lake.errors import BundleKeyUndefined
from cdc_lake.model.diagnostic import Diagnostic

_REFERENCE = re.compile(r"\$\{(var|variables|resources\.jobs|artifacts)\.([A-Za-z_][\w-]*)[^}]*\}")


def undefined(root: MappingNode) -> Iterator[Diagnostic]:
    """References to variables, jobs and artifacts that the bundle does not define, and values for such variables."""
    defined = {
        "var": _keys(root.entries.get("variables")),
        "variables": _keys(root.entries.get("variables")),
        "resources.jobs": _jobs(root),
        "artifacts": _keys(root.entries.get("artifacts")),
    }
    yield from _walk(root, "", defined)
    targets = root.entries.get("targets")
    for name, target in targets.entries.items() if isinstance(targets, MappingNode) else ():
        given = target.entries.get("variables") if isinstance(target, MappingNode) else None
        for variable, mark in given.keys.items() if isinstance(given, MappingNode) else ():
            if variable not in defined["var"]:
                path = f"targets.{name}.variables.{variable}"
                yield flaw(BundleKeyUndefined, f"there is no variable `{variable}`", mark, path)


def _keys(node: Node | None) -> list[str]:
    return list(node.entries) if isinstance(node, MappingNode) else []


def _jobs(root: MappingNode) -> list[str]:
    resources = root.entries.get("resources")
    return _keys(resources.entries.get("jobs")) if isinstance(resources, MappingNode) else []


def _walk(node: Node, path: str, defined: dict[str, list[str]]) -> Iterator[Diagnostic]:
    if isinstance(node, SequenceNode):
        for i, item in enumerate(node.items):
            yield from _walk(item, join(path, i), defined)
    elif isinstance(node, MappingNode):
        for key, value in node.entries.items():
            yield from _walk(value, join(path, key), defined)
    elif isinstance(node, ScalarNode):
        for kind, name in _REFERENCE.findall(node.text):
            if name not in defined[kind]:
                close = difflib.get_close_matches(name, defined[kind], n=1)
                hint = f"did you mean `{close[0]}`?" if close else None
                what = {"resources.jobs": "job", "artifacts": "artifact"}.get(kind, "variable")
                yield flaw(BundleKeyUndefined, f"there is no {what} `{name}`", node.mark, path, hint)
