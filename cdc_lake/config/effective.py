"""The settings in force: every value of a pipeline, and where it came from. Secrets are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, SecretStr

from cdc_lake.config.gaussdb_sent import effective_options
from cdc_lake.config.project import Origin, Project
from cdc_lake.config.quantity import BYTES, MILLISECONDS, format_bytes, format_milliseconds
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.config.yaml_nodes import join

MASKED = "••••••"
_CATALOG = "lake.iceberg.uri"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value: its path, the value, the value as people write it, and its origin (None: a default)."""

    path: str
    value: object
    text: str
    origin: Origin | None

    @property
    def source(self) -> str:
        """Where it came from, in a word or as file:line."""
        return str(self.origin) if self.origin else "default"


def effective(project: Project) -> tuple[Setting, ...]:
    """Every setting of a project in the order of the reference page."""
    return tuple(_section(project, project.pipeline, ""))


def _derived(project: Project) -> dict[str, object]:
    """What an absent value stands for."""
    return {
        **_of_source(project),
        "source.slot.name": project.slot,
        "bronze.path": str(project.bronze_address or project.bronze),
        _CATALOG: project.iceberg_uri,
        "lake.iceberg.warehouse": project.iceberg_warehouse,
    }


def _of_source(project: Project) -> dict[str, object]:
    source = project.pipeline.source
    if isinstance(source, PostgresSource):
        return {"source.publication": project.publication if source.slot.plugin == "pgoutput" else None}
    ports = dict.fromkeys(address.replication_port for address in source.addresses)
    return {
        "source.replication_port": ", ".join(map(str, ports)) if source.mode == "stream" else None,
        "source.slot.output_order": source.slot_order,
    }


def _section(project: Project, section: BaseModel, path: str) -> Iterator[Setting]:
    for name, info in type(section).model_fields.items():
        at = join(path, info.alias or name)
        value = getattr(section, name)
        if isinstance(section, FamilySource) and name == "decoding":
            value = effective_options(section)
        if value is None:
            value = _derived(project).get(at)
        if at == _CATALOG:
            value = re.sub(r"(://[^:/@]*):[^@]*@", rf"\1:{MASKED}@", str(value))
        if BYTES in info.metadata and isinstance(value, int):
            yield Setting(at, value, format_bytes(value), project.origins.get(at))
        elif MILLISECONDS in info.metadata and isinstance(value, int):
            yield Setting(at, value, format_milliseconds(value), project.origins.get(at))
        else:
            yield from _value(project, value, at)


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
