"""A local S3 object store: moto's server in this process, with separate buckets for each test."""

from __future__ import annotations

import logging
from http.client import HTTPConnection
from typing import Self

from pydantic import SecretStr

from cdc_lake.config.model import Storage

_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=kit/20260101/us-east-1/s3/aws4_request"}
"""What moto needs to tell a request of S3 from others; it checks no signature."""


class LocalStore:
    """A running store. `endpoint` is its address; what is stored goes with the process."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer  # noqa: PLC0415 - a second of imports, for those who use it

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.host, self.port = self._server.get_host_and_port()

    @property
    def endpoint(self) -> str:
        """Address of the store."""
        return f"http://{self.host}:{self.port}"

    def bucket(self, name: str) -> str:
        """Make a bucket; its name."""
        connection = HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request("PUT", f"/{name}", headers=_SIGNED)
            status = connection.getresponse().status
        finally:
            connection.close()
        assert status == 200, f"the bucket {name} was not made: {status}"
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


def storage_at(endpoint: str, *, patience: int = 2_000) -> Storage:
    """Settings for a store of this kit, or for a proxy before it; `patience` in milliseconds."""
    return Storage(
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=SecretStr("kit"),
        secret_access_key=SecretStr("kit-secret"),
        allow_http=True,
        patience=patience,
    )
