"""The settings of an object store, in the words of each library that reads and writes tables in it.

| library | names | credentials of the environment |
|---|---|---|
| `object_store`, the Rust crate of deltalake and obstore | `aws_…` | if there are no keys |
| Arrow | arguments of `S3FileSystem` | if there are no keys |
| pyiceberg | `s3.…` | if there are no keys |
| Iceberg in Spark | `s3.…`, `client.region` | if there are no keys |
| Hadoop's S3A, by which Spark reads and writes Delta tables | `fs.s3a.…` | by a provider |
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from pydantic import SecretStr

from cdc_lake.config.model import Storage

PATIENCE_PROPERTY: Final = "cdc-lake.patience"
"""Property of pyiceberg's file access: milliseconds."""

_NAMES: Final = {
    "crate": ("aws_region", "aws_endpoint", "aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
    "pyiceberg": ("s3.region", "s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
    "java": ("client.region", "s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
    "hadoop": (
        "fs.s3a.endpoint.region", "fs.s3a.endpoint", "fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token",
    ),
}  # fmt: skip
_PROVIDERS: Final = {
    "keys": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "token": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "environment": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
}


def _text(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def _values(storage: Storage) -> tuple[str | None, ...]:
    """Region, endpoint, and the keys, in the order of `_NAMES`."""
    endpoint = None if storage.endpoint is None else storage.endpoint.rstrip("/")
    keys = (storage.access_key_id, storage.secret_access_key, storage.session_token)
    return (storage.region, endpoint, *map(_text, keys))


def _library_settings(storage: Storage, library: str) -> dict[str, str]:
    pairs = zip(_NAMES[library], _values(storage), strict=True)
    return {name: value for name, value in pairs if value is not None}


def crate_options(storage: Storage) -> dict[str, str]:
    """Of the Rust crate; a log entry is written on the condition that it does not exist, which is the fence."""
    return {**_library_settings(storage, "crate"), "aws_conditional_put": "etag"}


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


def arrow_filesystem(storage: Storage) -> pafs.S3FileSystem:
    """Arrow's file system; paths are `bucket/key`."""
    region, endpoint, key, secret, token = _values(storage)
    parts = urlsplit(endpoint or "")
    # pauses of the AWS SDK double from half a second on average, up to 20 s
    attempts = min(10, 1 + (storage.patience // 1000).bit_length())
    return pafs.S3FileSystem(
        access_key=key,
        secret_key=secret,
        session_token=token,
        region=region,
        scheme=parts.scheme or "https",
        endpoint_override=parts.netloc or None,
        allow_delayed_open=True,  # a file that fits is one request instead of three
        background_writes=False,
        connect_timeout=5,
        request_timeout=30,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=attempts),
    )


def pyiceberg_properties(storage: Storage) -> dict[str, str]:
    """Of pyiceberg's file access."""
    ours = {"py-io-impl": "cdc_lake.tables.iceberg_io.StoreFileIO", PATIENCE_PROPERTY: str(storage.patience)}
    return {**_library_settings(storage, "pyiceberg"), **ours}


def storage_of(properties: dict[str, str]) -> Storage:
    """The settings of which `pyiceberg_properties` were made; a catalog may have replaced some."""
    region, endpoint, *keys = (properties.get(name) for name in _NAMES["pyiceberg"])
    key, secret, token = (None if text is None else SecretStr(text) for text in keys)
    return Storage(
        endpoint=endpoint,
        region=region or "",
        credentials="environment" if key is None else "keys",
        access_key_id=key,
        secret_access_key=secret,
        session_token=token,
        allow_http=(endpoint or "").startswith("http://"),
        patience=int(properties[PATIENCE_PROPERTY]),
    )


def iceberg_java_properties(storage: Storage) -> dict[str, str]:
    """Of Iceberg's file access in Spark."""
    path_style = {} if storage.endpoint is None else {"s3.path-style-access": "true"}
    return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **_library_settings(storage, "java"), **path_style}


def hadoop_settings(storage: Storage) -> dict[str, str]:
    """Of S3A, as settings of Spark."""
    kind = storage.credentials if storage.session_token is None else "token"
    settings = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",  # addresses begin with s3:// in every program
        "fs.s3a.aws.credentials.provider": _PROVIDERS[kind],
        **_library_settings(storage, "hadoop"),
    }
    if storage.endpoint is not None:
        settings["fs.s3a.path.style.access"] = "true"
    return {f"spark.hadoop.{key}": value for key, value in settings.items()}
