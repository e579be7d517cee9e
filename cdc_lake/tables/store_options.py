"""The settings of an object store, in the words of each library that reads and writes tables in it.

| library | S3 | ADLS | GCS |
|---|---|---|---|
| `object_store`, the Rust crate of deltalake and obstore | `aws_…` | `azure_…` | `google_…` |
| Arrow | arguments of `S3FileSystem` | of `AzureFileSystem` | of `GcsFileSystem` |
| pyiceberg | `s3.…` | `adls.…` | `gcs.…` |
| Iceberg in Spark | `s3.…`, `client.…` | as Hadoop | as Hadoop |
| Hadoop, by which Spark reads and writes Delta tables | `fs.s3a.…` | `fs.azure.…` | `fs.gs.…` |

Without keys, each library looks for those of the environment. Two libraries take a file only from a variable of the
process: the crate in deltalake the certificates, Arrow the key of a service account.
"""

from __future__ import annotations

import atexit
import os
import ssl
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from pydantic import SecretStr

from cdc_lake.config.model import ObjectAddress, Provider, Storage

_OWN: Final = "cdc-lake."
"""Prefix of properties of pyiceberg's file access that only ours reads."""
OF_FILE_ACCESS: Final = ("s3.", "adls.", "gcs.", "py-", _OWN)
"""Prefixes of all properties of pyiceberg's file access."""

_FIELDS: Final[Mapping[Provider, tuple[str, ...]]] = {
    "s3": ("region", "endpoint", "access_key_id", "secret_access_key", "session_token", "role_arn", "external_id"),
    "azure": ("account", "endpoint", "account_key", "sas_token", "tenant_id", "client_id", "client_secret"),
    "gcs": ("endpoint", "service_account_file"),
}
_NAMES: Final[Mapping[tuple[Provider, str], tuple[str | None, ...]]] = {
    ("s3", "crate"): (
        "aws_region", "aws_endpoint", "aws_access_key_id", "aws_secret_access_key", "aws_session_token", None, None,
    ),
    ("s3", "pyiceberg"): (
        "s3.region", "s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.role-arn",
        f"{_OWN}external-id",
    ),
    ("s3", "java"): (
        "client.region", "s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token",
        "client.assume-role.arn", "client.assume-role.external-id",
    ),
    ("s3", "hadoop"): (
        "fs.s3a.endpoint.region", "fs.s3a.endpoint", "fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token",
        "fs.s3a.assumed.role.arn", "fs.s3a.assumed.role.external.id",
    ),
    ("azure", "crate"): (
        "azure_storage_account_name", "azure_endpoint", "azure_storage_account_key", "azure_storage_sas_token",
        "azure_tenant_id", "azure_client_id", "azure_client_secret",
    ),
    ("azure", "pyiceberg"): (
        "adls.account-name", f"{_OWN}endpoint", "adls.account-key", "adls.sas-token", "adls.tenant-id",
        "adls.client-id", "adls.client-secret",
    ),
    ("azure", "hadoop"): (
        None, None, "fs.azure.account.key", "fs.azure.sas.fixed.token", None, "fs.azure.account.oauth2.client.id",
        "fs.azure.account.oauth2.client.secret",
    ),
    ("gcs", "crate"): ("google_base_url", "google_service_account"),
    ("gcs", "pyiceberg"): ("gcs.service.host", f"{_OWN}service-account-file"),
    ("gcs", "hadoop"): ("fs.gs.storage.root.url", "fs.gs.auth.service.account.json.keyfile"),
}  # fmt: skip
"""Names of the fields of `lake.storage`; None if a library has none."""

_S3A: Final = "org.apache.hadoop.fs.s3a"
_FROM_ENVIRONMENT: Final = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_PROVIDERS: Final = {
    "keys": f"{_S3A}.SimpleAWSCredentialsProvider",
    "token": f"{_S3A}.TemporaryAWSCredentialsProvider",
    "environment": _FROM_ENVIRONMENT,
    "role": f"{_S3A}.auth.AssumedRoleCredentialProvider",
}
_OAUTH: Final = "org.apache.hadoop.fs.azurebfs.oauth2"
SESSION: Final = "cdc_lake"
"""Name of the sessions of an assumed role, as the logs of the cloud show it."""


def _library_settings(storage: Storage, library: str) -> dict[str, str]:
    pairs = zip(_NAMES[storage.provider, library], _FIELDS[storage.provider], strict=True)
    return {name: text for name, field in pairs if name is not None and (text := _text(storage, field)) is not None}


def _text(storage: Storage, field: str) -> str | None:
    value: str | SecretStr | None = getattr(storage, field)
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    surplus = {"endpoint": "/", "sas_token": "?"}.get(field)
    return text.strip(surplus) if surplus and text is not None else text


def crate_options(storage: Storage) -> dict[str, str]:
    """Of the Rust crate; a log entry is written on the condition that it does not exist, which is the fence."""
    options = _library_settings(storage, "crate")
    if storage.provider == "s3":
        options["aws_conditional_put"] = "etag"
    if storage.provider == "azure" and storage.endpoint is not None:
        options["azure_endpoint"] += f"/{storage.account}"
    return options


def delta_options(storage: Storage) -> dict[str, str]:
    """Storage options of `deltalake`."""
    return {
        **crate_options(storage),
        "allow_http": "true" if storage.allow_http else "false",
        "connect_timeout": "5s",
        "timeout": "30s",
        "max_retries": "3",
        "retry_timeout": f"{max(1, storage.patience // 1000)}s",
    }


class _AdlsFileSystem(pafs.AzureFileSystem):  # type: ignore[misc]  # mypy does not look into pyarrow
    """Arrow's, which does not show its account."""

    def __init__(self, account: str, **options: Any) -> None:
        super().__init__(account, **options)
        self.account = account


def arrow_filesystem(storage: Storage) -> pafs.FileSystem:
    """Arrow's file system; paths are `bucket/key`."""
    values = {field: _text(storage, field) for field in _FIELDS[storage.provider]}
    parts = urlsplit(values.pop("endpoint") or "")
    scheme, host = parts.scheme or "https", parts.netloc or None
    match storage.provider:
        case "azure":
            account = values.pop("account")
            assert account is not None, "`validate` requires an address of ADLS to name one"
            if (sas := values["sas_token"]) is not None:
                values["sas_token"] = f"?{sas}"  # it is appended to the address
            for service in ("blob", "dfs") if host else ():
                values |= {f"{service}_storage_authority": host, f"{service}_storage_scheme": scheme}
            return _AdlsFileSystem(account, **values)
        case "gcs":
            return pafs.GcsFileSystem(scheme=scheme, endpoint_override=host)
        case "s3":
            # pauses of the AWS SDK double from half a second on average, up to 20 s
            attempts = min(10, 1 + (storage.patience // 1000).bit_length())
            return pafs.S3FileSystem(
                access_key=values["access_key_id"],
                secret_key=values["secret_access_key"],
                session_token=values["session_token"],
                region=values["region"],
                scheme=scheme,
                endpoint_override=host,
                tls_ca_file_path=storage.ca_file,
                allow_delayed_open=True,  # a file that fits is one request instead of three
                background_writes=False,
                connect_timeout=5,
                request_timeout=30,
                retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=attempts),
            )


def address_of(filesystem: pafs.FileSystem, path: str) -> str:
    """The address by which Spark reads a path of one of Arrow's file systems; of this machine's, the path."""
    bucket, _, key = path.partition("/")
    match filesystem.type_name:
        case "s3":
            return str(ObjectAddress(bucket, key))
        case "gcs":
            return str(ObjectAddress(bucket, key, "gs"))
        case "abfs":
            return str(ObjectAddress(bucket, key, "abfss", filesystem.account))
        case _:
            return path


@cache
def set_process_variables(ca_file: str | None, service_account_file: str | None) -> None:
    """Let libraries find the files that they only take from the environment, besides the machine's certificates.

    Raises:
        OSError: A file cannot be read.
    """
    if service_account_file is not None:
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = service_account_file
    if ca_file is not None:
        paths = ssl.get_default_verify_paths()
        certificates = Path(ca_file).read_bytes() + (Path(paths.cafile).read_bytes() if paths.cafile else b"")
        with tempfile.NamedTemporaryFile(prefix="cdc_lake-", suffix=".pem", delete=False) as bundle:
            bundle.write(certificates)
        atexit.register(Path(bundle.name).unlink, missing_ok=True)
        os.environ |= {"SSL_CERT_FILE": bundle.name, **({"SSL_CERT_DIR": paths.capath} if paths.capath else {})}


def pyiceberg_properties(storage: Storage) -> dict[str, str]:
    """Of pyiceberg's file access."""
    ours = {"provider": storage.provider, "patience": str(storage.patience), "credentials": storage.credentials}
    if storage.ca_file is not None:
        ours["ca-file"] = storage.ca_file
    implementation = {"py-io-impl": "cdc_lake.tables.iceberg_io.StoreFileIO"}
    return {**_library_settings(storage, "pyiceberg"), **implementation, **{_OWN + n: v for n, v in ours.items()}}


def storage_of(properties: Mapping[str, str]) -> Storage:
    """The settings of which `pyiceberg_properties` were made; a catalog may have replaced some."""
    own = {name.removeprefix(_OWN): value for name, value in properties.items() if name.startswith(_OWN)}
    provider: Any = own["provider"]
    names: Any = _NAMES[provider, "pyiceberg"]
    pairs = zip(_FIELDS[provider], names, strict=True)
    values: dict[str, Any] = {field: properties[name] for field, name in pairs if name in properties}
    if "access_key_id" in values:  # perhaps those of the catalog
        own["credentials"] = "keys"
    values |= {"provider": provider, "credentials": own["credentials"], "ca_file": own.get("ca-file")}
    plain = values.get("endpoint", "").startswith("http://")
    return Storage(**values, allow_http=plain, patience=int(own["patience"]))


def iceberg_java_properties(storage: Storage) -> dict[str, str]:
    """Of Iceberg's file access in Spark: that of Hadoop but for S3, as Iceberg's own takes neither a service principal
    nor a key file.
    """
    if storage.provider != "s3":
        return {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    properties = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **_library_settings(storage, "java")}
    if storage.endpoint is not None:
        properties["s3.path-style-access"] = "true"
    if storage.credentials == "role":
        properties |= {
            "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
            "client.assume-role.region": properties["client.region"],
            "client.assume-role.session-name": SESSION,
        }
    return properties


def hadoop_settings(storage: Storage) -> dict[str, str]:
    """Of Hadoop's file systems, as settings of Spark."""
    settings = _library_settings(storage, "hadoop")
    match storage.provider:
        case "azure":
            settings |= _abfs_settings(storage)
            settings = {f"{name}.{storage.account}.dfs.core.windows.net": text for name, text in settings.items()}
            settings["fs.azure.ssl.channel.mode"] = "Default_JSSE"  # the other mode needs a JAR file for OpenSSL
        case "gcs":
            settings |= {
                "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
                "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
            }
        case "s3":
            kind, region = storage.credentials if storage.session_token is None else "token", storage.region or ""
            settings["fs.s3.impl"] = f"{_S3A}.S3AFileSystem"  # addresses begin with s3:// in every program
            settings["fs.s3a.aws.credentials.provider"] = _PROVIDERS[kind]
            if storage.endpoint is not None:
                settings["fs.s3a.path.style.access"] = "true"
            if kind == "role":
                settings |= {
                    "fs.s3a.assumed.role.credentials.provider": _FROM_ENVIRONMENT,
                    "fs.s3a.assumed.role.session.name": SESSION,
                    "fs.s3a.assumed.role.sts.endpoint": f"sts.{region}.amazonaws.com{'.cn' * region.startswith('cn-')}",
                    "fs.s3a.assumed.role.sts.endpoint.region": region,
                }
    return {f"spark.hadoop.{key}": value for key, value in settings.items()}


def _abfs_settings(storage: Storage) -> dict[str, str]:
    """How ABFS authenticates, which does not try one identity of the environment after the other."""
    kind, prefix = "fs.azure.account.auth.type", "fs.azure.account.oauth"
    if storage.account_key is not None:
        return {kind: "SharedKey"}
    if storage.sas_token is not None:
        return {kind: "SAS"}
    if storage.credentials == "keys":
        endpoint = f"https://login.microsoftonline.com/{storage.tenant_id}/oauth2/token"
        return {
            kind: "OAuth",
            f"{prefix}.provider.type": f"{_OAUTH}.ClientCredsTokenProvider",
            f"{prefix}2.client.endpoint": endpoint,
        }
    names = {"client.id": "CLIENT_ID", "msi.tenant": "TENANT_ID", "token.file": "FEDERATED_TOKEN_FILE"}
    settings = {f"{prefix}2.{name}": os.environ.get(f"AZURE_{variable}") for name, variable in names.items()}
    provider = "MsiTokenProvider" if settings[f"{prefix}2.token.file"] is None else "WorkloadIdentityTokenProvider"
    settings |= {kind: "OAuth", f"{prefix}.provider.type": f"{_OAUTH}.{provider}"}
    return {name: text for name, text in settings.items() if text is not None}
