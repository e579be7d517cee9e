"""Mending: what a loss of power may leave of a local Delta log, and taking it out of the way.

An entry is complete when it gets its name, so one that is not was cut by a loss of power, before it was on disk and so
before anybody was told of it. The same holds for checkpoints, which replace nothing until they are on disk, and for one
whose own entry is gone: that one says what a checkpoint does not. What is cut is renamed, never removed; the table is
then as it was one commit before.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_lake.lake.json_lines import json_lines

NOTE = "cdc_lake"
"""Key of our own entry in a commit's `commitInfo`."""

LINES = "lines"
"""Key in our entry: how many lines the log entry has."""

_ENTRY = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\.parquet")


def mend(folder: Path) -> list[str]:
    """Rename what was cut in the log of the table in `folder`; the names it had."""
    log = folder / "_delta_log"
    try:
        names = sorted(entry.name for entry in os.scandir(log))
    except FileNotFoundError:
        return []
    entries = list(_cut_entries(log, names))
    cut = [*_cut_checkpoints(log, names, entries), *entries]
    for name in cut:
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            (log / name).rename(log / f"{name}.cut")
    return cut


def _cut_checkpoints(log: Path, names: list[str], entries: list[str]) -> Iterator[str]:
    """The newest checkpoints, and what points at one, where they cannot be read or belong to an entry that is cut."""
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)][-2:]
    cut = [name for name in checkpoints if not _is_parquet(log / name) or _is_alone(log, int(name[:20]), entries)]
    yield from cut
    if "_last_checkpoint" in names:
        try:
            version = int(json.loads((log / "_last_checkpoint").read_text())["version"])
        except (ValueError, TypeError, KeyError):
            version = -1
        named = f"{version:020d}.checkpoint.parquet"
        if named in cut or not _is_parquet(log / named):
            yield "_last_checkpoint"


def _cut_entries(log: Path, names: list[str]) -> Iterator[str]:
    """The newest entries that are not whole."""
    for name in reversed([name for name in names if _ENTRY.fullmatch(name)]):
        if _is_whole((log / name).read_bytes()):
            return
        yield name


def _is_alone(log: Path, version: int, cut: list[str]) -> bool:
    """Whether a checkpoint's entry is gone, that before it being there: upkeep removes the older of them first."""
    own, before = (f"{number:020d}.json" for number in (version, version - 1))
    return (own in cut or not (log / own).exists()) and (log / before).exists() and before not in cut


def _is_whole(entry: bytes) -> bool:
    try:
        actions = json_lines(entry)
    except ValueError:
        return False
    note = next((action["commitInfo"].get(NOTE) for action in actions if "commitInfo" in action), None)
    return bool(actions) and (not isinstance(note, dict) or note.get(LINES, len(actions)) == len(actions))


def _is_parquet(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return False
    return True
