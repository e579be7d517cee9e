"""The section `observe`: what monitoring is shown of a run. Nothing, unless it is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from cdc_lake.config.quantity import MILLISECONDS
from cdc_lake.config.section import Section, Text
from cdc_lake.config.source import host_and_port


def _address(text: str) -> str:
    host_and_port(text)
    return text


class OpenLineage(Section):
    """Events of OpenLineage: which tables and columns a run of apply made silver from, and how it ended."""

    to: Annotated[str, Field(pattern=r"^(https?://[^@/?#\s]+(/[^@?#\s]*)?|[^:]+\.jsonl)$")]
    """Where events go: the address of a server, as `http://marquez:5000`, or a file, `*.jsonl`, a line an event,
    relative to the project; its folder is there already."""
    api_key: SecretStr | None = None
    """What a server asks for, sent as a bearer token."""
    namespace: Text = "cdc_lake"
    """Namespace of the jobs, `<pipeline>.apply` within it."""
    timeout: Annotated[int, MILLISECONDS, Field(ge=100, examples=["5 s"])] = 5000
    """How long a server may take, and how long the end of a run waits for it. Apply waits for nothing else."""
    every: Annotated[int, MILLISECONDS, Field(ge=1000, examples=["10 min"])] = 600_000
    """How often a run without end says how far it is."""


class Observe(Section):
    """What monitoring is shown of a run; nothing by default."""

    metrics: (
        Annotated[
            str,
            Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"),
            AfterValidator(_address),
        ]
        | None
    ) = None
    """Address, as `127.0.0.1:9187`, at which a receiver that runs without end serves `/metrics` and `/healthz`. It
    asks nobody who they are: name one of this machine or of a network of your own."""
    textfile: Annotated[str, Field(pattern=r"\.prom$")] | None = None
    """File that apply writes its metrics into, `*.prom`, relative to the project; its folder is there already."""
    log: Literal["text", "json"] = "text"
    """What commands say on standard error where that is no terminal: `text`, lines for people, or `json`, one object a
    line, an event with its fields."""
    openlineage: OpenLineage | None = None
    """Events of OpenLineage, of apply."""
