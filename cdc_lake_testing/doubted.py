"""Commits whose call fails at random: before anything is done, in the middle, or after a successful commit."""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn, TypeAlias
from unittest import mock

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

Torn: TypeAlias = Callable[[], AbstractContextManager[object]]
"""In which a commit cannot come to its end."""


class Doubt(enum.StrEnum):
    """How the call fails."""

    BEFORE = "before a commit"
    TORN = "in the middle of a commit"
    AFTER = "behind a commit"


class Doubts:
    """Faults by chance, of such a share of commits; the same for the same seed. `done` counts them.

    `failure`: what the caller hears. `over`: nothing fails any more.
    """

    def __init__(
        self, seed: int, share: float = 0.4, failure: Callable[[str], Exception] = ConnectionResetError
    ) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._failure = failure
        self.done: Counter[Doubt] = Counter()
        self.over = False

    def failing(self, call: Callable[..., Any], torn: Torn) -> Callable[..., Any]:
        """The call that makes a commit, as one that may fail."""

        def broken(*given: Any, **named: Any) -> Any:
            spared = self.over or self._random.random() >= self._share
            doubt = None if spared else self._random.choice(list(Doubt))
            if doubt is Doubt.BEFORE:
                self._fail(doubt)
            with torn() if doubt is Doubt.TORN else nullcontext():
                try:
                    done = call(*given, **named)
                except Exception:
                    self.done.update([doubt] if doubt is Doubt.TORN else [])
                    raise
            if doubt is Doubt.AFTER:
                self._fail(doubt)
            return done

        return broken

    def _fail(self, doubt: Doubt) -> NoReturn:
        self.done[doubt] += 1
        raise self._failure(f"{doubt} the connection was reset")


@contextmanager
def torn_metadata() -> Iterator[None]:
    """Pyiceberg writes half of a table's metadata, and the catalog hears nothing of it."""

    def half(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        text = metadata.model_dump_json().encode()
        with io.new_output(metadata_path).create() as out:
            out.write(text[: len(text) // 2])
        raise ConnectionResetError(metadata_path)

    with mock.patch.object(MetastoreCatalog, "_write_metadata", staticmethod(half)):
        yield
