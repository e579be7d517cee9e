"""The settings of an object store in the words of each library, and credentials that only the environment has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.model import Storage
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake.tables.store_options import (
    crate_options,
    delta_options,
    hadoop_settings,
    iceberg_java_properties,
    pyiceberg_properties,
    storage_of,
)
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.object_store import LocalStore
from tests.pipeline_file import make_project

KEYS = {"access_key_id": SecretStr("id"), "secret_access_key": SecretStr("secret")}
STORES = {
    "keys of Amazon": Storage(region="eu-west-1", **KEYS),
    "keys of another store": Storage(region="r", endpoint="https://store:9000/", **KEYS),
    "temporary keys": Storage(region="r", session_token=SecretStr("token"), **KEYS),
    "environment": Storage(region="eu-west-1", credentials="environment"),
}
CRATE = {"aws_conditional_put": "etag"}
HADOOP = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
PROVIDER, KIT = "spark.hadoop.fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a"
JAVA = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
PYTHON = {"py-io-impl": "cdc_lake.tables.iceberg_io.StoreFileIO", "cdc-lake.patience": "60000"}
EXPECTED = {
    "keys of Amazon": (
        {**CRATE, "aws_region": "eu-west-1", "aws_access_key_id": "id", "aws_secret_access_key": "secret"},
        {**PYTHON, "s3.region": "eu-west-1", "s3.access-key-id": "id", "s3.secret-access-key": "secret"},
        {**JAVA, "client.region": "eu-west-1", "s3.access-key-id": "id", "s3.secret-access-key": "secret"},
        {
            **HADOOP,
            PROVIDER: f"{KIT}.SimpleAWSCredentialsProvider",
            "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
            "spark.hadoop.fs.s3a.access.key": "id",
            "spark.hadoop.fs.s3a.secret.key": "secret",
        },
    ),
    "keys of another store": (
        {
            **CRATE, "aws_region": "r", "aws_endpoint": "https://store:9000", "aws_access_key_id": "id",
            "aws_secret_access_key": "secret",
        },
        {
            **PYTHON, "s3.region": "r", "s3.endpoint": "https://store:9000", "s3.access-key-id": "id",
            "s3.secret-access-key": "secret",
        },
        {
            **JAVA, "client.region": "r", "s3.endpoint": "https://store:9000", "s3.access-key-id": "id",
            "s3.secret-access-key": "secret", "s3.path-style-access": "true",
        },
        {
            **HADOOP,
            PROVIDER: f"{KIT}.SimpleAWSCredentialsProvider",
            "spark.hadoop.fs.s3a.endpoint.region": "r",
            "spark.hadoop.fs.s3a.endpoint": "https://store:9000",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "id",
            "spark.hadoop.fs.s3a.secret.key": "secret",
        },
    ),
    "temporary keys": (
        {
            **CRATE, "aws_region": "r", "aws_access_key_id": "id", "aws_secret_access_key": "secret",
            "aws_session_token": "token",
        },
        {
            **PYTHON, "s3.region": "r", "s3.access-key-id": "id", "s3.secret-access-key": "secret",
            "s3.session-token": "token",
        },
        {
            **JAVA, "client.region": "r", "s3.access-key-id": "id", "s3.secret-access-key": "secret",
            "s3.session-token": "token",
        },
        {
            **HADOOP,
            PROVIDER: f"{KIT}.TemporaryAWSCredentialsProvider",
            "spark.hadoop.fs.s3a.endpoint.region": "r",
            "spark.hadoop.fs.s3a.access.key": "id",
            "spark.hadoop.fs.s3a.secret.key": "secret",
            "spark.hadoop.fs.s3a.session.token": "token",
        },
    ),
    "environment": (
        {**CRATE, "aws_region": "eu-west-1"},
        {**PYTHON, "s3.region": "eu-west-1"},
        {**JAVA, "client.region": "eu-west-1"},
        {
            **HADOOP,
            PROVIDER: "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
            "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_each_library_gets_the_settings_in_its_own_words(name: str) -> None:
    storage = STORES[name]
    found = (
        crate_options(storage),
        pyiceberg_properties(storage),
        iceberg_java_properties(storage),
        hadoop_settings(storage),
    )
    assert found == EXPECTED[name]
    assert delta_options(storage).items() > found[0].items()
    assert ObjectStore(storage_of(found[1])).delta_options == delta_options(storage)


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with LocalStore() as running:
        running.bucket("lake")
        yield running


@pytest.mark.parametrize("bronze", ["delta", "iceberg"])
def test_credentials_of_the_environment_are_enough(
    bronze: str, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "kit")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "kit-secret")
    storage = {"endpoint": store.endpoint, "region": "us-east-1", "allow_http": True, "credentials": "environment"}
    iceberg = {"uri": f"sqlite:///{tmp_path}/catalog.db"}
    lake = {"path": f"s3://lake/environment_{bronze}", "storage": storage, "iceberg": iceberg}
    project = make_project(tmp_path, bronze={"format": bronze}, lake=lake)
    writer = bronze_writer(project)
    writer.begin_stream("s", 100)
    writer.append([raw_transaction(Transaction(boundaries(200), (Insert(table("public.t", id="int8"), ("1",)),)))])
    state = bronze_reader(project).state()
    assert state is not None
    assert state.upto == 200
