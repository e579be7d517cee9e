"""Random tables: how each is kept, identified and typed, the histories it carries, and what silver must hold of it.

A table carries several histories, told apart by its first column, so that they share its spans and merges.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cdc_lake.model.change import Change, Transaction, Truncate
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake_testing.copies import CopiesHistory, CopiesOracle
from cdc_lake_testing.expected import AppendRows, CopiesRows, CurrentRows, Expected, HistoryRows
from cdc_lake_testing.histories import AT_LIMITS, LINE_BREAKS, History, with_column
from cdc_lake_testing.messages import TYPE_OIDS, boundaries
from cdc_lake_testing.oracle import Key, Oracle, Row, Versions

Way = Literal["current", "soft", "history", "tracked", "append", "copies"]
WAYS: tuple[Way, ...] = ("current", "current", "soft", "history", "tracked", "append", "copies")
LIMIT = 89
RULE = {"rule": "between", "column": "amount", "min": 0, "max": LIMIT, "on_fail": "quarantine"}


@dataclass(frozen=True)
class Kind:
    """A server type, texts of values, and of values that its silver type cannot hold."""

    column: Column
    fit: tuple[str, ...]
    misfit: tuple[str, ...] = ()


def _kind(name: str, fit: Sequence[str], misfit: Sequence[str] = (), *, modifier: int = -1) -> Kind:
    return Kind(Column(f"of_{name}", name, TYPE_OIDS[name], modifier), tuple(fit), tuple(misfit))


KINDS = (
    _kind("int8", ["-9223372036854775808", "9223372036854775807", "0"]),
    _kind("numeric", ["1.50", "-0.01", "99999999.99"], ["NaN"], modifier=((10 << 16) | 2) + 4),
    _kind("float8", ["0.1", "NaN", "-Infinity", "5e-324"]),
    _kind("bool", ["t", "f"]),
    _kind("bytea", ["\\x", "\\x00ff10"]),
    _kind("date", ["0001-01-01", "2024-02-29", "9999-12-31"], ["infinity", "0044-03-15 BC"]),
    _kind("timestamp", ["2024-03-31 02:30:00", "1969-12-31 23:59:59.999999"], ["-infinity", "10000-01-01 00:00:00"]),
    _kind("timestamptz", ["2024-10-27 01:30:00+00", "1969-12-31 23:59:59.5+00"], ["infinity"]),
    _kind("varchar", ["", "null", "unchanged-toast-datum", "Größe 漢字 😀", "\t\n'\"\\", *LINE_BREAKS, *AT_LIMITS]),
)  # fmt: skip
MISFITS = {kind.column.name: frozenset(kind.misfit) for kind in KINDS}
IDENTITIES = 5
QUOTED = ("it's", 'a "b"', " ", "", "NULL", "ä;--")
"""Keys of a text column with a name that needs quotes."""


def misfits(row: Mapping[str, str | None]) -> bool:
    """Whether a row has a value without a silver one."""
    return any(value in MISFITS.get(name, ()) for name, value in row.items())


@dataclass(frozen=True)
class RandomTable:
    """A source table, its section of the pipeline file, and its histories."""

    way: Way
    relation: Relation
    keys: tuple[str, ...]
    section: dict[str, Any]
    histories: list[History] | list[CopiesHistory]

    def __str__(self) -> str:
        return f"{self.relation.table} ({self.relation.identity.name}, {self.section})"

    def fails(self, row: Mapping[str, str | None]) -> bool:
        """Whether a row is held: by the rule, or as a value without a silver one."""
        amount = row.get("amount")
        return misfits(row) or ("rules" in self.section and amount is not None and int(amount) > LIMIT)

    def expected(self) -> Expected:
        """What silver must hold, before the first transaction."""
        name, lineage = self.relation.table, bool(self.section.get("lineage"))
        if self.way == "copies":
            names = self.relation.names
            copies = CopiesOracle(fails=lambda row: self.fails(dict(zip(names, row, strict=True))))
            return CopiesRows(self.relation, copies, lineage)
        if self.way == "append":
            return AppendRows(name, self.fails, misfits, bool(self.section.get("old_values")))
        missing = "missing_row" in self.section
        oracle = Oracle({name: self.keys}, fails=lambda _, row: self.fails(row), missing=missing)
        if self.way in {"history", "tracked"}:
            track = self.section.get("track")
            return HistoryRows(name, Versions(oracle, {} if track is None else {name: tuple(track)}), lineage)
        return CurrentRows(name, oracle, lineage, soft=self.way == "soft")

    @property
    def is_read_again(self) -> bool:
        """Whether rows are read again: what they are is no change, and has no lineage that could be foretold."""
        return self.way not in {"append", "copies"} and not self.section.get("lineage")

    def changes(self, history: History | CopiesHistory, position: int) -> tuple[Change, ...]:
        """What one of the histories does in a transaction; a TRUNCATE empties the table for the others too."""
        made = history.transaction(position).changes
        if any(isinstance(change, Truncate) for change in made):
            for other in self.histories:
                if isinstance(other, CopiesHistory) and other is not history:
                    other.emptied()
                elif isinstance(other, History) and other is not history:
                    other.emptied(self.relation.table)
        return made

    def reread(self, dice: random.Random) -> dict[Key, Row | None]:
        """Some keys that its histories know, and some that they do not, with the rows that the source has of them."""
        rows = [row for one in self.histories if isinstance(one, History) for row in one.rows(self.relation.table)]
        found: dict[Key, Row | None] = {tuple(row[name] for name in self.keys): dict(row) for row in rows}
        for key in dice.sample(sorted(found, key=repr), len(found) // 2):
            other = (key[0], *dice.choice(sorted(found, key=repr))[1:])
            found.setdefault(other, None)
        return {key: found[key] for key in dice.sample(sorted(found, key=repr), min(len(found), 6))}

    def evolved(self) -> RandomTable:
        """The same with one more column from here on."""
        relation = with_column(self.relation, "note", "text", TYPE_OIDS["text"])
        for history in self.histories:
            assert isinstance(history, History)
            history.add_column(relation)
        return replace(self, relation=relation)


def random_tables(seed: int, histories: int, truncates: int = 8) -> list[RandomTable]:
    """A table for each of `WAYS`, with that many histories each; `truncates`: of a thousand transactions."""
    dice = random.Random(seed)
    identities = dice.sample([*range(IDENTITIES), *range(IDENTITIES)], len(WAYS))
    return [
        _table(dice, way, f"{way}_{n}", identities[n], [seed + 1000 * n + m for m in range(histories)], truncates)
        for n, way in enumerate(WAYS)
    ]


def _table(
    dice: random.Random, way: Way, name: str, identity: int, seeds: Sequence[int], truncates: int
) -> RandomTable:
    section: dict[str, Any] = {"from": f"public.{name}"}
    if way == "soft":
        section["deletes"] = "soft"
    elif way in {"history", "tracked"}:
        section["kind"] = "history"
    elif way == "append":
        section |= {"kind": "append", "old_values": dice.random() < 0.5}
    if dice.random() < 0.5:
        section["rules"] = [RULE]
    lineage = way != "append" and dice.random() < 0.5
    section |= {"lineage": True} if lineage else {}
    typed = dice.sample(KINDS, dice.randint(1, 3))
    if way == "tracked":
        section["track"] = ["amount", *dice.sample([kind.column.name for kind in typed], dice.randint(0, 1))]
    texts = {kind.column.name: kind.fit * 8 + kind.misfit for kind in typed}
    others = [*(kind.column for kind in typed), _column("amount", "int4"), _column("body", "text")]
    if way == "copies":
        columns = [_column("h", "int4"), *others[-3:]]
        relation = _relation(name, columns, {c.name for c in columns}, ReplicaIdentity.FULL)
        few = {one.column.name: (*one.fit[:2] * 8, *one.misfit) for one in typed}
        few["amount"] = (*("1", "2") * 8, str(LIMIT + 1))
        made = [
            CopiesHistory(one, relation, first=str(n), truncates=truncates, texts=few) for n, one in enumerate(seeds)
        ]
        return RandomTable(way, relation, (), section, made)
    relation, keys, given = _identified(identity, name, others)
    if given:
        section["keys"] = list(keys)
    missing = way != "append" and dice.random() < 0.3
    if missing:
        section["missing_row"] = "hold"
    nullable = frozenset({"maybe"})
    rows = [
        History(
            one,
            [relation],
            fixed={"h": str(n)},
            keys=5,
            truncates=truncates,
            identified={relation.table: keys},
            nullable=nullable,
            texts=texts | {"Order Id": QUOTED},
        )
        for n, one in enumerate(seeds)
    ]
    for history in rows if missing else ():  # the stream began without a copy of these rows
        for _ in range(3):
            history.transaction(0)
    return RandomTable(way, relation, keys, section, rows)


def _identified(identity: int, name: str, others: Sequence[Column]) -> tuple[Relation, tuple[str, ...], bool]:
    """A relation, what identifies its rows, and whether the pipeline has to say so."""
    h, id_ = _column("h", "int4"), _column("id", "int4")
    full = ReplicaIdentity.FULL
    match identity:
        case 0:
            odd = [h, _column("Order Id", "text"), *others]
            key = ("h", "Order Id")
            return _relation(name, odd, {c.name for c in odd}, full, key), key, False
        case 1:
            key = ("h", "code")
            return (
                _relation(name, [h, id_, _column("code", "int4"), *others], {*key}, ReplicaIdentity.INDEX, ("id",)),
                key,
                False,
            )
        case 2:
            maybe = [h, _column("maybe", "int4"), *others]
            return _relation(name, maybe, {c.name for c in maybe}, full), ("h", "maybe"), True
        case 3:
            key = ("h", "id")
            whole = [h, id_, *others]
            return _relation(name, whole, {c.name for c in whole}, full, key), key, False
        case _:
            key = ("h", "id")
            return _relation(name, [*others, h, id_], {*key}, ReplicaIdentity.DEFAULT, key), key, False


def _column(name: str, kind: str) -> Column:
    return Column(name, kind, TYPE_OIDS[kind])


def _relation(
    name: str, columns: Sequence[Column], logged: set[str], identity: ReplicaIdentity, key: tuple[str, ...] = ()
) -> Relation:
    flagged = tuple(replace(c, key=c.name in logged) for c in columns)
    return Relation(TableName("public", name), flagged, identity, key)


@dataclass(frozen=True)
class Reread:
    """What the source has of some keys of a table right before a position."""

    relation: Relation
    names: tuple[str, ...]
    position: int
    rows: dict[Key, Row | None]


@dataclass
class Traffic:
    """Transactions over tables: each has changes of a few histories of any of them. `rereads`: what is read again of
    tables behind the transaction at a position.
    """

    seed: int
    tables: list[RandomTable]
    position: int = 1000
    dice: random.Random = field(init=False)
    rereads: dict[int, list[Reread]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def transactions(self, count: int) -> list[Transaction]:
        """The next ones."""
        out = []
        for _ in range(count):
            changes: list[Change] = []
            for table in self.dice.choices(self.tables, k=self.dice.randint(1, 3)):
                changes += table.changes(self.dice.choice(table.histories), self.position)
            bounds = boundaries(self.position)
            out.append(Transaction(bounds, tuple(changes), tuple(self.position for _ in changes)))
            self.rereads[self.position] = [
                Reread(one.relation, one.keys, self.position + 1, one.reread(self.dice))
                for one in self.tables
                if one.is_read_again and self.dice.random() < (0.2 if "missing_row" in one.section else 0.05)
            ]
            self.position += 10
        return out
