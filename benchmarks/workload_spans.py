"""The changes that spans are made of: one a key, the same for ours and for peers, and the net rows they amount to."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from cdc_lake.model.change import Change, Delete, Insert, OldKind, Update
from cdc_lake.model.relation import Relation
from cdc_lake_testing.messages import table

ROUNDS_AT_MOST = 16
SPREAD, RECENT, NEW = "spread", "recent", "new"
STATES = ("new", "packed", "sent", "returned")
_START = datetime(2026, 1, 1, tzinfo=UTC)
BASE = {
    "id": "id",
    "customer": "id * 7919 % 100003",
    "state": "element_at(array('new', 'packed', 'sent', 'returned'), cast(1 + id % 4 AS int))",
    "amount": "cast((id % 99999) / 100 AS decimal(12,2))",
    "quantity": "cast(id % 17 AS int)",
    "note": "concat(md5(cast(id AS string)), md5(cast(id + 1 AS string)), md5(cast(id + 2 AS string)))",
    "email": "concat('customer', id % 100003, '@example.org')",
    "created": "timestamp_seconds(1767225600 + id)",
    "changed": "cast(timestamp_seconds(1767225600 + id) AS timestamp_ntz)",
    "paid": "id % 3 = 0",
}
"""Rows of the table before the first round, over a column `id`."""

NET = pa.schema(
    [
        ("op", pa.string()), ("id", pa.int64()), ("customer", pa.int64()), ("state", pa.string()),
        ("amount", pa.decimal128(12, 2)), ("quantity", pa.int32()), ("note", pa.string()), ("email", pa.string()),
        ("created", pa.timestamp("us", tz="UTC")), ("changed", pa.timestamp("us")), ("paid", pa.bool_()),
    ]
)  # fmt: skip


def orders(name: str) -> Relation:
    """Ten columns: three numbers, three texts, two times, a decimal and a boolean."""
    layout = table(
        f"public.{name}", id="int8", customer="int8", state="text", amount="numeric", quantity="int4", note="text",
        email="text", created="timestamptz", changed="timestamp", paid="bool",
    )  # fmt: skip
    bounded = tuple(replace(c, modifier=(12 << 16 | 2) + 4) if c.name == "amount" else c for c in layout.columns)
    return replace(layout, columns=bounded)


class Workload:
    """The changes of one table, one a key: 70 % updates and 5 % deletes of rows, 25 % inserts.

    `keys`: the rows are `spread` over it, or `recent`, of its last quarter; with `new` everything is inserted.
    """

    def __init__(self, layout: Relation, rows: int, changes: int, keys: str = SPREAD) -> None:
        self.layout = layout
        self._rows = rows
        self._changes = changes
        self._keys = keys

    def round(self, number: int) -> tuple[list[Change], pa.Table]:
        """The changes of a round, and their net rows."""
        rng = random.Random(f"{self.layout.table} {number}")
        updates, inserts = self._changes * 70 // 100, self._changes * 25 // 100
        if self._keys == NEW:
            updates, inserts = 0, self._changes
        deletes = self._changes - updates - inserts
        # every round has keys of its own, so that no round changes a row that another one deleted
        slots = self._rows // ROUNDS_AT_MOST
        keys = rng.sample(range(slots * 3 // 4 if self._keys == RECENT else 0, slots), updates + deletes)
        touched = [key * ROUNDS_AT_MOST + number for key in keys]
        fresh = range(self._rows + number * inserts, self._rows + (number + 1) * inserts)
        plan = [("U", key) for key in touched[:updates]] + [("D", key) for key in touched[updates:]]
        plan += [("I", key) for key in fresh]
        rng.shuffle(plan)
        net = [self._row(op, key, rng) for op, key in plan]
        return [self._change(row) for row in net], pa.Table.from_pylist(net, schema=NET)

    def _row(self, op: str, key: int, rng: random.Random) -> dict[str, Any]:
        if op == "D":
            return {"op": "D", "id": key}
        at = _START + timedelta(microseconds=rng.randrange(10**13))
        return {
            "op": op,
            "id": key,
            "customer": rng.randrange(100_003),
            "state": "changed" if op == "U" else STATES[key % 4],
            "amount": Decimal(rng.randrange(10_000_000)).scaleb(-2),
            "quantity": rng.randrange(17),
            "note": f"{rng.getrandbits(384):096x}",
            "email": f"customer{rng.randrange(100_003)}@example.org",
            "created": at,
            "changed": at.replace(tzinfo=None),
            "paid": rng.random() < 0.3,
        }

    def insert(self, key: int) -> Insert:
        """A new row."""
        return Insert(self.layout, tuple(_printed(v) for v in self._row("I", key, random.Random(key)).values())[1:])

    def inserted(self, keys: range) -> pa.Table:
        """The rows that `insert` makes of these keys, typed."""
        rows = [self._row("I", key, random.Random(key)) for key in keys]
        return pa.Table.from_pylist(rows, schema=NET).drop_columns(["op"])

    def _change(self, row: dict[str, Any]) -> Change:
        if row["op"] == "D":
            return Delete(self.layout, (str(row["id"]), *([None] * 9)), OldKind.KEY)
        new = tuple(_printed(row[c.name]) for c in self.layout.columns)
        return Insert(self.layout, new) if row["op"] == "I" else Update(self.layout, new)


def _printed(value: object) -> str:
    """A value as the server prints it."""
    match value:
        case bool():
            return "t" if value else "f"
        case datetime():
            text = value.replace(tzinfo=None).isoformat(" ")
            text = text.rstrip("0") if "." in text else text
            return text + ("+00" if value.tzinfo else "")
    return str(value)
