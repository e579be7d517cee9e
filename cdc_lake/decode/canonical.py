"""The canonical bytes of a change of the model, as `decode.digest` defines them.

The slow way, from values: what the fast way (bytes of the wire behind a prefix) is held against.
"""

from __future__ import annotations

from typing import Final, assert_never

from cdc_lake.decode.digest import canonical_bytes, canonical_relation, canonical_tuple
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Truncate, Tuple, Update

_OLD_LETTERS: Final = {OldKind.KEY: b"K", OldKind.FULL: b"O"}


def canonical_of(change: Change) -> bytes:
    """The bytes that are hashed; equal for equal changes, whatever format they came in."""
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
    unchanged = frozenset(at for at, value in enumerate(values) if value is UNCHANGED)
    return canonical_tuple([None if value is UNCHANGED else value for value in values], unchanged)
