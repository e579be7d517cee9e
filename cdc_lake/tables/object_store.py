"""Access to an object store: S3, ADLS or GCS.

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
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError, TableNotFoundError
from pydantic import SecretStr

from cdc_lake.config.model import ObjectAddress, Storage
from cdc_lake.config.project import Project
from cdc_lake.errors import BotocoreMissing, StaleObjectListing, StoreRefused, StoreUnavailable, StoreUnfenced
from cdc_lake.tables.store_options import SESSION, arrow_filesystem, crate_options, delta_options, set_process_variables

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease in an object store (`control.coordination`), and the number of its holder."""

    name: str
    epoch: int


LEASE: Final[ContextVar[HeldLease | None]] = ContextVar("lease", default=None)
"""The lease under which this thread works, which its commits carry."""

_OF_ARROW = re.compile("AWS Error|Azure Error|google::cloud::Status")
"""Text in Arrow's errors of a store, but not of a disk."""

_WRITERS, _ROUNDS = 8, 20
"""Of the proof of the fence. A store that checks and writes in two steps let two of four writers succeed in 60 of 100
rounds.
"""

_PAUSES = (0.1, 5.0)  # seconds: the first and the longest between two attempts
_NO_BUCKET = "the bucket or container does not exist"
# Error words of the libraries for failures that retrying does not resolve, what they mean, and what helps.
_REFUSALS: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("RequestTimeTooSkewed|Request date header too old|reasonable timeframe", "the clock of this machine is wrong",
     "correct the clock of this machine, for example by NTP; then run again"),
    ("no.?such.?bucket|ContainerNotFound|specified (bucket|container) does not exist", _NO_BUCKET,
     "create it, or correct its name in the address"),
    ("PermanentRedirect|AuthorizationHeaderMalformed|redirect without LOCATION", "the bucket is in another region",
     "set `lake.storage.region` to the region of the bucket"),
    (r"40[13] (Unauthorized|Forbidden)|HTTP status 40[13]\b|access.?denied|invalid.?access.?key|signature.?does.?not",
     "the object store refused a request", None),
    ("expired.?token|AuthenticationFailed|AuthorizationFailure", "the object store refused the credentials", None),
)  # fmt: skip
_NO_IDENTITY: Final = re.compile(
    r"169\.254\.169\.254|metadata\.google|no credentials|locate credentials|DefaultAzureCredential", re.IGNORECASE
)
"""Text in errors of libraries that found no credentials in the environment, or could not reach those of a machine."""


class StaleListing(OSError):
    """A listing omits existing objects. Never leaves `ObjectStore.persist`."""


class ObjectStore:
    """A store with its settings. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        set_process_variables(storage.ca_file, storage.service_account_file)
        self._storage = storage
        self._proven: set[bool] = set()
        # what a later put is conditional on: the generation in GCS, elsewhere the ETag
        self._tag = "version" if storage.provider == "gcs" else "e_tag"
        self._opened: tuple[Storage, pafs.FileSystem] | None = None

    @property
    def filesystem(self) -> pafs.FileSystem:
        """Arrow's file system, for files and single objects; paths are `bucket/key`. With the keys of a role it lasts
        ten minutes at least. Raises OSError if there are none.
        """
        storage = self._with_keys()
        if self._opened is None or self._opened[0] != storage:
            self._opened = storage, arrow_filesystem(storage)
        return self._opened[1]

    @property
    def delta_options(self) -> dict[str, str]:
        """Storage options of `deltalake`."""
        return delta_options(self._with_keys())

    def _with_keys(self) -> Storage:
        """The settings, with temporary keys of the role in its place; raises OSError if there are none."""
        if self._storage.credentials != "role":
            return self._storage
        role = self._role
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # an extra, present now

        try:
            keys = role.get_frozen_credentials()
        except (BotoCoreError, ClientError) as cause:
            raise OSError(f"AWS Error: {cause}") from cause
        names = {"access_key_id": "access_key", "secret_access_key": "secret_key", "session_token": "token"}
        secrets = {field: SecretStr(getattr(keys, name)) for field, name in names.items()}
        return self._storage.model_copy(update={**secrets, "role_arn": None, "external_id": None})

    @cached_property
    def _role(self) -> Any:
        """Keys of the role, which botocore renews ten minutes before they expire, and tries to from fifteen on."""
        try:
            from botocore import credentials, session  # noqa: PLC0415  # an extra
        except ImportError as cause:
            raise BotocoreMissing from cause
        own, storage = session.Session(), self._storage
        if (base := own.get_credentials()) is None:
            raise OSError("AWS Error: no credentials to assume the role with")
        arguments = {"RoleSessionName": SESSION} | ({"ExternalId": storage.external_id} if storage.external_id else {})
        client = partial(own.create_client, region_name=storage.region)
        fetcher = credentials.AssumeRoleCredentialFetcher(client, base, storage.role_arn, extra_args=arguments)
        return credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")

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
            except (FileNotFoundError, TableNotFoundError) as missing:
                if _NO_BUCKET in (_refusal(missing) or ()):
                    raise_failure(missing, where)
                raise
            except (DeltaError, OSError, *also) as failure:
                if time.monotonic() + pause > end or _refusal(failure) is not None:
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
                if _refusal(cause) is not None:
                    raise_failure(cause, where)
                return None
            return True

        def race() -> None:
            key = f"{folder}/{uuid.uuid4().hex}"
            mode: Any = "create"
            if replaces:
                try:
                    mode = {self._tag: store.put(key, b"proof of the fence", use_multipart=False)[self._tag]}
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

    def _bucket(self, bucket: str) -> Any:
        """A client without retries for single objects of a bucket."""
        from obstore import store  # noqa: PLC0415  # a receiver of a local lake needs none

        storage = self._with_keys()
        client: Any = {"s3": store.S3Store, "azure": store.AzureStore, "gcs": store.GCSStore}[storage.provider]
        options: Any = {"allow_http": storage.allow_http, "connect_timeout": "5s", "timeout": "30s"}
        if storage.ca_file is not None:
            options["root_certificate"] = Path(storage.ca_file).read_bytes()
        return client(bucket, config=crate_options(storage), client_options=options, retry_config={"max_retries": 0})

    def read_tagged(self, path: str, where: str) -> tuple[str, str] | None:
        """A small text object and its tag, None if it does not exist. Raises StoreUnavailable, StoreRefused."""
        from obstore.exceptions import BaseError  # noqa: PLC0415  # as above

        bucket, _, key = path.partition("/")

        def read() -> tuple[str, str]:
            try:
                got = self._bucket(bucket).get(key)
                return bytes(got.bytes()).decode(), str(got.meta[self._tag])
            except BaseError as cause:
                raise OSError(str(cause)) from cause

        try:
            return self.persist(read, where)
        except FileNotFoundError:
            return None

    def put_if(self, path: str, text: str, where: str, *, tag: str | None) -> str | None:
        """Put a small text object that is not in the store in this form yet, if it still has `tag` (None: if it does
        not exist); its new tag, None if the store refused. Raises StoreUnavailable, StoreRefused.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError  # noqa: PLC0415  # as above

        bucket, _, key = path.partition("/")

        def put() -> str | None:
            try:
                mode: Any = "create" if tag is None else {self._tag: tag}
                return str(self._bucket(bucket).put(key, text.encode(), mode=mode, use_multipart=False)[self._tag])
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
    storage = project.storage
    assert storage is not None, "`validate` rejects an address of a store without `lake.storage`"
    return ObjectStore(storage if patience is None else storage.model_copy(update={"patience": patience}))


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Convert Arrow's errors of a store to StoreUnavailable or StoreRefused; errors of a disk pass."""
    try:
        yield
    except OSError as failure:
        if _OF_ARROW.search(f"{failure} {failure.__cause__}") is None:
            raise
        raise_failure(failure, where)


def raise_failure(failure: Exception, where: str, also: tuple[type[Exception], ...] = ()) -> NoReturn:
    """Raise the error that corresponds to a failure of the libraries."""
    if isinstance(failure, also):
        raise failure
    if isinstance(failure, StaleListing):
        raise StaleObjectListing("the store's listing omits an object that was written", where=where) from failure
    if (refusal := _refusal(failure)) is not None:
        _, message, hint = refusal
        raise StoreRefused(message, where=where, hint=hint) from failure
    if _NO_IDENTITY.search(str(failure)) is not None:
        hint = "give it an identity (variables, a workload identity, a role of the machine), or set `credentials: keys`"
        raise StoreUnavailable("this process has no credentials for the store", where=where, hint=hint) from failure
    raise StoreUnavailable("a request to the object store failed", where=where) from failure


def _refusal(failure: Exception) -> tuple[str, str, str | None] | None:
    """The kind of a refusal of the store; None if retrying may help."""
    text = "" if _NO_IDENTITY.search(str(failure)) else str(failure)
    return next((refusal for refusal in _REFUSALS if re.search(refusal[0], text, re.IGNORECASE)), None)


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
