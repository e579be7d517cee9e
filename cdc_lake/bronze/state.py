"""State: what bronze says of its newest stream, read from the table itself.

The order and the confirm marker are application transactions. Stream, epoch and head of the chain stand in the note of
each commit of ours; where the newest commit is not ours, older ones are asked, and at last the rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from cdc_lake.bronze.contract import COMMIT, CONTRACT_VERSION, confirm_app, order_app
from cdc_lake.bronze.files import Files
from cdc_lake.bronze.port import BronzeState
from cdc_lake.decode.digest import GENESIS
from cdc_lake.errors import BronzeDamaged, BronzeUnknown
from cdc_lake.lake.delta_log import note_at

CONTRACT_PROPERTY = "cdc_lake.contract"


def check_contract(table: DeltaTable, folder: Path) -> None:
    """Raise BronzeUnknown unless the table is a bronze table of a contract this version knows."""
    given = table.metadata().configuration.get(CONTRACT_PROPERTY)
    if given is None or not given.isdigit():
        raise BronzeUnknown("the folder holds a Delta table that is not a bronze table", where=str(folder))
    if int(given) > CONTRACT_VERSION:
        raise BronzeUnknown(
            f"bronze follows contract {given}, this version knows {CONTRACT_VERSION}",
            where=str(folder),
            hint="install a newer cdc_lake, at least the version that wrote the table",
        )


def read_state(table: DeltaTable, folder: Path) -> BronzeState | None:
    """What the version that `table` stands at says of its newest stream; None where no stream was started."""
    found = _from_notes(folder, table.version()) or _from_rows(table, folder)
    if found is None:
        return None
    stream, epoch, head, empty = found
    upto, confirm = table.transaction_version(order_app(stream)), table.transaction_version(confirm_app(stream))
    if upto is None or confirm is None:
        raise BronzeDamaged(f"bronze names the stream {stream} but has no markers of it", where=str(folder))
    return BronzeState(stream, epoch, upto, confirm, head, empty)


def _from_notes(folder: Path, version: int) -> tuple[str, int, bytes, int] | None:
    for candidate in range(version, -1, -1):
        note = note_at(folder, candidate)
        if note is not None and "stream" in note:
            return str(note["stream"]), int(note["epoch"]), bytes.fromhex(str(note["head"])), int(note.get("empty", 0))
    return None


def _from_rows(table: DeltaTable, folder: Path) -> tuple[str, int, bytes, int] | None:
    """From the rows, where no commit has a note any more; how many empty transactions were counted since is lost."""
    files = Files.of(table, folder)
    newest: tuple[int, int] | None = None
    found: tuple[str, int, bytes, int] | None = None
    for path in files.select():
        rows = files.read([path], ["stream", "epoch", "position", "info", "op"])
        for row in _last(rows):
            place = (row["epoch"], row["position"] if row["op"] == COMMIT else -1)
            if newest is None or place > newest:
                head = bytes.fromhex(json.loads(row["info"])["hash"]) if row["op"] == COMMIT else GENESIS
                newest, found = place, (row["stream"], row["epoch"], head, 0)
    return found


def _last(rows: Any) -> list[dict[str, Any]]:
    """The last COMMIT row, or any row where there is none."""
    commits = rows.filter(pc.equal(rows["op"], COMMIT))
    some = commits if commits.num_rows else rows
    return some.slice(some.num_rows - 1).to_pylist() if some.num_rows else []
