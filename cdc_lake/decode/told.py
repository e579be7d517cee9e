"""Told: the columns that tables had at a place of the stream, by the messages of an event trigger (`source.ddl`).

A relation message names columns and leaves their numbers out; the catalog has those of now. Between the two stands what
the trigger told in the transaction that altered the table. Anybody who may write logical messages may write one of
these as well, so nothing is taken from one but column numbers, and these only where neither the relation message nor
the catalog speaks against them (decision 0046).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc_lake.decode.records import RelationMessage
from cdc_lake.model.relation import Relation

VERSION: Final = 1
_KEPT: Final = 32  # states of a table: where it is altered more often between two changes, the oldest are forgotten

Say: TypeAlias = Callable[[str], None]
"""Takes why a message is not used."""


@dataclass(frozen=True, slots=True)
class ToldColumn:
    """A column of a table as it was. `filled`: rows from before it hold something other than NULL, or may do so."""

    number: int
    type_oid: int
    modifier: int
    filled: bool


Columns: TypeAlias = Mapping[str, ToldColumn]
"""Columns by name."""


class Told:
    """What was told of each table, by its OID, the newest last. One instance a run of the stream."""

    def __init__(self, known: Iterable[Relation] = (), say: Say = lambda _: None) -> None:
        """`known`: layouts that were landed before."""
        self._states: dict[int, deque[Columns]] = {}
        self._landed: dict[int, Columns] = {}
        self._say = say
        for relation in known:
            columns = {
                c.name: ToldColumn(c.number, c.type_oid, c.modifier, c.missing is not None)
                for c in relation.columns
                if c.number is not None
            }
            if relation.oid is not None and len(columns) == len(relation.columns):
                self._landed[relation.oid] = columns

    def take(self, content: bytes) -> None:
        """A message of the trigger. One that is none is not used, and said."""
        try:
            found = _parsed(content)
        except (ValueError, TypeError, KeyError, RecursionError) as wrong:
            self._say(f"a message about altered tables is not of the form of version {VERSION}: {type(wrong).__name__}")
            return
        for oid, columns in found.items():
            self._states.setdefault(oid, deque(maxlen=_KEPT)).append(columns)

    def columns_of(self, message: RelationMessage, now: Mapping[int, str], *, by_layout: bool = True) -> Columns | None:
        """The columns of the table that a relation message announces; None: nobody told.

        `now`: names of the columns that the catalog has by now, by number; `by_layout`: what landed before tells too.
        """
        states = [one for one in reversed(self._states.get(message.oid, ())) if _announces(message, one)]
        for columns in states:
            if _may_have_been(columns, {one.name for one in message.columns}, now):
                return columns
        if states:
            self._say(f"what a message tells of {message.table} cannot be: its catalog has other columns; not used")
        landed = self._landed.get(message.oid) if by_layout else None
        return landed if landed is not None and _announces(message, landed) and _still(landed, now) else None


def _announces(message: RelationMessage, columns: Columns) -> bool:
    """Whether all columns of a relation message are among these; columns that are not published may be more."""
    return all(
        (told := columns.get(one.name)) is not None and (told.type_oid, told.modifier) == (one.type_oid, one.modifier)
        for one in message.columns
    )


def _may_have_been(columns: Columns, announced: Collection[str], now: Mapping[int, str]) -> bool:
    """Whether a table with the columns of now had these, of which some are announced."""
    numbers = {column.number for column in columns.values()}
    # a column that is there now was there ever since its number was given, and numbers are given in order
    if not {number for number in now if number <= max(numbers, default=0)} <= numbers:
        return False
    return all(now.get(one.number) not in announced for name, one in columns.items() if name not in announced)


def _still(columns: Columns, now: Mapping[int, str]) -> bool:
    """Whether none of these was dropped and made again, for all that the catalog tells: nobody else may have told."""
    return all(one.number in now or name not in now.values() for name, one in columns.items())


def _parsed(content: bytes) -> dict[int, Columns]:
    document = json.loads(content)
    if document["version"] != VERSION:
        msg = "another version"
        raise ValueError(msg)
    return {_number(table["oid"]): _columns(table["columns"]) for table in document["tables"]}


def _columns(listed: object) -> Columns:
    if not isinstance(listed, list):
        msg = "columns are a list"
        raise TypeError(msg)
    columns: dict[str, ToldColumn] = {}
    for one in listed:
        if not isinstance(one["name"], str) or not isinstance(one["filled"], bool):
            msg = "a name is a text, and `filled` true or false"
            raise TypeError(msg)
        columns[one["name"]] = ToldColumn(
            _number(one["number"]), _number(one["type"]), _number(one["modifier"]), one["filled"]
        )
    if len(columns) != len(listed) or len({c.number for c in columns.values()}) != len(listed):
        msg = "a name or a number is there twice"
        raise ValueError(msg)
    return columns


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        msg = "expected a number"
        raise TypeError(msg)
    return value
