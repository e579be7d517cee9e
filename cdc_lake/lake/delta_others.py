"""Log entries of others: whether data files came or left with what something else committed to a Delta table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from cdc_lake.lake.json_lines import json_lines


def changed_by(entries: Sequence[tuple[int, str]]) -> str | None:
    """What changed with log entries, newest first and each with its version; None where the data files are the same.

    What was taken back is no change: a RESTORE undoes another one. A file is not the same one with other deleted rows.
    """
    net: Counter[tuple[str, str]] = Counter()
    newest: tuple[int, str] | None = None
    for version, entry in entries:
        operation, files = _read(entry)
        net.update(files)
        if files and newest is None:
            newest = version, operation
    came, left = sum(1 for count in net.values() if count > 0), sum(1 for count in net.values() if count < 0)
    if newest is None or not came + left:
        return None
    version, operation = newest
    return f"something else changed bronze: with version {version} ({operation}) {_files(left)} left, {came} came"


def _read(entry: str) -> tuple[str, dict[tuple[str, str], int]]:
    """The operation of a log entry, and by path and deleted rows which files it adds, 1, and removes, -1."""
    operation, files = "unknown", dict[tuple[str, str], int]()
    for action in json_lines(entry):
        operation = action.get("commitInfo", {}).get("operation", operation)
        for kind, step in (("add", 1), ("remove", -1)):
            if (file := action.get(kind)) is not None:
                files[file["path"], json.dumps(file.get("deletionVector"), sort_keys=True)] = step
    return operation, files


def _files(number: int) -> str:
    return f"{number} data file{'' if number == 1 else 's'}"
