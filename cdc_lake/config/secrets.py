"""The secrets of a pipeline: which values are secret, which are in plain text, and which files other users can read.

A file is readable by others if its mode permits it and no folder above it denies them access; nothing is reported on
systems without such modes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import BaseModel, SecretStr

from cdc_lake.config.model import Pipeline
from cdc_lake.config.yaml_tree import MappingNode, ScalarNode, nodes
from cdc_lake.model.diagnostic import Diagnostic, Problem, Severity

CATALOG = "lake.iceberg.uri"
_OF_STORE = ("access_key_id", "secret_access_key", "session_token", "account_key", "sas_token", "client_secret")
PATHS = (
    "source.password", "bronze.redact_key", *(f"lake.storage.{name}" for name in _OF_STORE),
    "observe.openlineage.api_key", CATALOG,
)  # fmt: skip
"""Secret values; of an address, only the password in it."""
MAPPINGS = ("lake.iceberg.properties", "spark.conf")
"""Mappings, in which values are secret if their names say so."""

_ADDRESS = re.compile(r"[^/]*//[^/@]*:[^/@]+@")
_NAMED = re.compile(r"token|credential|secret|password|key", re.IGNORECASE)
_FILE = "file:"


def secret_rules(root: MappingNode, folder: Path) -> Iterator[Diagnostic]:
    """Warnings about the secrets of a pipeline; `folder`: the project's."""
    reported: set[Path] = set()
    values = {path: node for path, node, _ in nodes(root) if isinstance(node, ScalarNode) and not node.broken}
    for path, node in _secrets(values):
        if not node.references and path != "bronze.redact_key":  # which is refused, by the rules of redaction
            yield _plain_secret(path, node)
        for file in _files(node, folder):
            if file not in reported and _readable_by_others(file):
                reported.add(file)
                yield _exposed_secret(file, path, node)
    key = values.get("source.tls.key")
    if key is not None and isinstance(key.value, str) and _readable_by_others(folder / key.value):
        yield _exposed_secret(folder / key.value, "source.tls.key", key)


def _bare(path: str) -> str:
    """The name of a secret in its section."""
    for section in (*MAPPINGS, "lake.storage"):
        path = path.removeprefix(f"{section}.")
    return path


def is_secret(path: str) -> bool:
    """Whether the value at a path is a secret or contains one; any of the catalog's properties may be one."""
    return path in PATHS or path.startswith(tuple(f"{mapping}." for mapping in MAPPINGS))


def has_password(address: str) -> bool:
    """Whether an address contains a password."""
    return _ADDRESS.match(address) is not None


def _secrets(values: Mapping[str, ScalarNode]) -> Iterator[tuple[str, ScalarNode]]:
    """The values of a file that are secrets, by path."""
    for path, node in values.items():
        if path == CATALOG:
            secret = has_password(node.text)
        else:
            secret = path in PATHS or (is_secret(path) and _NAMED.search(_bare(path)) is not None)
        if secret and node.value:
            yield path, node


def _files(node: ScalarNode, folder: Path) -> Iterator[Path]:
    """The files that contain a secret."""
    if not node.references:
        yield Path(node.mark.file)
    for reference in node.references:
        if reference.startswith(_FILE):
            yield folder / reference.removeprefix(_FILE)


def _readable_by_others(file: Path) -> bool:
    if os.name != "posix":
        return False
    try:
        full = file.resolve(strict=True)
        reached = all(above.stat().st_mode & stat.S_IXOTH for above in full.parents)
        return reached and bool(full.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False  # missing or out of our own reach: said elsewhere


def _plain_secret(path: str, node: ScalarNode) -> Diagnostic:
    names = {"source.password": "the password", CATALOG: "the password of the catalog"}
    what = names.get(path) or f"`{_bare(path)}`"
    hint = "use ${env:NAME} or ${file:path}; everyone who can read the file can read the secret"
    summary = f"{what} is written in plain text"
    return Diagnostic(Severity.WARNING, Problem.PLAIN_PASSWORD, summary, node.mark.location(path), hint)


def _exposed_secret(file: Path, path: str, node: ScalarNode) -> Diagnostic:
    summary = f"everyone on this machine can read the secret in `{file}`"
    hint = f"`chmod o= {file}`, or `chmod 600 {file}` if no group needs it"
    return Diagnostic(Severity.WARNING, Problem.EXPOSED, summary, node.mark.location(path), hint)


def secret_values(pipeline: Pipeline) -> frozenset[str]:
    """All secrets, as they are and as they are encoded in an address."""
    values = {secret for secret in _values(pipeline) if secret}
    if (uri := pipeline.lake.iceberg.uri) is not None:
        passwords = [uri.partition("://")[2].rpartition("@")[0].partition(":")[2]]  # also one that should be quoted
        with suppress(ValueError):  # no address at all; it was refused
            passwords.append(urlsplit(uri).password or "")
        values |= {text for password in passwords if password for text in (password, unquote(password))}
    if (storage := pipeline.lake.storage) is not None and storage.sas_token is not None:
        values |= {value for name, value in parse_qsl(storage.sas_token.get_secret_value()) if name == "sig"}
    return frozenset(values | {quote(secret, safe="") for secret in values})


def _values(value: object) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _values(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)
