"""Whether a bundle carries a secret's value: judged by names, and by values that show what they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cdc_lake.config.yaml_nodes import MappingNode, Node, ScalarNode, SequenceNode, join

_NAME = re.compile(r"(?i)passw|secret|token|credential|private.?key|access.?key|redact.?key|\bdsn\b|_dsn\b")
_NAME_OF_A_PLACE = re.compile(r"(?i)_?scope$")
_REFERENCE = re.compile(r"\{\{secrets/[^{}/]*(\$\{[^{}]+\})?[^{}/]*/[^{}/]+\}\}")
_ADDRESS = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_TOKEN = re.compile(r"\bdapi[0-9a-f]{32}")
_NAMED = frozenset({"spark_env_vars", "spark_conf", "named_parameters", "variables", "environment_variables"})
"""Mappings of names that people choose, so that a name says what the value is."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names whose values are known to be secrets, or known to be none, whatever they sound like."""

    secret: Collection[str] = ()
    harmless: Collection[str] = ()

    def says_secret(self, name: str) -> bool:
        """Whether a value of this name is a secret."""
        if name in self.secret:
            return True
        return name not in self.harmless and _NAME.search(name) is not None and not _NAME_OF_A_PLACE.search(name)


def plain_secrets(node: Node, known: Names, path: str = "") -> Iterator[tuple[ScalarNode, str, str]]:
    """Values that are secrets, with their paths and what shows it."""
    if isinstance(node, ScalarNode):
        if _ADDRESS.search(node.text) or _TOKEN.search(node.text):
            yield node, path, "the value has the form of one"
    elif isinstance(node, SequenceNode):
        for i, item in enumerate(node.items):
            yield from plain_secrets(item, known, join(path, i))
    else:
        for key, value in node.entries.items():
            below = join(path, key)
            named = _by_name(value, known, below) if key in _NAMED and isinstance(value, MappingNode) else []
            yield from named
            seen = {at for _, at, _ in named}
            yield from (found for found in plain_secrets(value, known, below) if found[1] not in seen)


def _by_name(node: MappingNode, known: Names, path: str) -> list[tuple[ScalarNode, str, str]]:
    found = []
    for name, value in node.entries.items():
        if not known.says_secret(name):
            continue
        below = join(path, name)
        if isinstance(value, MappingNode) and "default" in value.entries:
            value, below = value.entries["default"], join(below, "default")  # noqa: PLW2901  # a variable's value
        if isinstance(value, ScalarNode) and value.text and not _REFERENCE.fullmatch(value.text):
            found.append((value, below, f"`{name}` is the name of one"))
    return found
