"""A disk that keeps only what was synced: possible images of a folder after a power loss.

Synced is what this process passed to `os.fsync`: a file's content, a folder's list of names. Everything else may be
there or not, complete or truncated: each image is random. A rename or removal that was not synced may be undone.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Self


class LyingDisk:
    """Watches a folder while it is entered; `moment` is called before each sync, when power may go."""

    def __init__(self, folder: Path, moment: Callable[[], None] = lambda: None) -> None:
        self._folder = folder.resolve()
        self._moment = moment
        self._contents: dict[Path, bytes] = {}
        self._names: dict[Path, set[str]] = {}
        self._fsync = os.fsync
        self.syncs = 0

    def __enter__(self) -> Self:
        os.fsync = self._synced  # type: ignore[assignment]  # a number is all we call it with
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync = self._fsync

    def image(self, target: Path, dice: random.Random) -> None:
        """What may be on the disk after power went now."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        self._restore(self._folder, target, dice)

    def _restore(self, folder: Path, target: Path, dice: random.Random) -> None:
        there = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
        kept = self._names.get(folder, set())
        for name in kept | there.keys():
            path = folder / name
            if name not in kept and dice.random() < 0.5:
                continue  # a new name that was not synced
            if name not in there and (dice.random() < 0.5 or path not in self._contents):
                continue  # a removal that happened to get there
            if path.is_dir():
                (target / name).mkdir()
                self._restore(path, target / name, dice)
            else:
                (target / name).write_bytes(self._content(path, dice))

    def _content(self, path: Path, dice: random.Random) -> bytes:
        now = path.read_bytes() if path.exists() else self._contents[path]
        if path in self._contents:
            return dice.choice([self._contents[path], now])
        return dice.choice([b"", now, now[: dice.randrange(len(now) + 1)], bytes(len(now))])

    def _synced(self, file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        if self._folder in (path, *path.parents):
            self._moment()
            self.syncs += 1
            if path.is_dir():
                self._names[path] = {entry.name for entry in path.iterdir()}
            else:
                self._contents[path] = path.read_bytes()
        self._fsync(file)
