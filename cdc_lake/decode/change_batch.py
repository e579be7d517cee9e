"""Changes as columns: the form in which bronze takes them from every decoder.

Every array has one entry for each change, in the order of the transactions and of the changes in each. A TRUNCATE of
several tables is one entry per table. Values are text as the server printed it. A batch is decoded in parts, whose
columns are joined here.

`canonical_of` computes the canonical bytes of a change as `decode.hashing` defines them: slowly, to verify the fast way
(received bytes after a prefix).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa

from cdc_lake.decode.hashing import Digests, canonical_bytes, canonical_relation, canonical_tuple
from cdc_lake.model.change import (
    UNCHANGED,
    Change,
    Delete,
    Insert,
    Message,
    OldKind,
    Truncate,
    Tuple,
    Undecoded,
    Update,
)
from cdc_lake.model.relation import Relation


class Numbering:
    """Numbers relations in the order in which they first appear; equal relations have one number."""

    def __init__(self) -> None:
        self.relations: list[Relation] = []
        self._numbers: dict[Relation, int] = {}
        self._numbers_by_id: dict[int, tuple[Relation, int]] = {}
        """By identity first, because a hash visits all columns. References are kept, so that ids are not reused."""

    def number(self, relation: Relation) -> int:
        """The relation's index in `relations`."""
        numbered = self._numbers_by_id.get(id(relation))
        if numbered is not None:
            return numbered[1]
        number = self._numbers.setdefault(relation, len(self.relations))
        if number == len(self.relations):
            self.relations.append(relation)
        self._numbers_by_id[id(relation)] = (relation, number)
        return number


_NUMBERS: Final = ("transaction", "op", "relation", "lsn")
_ARRAYS: Final = ("new", "old", "old_kind", "unchanged", "info")


@dataclass(frozen=True)
class ChangeColumns:
    """n changes in columns.

    Shapes: `transaction` int32 ndarray, index into the batch's transactions, ascending; `op` uint8 ndarray, the ASCII
    code of `I U D T M X`; `relation` int32 ndarray, index into `relations`, -1 without one; `lsn` int64 ndarray; `new`,
    `old` pyarrow list<string> arrays, NULL without such a tuple; `old_kind` pyarrow string array (`key`, `full`, NULL);
    `unchanged` pyarrow list<int32> array of positions in `new`, NULL if every value was sent; `info` pyarrow string
    array, JSON of a truncate's flags or a message's prefix and content, else NULL; `digests` one 32-byte digest per
    change (`decode.hashing`). A batch that was decoded in parts has chunked arrays.

    An undecodable transaction has only rows `X`: `raw` is a pyarrow binary array of their bytes, NULL elsewhere (None:
    there are no such rows), `undecoded` is the reason, by index of the transaction.

    `configuration`: number of the pipeline's configuration (captured tables, redaction) with which they were made.
    """

    relations: list[Relation]
    transaction: Any
    op: Any
    relation: Any
    lsn: Any
    new: Any
    old: Any
    old_kind: Any
    unchanged: Any
    info: Any
    digests: Sequence[bytes]
    raw: Any = None
    undecoded: Mapping[int, Undecoded] = field(default_factory=dict)
    configuration: int = 1

    def __len__(self) -> int:
        return len(self.op)

    def take(self, places: Any) -> ChangeColumns:
        """The changes at these indexes, an ascending int64 ndarray; `relations` are unchanged."""
        indices = pa.array(places)
        return replace(
            self,
            **{name: getattr(self, name)[places] for name in _NUMBERS},
            **{name: getattr(self, name).take(indices) for name in _ARRAYS},
            digests=[self.digests[place] for place in places.tolist()],
            raw=None if self.raw is None else self.raw.take(indices),
        )

    def without_first(self, transactions: int) -> ChangeColumns:
        """The changes without those of the first `transactions`."""
        if not transactions:
            return self
        first = int(np.searchsorted(self.transaction, transactions))
        columns = {name: getattr(self, name)[first:] for name in (*_NUMBERS, *_ARRAYS, "digests")}
        columns["transaction"] = columns["transaction"] - transactions
        return replace(
            self,
            **columns,
            raw=None if self.raw is None else self.raw[first:],
            undecoded={index - transactions: why for index, why in self.undecoded.items() if index >= transactions},
        )


def concat_arrays(arrays: list[pa.Array]) -> pa.Array:
    """Concatenate arrays, at least one; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def concat_changes(parts: Sequence[tuple[ChangeColumns, int]], combine: Callable[[list[Any]], Any]) -> ChangeColumns:
    """The columns of all parts, at least one; each comes with its number of transactions.

    `combine` joins Arrow arrays: `pa.concat_arrays` copies them, `pa.chunked_array` does not.
    """
    if len(parts) == 1:
        return parts[0][0]
    numbering = Numbering()
    transaction, relation = [], []
    undecoded: dict[int, Undecoded] = {}
    first = 0
    for columns, transactions in parts:
        numbers = np.array([*map(numbering.number, columns.relations), -1], np.int32)
        relation.append(numbers[columns.relation])
        transaction.append(columns.transaction + np.int32(first))
        undecoded |= {first + index: why for index, why in columns.undecoded.items()}
        first += transactions
    every = [columns for columns, _ in parts]
    return replace(
        every[0],
        relations=numbering.relations,
        transaction=np.concatenate(transaction),
        op=np.concatenate([columns.op for columns in every]),
        relation=np.concatenate(relation),
        lsn=np.concatenate([columns.lsn for columns in every]),
        **{name: combine([getattr(columns, name) for columns in every]) for name in _ARRAYS},
        digests=Digests.from_parts([columns.digests for columns in every]),
        raw=combine([pa.nulls(len(c), pa.binary()) if c.raw is None else c.raw for c in every]) if undecoded else None,
        undecoded=undecoded,
    )


_OLD_LETTERS: Final = {OldKind.KEY: b"K", OldKind.FULL: b"O"}


def canonical_of(change: Change) -> bytes:
    """The bytes that are hashed; equal for equal changes of any format."""
    match change:
        case Insert(relation=relation, new=new):
            return b"I" + canonical_relation(str(relation.table)) + b"N" + _tuple(new)
        case Update(relation=relation, new=new, old=old, old_kind=old_kind):
            return b"U" + canonical_relation(str(relation.table)) + _old(old, old_kind) + b"N" + _tuple(new)
        case Delete(relation=relation, old=old, old_kind=old_kind):
            return b"D" + canonical_relation(str(relation.table)) + _old(old, old_kind)
        case Truncate(relation=relation, cascade=cascade, restart_identity=restart):
            flags = (b"c" if cascade else b"") + (b"r" if restart else b"")
            return b"T" + canonical_relation(str(relation.table)) + flags
        case Message(prefix=prefix, content=content):
            return b"M" + canonical_bytes(prefix.encode()) + canonical_bytes(content)
        case _ as never:
            assert_never(never)


def _old(values: Tuple | None, kind: OldKind | None) -> bytes:
    return b"" if values is None or kind is None else _OLD_LETTERS[kind] + _tuple(values)


def _tuple(values: Tuple) -> bytes:
    unchanged = frozenset(position for position, value in enumerate(values) if value is UNCHANGED)
    return canonical_tuple([None if value is UNCHANGED else value for value in values], unchanged)
