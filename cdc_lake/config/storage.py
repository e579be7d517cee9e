"""The object store that tables can live in: where it is, who we are there, and the addresses of tables in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, SecretStr, Strict

from cdc_lake.config.quantity import Milliseconds
from cdc_lake.config.section import Section, Text

# Bucket naming rules of Amazon S3; keys of ours stay within characters that every client writes alike in a URL.
_ADDRESS = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<key>[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*)/?"
)


class Storage(Section):
    """An S3-compatible object store, for the tables whose address starts with `s3://`."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$")] | None = None
    """Address of the store, `https://host:port`; Amazon's own for the region by default."""
    region: Text
    """Region that requests are signed for; a store that knows none takes any, for example `us-east-1`."""
    access_key_id: SecretStr
    """Key that names us, by reference (`${env:NAME}`, `${file:path}`)."""
    secret_access_key: SecretStr
    """Secret of the key, by reference."""
    session_token: SecretStr | None = None
    """Token of temporary credentials, by reference."""
    allow_http: Annotated[bool, Strict()] = False
    """Whether an endpoint without TLS is taken: data can then be read and changed on the way."""
    patience: Milliseconds = 60_000
    """How long a request is repeated while the store fails or does not answer."""


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A folder of a bucket."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> ObjectAddress:
        """From `s3://bucket/folder`. Raises ValueError."""
        found = _ADDRESS.fullmatch(text)
        if found is None or any(part in {".", ".."} for part in found["key"].split("/")):
            msg = "an address in an object store is s3://bucket/folder"
            raise ValueError(msg)
        return cls(found["bucket"], found["key"])

    @property
    def path(self) -> str:
        """As Arrow's file system has it."""
        return f"{self.bucket}/{self.key}"

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"
