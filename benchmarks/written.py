"""What a part of a benchmark writes: the files that come into a folder meanwhile, and their bytes."""

from __future__ import annotations

from pathlib import Path


class Written:
    """What comes into these folders from now on."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._before = self._files()

    def since(self) -> dict[str, int]:
        """`files` and `bytes` that are new or were changed, and are still there."""
        new = [size for (_, size, _) in self._files() - self._before]
        return {"files": len(new), "bytes": sum(new)}

    def _files(self) -> set[tuple[str, int, int]]:
        found = set()
        for folder in self._folders:
            for path in folder.rglob("*"):
                try:
                    facts = path.lstat()
                except FileNotFoundError:  # it went while this looked
                    continue
                if path.is_file():
                    found.add((str(path), facts.st_size, facts.st_mtime_ns))
        return found
