"""The section `observe`: what monitoring is shown of a run. Nothing, unless it is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cdc_lake.config.section import Section
from cdc_lake.config.source import host_and_port


def _address(text: str) -> str:
    host_and_port(text)
    return text


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
