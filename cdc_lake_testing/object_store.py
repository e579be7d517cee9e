"""A local S3 object store: moto's server in this process, with separate buckets for each test."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from pydantic import SecretStr

from cdc_lake.config.model import ObjectAddress, Storage

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=kit/20260101/us-east-1/s3/aws4_request"}
"""What moto needs to tell a request of S3 from others; it checks no signature."""


ACCESS_KEY, SECRET_KEY = "kit", "kit-secret"
"""Keys of the store; it takes any."""


class _Conditional:
    """Answers conditional requests one after another: moto checks the condition of a PUT first and writes later, so
    that two at a time may both succeed, and ignores that of Glue's UpdateTable, which is checked here. The body is read
    before, so that a slow client holds up no one.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self._lock = Lock()
        self.checks_versions = True
        self.expired: set[str] = set()
        """Access keys with which nothing is answered."""
        self.keys: set[str] = set()
        """Access keys of the requests so far."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if signed := re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", "")):
            self.keys.add(signed[1])
            if signed[1] in self.expired:
                start_response("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"<Error><Code>ExpiredToken</Code><Message>the token has expired</Message></Error>"]
        put = environ["REQUEST_METHOD"] == "PUT" and environ.keys() & {"HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"}
        update = self.checks_versions and environ.get("HTTP_X_AMZ_TARGET") == "AWSGlue.UpdateTable"
        if not put and not update:
            return self._app(environ, start_response)
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = BytesIO(body)
        with self._lock:
            if update and _is_overtaken(json.loads(body)):
                start_response("400 Bad Request", [("Content-Type", "application/x-amz-json-1.1")])
                return [json.dumps({"__type": "ConcurrentModificationException", "message": "overtaken"}).encode()]
            return self._app(environ, start_response)


def _is_overtaken(update: dict[str, Any]) -> bool:
    """Whether Glue's table has another version than an update of it requires."""
    from moto.glue.models import glue_backends  # noqa: PLC0415 - a second of imports, for those who use it

    (backend,) = glue_backends["123456789012"].values()  # moto's only account; tests use one region
    table = backend.get_table(update["DatabaseName"], update["TableInput"]["Name"])
    return "VersionId" in update and update["VersionId"] != table.as_dict()["VersionId"]


class _Roles:
    """Temporary keys of roles: the answers of STS let a client renew them at once, and revoked ones are refused."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self.issued: list[str] = []
        self._revoked: set[str] = set()

    def revoke(self) -> None:
        """Let all keys expire that were issued so far."""
        self._revoked.update(self.issued)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        signature = environ.get("HTTP_AUTHORIZATION", "")
        if any(f"Credential={key}/" in signature for key in self._revoked):
            start_response("400 Bad Request", [("Content-Type", "application/xml")])
            return [b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"]
        if "/sts/aws4_request" not in signature:
            return self._app(environ, start_response)
        answer = b"".join(self._app(environ, start_response))
        self.issued += re.findall("<AccessKeyId>(.+?)</AccessKeyId>", answer.decode())
        soon = f"{datetime.now(UTC) + timedelta(minutes=9):%Y-%m-%dT%H:%M:%SZ}".encode()
        return [re.sub(rb"(?<=<Expiration>)[^<]+", soon, answer)]


class LocalStore:
    """A running store. `endpoint` is its address; what is stored goes with the process."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer  # noqa: PLC0415 - a second of imports, for those who use it

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        server = self._server._server  # noqa: SLF001 - moto offers no other way to it
        assert server is not None
        self.conditional = _Conditional(server.app)
        self.roles = server.app = _Roles(self.conditional)
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

    def storage(self, endpoint: str | None = None, *, patience: int = 2_000) -> Storage:
        """Settings for it, or for a proxy before it; `patience` in milliseconds."""
        return storage_at(endpoint or self.endpoint, patience=patience)

    def address(self, bucket: str, key: str) -> ObjectAddress:
        """The address of a folder."""
        return ObjectAddress(bucket, key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


def storage_at(endpoint: str, *, patience: int = 2_000) -> Storage:
    """Settings for a store of this kit, or for a proxy before it; `patience` in milliseconds."""
    return Storage(
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=SecretStr(ACCESS_KEY),
        secret_access_key=SecretStr(SECRET_KEY),
        allow_http=True,
        patience=patience,
    )
