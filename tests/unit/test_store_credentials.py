"""Credentials that expire while a run lasts, authorities of one's own, and what a store refuses, over sockets."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.model import ObjectAddress, Storage
from cdc_lake.config.project import Project
from cdc_lake.errors import BotocoreMissing, StoreRefused, StoreUnavailable
from cdc_lake.tables.control_files import StoredControlFiles
from cdc_lake.tables.delta_storage import ObjectStoreDeltaStorage
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake.tables.spark_session import _trust_store, _write_trust_store, static_settings
from cdc_lake_testing.faulty_store import FaultyStore
from cdc_lake_testing.object_store import LocalStore, storage_at
from tests.bronze_object_stores import BUCKET, FORMATS
from tests.certificates import make_authority
from tests.pipeline_file import make_project
from tests.unit.test_bronze_writer import transaction

ROLE = "arn:aws:iam::123456789012:role/lake"


def bronze_of(root: Path, kind: str, **storage: Any) -> Project:
    iceberg = {"uri": f"sqlite:///{root}/catalog.db"}
    lake = {"path": f"s3://{BUCKET}/{root.name}", "iceberg": iceberg, "storage": {"region": "us-east-1", **storage}}
    return make_project(root, bronze={"format": kind}, lake=lake)


@pytest.fixture
def assumed(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "base", "AWS_SECRET_ACCESS_KEY": "base-secret", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL_STS": store.endpoint,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return {
        "endpoint": store.endpoint, "allow_http": True, "credentials": "role", "role_arn": ROLE, "external_id": "x1",
        "patience": "1 s",
    }  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_the_keys_of_a_role_are_renewed_while_a_table_is_open(
    kind: str, store: LocalStore, assumed: dict[str, Any], tmp_path: Path
) -> None:
    project = bronze_of(tmp_path, kind, **assumed)
    writer, reader = bronze_writer(project), bronze_reader(project)
    writer.begin_stream("s", 100)
    for position in (101, 102, 103):
        before = len(store.roles.issued)
        writer.append([transaction(position)])
        state = reader.state()
        assert state is not None
        assert state.upto == position
        store.roles.revoke()
        assert len(store.roles.issued) > before or position == 101
    assert writer.append([transaction(104)]).upto == 104


def test_keys_that_were_revoked_are_refused(store: LocalStore, assumed: dict[str, Any], tmp_path: Path) -> None:
    """The negative control: a table that keeps the keys it was opened with."""
    there = ObjectStore(
        make_project(tmp_path, lake={"storage": {"region": "us-east-1", **assumed}}).pipeline.lake.storage
    )
    options = there.delta_options
    table = ObjectStoreDeltaStorage(there, ObjectAddress(BUCKET, "nothing"))
    assert table.open() is None
    store.roles.revoke()
    stale = Storage(
        region="us-east-1", endpoint=store.endpoint, allow_http=True, patience=1000,
        **{name: SecretStr(options[f"aws_{name}"]) for name in ("access_key_id", "secret_access_key", "session_token")},
    )  # fmt: skip
    with pytest.raises(StoreRefused, match="credentials"):
        ObjectStoreDeltaStorage(ObjectStore(stale), ObjectAddress(BUCKET, "nothing")).open()
    assert table.open() is None


def test_without_botocore_a_role_says_what_to_install(
    assumed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    with pytest.raises(BotocoreMissing, match="assuming a role needs botocore") as missing:
        bronze_writer(bronze_of(tmp_path, "delta", **assumed)).state()
    assert "[aws]" in missing.value.remedy


def test_a_role_without_credentials_to_assume_it_says_so(
    assumed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StoreUnavailable, match="no credentials for the store") as missing:
        bronze_writer(bronze_of(tmp_path, "delta", **assumed)).state()
    assert "give it an identity" in missing.value.remedy


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    make_authority(folder)
    return folder


@pytest.fixture
def secured(store: LocalStore, authority: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Settings of a store with a certificate of an authority of one's own."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):  # restored afterwards
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    with FaultyStore(store, tls=context) as proxy:
        keys = {"access_key_id": "kit", "secret_access_key": "kit-secret"}
        yield {"endpoint": proxy.endpoint, "patience": "1 s", **keys}


@pytest.mark.parametrize("kind", FORMATS)
def test_an_authority_of_ones_own_is_trusted_by_every_library(
    kind: str, secured: dict[str, Any], authority: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreUnavailable):
        ObjectStore(make_storage(secured)).read_tagged(f"{BUCKET}/x", "here")
    ca_file = str(authority / "ca.pem")
    project = bronze_of(tmp_path, kind, **secured, ca_file=ca_file)
    writer = bronze_writer(project)
    writer.begin_stream("s", 100)
    writer.append([transaction(101)])
    state = bronze_reader(project).state()
    assert state is not None
    assert state.upto == 101
    there = ObjectStore(make_storage({**secured, "ca_file": ca_file}))
    tag = there.put_if(f"{BUCKET}/{tmp_path.name}/tagged", "text", "here", tag=None)
    assert there.read_tagged(f"{BUCKET}/{tmp_path.name}/tagged", "here") == ("text", tag)
    assert there.read(f"{BUCKET}/{tmp_path.name}/tagged") == "text"


def make_storage(values: dict[str, Any]) -> Storage:
    return Storage.model_validate({"region": "us-east-1", **values})


def test_the_driver_of_spark_gets_a_truststore_with_the_authority(authority: Path, tmp_path: Path) -> None:
    project = bronze_of(tmp_path, "delta", ca_file=str(authority / "ca.pem"), credentials="environment")
    file = _trust_store(project)
    _write_trust_store(authority / "ca.pem", file)
    command = ["keytool", "-list", "-keystore", str(file), "-storepass", "changeit"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cdc_lake-0" in listed
    assert listed.count("trustedCertEntry") > 10, "those of Java, too"
    assert f"-Djavax.net.ssl.trustStore={file}" in static_settings(project)["spark.driver.extraJavaOptions"]


ANSWERS = {
    "another clock": (403, "RequestTimeTooSkewed", "the clock of this machine is wrong", "correct the clock"),
    "another region": (301, "PermanentRedirect", "the bucket is in another region", "set `lake.storage.region`"),
    "another region, signed": (400, "AuthorizationHeaderMalformed", "in another region", "set `lake.storage.region`"),
    "no bucket": (404, "NoSuchBucket", "the bucket or container does not exist", "create it, or correct its name"),
    "no permission": (403, "AccessDenied", "the object store refused a request", "check the bucket's name"),
    "keys that expired": (400, "ExpiredToken", "the object store refused the credentials", "check the bucket's name"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_a_store_refuses_is_said_with_what_helps(name: str) -> None:
    status, code, message, remedy = ANSWERS[name]

    class Refuses(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        there = ObjectStore(storage_at(f"http://127.0.0.1:{server.server_address[1]}", patience=300))
        address = ObjectAddress(BUCKET, "x")
        calls = {
            "obstore": partial(there.put_if, f"{BUCKET}/x", "text", "here", tag=None),
            "obstore reads": partial(there.read_tagged, f"{BUCKET}/x", "here"),
            "Arrow": partial(StoredControlFiles(there, address).put, "one", lambda: [b"x"]),
            "deltalake": ObjectStoreDeltaStorage(there, address).open,
        }
        for library, call in calls.items():
            with pytest.raises(StoreRefused) as refused:
                call()
            assert message in refused.value.message, library
            assert remedy in refused.value.remedy, library
        server.shutdown()
