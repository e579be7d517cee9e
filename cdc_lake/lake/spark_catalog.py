"""The pipeline's Iceberg catalog as Spark opens it: the same tables that `lake.catalog` opens without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never
from urllib.parse import unquote, urlsplit

from cdc_lake.config.project import Project
from cdc_lake.errors import OtherCatalog
from cdc_lake.lake.catalog import CatalogAddress, catalog_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POSTGRES_DRIVER = "org.postgresql:postgresql:42.7.7"
"""Only where the catalog is a PostgreSQL database."""

REDACTED = "(?i)secret|password|token|credential|access[.]?key"
"""Settings whose values Spark does not show."""


def catalog_packages(project: Project) -> tuple[str, ...]:
    """Jars that only this catalog needs."""
    given = project.pipeline.lake.iceberg
    return (POSTGRES_DRIVER,) if given.type == "sql" and project.iceberg_uri.startswith("postgresql") else ()


def catalog_settings(project: Project) -> dict[str, str]:
    """Spark's settings of the catalog."""
    address = catalog_address(project)
    prefix = f"spark.sql.catalog.{address.name}"
    settings = {
        # A stale table from the cache would show a stale marker: 30 s by default.
        "cache-enabled": "false",
        **dict(address.properties),
        **_connection(address),
    }
    if address.warehouse is not None:
        settings["warehouse"] = address.warehouse
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **{f"{prefix}.{k}": v for k, v in settings.items()}}


def check_catalog(spark: SparkSession, project: Project) -> None:
    """Raise OtherCatalog where a session, which may be another pipeline's, has its tables elsewhere."""
    address = catalog_address(project)
    uris = spark.conf.get(f"spark.sql.catalog.{address.name}.uri", ""), _connection(address)["uri"]
    there, wanted = (uri.partition("?")[0].rstrip("/") for uri in uris)
    if there and there != wanted:
        said = f"this session of Spark has the Iceberg catalog `{address.name}` at {there}, the pipeline at {wanted}"
        raise OtherCatalog(said, where=project.name)


def _connection(address: CatalogAddress) -> dict[str, str]:
    match address.kind:
        case "rest":
            return {"type": "rest", "uri": address.uri}
        case "sql":
            # pyiceberg makes V1 catalogs; Java makes V0 unless told, and both must read the same one.
            return {"type": "jdbc", "jdbc.schema-version": "V1", **_jdbc(address.uri)}
        case other:
            assert_never(other)


def _jdbc(uri: str) -> dict[str, str]:
    """An address as Java writes it: `sqlite:////a/b.db` is `jdbc:sqlite:/a/b.db`, and who we are stands beside it."""
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
