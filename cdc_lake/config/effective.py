"""The effective settings with their origins, secrets masked; and a pipeline as another machine will read it.

In the latter, the values of `${env:NAME}` and `${secret:scope/key}` are unknown and not looked up, so the same files
give the same result on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, SecretStr

from cdc_lake.config.fields import BYTES, MILLISECONDS, format_bytes, format_milliseconds
from cdc_lake.config.loader import References, bodies, display, project_root, read_tree, reading_order
from cdc_lake.config.project import Origin, Project, effective_options
from cdc_lake.config.schema import check
from cdc_lake.config.secrets import CATALOG, is_secret
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.config.validation.source import cross_field
from cdc_lake.config.yaml_tree import Mark, ScalarNode, join, nodes
from cdc_lake.model.diagnostic import ConfigInvalid, Problem, Severity

MASKED = "••••••"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its path, its value, the value as text, and its origin (None: a default)."""

    path: str
    value: object
    text: str
    origin: Origin | None

    @property
    def source(self) -> str:
        """The origin as text: `default`, or file:line."""
        return str(self.origin) if self.origin else "default"


def effective(project: Project) -> tuple[Setting, ...]:
    """All settings of a project, in the order of the reference page."""
    return tuple(_section(project, project.pipeline, ""))


def _derived_values(project: Project) -> dict[str, object]:
    """The values of settings that are derived if they are not set, by path."""
    source = project.pipeline.source
    values: dict[str, object] = {
        "source.slot.name": project.slot,
        "bronze.path": str(project.bronze_address or project.bronze),
        CATALOG: project.iceberg_uri,
        "lake.iceberg.warehouse": project.iceberg_warehouse,
    }
    if isinstance(source, PostgresSource):
        values["source.publication"] = project.publication if source.slot.plugin == "pgoutput" else None
    else:
        ports = dict.fromkeys(address.replication_port for address in source.addresses)
        values["source.replication_port"] = ", ".join(map(str, ports)) if source.mode == "stream" else None
        values["source.slot.output_order"] = source.slot_order
    return values


def _section(project: Project, section: BaseModel, path: str) -> Iterator[Setting]:
    for name, info in type(section).model_fields.items():
        key_path = join(path, info.alias or name)
        value = getattr(section, name)
        if isinstance(section, FamilySource) and name == "decoding":
            value = effective_options(section)
        if key_path in {"lake.storage.provider", "lake.storage.account"}:
            value = getattr(project.storage, name)
        if value is None:
            value = _derived_values(project).get(key_path)
        if key_path == CATALOG:
            value = re.sub(r"(://[^:/@]*):[^@]*@", rf"\1:{MASKED}@", str(value))
        if BYTES in info.metadata and isinstance(value, int):
            yield Setting(key_path, value, format_bytes(value), project.origins.get(key_path))
        elif MILLISECONDS in info.metadata and isinstance(value, int):
            yield Setting(key_path, value, format_milliseconds(value), project.origins.get(key_path))
        else:
            yield from _value(project, value, key_path)


def _value(project: Project, value: object, path: str) -> Iterator[Setting]:
    origin = project.origins.get(path)
    match value:
        case BaseModel():
            yield from _section(project, value, path)
        case SecretStr():
            yield Setting(path, MASKED, MASKED, origin)
        case list() | tuple() if value:
            for i, item in enumerate(value):
                yield from _value(project, item, join(path, i))
        case list() | tuple():
            yield Setting(path, [], "[]", origin)
        case dict():
            for name, item in value.items():
                yield from _value(project, item, join(path, name))
        case Path():
            yield Setting(path, str(value), str(value), origin)
        case None:
            yield Setting(path, None, "-", origin)
        case bool():
            yield Setting(path, value, "true" if value else "false", origin)
        case _:
            yield Setting(path, value, str(value), origin)


_STAND_IN = "a secret that is not known here"
_ONLY_THERE = frozenset({str(Problem.ENV_MISSING), str(Problem.SECRET)})


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference in a value. `kind`: `env`, `file` or `secret`; `default`: None if it has none."""

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
    """One value as written, with its references."""

    path: str
    text: str
    mark: Mark

    def references(self) -> Iterator[Reference]:
        """The references in it."""
        for body in bodies(self.text):
            kind, _, rest = body.partition(":")
            name, has_default, default = rest.partition(":-") if kind == "env" else (rest, "", "")
            yield Reference(kind, name, default if has_default else None, self.path, self.mark)


@dataclass(frozen=True, slots=True)
class Deployed:
    """A pipeline file overlaid with one environment."""

    name: str
    file: Path
    root: Path
    environment: str
    values: tuple[Written, ...]
    references: tuple[Reference, ...]

    def value(self, path: str) -> Written | None:
        """The value at a path (`lake.path`), None if there is none."""
        return next((v for v in self.values if v.path == path), None)


def read_deployment(file: Path, environment: str) -> Deployed:
    """Read a pipeline file as another machine will. Raises ConfigInvalid with the problems that it has everywhere."""
    tree, diagnostics = read_tree(file, environment)
    if tree is None:
        raise ConfigInvalid(diagnostics)
    values = tuple(Written(path, n.text, n.mark) for path, n, _ in nodes(tree) if isinstance(n, ScalarNode))
    references = References(project_root(file), lambda _scope, _key: _STAND_IN, environ={})
    references.resolve(tree)
    _, problems = check(tree)
    diagnostics += [d for d in references.diagnostics if d.code not in _ONLY_THERE] + problems
    diagnostics += [d for d in cross_field(tree) if d.code not in _ONLY_THERE]
    diagnostics.sort(key=reading_order(display(file)))
    named = tree.entries.get("pipeline")
    name = named.text if isinstance(named, ScalarNode) and not named.broken else ""  # known elsewhere only
    if any(d.severity is Severity.ERROR for d in diagnostics) or not name:
        raise ConfigInvalid(diagnostics or references.diagnostics)
    return Deployed(
        name=name,
        file=file.resolve(),
        root=project_root(file),
        environment=environment,
        values=values,
        references=tuple(reference for value in values for reference in value.references()),
    )
