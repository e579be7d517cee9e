"""Pipelines over one table of an embedded server, for benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake_testing.server import HOST, SUPERUSER, EmbeddedServer

NO_MORE: Mapping[str, Any] = MappingProxyType({})


def served(
    server: EmbeddedServer, root: Path, name: str, source: Mapping[str, Any] = NO_MORE, **sections: Any
) -> Project:
    """The pipeline `name` over the table `orders`, in a folder that is there; `source`: further settings of that."""
    there = {
        "type": "postgres",
        "host": HOST,
        "port": server.port,
        "database": "postgres",
        "user": SUPERUSER,
        "password": server.password,
        "tables": ["public.orders"],
    }
    document = {"version": 1, "pipeline": name, "source": there | dict(source), **sections}
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)
