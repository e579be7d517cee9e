"""State: what a bronze table says of its newest stream, as each commit notes it, and at last as the rows show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from cdc_lake.bronze.contract import COMMIT, CONTRACT_VERSION
from cdc_lake.bronze.files import Files
from cdc_lake.bronze.port import BronzeState
from cdc_lake.decode.digest import GENESIS
from cdc_lake.errors import BronzeUnknown

CONTRACT_PROPERTY = "cdc_lake.contract"
"""The table property that says that it is bronze, and which contract it follows."""

TRIMMED_PROPERTY = "cdc_lake.trimmed"
"""The table property that says of each epoch which transaction was the last to leave by retention, and its hash."""


@dataclass(frozen=True, slots=True)
class Told:
    """The state but for the markers, which have a place of their own in each format."""

    stream: str
    epoch: int
    head: bytes
    empty: int


def check_contract(given: str, place: str) -> None:
    """Raise BronzeUnknown unless this version knows the contract that a table says it follows."""
    if not given.isdigit():
        raise BronzeUnknown("the table does not say which contract of bronze it follows", where=place)
    if int(given) > CONTRACT_VERSION:
        raise BronzeUnknown(
            f"bronze follows contract {given}, this version knows {CONTRACT_VERSION}",
            where=place,
            hint="install a newer cdc_lake, at least the version that wrote the table",
        )


def note_of(state: BronzeState) -> dict[str, object]:
    """What a commit notes beside its markers."""
    return {
        "contract": CONTRACT_VERSION,
        "stream": state.stream,
        "epoch": state.epoch,
        "head": state.head.hex(),
        "empty": state.empty,
    }


def from_note(note: Mapping[str, Any]) -> Told:
    """What a commit noted."""
    return Told(str(note["stream"]), int(note["epoch"]), bytes.fromhex(str(note["head"])), int(note.get("empty", 0)))


def from_rows(files: Files) -> Told | None:
    """From the rows, where no commit has a note any more; how many empty transactions were counted since is lost."""
    newest: tuple[int, int] | None = None
    found: Told | None = None
    for path in files.select():
        rows = files.read([path], ["stream", "epoch", "position", "info", "op"])
        for row in _last(rows):
            place = (row["epoch"], row["position"] if row["op"] == COMMIT else -1)
            if newest is None or place > newest:
                head = bytes.fromhex(json.loads(row["info"])["hash"]) if row["op"] == COMMIT else GENESIS
                newest, found = place, Told(row["stream"], row["epoch"], head, 0)
    return found


def _last(rows: Any) -> list[dict[str, Any]]:
    """The last COMMIT row, or any row where there is none."""
    commits = rows.filter(pc.equal(rows["op"], COMMIT))
    some = commits if commits.num_rows else rows
    return some.slice(some.num_rows - 1).to_pylist() if some.num_rows else []


def trimmed_text(trimmed: Mapping[int, tuple[int, bytes]]) -> str:
    """Epoch → position and hash, as the property has it."""
    return json.dumps({str(epoch): [position, head.hex()] for epoch, (position, head) in sorted(trimmed.items())})


def trimmed_of(text: str | None) -> dict[int, tuple[int, bytes]]:
    """What the property says; nothing where there is none."""
    said = json.loads(text) if text else {}
    return {int(epoch): (int(position), bytes.fromhex(head)) for epoch, (position, head) in said.items()}
