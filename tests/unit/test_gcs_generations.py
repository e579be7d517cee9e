"""Conditional puts of GCS, which name generations: over a stand-in that keeps them, as emulators serve other requests.

The key file of a service account signs the requests of Arrow, which finds it by a variable of the process.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest

from cdc_lake.config.model import ObjectAddress, Storage
from cdc_lake.control.coordination import StoreLease
from cdc_lake.errors import StoreUnfenced
from cdc_lake.tables import object_store
from cdc_lake.tables.object_store import ObjectStore

_JSON = "/storage/v1/b/"


class Generations(BaseHTTPRequestHandler):
    """Objects by path, each with its generation. `fenced`: whether a condition is looked at."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, tuple[int, bytes]]] = {}
    numbers: ClassVar[list[int]] = [1_000]
    authorized: ClassVar[list[str]] = []
    fenced: ClassVar[bool] = True
    turn = threading.Lock()

    def reply(self, status: int, generation: int = 0, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"the-same-for-all"')
        self.send_header("Last-Modified", "Tue, 01 Dec 2026 00:00:00 GMT")
        self.send_header("x-goog-generation", str(generation))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        path, body = unquote(self.path), self.rfile.read(int(self.headers["Content-Length"]))
        wanted = self.headers.get("x-goog-if-generation-match")
        with self.turn:
            if self.fenced and wanted is not None and int(wanted) != self.objects.get(path, (0, b""))[0]:
                self.reply(412)
                return
            self.numbers[0] += 1
            self.objects[path] = self.numbers[0], body
            self.reply(200, self.numbers[0])

    def do_GET(self) -> None:
        present = self.objects.get(self._key())
        if present is None:
            self.reply(404)
        elif self.path.startswith(_JSON):
            about = {"name": self._key().split("/", 2)[2], "generation": str(present[0]), "size": str(len(present[1]))}
            self.reply(200, present[0], json.dumps({"kind": "storage#object", "bucket": "lake", **about}).encode())
        else:
            self.reply(200, *present)

    def do_DELETE(self) -> None:
        self.authorized.append(self.headers.get("Authorization", ""))
        self.reply(404 if self.objects.pop(self._key(), None) is None else 204)

    def _key(self) -> str:
        """The path of an object, by the interface of obstore or by Arrow's."""
        path = unquote(urlsplit(self.path).path)
        bucket, between, key = path.removeprefix(_JSON).partition("/o/")
        return f"/{bucket}/{key}" if between and path.startswith(_JSON) else path

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")  # restored afterwards
    monkeypatch.setattr(Generations, "objects", {})
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(tmp_path / "rsa.pem")]
    subprocess.run(command, check=True, capture_output=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), Generations) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        account = {
            "type": "service_account", "client_email": "lake@project", "private_key_id": "1", "disable_oauth": True,
            "private_key": (tmp_path / "rsa.pem").read_text(), "token_uri": f"{endpoint}/token",
            "gcs_base_url": endpoint,
        }  # fmt: skip
        (tmp_path / "key.json").write_text(json.dumps(account))
        yield Storage(
            provider="gcs",
            endpoint=endpoint,
            service_account_file=str(tmp_path / "key.json"),
            allow_http=True,
            patience=1_000,
        )
        server.shutdown()


def test_a_put_is_conditional_on_the_generation_that_was_read(storage: Storage) -> None:
    there, path = ObjectStore(storage), "lake/one"
    assert there.read_tagged(path, "here") is None
    first = there.put_if(path, "one", "here", tag=None)
    assert first == str(Generations.numbers[0])
    assert there.put_if(path, "other", "here", tag=None) is None
    second = there.put_if(path, "two", "here", tag=first)
    assert second is not None
    assert there.put_if(path, "three", "here", tag=first) is None
    assert there.read_tagged(path, "here") == ("two", second)


def test_a_lease_has_one_holder_and_the_next_one_after_it(storage: Storage) -> None:
    leases = [StoreLease(ObjectStore(storage), ObjectAddress("lake", "lease", "gs"), renew_seconds=30) for _ in "ab"]
    assert leases[0].take() is None
    leases[0].release()
    assert leases[1].take() is None
    assert leases[1].epoch == leases[0].epoch + 1


@pytest.mark.parametrize("replaces", [False, True])
def test_the_fence_is_proven_and_its_objects_are_deleted_with_the_key_file(
    replaces: bool, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_ROUNDS", 3)
    prove = partial(ObjectStore(storage).prove_fence, "lake/fence", "here", replaces=replaces)
    prove()
    assert not Generations.objects
    assert all(sent.startswith("Bearer ") for sent in Generations.authorized)
    monkeypatch.setattr(Generations, "fenced", False)
    with pytest.raises(StoreUnfenced):
        ObjectStore(storage).prove_fence("lake/fence", "here", replaces=replaces)
