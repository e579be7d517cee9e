"""The journal: what a test server must keep when its process ends.

A file of pickles: the slot and the rows at its start, then every transaction with its number, before it is added to the
ledger. Replaying it gives the ledger and the image of the rows. It only grows, and is not synced: for demos, not for
important data.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import Tuple
from cdc_lake.model.relation import Relation


@dataclass(frozen=True, slots=True)
class Opening:
    """The first entry: PostgreSQL's slot, its consistent point, and the rows there."""

    slot: str
    start: int
    rows: list[tuple[Relation, list[Tuple]]]


@dataclass(frozen=True, slots=True)
class Numbered:
    """A transaction and its CSN; without `raw` it is an empty one of another database, at `commit_lsn`."""

    csn: int
    commit_lsn: int
    commit_ts: int
    raw: BufferedTransaction | None


class Journal:
    """The journal in `path`. One process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[Opening, list[Numbered]] | None:
        """Everything written so far; a torn last entry is cut off. None where nothing was written yet."""
        if not self._path.exists():
            return None
        entries = []
        with self._path.open("r+b") as file:
            for entry, end in _entries(file):
                entries.append(entry)
                whole = end
            if not entries:
                return None
            file.truncate(whole)
        opening, *numbered = entries
        assert isinstance(opening, Opening)
        return opening, [entry for entry in numbered if isinstance(entry, Numbered)]

    def open(self, opening: Opening) -> None:
        """Begin a new journal."""
        self._path.touch(mode=0o600)
        self._path.write_bytes(b"")
        self.write(opening)

    def write(self, *entries: Opening | Numbered) -> None:
        """Append entries."""
        with self._path.open("ab") as file:
            file.write(b"".join(map(pickle.dumps, entries)))


def _entries(file: BinaryIO) -> Iterator[tuple[object, int]]:
    """Each entry and where it ends."""
    while True:
        try:
            entry = pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            return
        yield entry, file.tell()
