"""Opens the pipeline's Iceberg catalog, for Spark and without it.

A commit is an atomic swap in the catalog of a table's pointer from one metadata file to the next, or a refusal. A REST
server writes the file and swaps. With the other kinds the file is written here; the swap is a transaction of SQLite or
PostgreSQL, an update under a lock of the Hive metastore, or a conditional update in AWS Glue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never
from urllib.parse import unquote, urlsplit

from cdc_lake.config.model import Storage
from cdc_lake.config.project import Project
from cdc_lake.errors import CatalogUnreachable, IcebergMissing, OtherCatalog
from cdc_lake.tables.files import make_folder
from cdc_lake.tables.store_options import OF_FILE_ACCESS, iceberg_java_properties, pyiceberg_properties

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession


_SQLITE = "sqlite:///"
_BUSY_MILLISECONDS = 30_000
"""Silver's merges swap pointers in the same SQLite file; each holds the lock for milliseconds."""


Kind: TypeAlias = Literal["sql", "rest", "hive", "glue"]


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """The location of a catalog and its connection properties, which may contain secrets and are never shown."""

    name: str
    kind: Kind
    uri: str | None
    warehouse: str | None
    properties: tuple[tuple[str, str], ...] = ()
    durable: bool = True

    def __repr__(self) -> str:
        """Omits values that may be secret."""
        return f"CatalogAddress({self.name!r}, {self.kind!r})"

    @property
    def file(self) -> Path | None:
        """The SQLite file, None for other catalogs."""
        uri = self.uri or ""
        return Path(uri.removeprefix(_SQLITE)) if self.kind == "sql" and uri.startswith(_SQLITE) else None


def catalog_address(project: Project, *, durable: bool = True) -> CatalogAddress:
    """The address that a pipeline declares."""
    config, storage = project.pipeline.lake.iceberg, _storage(project)
    of_store = {} if storage is None else pyiceberg_properties(storage)
    if config.type == "glue":
        of_store["glue.region"] = of_store["s3.region"]
    secrets = of_store | {key: value.get_secret_value() for key, value in config.properties.items()}
    properties = tuple(sorted(secrets.items()))
    return CatalogAddress(
        config.catalog, config.type, project.iceberg_uri or None, project.iceberg_warehouse, properties, durable=durable
    )


def _storage(project: Project) -> Storage | None:
    """The object store of the catalog's tables, None if they are in a folder or the catalog gives access to them."""
    config, storage = project.pipeline.lake.iceberg, project.storage
    in_store = config.type == "rest" or not (project.iceberg_warehouse or "").startswith("file://")
    return storage if in_store else None


def is_there(address: CatalogAddress) -> bool:
    """Whether the catalog exists, without creating a missing SQLite file."""
    return address.file is None or address.file.exists()


@lru_cache(maxsize=8)
def open_catalog(address: CatalogAddress) -> Catalog:
    """Open a catalog; the tables of a SQL catalog are created if missing. Raises CatalogUnreachable."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - an extra: a lake of Delta tables needs none

        from cdc_lake.tables.iceberg_io import PatientRestCatalog, hive_catalog  # noqa: PLC0415 - imports pyiceberg
    except ImportError as cause:
        raise IcebergMissing from cause
    properties = dict(address.properties)
    if address.warehouse is not None:
        properties["warehouse"] = address.warehouse
    if address.durable:
        properties.setdefault("py-io-impl", "cdc_lake.tables.iceberg_io.DurableFileIO")  # explicit settings win
    if address.file is not None:
        make_folder(address.file.parent, durable=address.durable)
    with reaching(address):
        match address.kind:
            case "rest":
                return PatientRestCatalog(address.name, uri=address.uri, **properties)
            case "hive":
                with _needing("hive"):
                    return hive_catalog(address.name, {"uri": address.uri, **properties})
            case "glue":
                with _needing("glue"):
                    from pyiceberg.catalog.glue import GlueCatalog  # noqa: PLC0415 - an extra
                endpoint = {} if address.uri is None else {"glue.endpoint": address.uri}
                return GlueCatalog(address.name, **endpoint, **properties)
            case "sql":
                uri = re.sub("^postgresql://", "postgresql+psycopg://", address.uri or "")  # default: psycopg2
                catalog = SqlCatalog(address.name, **{"uri": uri, "pool_pre_ping": "true", **properties})
                if address.file is not None:
                    _settle_sqlite(catalog, durable=address.durable)
                return catalog
            case other:
                assert_never(other)


@contextmanager
def _needing(extra: Literal["hive", "glue"]) -> Iterator[None]:
    try:
        yield
    except ImportError as cause:
        raise IcebergMissing(extra) from cause


@contextmanager
def reaching(address: CatalogAddress) -> Iterator[None]:
    """Convert connection errors of the catalog to CatalogUnreachable."""
    try:
        yield
    except unreachable() as cause:
        where = f"lake.iceberg.uri ({address.kind})"
        raise CatalogUnreachable(f"the Iceberg catalog `{address.name}` did not respond", where=where) from cause


@lru_cache(maxsize=1)
def unreachable() -> tuple[type[Exception], ...]:
    """The exceptions of pyiceberg if a catalog does not answer, or answers with a server error."""
    from pyiceberg.exceptions import RESTError  # noqa: PLC0415 - an extra
    from requests import RequestException  # noqa: PLC0415 - comes with pyiceberg
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - comes with pyiceberg

    kinds: list[type[Exception]] = [RESTError, RequestException, SQLAlchemyError]
    with suppress(ImportError):
        from thrift.Thrift import TException  # noqa: PLC0415 - an extra: the Hive metastore

        kinds.append(TException)
    with suppress(ImportError):
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra: AWS Glue

        kinds += [BotoCoreError, ClientError]
    return tuple(kinds)


def refusal_errors() -> tuple[type[Exception], ...]:
    """The exceptions of pyiceberg if a catalog cannot do what it was asked for, or refuses it."""
    from pyiceberg.exceptions import BadRequestError, ForbiddenError, ValidationException  # noqa: PLC0415 - an extra

    return (BadRequestError, ForbiddenError, NotImplementedError, ValidationException)


def _settle_sqlite(catalog: Any, *, durable: bool) -> None:
    """Configures each connection to a SQLite catalog: busy timeout and durability.

    `FULL`, the default, may lose the newest commit in a power failure: the removal of the journal is not synced
    (SQLite, PRAGMA synchronous).
    """
    from sqlalchemy import event  # noqa: PLC0415 - comes with pyiceberg

    def configure_connection(connection: Any, record: object) -> None:
        del record
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        cursor.execute(f"PRAGMA synchronous = {'EXTRA' if durable else 'NORMAL'}")
        cursor.close()

    event.listen(catalog.engine, "connect", configure_connection)
    catalog.engine.dispose()


POSTGRES_DRIVER = "org.postgresql:postgresql:42.7.7"
"""Only needed if the catalog is a PostgreSQL database."""

REDACTED = "(?i)secret|password|token|credential|(access|account)[.]?key"
"""Settings whose values Spark does not show."""


AWS_PACKAGES = (
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
    "software.amazon.awssdk:apache-client:2.54.17",
    "org.apache.httpcomponents:httpclient:4.5.14",
    "org.apache.httpcomponents:httpcore:4.4.16",
)
"""Amazon's SDK with which Iceberg reads and writes S3 and Glue."""


def catalog_packages(project: Project) -> tuple[str, ...]:
    """Jars that only this catalog needs."""
    config = project.pipeline.lake.iceberg
    match config.type:
        case "sql":
            return (POSTGRES_DRIVER,) if project.iceberg_uri.startswith("postgresql") else ()
        case "rest":
            vends = config.properties.get(DELEGATION)
            return AWS_PACKAGES if vends is not None and "vended" in vends.get_secret_value() else ()
        case "glue":
            return AWS_PACKAGES
        case "hive":
            return ()
        case other:
            assert_never(other)


DELEGATION = "header.X-Iceberg-Access-Delegation"
"""Property of a REST catalog: with `vended-credentials` it gives access to the files of each table that it loads."""


def catalog_settings(project: Project) -> dict[str, str]:
    """Spark's settings of the catalog."""
    address = catalog_address(project)
    prefix = f"spark.sql.catalog.{address.name}"
    settings = {
        # A cached table would show an outdated marker: 30 s by default.
        "cache-enabled": "false",
        **{key: value for key, value in address.properties if not key.startswith(OF_FILE_ACCESS)},
        **_connection(address),
    }
    if (storage := _storage(project)) is not None:
        settings |= iceberg_java_properties(storage)
    if address.warehouse is not None:
        settings["warehouse"] = address.warehouse
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **{f"{prefix}.{k}": v for k, v in settings.items()}}


def check_catalog(spark: SparkSession, project: Project) -> None:
    """Raise OtherCatalog if the session, possibly another pipeline's, uses another catalog."""
    address = catalog_address(project)
    uris = spark.conf.get(f"spark.sql.catalog.{address.name}.uri", ""), _connection(address).get("uri", "")
    session_uri, wanted = (uri.partition("?")[0].rstrip("/") for uri in uris)
    if session_uri and session_uri != wanted:
        message = (
            f"this session of Spark has the Iceberg catalog `{address.name}` at {session_uri}, but the pipeline at "
            f"{wanted}"
        )
        raise OtherCatalog(message, where=project.name)


def _connection(address: CatalogAddress) -> dict[str, str]:
    uri = address.uri or ""
    match address.kind:
        case "rest" | "hive":
            return {"type": address.kind, "uri": uri}
        case "glue":
            region = dict(address.properties).get("glue.region")
            settings = {"glue.endpoint": address.uri, "client.region": region}  # Java's name of the region
            return {"type": "glue", **{key: value for key, value in settings.items() if value is not None}}
        case "sql":
            # pyiceberg creates V1 catalogs, Java V0 by default; both must read the same one.
            return {"type": "jdbc", "jdbc.schema-version": "V1", **_jdbc(uri)}
        case other:
            assert_never(other)


def _jdbc(uri: str) -> dict[str, str]:
    """The address as JDBC properties: `sqlite:////a/b.db` is `jdbc:sqlite:/a/b.db`, with separate user and password."""
    if uri.startswith("sqlite:///"):
        return {"uri": f"jdbc:sqlite:{uri.removeprefix('sqlite:///')}"}
    parts = urlsplit(uri)
    place = parts.netloc.rpartition("@")[2]
    query = f"?{parts.query}" if parts.query else ""
    settings = {"uri": f"jdbc:postgresql://{place}{parts.path}{query}"}
    if parts.username:
        settings["jdbc.user"] = unquote(parts.username)
    if parts.password:
        settings["jdbc.password"] = unquote(parts.password)
    return settings
