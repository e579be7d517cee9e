"""The settings of an object store in the words of each library, and credentials that only the environment has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.model import Storage
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.tables.spark_session import packages_of, secret_settings
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
ROLE = "arn:aws:iam::123456789012:role/lake"
ADLS: dict[str, Any] = {"provider": "azure", "account": "acct"}
STORES = {
    "keys of Amazon": Storage(region="eu-west-1", **KEYS),
    "keys of another store": Storage(region="r", endpoint="https://store:9000/", **KEYS),
    "temporary keys": Storage(region="r", session_token=SecretStr("token"), **KEYS),
    "environment": Storage(region="eu-west-1", credentials="environment"),
    "role": Storage(region="eu-west-1", credentials="role", role_arn=ROLE, external_id="x1"),
    "key of ADLS": Storage(**ADLS, account_key=SecretStr("key")),
    "SAS of ADLS": Storage(**ADLS, sas_token=SecretStr("?sv=1&sig=s")),
    "service principal": Storage(**ADLS, tenant_id="t", client_id="c", client_secret=SecretStr("secret")),
    "environment of ADLS": Storage(**ADLS, credentials="environment"),
    "emulator of ADLS": Storage(**ADLS, account_key=SecretStr("key"), endpoint="http://h:1/", allow_http=True),
    "service account of GCS": Storage(provider="gcs", service_account_file="/k.json"),
    "environment of GCS": Storage(provider="gcs", credentials="environment"),
}
CRATE = {"aws_conditional_put": "etag"}
HADOOP = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
PROVIDER, KIT = "spark.hadoop.fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a"
JAVA = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
PYTHON = {
    "py-io-impl": "cdc_lake.tables.iceberg_io.StoreFileIO",
    "cdc-lake.patience": "60000",
    "cdc-lake.provider": "s3",
    "cdc-lake.credentials": "keys",
}
CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
OF_HADOOP = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
CONNECTOR = "com.google.cloud.hadoop.fs.gcs"
ABFS = {"spark.hadoop.fs.azure.ssl.channel.mode": "Default_JSSE"}
GS = {
    "spark.hadoop.fs.gs.impl": f"{CONNECTOR}.GoogleHadoopFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.gs.impl": f"{CONNECTOR}.GoogleHadoopFS",
}


def python(provider: str, credentials: str = "keys", **more: str) -> dict[str, str]:
    """What pyiceberg gets; in the names, `__` is a dot and `_` a dash."""
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    return {**PYTHON, "cdc-lake.provider": provider, "cdc-lake.credentials": credentials, **named}


def abfs(kind: str, **more: str) -> dict[str, str]:
    """What ABFS gets, for the one account; in the names, `__` is a dot."""
    settings = {"account.auth.type": kind, **{name.replace("__", "."): value for name, value in more.items()}}
    return ABFS | {f"spark.hadoop.fs.azure.{name}.acct.dfs.core.windows.net": value for name, value in settings.items()}


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
        {**python("s3", "environment"), "s3.region": "eu-west-1"},
        {**JAVA, "client.region": "eu-west-1"},
        {
            **HADOOP,
            PROVIDER: CHAIN,
            "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
        },
    ),
    "role": (
        {**CRATE, "aws_region": "eu-west-1"},  # with keys of the role, if a client is made
        {
            **python("s3", "role"), "s3.region": "eu-west-1", "s3.role-arn": ROLE, "cdc-lake.external-id": "x1",
        },
        {
            **JAVA, "client.region": "eu-west-1", "client.assume-role.region": "eu-west-1",
            "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory", "client.assume-role.arn": ROLE,
            "client.assume-role.external-id": "x1", "client.assume-role.session-name": "cdc_lake",
        },
        {
            **HADOOP,
            PROVIDER: f"{KIT}.auth.AssumedRoleCredentialProvider",
            "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
            "spark.hadoop.fs.s3a.assumed.role.arn": ROLE,
            "spark.hadoop.fs.s3a.assumed.role.external.id": "x1",
            "spark.hadoop.fs.s3a.assumed.role.credentials.provider": CHAIN,
            "spark.hadoop.fs.s3a.assumed.role.session.name": "cdc_lake",
            "spark.hadoop.fs.s3a.assumed.role.sts.endpoint": "sts.eu-west-1.amazonaws.com",
            "spark.hadoop.fs.s3a.assumed.role.sts.endpoint.region": "eu-west-1",
        },
    ),
    "key of ADLS": (
        {"azure_storage_account_name": "acct", "azure_storage_account_key": "key"},
        python("azure", adls__account_name="acct", adls__account_key="key"),
        OF_HADOOP,
        abfs("SharedKey", account__key="key"),
    ),
    "SAS of ADLS": (
        {"azure_storage_account_name": "acct", "azure_storage_sas_token": "sv=1&sig=s"},
        python("azure", adls__account_name="acct", adls__sas_token="sv=1&sig=s"),
        OF_HADOOP,
        abfs("SAS", sas__fixed__token="sv=1&sig=s"),
    ),
    "service principal": (
        {
            "azure_storage_account_name": "acct", "azure_tenant_id": "t", "azure_client_id": "c",
            "azure_client_secret": "secret",
        },
        python(
            "azure", adls__account_name="acct", adls__tenant_id="t", adls__client_id="c", adls__client_secret="secret"
        ),
        OF_HADOOP,
        abfs(
            "OAuth",
            account__oauth__provider__type=f"{OAUTH}.ClientCredsTokenProvider",
            account__oauth2__client__endpoint="https://login.microsoftonline.com/t/oauth2/token",
            account__oauth2__client__id="c",
            account__oauth2__client__secret="secret",
        ),
    ),
    "environment of ADLS": (
        {"azure_storage_account_name": "acct"},
        python("azure", "environment", adls__account_name="acct"),
        OF_HADOOP,
        abfs("OAuth", account__oauth__provider__type=f"{OAUTH}.MsiTokenProvider"),
    ),
    "emulator of ADLS": (
        {
            "azure_storage_account_name": "acct", "azure_storage_account_key": "key",
            "azure_endpoint": "http://h:1/acct",
        },
        python("azure", adls__account_name="acct", adls__account_key="key", cdc_lake__endpoint="http://h:1"),
        OF_HADOOP,
        abfs("SharedKey", account__key="key"),
    ),
    "service account of GCS": (
        {"google_service_account": "/k.json"},
        python("gcs", cdc_lake__service_account_file="/k.json"),
        OF_HADOOP,
        {**GS, "spark.hadoop.fs.gs.auth.service.account.json.keyfile": "/k.json"},
    ),
    "environment of GCS": ({}, python("gcs", "environment"), OF_HADOOP, GS),
}  # fmt: skip


VARIABLES = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS")


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


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
    assert delta_options(storage_of(found[1])) == delta_options(storage)


def test_spark_takes_a_workload_identity_of_adls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("c", "t", "/token"), strict=False):
        monkeypatch.setenv(name, value)
    assert hadoop_settings(STORES["environment of ADLS"]) == abfs(
        "OAuth",
        account__oauth__provider__type=f"{OAUTH}.WorkloadIdentityTokenProvider",
        account__oauth2__client__id="c",
        account__oauth2__msi__tenant="t",
        account__oauth2__token__file="/token",
    )


@pytest.mark.parametrize(
    ("path", "jar", "log_store", "more"),
    [
        ("s3://lake/l", "hadoop-aws:3.4.2", ("s3", "cdc_lake.ConditionalPutLogStore"), {"region": "r", **KEYS}),
        (
            "abfss://lake@acct.dfs.core.windows.net/l",
            "hadoop-azure:3.4.2",
            ("abfss", "io.delta.storage.AzureLogStore"),
            {"account_key": "k"},
        ),
        (
            "gs://lake/l",
            "gcs-connector:hadoop3-2.2.26",
            ("gs", "io.delta.storage.GCSLogStore"),
            {"service_account_file": "key.json"},
        ),
    ],
)
def test_spark_gets_the_jars_and_the_log_store_of_the_service(
    path: str, jar: str, log_store: tuple[str, str], more: dict[str, Any], tmp_path: Path
) -> None:
    project = make_project(tmp_path, lake={"path": path, "storage": more})
    packages, settings = packages_of(project), secret_settings(project)
    connectors = ("hadoop-aws", "hadoop-azure", "gcs-connector")
    assert [one.partition(":")[2] for one in packages if any(name in one for name in connectors)] == [jar]
    scheme, name = log_store
    assert settings[f"spark.delta.logStore.{scheme}.impl"] == name
    assert settings["spark.sql.catalog.lake.warehouse"] == f"{path}/warehouse"
    assert not [
        name for name in settings if name.startswith(("spark.sql.catalog.lake.adls", "spark.sql.catalog.lake.cdc"))
    ]
    if "service_account_file" in more:
        assert settings["spark.hadoop.fs.gs.auth.service.account.json.keyfile"] == str(tmp_path / "key.json")


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
