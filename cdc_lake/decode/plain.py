"""Changes as columns, one change after the other: the reference for `columnar`, and its fallback.

Built from the plain decoder and from values of the model only, so that nothing the columnar decoder does with bytes
is shared with it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cdc_lake.decode.canonical import canonical_of
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.digest import digest_of
from cdc_lake.decode.not_text import InHex
from cdc_lake.decode.pgoutput import changes
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.errors import BatchTooLarge
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Truncate, Tuple, Update
from cdc_lake.model.relation import Relation

TUPLES = pa.list_(pa.string())
POSITIONS = pa.list_(pa.int32())
MAX_BYTES = (1 << 31) - (1 << 20)
"""What the 32-bit offsets of one Arrow array address, less room for padding."""


class Numbering:
    """Numbers relations in the order they first appear; equal relations have one number."""

    def __init__(self) -> None:
        self.relations: list[Relation] = []
        self._numbers: dict[Relation, int] = {}
        self._seen: dict[int, tuple[Relation, int]] = {}
        """By identity first: a hash walks all of the columns. Each is kept, or another could take its place."""

    def number(self, relation: Relation) -> int:
        """The relation's index in `relations`."""
        seen = self._seen.get(id(relation))
        if seen is not None:
            return seen[1]
        number = self._numbers.setdefault(relation, len(self.relations))
        if number == len(self.relations):
            self.relations.append(relation)
        self._seen[id(relation)] = (relation, number)
        return number


def refuse_oversize(size: int) -> None:
    """Raise BatchTooLarge where so many bytes of frames are more than one array of values can address."""
    if size > MAX_BYTES:
        raise BatchTooLarge(f"a batch of {size} bytes of changes: at most {MAX_BYTES} fit")


def tabulate_plain(batch: Sequence[RawTransaction], in_hex: InHex | None = None) -> ChangeColumns:
    """The changes of the transactions, in order. Raises the DecodeError of the first change that cannot be read.

    `in_hex`: which columns may hold bytes that are no text (`decode.not_text`), None: no column.
    """
    refuse_oversize(sum(len(frame) for raw in batch for frame in raw.frames))
    return columns_of(
        [(nth, raw.lsns[at], change) for nth, raw in enumerate(batch) for at, change in changes(raw, in_hex)]
    )


def columns_of(decoded: Sequence[tuple[int, int, Change]]) -> ChangeColumns:
    """Changes as columns; each comes with the index of its transaction, ascending, and its LSN."""
    all_changes = [change for _, _, change in decoded]
    numbering = Numbering()
    return ChangeColumns(
        transaction=np.array([nth for nth, _, _ in decoded], np.int32),
        op=np.array([ord(op_of(change)) for change in all_changes], np.uint8),
        relation=np.array(
            [-1 if isinstance(c, Message) else numbering.number(c.relation) for c in all_changes], np.int32
        ),
        lsn=np.array([lsn for _, lsn, _ in decoded], np.int64),
        new=pa.array([_sent(_new(change)) for change in all_changes], TUPLES),
        old=pa.array([_sent(_old(change)) for change in all_changes], TUPLES),
        old_kind=pa.array([_old_kind(change) for change in all_changes], pa.string()),
        unchanged=pa.array([_unchanged(_new(change)) for change in all_changes], POSITIONS),
        info=pa.array([info_of(change) for change in all_changes], pa.string()),
        digests=[digest_of(canonical_of(change)) for change in all_changes],
        relations=numbering.relations,
    )


def op_of(change: Change) -> str:
    """The letter of a change in bronze."""
    return _OPS[type(change)]


def info_of(change: Change) -> str | None:
    """The JSON of a truncate's flags or of a message's prefix and content (base64); None for a row change."""
    match change:
        case Truncate(cascade=cascade, restart_identity=restart):
            return json.dumps({"cascade": cascade, "restart_identity": restart})
        case Message(prefix=prefix, content=content):
            return json.dumps({"prefix": prefix, "content": base64.b64encode(content).decode()}, ensure_ascii=False)
        case _:
            return None


_OPS: dict[type[Change], str] = {Insert: "I", Update: "U", Delete: "D", Truncate: "T", Message: "M"}


def _new(change: Change) -> Tuple | None:
    return change.new if isinstance(change, Insert | Update) else None


def _old(change: Change) -> Tuple | None:
    return change.old if isinstance(change, Update | Delete) else None


def _old_kind(change: Change) -> str | None:
    kind: OldKind | None = change.old_kind if isinstance(change, Update | Delete) else None
    return None if kind is None else kind.value


def _sent(values: Tuple | None) -> list[str | None] | None:
    return None if values is None else [None if value is UNCHANGED else value for value in values]


def _unchanged(values: Tuple | None) -> list[int] | None:
    return [at for at, value in enumerate(values or ()) if value is UNCHANGED] or None
