"""Random histories of a table: which columns a change announced is found, or said to be in doubt, and never wrong."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

from cdc_lake.decode.historic_catalog import Attribute, Named, identify, precedes
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from tests.seeds import one_seed

HISTORIES = 3000 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))
NAMES = "abcd"
TYPES = (23, 25)


@dataclass
class Catalog:
    """A table's columns as commands leave them, all of them, and the number of the next transaction."""

    dice: random.Random
    xid: int
    attributes: list[Attribute] = field(default_factory=list)

    @property
    def columns(self) -> list[Attribute]:
        return [one for one in self.attributes if one.name is not None]

    def alter(self) -> None:
        """One command."""
        free = [name for name in NAMES if name not in {one.name for one in self.columns}]
        match self.dice.choice(("add", "add", "drop", "rename", "retype")):
            case "add" if free:
                name, kind = self.dice.choice(free), self.dice.choice(TYPES)
                self.attributes.append(Attribute(len(self.attributes) + 1, name, kind, changed=self.xid))
            case "drop" if self.columns[1:]:
                self._put(replace(self.dice.choice(self.columns[1:]), name=None, type_oid=0))
            case "rename" if self.columns[1:] and free:
                self._put(replace(self.dice.choice(self.columns[1:]), name=self.dice.choice(free)))
            case "retype" if self.columns[1:]:
                self._put(replace(self.dice.choice(self.columns[1:]), type_oid=self.dice.choice(TYPES)))
            case _:
                pass

    def alter_some(self, most: int) -> None:
        """Commands, each in a transaction of its own or several in one."""
        for _ in range(self.dice.randint(0, most)):
            self.alter()
            self.xid += self.dice.random() < 0.7

    def _put(self, one: Attribute) -> None:
        self.attributes[one.number - 1] = replace(one, changed=self.xid)


def wrapped(xid: int) -> int:
    """As 32 bits: behind the greatest number comes 3."""
    return xid if xid < 1 << 32 else xid % (1 << 32) + 3


def layout(columns: list[Attribute]) -> Relation:
    told = tuple(Column(one.name or "", str(one.type_oid), one.type_oid, number=one.number) for one in columns)
    return Relation(TableName("public", "t"), told, ReplicaIdentity.DEFAULT, ("id",), 1)


def test_numbers_of_transactions_come_round_but_for_those_of_64_bits() -> None:
    top = 1 << 32
    older = [(3, 4), (top - 1, 3), (5, top + 5), (top + 5, 3 * top)]
    assert all(precedes(*pair) and not precedes(*reversed(pair)) for pair in older)
    assert precedes(2, top - 1), "frozen"
    assert not precedes(4, 4)
    assert not precedes(None, 4)


def test_a_column_is_found_or_in_doubt_and_never_taken_for_another() -> None:
    seed = one_seed()
    print(f"seed {seed}")
    doubtful = wrongly = 0
    for n in range(HISTORIES):
        dice = random.Random(seed + n)
        catalog = Catalog(dice, dice.choice([100, (1 << 32) - 5]))
        catalog.attributes.append(Attribute(1, "id", 23, changed=catalog.xid))
        for _ in range(dice.randint(1, 3)):
            catalog.alter()
        catalog.xid += 1
        catalog.alter_some(4)
        before = layout(catalog.columns) if dice.random() < 0.9 else None
        catalog.xid += 1
        catalog.alter_some(3)
        catalog.xid += dice.choice([0, 1])  # altered inside of the transaction, or before it
        xid, then = catalog.xid, catalog.columns
        waited = dice.random() < 0.3  # who waits for the table's lock has its number before, and alters it afterwards
        catalog.xid += -1 if waited else dice.choice([0, 1])
        catalog.alter_some(3)
        announced = [Named(one.name or "", one.type_oid, one.modifier) for one in then]
        attributes = [replace(one, changed=wrapped(one.changed or 0)) for one in catalog.attributes]
        found = identify(announced, attributes, before, wrapped(xid))
        assert found is not None, f"seed {seed + n}"
        wrong = {at for at, (one, number) in enumerate(zip(then, found.numbers, strict=True)) if one.number != number}
        wrongly += waited and not wrong <= found.ambiguous
        assert waited or wrong <= found.ambiguous, (
            f"seed {seed + n}: {wrong} of {announced}, {attributes} at {xid} behind {before}"
        )
        doubtful += bool(found.ambiguous)
    assert doubtful < HISTORIES / 7
    assert wrongly <= HISTORIES / 1000  # more was altered than a shorter history tells
