"""A link of the chain: one transaction, checked row by row against what its COMMIT row says.

Memory does not grow with the transaction. What its hash covers is computed again from the values; what repeats on each
row (stream, LSNs, CSN, xid, time) is only held against the other rows: it is not part of the hash.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc_lake.bronze.contract import BEGIN, COMMIT, DELETE, INSERT, MESSAGE, TRUNCATE, UNDECODABLE, UPDATE
from cdc_lake.decode.digest import (
    Content,
    canonical_bytes,
    canonical_relation,
    canonical_tuple,
    canonical_undecodable,
    chain_of,
    content_of,
    digest_of,
)
from cdc_lake.decode.undecodable import READING
from cdc_lake.model.relation import Relation
from cdc_lake.model.undecoded import Undecoded

ROW: Final = (
    "epoch", "position", "ordinal", "op", "relation", "layout", "new", "old", "old_kind", "unchanged", "raw", "info",
    "stream", "csn", "first_lsn", "commit_lsn", "xid", "commit_ts",
)  # fmt: skip
"""The columns of bronze that are checked, in the order in which rows are handed in."""

_EPOCH, _POSITION, _ORDINAL, _OP, _RELATION, _LAYOUT, _NEW, _OLD, _KIND, _UNCHANGED, _RAW, _INFO = range(12)
SAME: Final = slice(12, None)
"""Those that all rows of a transaction repeat."""

_TUPLE_OPS: Final = frozenset({INSERT, UPDATE, DELETE})
_OF_TABLE: Final = _TUPLE_OPS | {TRUNCATE}


class Misfit(Exception):
    """A row or a transaction that does not fit, and why."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A transaction that fits: its place in the chain, its size, and how many empty ones it says stand before it."""

    position: int
    hash: bytes
    changes: int
    empty_before: int
    csn: int | None


class Link:
    """One transaction. `previous`: the hash before it; `layouts`: what bronze describes, by number."""

    def __init__(self, previous: bytes, layouts: Mapping[int, Relation]) -> None:
        self._previous = previous
        self._layouts = layouts
        self._content = Content()
        self._counts: dict[str, dict[str, int]] = {}
        self._rows = 0
        self._undecoded = 0
        self._same: tuple[Any, ...] = ()
        self.position = -1

    def take(self, row: tuple[Any, ...]) -> Linked | None:
        """Take the next row (`ROW`); what the COMMIT row closes. Raises Misfit."""
        self._place(row)
        op = row[_OP]
        try:
            if op == BEGIN:
                self._bare(row)
            elif op == COMMIT:
                self._bare(row)
                return self._close(json.loads(row[_INFO]), row)
            else:
                self._change(row)
        except (AttributeError, KeyError, TypeError, ValueError) as unreadable:
            raise Misfit("a row of it cannot be read") from unreadable
        return None

    def run(self, first: tuple[Any, ...], digests: Sequence[bytes], counts: Mapping[str, Mapping[str, int]]) -> bool:
        """Take changes that are right by themselves, `first` being their first row; False where they do not follow."""
        here = (self._rows, self.position, self._same)
        if not self._rows or (first[_ORDINAL], first[_POSITION], first[SAME]) != here:
            return False
        self._rows += len(digests)
        self._content.add_all(digests)
        for relation, more in counts.items():
            kinds = self._counts.setdefault(relation, {})
            for op, number in more.items():
                kinds[op] = kinds.get(op, 0) + number
        return True

    def _place(self, row: tuple[Any, ...]) -> None:
        if self._rows == 0:
            self._same, self.position = row[SAME], row[_POSITION]
        if row[_ORDINAL] != self._rows:
            raise Misfit("its ordinals do not count from 0: rows are missing, doubled or moved")
        if (row[_OP] == BEGIN) != (self._rows == 0):
            raise Misfit("it does not run from BEGIN to COMMIT")
        if row[SAME] != self._same:
            raise Misfit("its rows do not agree on stream, LSN, CSN, xid or time")
        self._rows += 1

    def _bare(self, row: tuple[Any, ...]) -> None:
        if any(value is not None for value in row[_RELATION:_INFO]):
            raise Misfit("its BEGIN or COMMIT row holds a change")

    def _change(self, row: tuple[Any, ...]) -> None:
        op, relation, number = row[_OP], row[_RELATION], row[_LAYOUT]
        digest = digest_of(_canonical(row))
        layout = None if number is None else self._layouts.get(number)
        described = layout is not None and str(layout.table) == relation
        if not described and (number is not None or op in _OF_TABLE):
            raise Misfit("a change follows a layout that bronze does not describe")
        if op in _TUPLE_OPS and (layout is None or not _shaped(row, len(layout.columns))):
            raise Misfit("a tuple of it has another shape than its layout")
        self._content.add(digest)
        if op == UNDECODABLE:
            self._undecoded += 1
        elif op != MESSAGE:
            kinds = self._counts.setdefault(relation, {})
            kinds[op] = kinds.get(op, 0) + 1

    def _close(self, said: dict[str, Any], row: tuple[Any, ...]) -> Linked:
        content = self._content.root()
        hashed = chain_of(self._previous, self.position, content)
        if said["counts"] != self._counts or not self._all_or_none(said):
            raise Misfit("its changes are not the ones its COMMIT row counts")
        if said["content"] != content.hex():
            raise Misfit("its changes are not the ones that were landed")
        if said["hash"] != hashed.hex():
            raise Misfit("it does not follow the transaction before it: one is missing or doubled")
        csn = row[ROW.index("csn")]
        return Linked(self.position, hashed, self._rows - 2, int(said["empty_before"]), csn)

    def _all_or_none(self, said: dict[str, Any]) -> bool:
        """Whether the rows `X` are as many as the COMMIT row says, and then all there is."""
        if "undecodable" not in said:
            return not self._undecoded
        return self._undecoded == Undecoded.from_description(said["undecodable"]).frames == self._rows - 2


def whole(
    previous: bytes,
    position: int,
    digests: Sequence[bytes],
    counts: Mapping[str, Mapping[str, int]],
    info: str | None,
    csn: int | None,
) -> Linked | None:
    """A transaction whose rows are right, if its COMMIT row says the same; otherwise None, and the rows tell why."""
    try:
        said = json.loads(info or "")
        content = content_of(digests)
        hashed = chain_of(previous, position, content)
        fits = (said["counts"], said["content"], said["hash"]) == (counts, content.hex(), hashed.hex())
        if fits and "undecodable" not in said:
            return Linked(position, hashed, len(digests), int(said["empty_before"]), csn)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return None


def _shaped(row: tuple[Any, ...], columns: int) -> bool:
    """Whether the tuples are of so many columns, and have no value where none was sent."""
    new, old, unsent = row[_NEW], row[_OLD], row[_UNCHANGED] or ()
    if any(values is not None and len(values) != columns for values in (new, old)):
        return False
    return all(new is not None and 0 <= at < columns and new[at] is None for at in unsent)


def _canonical(row: tuple[Any, ...]) -> bytes:
    """The canonical bytes of a change row; KeyError, TypeError or ValueError where it is not one."""
    op, relation, info = row[_OP], row[_RELATION], row[_INFO]
    if op == UNDECODABLE:
        reading = json.loads(info or "{}").get(READING, "")
        return canonical_undecodable(reading, relation, row[_RAW])
    if row[_RAW] is not None or (op not in _TUPLE_OPS and any(value is not None for value in row[_NEW:_RAW])):
        raise ValueError(op)
    if (op in _OF_TABLE) != (relation is not None):
        raise ValueError(op)
    if op == MESSAGE:
        said = json.loads(info)
        prefix, content = str(said["prefix"]).encode(), base64.b64decode(said["content"], validate=True)
        return b"M" + canonical_bytes(prefix) + canonical_bytes(content)
    if op not in _OF_TABLE:
        raise ValueError(op)
    out: bytes = op.encode() + canonical_relation(relation)
    if op == TRUNCATE:
        said = json.loads(info)
        return out + b"c" * bool(said["cascade"]) + b"r" * bool(said["restart_identity"])
    if row[_OLD] is not None:
        out += {"key": b"K", "full": b"O"}[row[_KIND]] + canonical_tuple(row[_OLD])
    elif row[_KIND] is not None:
        raise ValueError(op)
    if row[_NEW] is not None:
        out += b"N" + canonical_tuple(row[_NEW], frozenset(row[_UNCHANGED] or ()))
    return out
