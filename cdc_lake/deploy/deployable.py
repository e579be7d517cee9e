"""Whether a pipeline can run as jobs on Databricks, judged before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from cdc_lake.config.deployed import Deployed, Written
from cdc_lake.config.load import CONF, PIPELINES
from cdc_lake.config.references import bodies
from cdc_lake.config.secret_checks import CATALOG, has_password, is_secret
from cdc_lake.errors import NotDeployable

VOLUMES = "/Volumes/"
_VOLUME_PARTS = 3  # catalog, schema, volume
_FILES_OF_TLS = ("source.tls.root_cert", "source.tls.cert", "source.tls.key")
_FORMAT = re.compile(r"(silver\.defaults|silver\.tables\[\d+\]|bronze)\.format")


def require_deployable(pipeline: Deployed) -> None:
    """Raise NotDeployable for the first thing in a pipeline that cannot be run there."""
    for refused in _refusals(pipeline):
        raise refused


def _refusals(pipeline: Deployed) -> Iterator[NotDeployable]:
    if pipeline.file.parent.name != PIPELINES:
        hint = f"move it into a folder `{PIPELINES}` of a project: that folder and `{CONF}` are what is uploaded"
        yield NotDeployable("the pipeline file is in no project", where=str(pipeline.file), hint=hint)
    yield from _lake(pipeline)
    for value in pipeline.values:
        if _FORMAT.fullmatch(value.path) and value.text == "iceberg":
            hint = "use `format: delta`; the Iceberg catalog of a session is not set up on Databricks by this version"
            yield _refused("tables of `format: iceberg` are not deployed", value, hint)
        if is_secret(value.path):
            yield from _secret(value)
        yield from _uploaded(value)


def _lake(pipeline: Deployed) -> Iterator[NotDeployable]:
    hint = f"write an absolute path, `{VOLUMES}CATALOG/SCHEMA/VOLUME/…` for a volume; its names may be ${{env:NAME}}"
    given = pipeline.value("lake.path")
    if given is None:
        where = f"{pipeline.file.name}, conf/{pipeline.environment}.yaml"
        yield NotDeployable("`lake.path` is not given: the lake would go with the cluster", where=where, hint=hint)
    elif not given.text.startswith("/"):
        yield _refused("`lake.path` is relative: the lake would go with the cluster", given, hint)
    elif given.text.startswith(VOLUMES) and len(_parts(given.text.removeprefix(VOLUMES))) < _VOLUME_PARTS:
        yield _refused("`lake.path` names no volume", given, hint)
    bronze = pipeline.value("bronze.path")
    if bronze is not None and not bronze.text.startswith("/") and "://" not in bronze.text:
        yield _refused("`bronze.path` is relative: bronze would go with the cluster", bronze, hint)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _secret(value: Written) -> Iterator[NotDeployable]:
    hint = "write ${env:NAME} or ${secret:scope/key}: the bundle takes the value from a secret scope"
    kinds = {body.partition(":")[0] for body in bodies(value.text)}
    if not kinds and value.text and (value.path != CATALOG or has_password(value.text)):
        yield _refused(f"`{value.path}` is a secret in plain text, and would be uploaded", value, hint)
    if "file" in kinds:
        yield _refused(f"`{value.path}` is a secret in a file, which would have to be uploaded", value, hint)


def _uploaded(value: Written) -> Iterator[NotDeployable]:
    """Files that a pipeline reads: what is uploaded is in the project's folders of pipelines and environments."""
    named = [body.removeprefix("file:") for body in bodies(value.text) if body.startswith("file:")]
    if value.path in _FILES_OF_TLS and not value.text.startswith("/"):
        named.append(value.text)
    if value.path == "source.tls.key" and named:
        hint = f"put it on a volume and write its path there, `{VOLUMES}…`"
        yield _refused("the private key of `source.tls.key` would be uploaded", value, hint)
    for name in named:
        if PurePosixPath(name).parts[:1] not in {(PIPELINES,), (CONF,)} or ".." in PurePosixPath(name).parts:
            hint = f"move it into `{CONF}`: that folder and `{PIPELINES}` are what is uploaded"
            yield _refused(f"`{name}` is not uploaded", value, hint)


def _refused(message: str, value: Written, hint: str) -> NotDeployable:
    return NotDeployable(message, where=str(value.mark.location(value.path)), hint=hint)
