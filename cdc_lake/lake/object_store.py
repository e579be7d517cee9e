"""An S3-compatible object store, as the libraries that read and write tables in it want to be told of it.

A store fails now and then without meaning it: what changes nothing when it is repeated is repeated, for as long as
`lake.storage.patience` says. What the store refuses is said at once. No key of ours stands in any error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_lake.config.project import Project
from cdc_lake.config.storage import Storage
from cdc_lake.errors import StoreBehind, StoreRefused, StoreUnavailable, StoreUnfenced
from cdc_lake.lake.conditional_put import put_if_absent

_T = TypeVar("_T")

FAILURES = (DeltaError, OSError)
"""What the libraries raise where the store fails."""

PATIENCE_PROPERTY = "cdc-lake.patience"
"""Property of pyiceberg's file access: milliseconds."""

_OF_ARROW = "AWS Error"
"""What Arrow's failures of a store say, and those of a disk do not."""

_PAUSES = (0.1, 5.0)  # seconds: the first and the longest between two attempts
# The words of object_store and of the AWS SDK for what waiting does not heal.
_REFUSED = re.compile(
    r"401 Unauthorized|403 Forbidden|HTTP status 40[13]\b|access.?denied|no.?such.?bucket|invalid.?access.?key"
    r"|signature.?does.?not.?match|expired.?token",
    re.IGNORECASE,
)


class Behind(OSError):
    """A listing leaves out what is there. Never leaves `ObjectStore.persist`."""


class ObjectStore:
    """A store by its settings. Safe to be used by several threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @cached_property
    def filesystem(self) -> pafs.FileSystem:
        """Arrow's file system, for files and single objects; paths are `bucket/key`."""
        given = self._storage
        parts = urlsplit(given.endpoint or "")
        return pafs.S3FileSystem(
            access_key=given.access_key_id.get_secret_value(),
            secret_key=given.secret_access_key.get_secret_value(),
            session_token=given.session_token.get_secret_value() if given.session_token else None,
            region=given.region,
            scheme=parts.scheme or "https",
            endpoint_override=parts.netloc or None,
            allow_delayed_open=True,  # a file that fits is one request instead of three
            background_writes=False,
            connect_timeout=5,
            request_timeout=30,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_attempts(given.patience)),
        )

    @property
    def delta_options(self) -> dict[str, str]:
        """Storage options of `deltalake`."""
        given = self._storage
        options = {
            "aws_region": given.region,
            "aws_access_key_id": given.access_key_id.get_secret_value(),
            "aws_secret_access_key": given.secret_access_key.get_secret_value(),
            "aws_conditional_put": "etag",  # the fence: a log entry is written only where there is none
            "allow_http": "true" if given.allow_http else "false",
            "connect_timeout": "5s",
            "timeout": "30s",
            "max_retries": "3",
            "retry_timeout": f"{max(1, given.patience // 1000)}s",
        }
        if given.endpoint:
            options["aws_endpoint"] = given.endpoint.rstrip("/")
        if given.session_token:
            options["aws_session_token"] = given.session_token.get_secret_value()
        return options

    @property
    def iceberg_properties(self) -> dict[str, str]:
        """Properties of pyiceberg's file access."""
        given = self._storage
        properties = {
            "s3.region": given.region,
            "s3.access-key-id": given.access_key_id.get_secret_value(),
            "s3.secret-access-key": given.secret_access_key.get_secret_value(),
            "py-io-impl": "cdc_lake.lake.store_io.StoreFileIO",
            PATIENCE_PROPERTY: str(given.patience),
        }
        if given.endpoint:
            properties["s3.endpoint"] = given.endpoint.rstrip("/")
        if given.session_token:
            properties["s3.session-token"] = given.session_token.get_secret_value()
        return properties

    def persist(self, call: Callable[[], _T], where: str, also: tuple[type[Exception], ...] = ()) -> _T:
        """Call until it succeeds or patience ends; `call` must be one that may be repeated.

        What is not there is not a failure: FileNotFoundError and TableNotFoundError pass. `also`: further exceptions
        that are worth another attempt; at the end of patience they are raised as they are. Raises StoreUnavailable,
        StoreBehind, StoreRefused.
        """
        end = time.monotonic() + self._storage.patience / 1000
        pause, longest = _PAUSES
        while True:
            try:
                return call()
            except (FileNotFoundError, TableNotFoundError):
                raise
            except (*FAILURES, *also) as failure:
                if time.monotonic() + pause > end or _refused(failure):
                    raise_failure(failure, where, also)
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def prove_fence(self, path: str, where: str) -> None:
        """Put an object at `path` twice where there is none. Raises StoreUnfenced where both times it is taken."""
        for _ in range(2):  # of the first it does not matter whether one was left before
            taken = self.persist(lambda: put_if_absent(self._storage, path, b"proof of the fence"), where)
        if taken:
            raise StoreUnfenced("the object store overwrites what it was asked not to", where=where)

    def read(self, path: str) -> str | None:
        """A small object of text, None where there is none."""

        def text() -> str:
            with self.filesystem.open_input_stream(path) as opened:
                return str(opened.read().decode())

        try:
            return self.persist(text, path)
        except FileNotFoundError:
            return None


def object_store(project: Project) -> ObjectStore:
    """The store that a pipeline declares."""
    storage = project.pipeline.lake.storage
    assert storage is not None, "`validate` lets no address of a store pass without `lake.storage`"
    return ObjectStore(storage)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what Arrow raises where a store fails into StoreUnavailable or StoreRefused; a disk's errors pass."""
    try:
        yield
    except OSError as failure:
        if _OF_ARROW not in f"{failure} {failure.__cause__}":
            raise
        raise_failure(failure, where)


def raise_failure(failure: Exception, where: str, also: tuple[type[Exception], ...] = ()) -> NoReturn:
    """Raise what a failure of the libraries means."""
    if isinstance(failure, also):
        raise failure
    if isinstance(failure, Behind):
        raise StoreBehind("the store's listing leaves out what was written", where=where) from failure
    if _refused(failure):
        raise StoreRefused("the object store refused a request", where=where) from failure
    raise StoreUnavailable("the object store did not do what it was asked to", where=where) from failure


def _attempts(patience: int) -> int:
    """How often the AWS SDK is to try: its pauses double from half a second on, on average, up to twenty."""
    return min(10, 1 + (patience // 1000).bit_length())


def _refused(failure: Exception) -> bool:
    return _REFUSED.search(str(failure)) is not None
