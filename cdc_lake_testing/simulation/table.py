"""A bronze table in memory with faulty storage: failing writes, commits that land but report failure, stale listings.

Its content survives the process that wrote it (`Store`); the writer that uses it is the product's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.data_files import Files, WrittenFile
from cdc_lake.errors import AnotherReceiver, BronzeNotWritten, StoreUnavailable
from cdc_lake.tables.files import Rows
from cdc_lake_testing.simulation.world import World


@dataclass(frozen=True)
class Version:
    """A version of the table: the rows that it added, and the state."""

    rows: tuple[pa.Table, ...]
    state: StreamCheckpoint | None


@dataclass
class Store:
    """All versions, the newest last; `positions`: of the transactions in them. `parked`: files of prepared ones."""

    versions: list[Version] = field(default_factory=list)
    positions: set[int] = field(default_factory=set)
    parked: dict[str, bytes] = field(default_factory=dict)

    def add(self, version: Version) -> None:
        """One more."""
        self.versions.append(version)
        for rows in version.rows:
            self.positions.update(np.unique(rows["position"]).tolist())

    @property
    def state(self) -> StreamCheckpoint | None:
        """What the newest version says."""
        return self.versions[-1].state if self.versions else None

    def rows(self) -> pa.Table:
        """All rows, in the order they landed."""
        return pa.concat_tables([rows for version in self.versions for rows in version.rows])


class SimulatedTable:
    """The table as one process sees it (`bronze.data_files.BronzeTable`)."""

    place = "memory"

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self._at = -1

    @property
    def version(self) -> int:
        """See BronzeTable."""
        return self._at

    def refresh(self) -> bool:
        """See BronzeTable; a stale listing shows the version before."""
        if not self._store.versions:
            return False
        self._at = len(self._store.versions) - 1
        if self._at > 1 and self._world.chance("stale listing", 0.3):
            self._at -= 1
        return True

    def create(self) -> None:
        """See BronzeTable."""
        self._store.add(Version((), None))
        self._at = 0

    def state(self) -> StreamCheckpoint | None:
        """See BronzeTable."""
        return self._store.versions[self._at].state

    def prove(self) -> None:
        """See BronzeTable: nobody else writes."""

    def last_chunk(self, app: str) -> int | None:  # noqa: ARG002 - part of the port
        """See BronzeTable: there are no copies."""
        return None

    def files(self) -> Files:
        """See BronzeTable: who simulates reads the store."""
        raise NotImplementedError

    def last_trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """See BronzeTable: nothing leaves."""
        return {}

    def write(self, rows: Rows) -> WrittenFile:
        """See BronzeTable; a torn file is one that no version names."""
        table = rows if isinstance(rows, pa.Table) else pa.concat_tables(list(rows))
        if self._world.chance("torn write", 0.3):
            raise BronzeNotWritten("the disk is full", where=self.place)
        return WrittenFile(table, table.nbytes)

    def commit(self, files: Sequence[WrittenFile], state: StreamCheckpoint, chunks: Mapping[str, int]) -> int:  # noqa: ARG002
        """See BronzeTable; whether it landed may stay unknown."""
        if self._at != len(self._store.versions) - 1:
            raise AnotherReceiver("another version was made", where=self.place)
        if self._world.chance("commit failed", 0.5):
            raise BronzeNotWritten("the commit was refused", where=self.place)
        self._store.add(Version(tuple(one.file for one in files), state))
        if self._world.chance("commit landed and failed", 0.5):
            raise StoreUnavailable("no answer", where=self.place)
        self._at += 1
        return self._at
