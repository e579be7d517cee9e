"""Access to an S3-compatible object store.

Idempotent calls are retried after temporary failures, for as long as `lake.storage.patience` says. Refusals of the
store are raised immediately. No credential of ours appears in an error.

Writers are fenced by conditional puts. A store that does not support the condition silently accepts such a put, so the
condition is tested before a table is created.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_lake.config.model import ObjectAddress, Storage
from cdc_lake.config.project import Project
from cdc_lake.errors import StaleObjectListing, StoreRefused, StoreUnavailable, StoreUnfenced
from cdc_lake.tables.store_options import arrow_filesystem, crate_options, delta_options

if TYPE_CHECKING:
    from obstore.store import S3Store


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease in an object store (`control.coordination`), and the number of its holder."""

    name: str
    epoch: int


LEASE: Final[ContextVar[HeldLease | None]] = ContextVar("lease", default=None)
"""The lease under which this thread works, which its commits carry."""

_OF_ARROW = "AWS Error"
"""Text in Arrow's errors of a store, but not of a disk."""

_WRITERS, _ROUNDS = 8, 20
"""Of the proof of the fence. A store that checks and writes in two steps let two of four writers succeed in 60 of 100
rounds.
"""

_PAUSES = (0.1, 5.0)  # seconds: the first and the longest between two attempts
# Error words of object_store and the AWS SDK for failures that retrying does not resolve.
_REFUSED = re.compile(
    r"401 Unauthorized|403 Forbidden|HTTP status 40[13]\b|access.?denied|no.?such.?bucket|invalid.?access.?key"
    r"|signature.?does.?not.?match|expired.?token",
    re.IGNORECASE,
)


class StaleListing(OSError):
    """A listing omits existing objects. Never leaves `ObjectStore.persist`."""


class ObjectStore:
    """A store with its settings. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._proven: set[bool] = set()

    @cached_property
    def filesystem(self) -> pafs.FileSystem:
        """Arrow's file system, for files and single objects; paths are `bucket/key`."""
        return arrow_filesystem(self._storage)

    @property
    def delta_options(self) -> dict[str, str]:
        """Storage options of `deltalake`."""
        return delta_options(self._storage)

    def persist(self, call: Callable[[], _T], where: str, also: tuple[type[Exception], ...] = ()) -> _T:
        """Call until it succeeds or the patience ends; `call` must be repeatable.

        Missing objects are not a failure: FileNotFoundError and TableNotFoundError pass. `also`: further exceptions to
        retry; at the end of the patience they are raised unchanged. Raises StoreUnavailable, StaleObjectListing,
        StoreRefused.
        """
        end = time.monotonic() + self._storage.patience / 1000
        pause, longest = _PAUSES
        while True:
            try:
                return call()
            except (FileNotFoundError, TableNotFoundError):
                raise
            except (DeltaError, OSError, *also) as failure:
                if time.monotonic() + pause > end or _is_refused(failure):
                    raise_failure(failure, where, also)
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def prove_fence(self, path: str, where: str, *, replaces: bool = False) -> None:
        """Let several writers at a time put each of some new objects below `path`, on the condition that it does not
        exist, or with `replaces` that it did not change. A store that checks the condition, but not at the moment at
        which it writes, lets two of them succeed.

        Raises:
            StoreUnfenced: Two writers put the same object.
            StoreUnavailable: The store fails for longer than the patience.
            StoreRefused: The store refuses a request.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError  # noqa: PLC0415  # once a store

        if replaces in self._proven:
            return
        bucket, _, folder = path.partition("/")
        store = self._bucket(bucket)

        def put(key: str, mode: Any) -> bool | None:
            """Whether the object was accepted; None if no answer came."""
            try:
                store.put(key, uuid.uuid4().bytes, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            except BaseError as cause:
                if _is_refused(cause):
                    raise_failure(cause, where)
                return None
            return True

        def race() -> None:
            key = f"{folder}/{uuid.uuid4().hex}"
            mode: Any = "create"
            if replaces:
                try:
                    mode = {"e_tag": store.put(key, b"proof of the fence", use_multipart=False)["e_tag"]}
                except BaseError as cause:
                    raise OSError(str(cause)) from cause
            answers = list(writers.map(put, [key] * _WRITERS, [mode] * _WRITERS))
            with suppress(FileNotFoundError):  # no writer got through
                self.filesystem.delete_file(f"{bucket}/{key}")
            if answers.count(True) > 1:
                text = "the object store overwrites an object although a conditional PUT forbids it"
                raise StoreUnfenced(text, where=where)
            if answers.count(None) > _WRITERS - 2:
                raise OSError("too few writers got an answer for a race")

        with ThreadPoolExecutor(_WRITERS) as writers:
            for _ in range(_ROUNDS):
                self.persist(race, where)
        self._proven.add(replaces)

    def _bucket(self, bucket: str) -> S3Store:
        """A client without retries for single objects of a bucket."""
        from obstore.store import S3Store  # noqa: PLC0415  # a receiver of a local lake needs none

        return S3Store(
            bucket,
            config=crate_options(self._storage),  # type: ignore[arg-type]  # keys of a TypedDict
            client_options={"allow_http": self._storage.allow_http, "connect_timeout": "5s", "timeout": "30s"},
            retry_config={"max_retries": 0},
        )

    def read_tagged(self, path: str, where: str) -> tuple[str, str] | None:
        """A small text object and its ETag, None if it does not exist. Raises StoreUnavailable, StoreRefused."""
        from obstore.exceptions import BaseError  # noqa: PLC0415  # as above

        bucket, _, key = path.partition("/")

        def read() -> tuple[str, str]:
            try:
                got = self._bucket(bucket).get(key)
                return bytes(got.bytes()).decode(), str(got.meta["e_tag"])
            except BaseError as cause:
                raise OSError(str(cause)) from cause

        try:
            return self.persist(read, where)
        except FileNotFoundError:
            return None

    def put_if(self, path: str, text: str, where: str, *, tag: str | None) -> str | None:
        """Put a small text object that is not in the store in this form yet, if it still has the ETag `tag` (None: if
        it does not exist); its new ETag, None if the store refused. Raises StoreUnavailable, StoreRefused.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError  # noqa: PLC0415  # as above

        bucket, _, key = path.partition("/")

        def put() -> str | None:
            try:
                mode: Any = "create" if tag is None else {"e_tag": tag}
                return str(self._bucket(bucket).put(key, text.encode(), mode=mode, use_multipart=False)["e_tag"])
            except (AlreadyExistsError, PreconditionError):  # perhaps by an attempt whose reply was lost
                present = self.read_tagged(path, where)
                return present[1] if present is not None and present[0] == text else None
            except BaseError as cause:
                raise OSError(str(cause)) from cause

        return self.persist(put, where)

    def read(self, path: str) -> str | None:
        """A small text object, None if it does not exist."""

        def text() -> str:
            with self.filesystem.open_input_stream(path) as opened:
                return str(opened.read().decode())

        try:
            return self.persist(text, path)
        except FileNotFoundError:
            return None


def object_store(project: Project, *, patience: int | None = None) -> ObjectStore:
    """The store that a pipeline declares; `patience`: milliseconds, by default those of `lake.storage`."""
    storage = project.pipeline.lake.storage
    assert storage is not None, "`validate` rejects an address of a store without `lake.storage`"
    return ObjectStore(storage if patience is None else storage.model_copy(update={"patience": patience}))


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Convert Arrow's errors of a store to StoreUnavailable or StoreRefused; errors of a disk pass."""
    try:
        yield
    except OSError as failure:
        if _OF_ARROW not in f"{failure} {failure.__cause__}":
            raise
        raise_failure(failure, where)


def raise_failure(failure: Exception, where: str, also: tuple[type[Exception], ...] = ()) -> NoReturn:
    """Raise the error that corresponds to a failure of the libraries."""
    if isinstance(failure, also):
        raise failure
    if isinstance(failure, StaleListing):
        raise StaleObjectListing("the store's listing omits an object that was written", where=where) from failure
    if _is_refused(failure):
        raise StoreRefused("the object store refused a request", where=where) from failure
    raise StoreUnavailable("a request to the object store failed", where=where) from failure


def _is_refused(failure: Exception) -> bool:
    return _REFUSED.search(str(failure)) is not None


class StoreFolder:
    """Common base of the storages in an object store."""

    def __init__(self, store: ObjectStore, address: ObjectAddress) -> None:
        self._store = store
        self._address = address

    @property
    def name(self) -> str:
        """The address."""
        return str(self._address)

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The store's."""
        return self._store.filesystem

    def path(self, relative: str) -> str:
        """`bucket/key`."""
        return f"{self._address.path}/{relative}"

    def _persist(self, call: Callable[[], _T], also: tuple[type[Exception], ...] = ()) -> _T:
        """Repeat a call while the store fails, for as long as `lake.storage.patience` says. Raises LakeError."""
        return self._store.persist(call, self.name, also)
