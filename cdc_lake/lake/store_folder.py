"""A folder of a bucket: its address, the paths of its objects, and calls that are repeated where the store fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow.fs as pafs

from cdc_lake.config.storage import ObjectAddress
from cdc_lake.lake.object_store import ObjectStore

_T = TypeVar("_T")


class StoreFolder:
    """What the places in an object store have in common."""

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
        """See `ObjectStore.persist`."""
        return self._store.persist(call, self.name, also)
