"""Pipeline files with tables in an object store: what is taken, what is refused and where, what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.open import bronze_table
from cdc_lake.config.effective import effective
from cdc_lake.config.loader import load_project, validate
from cdc_lake.config.model import ObjectAddress
from cdc_lake.model.diagnostic import ConfigInvalid

HEAD = """version: 1
pipeline: shop
source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}
"""
KEYS = "access_key_id: '${file:id}', secret_access_key: '${file:secret}'"
STORE = f"storage: {{region: eu-west-1, endpoint: 'https://store.example:9000', {KEYS}}}"
BRONZE = "bronze: {path: 's3://lake/bronze/shop'}\n"
ADLS = "abfss://lake@account.dfs.core.windows.net/b"
SECRETS = {"id": "AKIAEXAMPLE", "secret": "not to be seen"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in SECRETS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def write(root: Path, text: str) -> Path:
    file = root / "shop.yaml"
    file.write_text(text)
    return file


def found(root: Path, text: str) -> list[str]:
    return [f"{d.code} {d.location.line}:{d.location.column}" for d in validate([write(root, text)]) if d.location]


def test_a_delta_bronze_in_a_store_is_taken(root: Path):
    project = load_project(write(root, HEAD + BRONZE + f"lake: {{{STORE}}}\n"))
    assert project.bronze_address == ObjectAddress("lake", "bronze/shop")
    table = bronze_table(project)
    assert isinstance(table, DeltaBronzeTable)
    assert table.place == "s3://lake/bronze/shop"


@pytest.mark.parametrize(
    ("address", "storage"),
    [
        ("s3://lake/b", "region: r, credentials: environment"),
        ("s3://lake/b", "region: r, credentials: role, role_arn: 'arn:aws:iam::123456789012:role/r', external_id: abc"),
        (ADLS, "account_key: '${file:secret}'"),
        (ADLS, "sas_token: '${file:secret}'"),
        (ADLS, "tenant_id: t, client_id: c, client_secret: '${file:secret}'"),
        (ADLS, "credentials: environment"),
        ("gs://lake/b", "service_account_file: key.json"),
        ("gs://lake/b", "credentials: environment"),
    ],
)
def test_each_service_is_taken_with_its_credentials(root: Path, address: str, storage: str) -> None:
    text = HEAD + f"lake: {{path: '{address}', storage: {{{storage}}}}}\n"
    assert found(root, text) == []
    project = load_project(write(root, text))
    assert project.storage is not None
    place = ObjectAddress.parse(address)
    assert (project.storage.provider, project.storage.account) == (place.provider, place.account)
    assert str(project.bronze_address) == f"{address}/bronze/shop"
    assert project.iceberg_warehouse == f"{address}/warehouse"
    shown = {setting.path: setting.text for setting in effective(project)}
    assert shown["lake.storage.provider"] == place.provider
    assert SECRETS["secret"] not in repr(project) + repr(shown)


def test_an_iceberg_bronze_in_a_store_is_taken(root: Path):
    text = HEAD + f"bronze: {{format: iceberg}}\nlake: {{{STORE}, iceberg: {{warehouse: 's3://lake/tables'}}}}\n"
    assert isinstance(bronze_table(load_project(write(root, text))), IcebergBronzeTable)


def test_keys_are_never_shown(root: Path):
    project = load_project(write(root, HEAD + BRONZE + f"lake: {{{STORE}}}\n"))
    shown = "\n".join(f"{setting.path} {setting.value} {setting.text} {setting}" for setting in effective(project))
    assert "lake.storage.secret_access_key ••••••" in shown
    assert "s3://lake/bronze/shop" in shown
    for text in (shown, repr(project), repr(bronze_table(project))):
        assert not any(secret in text for secret in SECRETS.values())


CASES = {
    "an address without a store": (HEAD + BRONZE, "CFG139 4:16"),
    "an address of another kind": (HEAD + f"bronze: {{path: 'ftp://lake/b'}}\nlake: {{{STORE}}}\n", "CFG139 4:16"),
    "an address without a folder": (HEAD + f"bronze: {{path: 's3://lake'}}\nlake: {{{STORE}}}\n", "CFG139 4:16"),
    "an address that goes up": (HEAD + f"bronze: {{path: 's3://lake/../b'}}\nlake: {{{STORE}}}\n", "CFG139 4:16"),
    "a name that clients write differently": (
        HEAD + f"bronze: {{path: 's3://lake/a b'}}\nlake: {{{STORE}}}\n",
        "CFG139 4:16",
    ),
    "a durability of the store": (
        HEAD + f"bronze: {{path: 's3://lake/b', durability: fsync}}\nlake: {{{STORE}}}\n",
        "CFG139 4:43",
    ),
    "a durability of the store, for Iceberg": (
        HEAD
        + f"bronze: {{format: iceberg, durability: os}}\nlake: {{{STORE}, iceberg: {{warehouse: 's3://lake/t'}}}}\n",
        "CFG139 4:39",
    ),
    "a warehouse without a store": (HEAD + "lake: {iceberg: {warehouse: 's3://lake/t'}}\n", "CFG139 4:29"),
    "Iceberg silver in the store by default, without a catalog": (
        HEAD + "silver: {defaults: {format: iceberg}}\n" + f"lake: {{path: 's3://lake/t', {STORE}}}\n",
        "CFG139 4:29",
    ),
    "an Iceberg table in the store, without a catalog": (
        HEAD + "silver: {tables: [{from: public.t, format: iceberg}]}\n" + f"lake: {{path: 's3://lake/t', {STORE}}}\n",
        "CFG139 4:44",
    ),
    "a store without TLS": (
        HEAD + BRONZE + f"lake: {{storage: {{region: r, endpoint: 'http://s', {KEYS}}}}}\n",
        "CFG139 5:39",
    ),
    "a store without keys": (HEAD + BRONZE + "lake: {storage: {region: r}}\n", "CFG139 5:17", "CFG139 5:17"),
    "keys beside those of the environment": (
        HEAD + BRONZE + f"lake: {{storage: {{region: r, credentials: environment, {KEYS}}}}}\n",
        "CFG139 5:70",
        "CFG139 5:103",
    ),
    "no region": (HEAD + BRONZE + f"lake: {{storage: {{{KEYS}}}}}\n", "CFG139 5:17"),
    "keys of S3 for ADLS": (
        HEAD + f"bronze: {{path: '{ADLS}'}}\nlake: {{storage: {{account_key: '${{file:secret}}', {KEYS}}}}}\n",
        "CFG139 5:64",
        "CFG139 5:97",
    ),
    "a region for GCS": (
        HEAD + "bronze: {path: 'gs://lake/b'}\nlake: {storage: {region: r, service_account_file: k.json}}\n",
        "CFG139 5:26",
    ),
    "no credentials of ADLS": (
        HEAD + f"bronze: {{path: '{ADLS}'}}\nlake: {{storage: {{patience: 1 s}}}}\n",
        "CFG139 5:17",
    ),
    "half a service principal": (
        HEAD + f"bronze: {{path: '{ADLS}'}}\nlake: {{storage: {{tenant_id: t, client_id: c}}}}\n",
        "CFG139 5:17",
    ),
    "two kinds of credentials of ADLS": (
        HEAD + f"bronze: {{path: '{ADLS}'}}\n"
        "lake: {storage: {account_key: '${file:secret}', sas_token: '${file:secret}'}}\n",
        "CFG139 5:60",
    ),
    "a role of ADLS": (HEAD + f"bronze: {{path: '{ADLS}'}}\nlake: {{storage: {{credentials: role}}}}\n", "CFG139 5:31"),
    "a role without its name": (HEAD + BRONZE + "lake: {storage: {region: r, credentials: role}}\n", "CFG139 5:17"),
    "a role beside keys": (
        HEAD + BRONZE + f"lake: {{storage: {{region: r, {KEYS}, role_arn: 'arn:aws:iam::123456789012:role/r'}}}}\n",
        "CFG139 5:105",
    ),
    "an external ID beside the environment": (
        HEAD + BRONZE + "lake: {storage: {region: r, credentials: environment, external_id: abc}}\n",
        "CFG139 5:68",
    ),
    "two services": (
        HEAD + f"bronze: {{path: 'gs://lake/b'}}\nlake: {{path: 's3://lake/l', {STORE}}}\n",
        "CFG139 4:16",
    ),
    "two accounts": (
        HEAD + f"bronze: {{path: '{ADLS}'}}\nlake: {{control: '{ADLS.replace('account', 'other')}', "
        "storage: {credentials: environment}}\n",
        "CFG139 4:16",
    ),
    "another service than that of the addresses": (
        HEAD + BRONZE + "lake: {storage: {provider: gcs, region: r, credentials: environment}}\n",
        "CFG139 5:28",
    ),
    "an authority for ADLS": (
        HEAD + f"bronze: {{path: '{ADLS}'}}\nlake: {{storage: {{credentials: environment, ca_file: ca.pem}}}}\n",
        "CFG139 5:53",
    ),
    "an account in the address of S3": (
        HEAD + f"bronze: {{path: 's3://lake@account/b'}}\nlake: {{{STORE}}}\n",
        "CFG139 4:16",
    ),
    "a folder of work without a store": (HEAD + "lake: {work: here}\n", "CFG139 4:14"),
    "a cluster without a store": (HEAD + "spark: {master: 'spark://h:7077'}\n", "CFG139 4:17"),
    "a setting of Spark that is ours": (HEAD + "spark: {conf: {spark.sql.ansi.enabled: 'false'}}\n", "CFG139 4:40"),
    "a setting of something else": (HEAD + "spark: {conf: {ansi: 'false'}}\n", "CFG139 4:22"),
    "keys in the address": (
        HEAD + BRONZE + f"lake: {{storage: {{region: r, endpoint: 'https://a:b@s', {KEYS}}}}}\n",
        "CFG107 5:39",
    ),
    "a key in the file": (
        HEAD + BRONZE + "lake: {storage: {region: r, access_key_id: '${file:id}', secret_access_key: abc}}\n",
        "CFG125 5:77",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_work_is_said_at_its_place(root: Path, name: str):
    text, *expected = CASES[name]
    assert found(root, text) == expected


def test_a_refusal_does_not_show_a_key(root: Path):
    text = HEAD + BRONZE + f"lake: {{storage: {{region: 7, allow_http: perhaps, {KEYS}}}}}\n"
    with pytest.raises(ConfigInvalid) as bad:
        load_project(write(root, text))
    told = str(bad.value) + "".join(f"{d}" for d in bad.value.diagnostics)
    assert not any(secret in told for secret in SECRETS.values())
