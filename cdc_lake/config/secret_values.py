"""The secrets that a loaded pipeline holds, for whoever must keep them out of what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel, SecretStr

from cdc_lake.config.model import Pipeline


def secret_values(pipeline: Pipeline) -> frozenset[str]:
    """Every secret, as it is and as it stands in an address."""
    given = {one for one in _values(pipeline) if one}
    if pipeline.lake.iceberg.uri is not None:
        for password in _passwords(pipeline.lake.iceberg.uri):
            given |= {password, unquote(password)}
    return frozenset(given | {quote(one, safe="") for one in given})


def _values(value: object) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _values(getattr(value, name))
    elif isinstance(value, dict):
        for one in value.values():
            yield from _values(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _values(one)


def _passwords(uri: str) -> set[str]:
    """The password of an address; also where it breaks the address, because nobody quoted it."""
    found = {uri.partition("://")[2].rpartition("@")[0].partition(":")[2]}
    with suppress(ValueError):  # no address at all; it was refused
        found.add(urlsplit(uri).password or "")
    return found - {""}
