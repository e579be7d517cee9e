"""Any cut of the stream into spans gives the oracle's state, projected and filtered.

As in the property test of net change, hundreds of histories share one table and go through a handful of Spark jobs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import outline, span_files
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Target
from cdc_lake.config.rules import Between, Length, rule_name
from cdc_lake.config.silver_tables import Transforms
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.apply.schema_changes import projection_of
from cdc_lake.runtime.apply.table_schema import shape_of
from cdc_lake.runtime.apply.table_span import evaluate_rules, fold, type_changes
from cdc_lake.silver.changes import OP, read_changes
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.layout_mapping import make_shape
from cdc_lake.silver.net_change import unknown
from cdc_lake.silver.row_tracing import NOTHING_WAITS, QuarantineState
from cdc_lake_testing import histories
from cdc_lake_testing.histories import History, interleave
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.oracle import Oracle, Row
from cdc_lake_testing.partly_told import NOT_SENT, WAITS, PartlyTold
from tests.pipeline_file import make_project
from tests.seeds import one_seed

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEEDS = 60 * BUDGET
NAMES = ("seed", "id", "amount", "body", "note")
T = TableName("public", "many")
Key = tuple[Any, ...]

PRICE = (("amount", "price"),)
SIZE = ("size", "coalesce(length(body), 0)")
TRANSFORMS = Transforms(
    exclude=("note",),
    rename=PRICE,
    compute=(("twice", "amount * 2"), ("size", f"{SIZE[1]} + coalesce(length(note), 0)")),
)
FILTERED = Transforms(rename=PRICE, compute=(SIZE,), where="amount < 60 AND body IS NOT NULL")
AMOUNT = Between(rule="between", column="amount", min=0, max=49, on_fail="quarantine")
LENGTH = Length(rule="length", column="note", max=30, on_fail="quarantine")


@dataclass(frozen=True)
class Partly:
    """Transforms that read large values, with a rule. `reads`: the columns of `where`; `needed`: what must be known."""

    name: str
    transforms: Transforms
    rule: Between | Length
    reads: frozenset[str] = frozenset({"amount"})
    needed: frozenset[str] = frozenset(NAMES)

    @property
    def target(self) -> Target:
        return Target(T, "silver", "many", "delta", None, (self.rule,), transforms=self.transforms)

    def fails(self, row: Row) -> frozenset[str]:
        value = row.get(self.rule.column)
        broken = value is not None and (int(value) > 49 if isinstance(self.rule, Between) else len(value) > 30)
        return frozenset({rule_name(self.rule)} if broken else ())

    def oracle(self) -> PartlyTold:
        kept = set(NAMES).difference(self.transforms.exclude)
        matches = partial(taken, self.transforms)
        return PartlyTold(self.reads, self.needed, kept, matches, self.fails)


BY_NOTE = "amount < 60 AND coalesce(length(note), 20) > 12"
SMALL = "amount < 60"
PARTLY = [
    Partly("kept", FILTERED, AMOUNT, reads=frozenset({"amount", "body"})),
    Partly(
        "filtered by a column that silver lacks",
        Transforms(exclude=("note",), rename=PRICE, compute=(SIZE,), where=BY_NOTE),
        AMOUNT,
        reads=frozenset({"amount", "note"}),
    ),
    Partly(
        "judged by a column that silver lacks",
        Transforms(exclude=("note",), rename=PRICE, compute=(SIZE,), where=SMALL),
        LENGTH,
    ),
    Partly(
        "computed from a column that silver lacks",
        TRANSFORMS,
        LENGTH,
        reads=frozenset(),
        needed=frozenset({"amount", "body", "note"}),
    ),
]


def taken(transforms: Transforms, row: Row) -> bool:
    """Whether silver has a source row."""
    if transforms.where is None:
        return True
    small, note = row["amount"] is not None and int(row["amount"]) < 60, row.get("note")
    if transforms.where == BY_NOTE:
        return small and (20 if note is None else len(note)) > 12
    return small and (transforms.where == SMALL or row["body"] is not None)


def expected(row: Row, transforms: Transforms) -> dict[str, Any] | None:
    """What silver has of a source row."""
    amount = None if row["amount"] is None else int(row["amount"])
    body, note = row["body"], row["note"]
    if not taken(transforms, row):
        return None
    out: dict[str, Any] = {"seed": int(row["seed"] or 0), "id": int(row["id"] or 0), "price": amount, "body": body}
    if transforms is TRANSFORMS:
        return out | {"twice": None if amount is None else amount * 2, "size": len(body or "") + len(note or "")}
    return out | ({} if "note" in transforms.exclude else {"note": note}) | {"size": len(body or "")}


def matching(transactions: list[Transaction], transforms: Transforms) -> list[Transaction]:
    """What the server would have sent if its table had only the rows that match; what is left out is a message."""
    truth, out = Oracle(), []
    for one in transactions:
        rows = {key: [dict(row)] for key, row in truth.tables.get(T, {}).items()}
        changes = [_matching(change, rows, transforms) for change in one.changes]
        out.append(replace(one, changes=tuple(changes)))
        truth.apply(one)
    return out


def _matching(change: Change, rows: dict[Key, list[Row]], transforms: Transforms) -> Change:
    """One change, and `rows` after it. Of two rows at one key it is the one that the old row tells, else the first."""
    nothing = Message("", b"")
    if isinstance(change, Truncate | Message):
        rows.clear()
        return change
    names = change.relation.names

    def key(row: Row) -> Key:
        return (row["seed"], row["id"])

    before: Row | None = None
    if isinstance(change, Update | Delete):
        given = change.old if change.old is not None else change.new  # type: ignore[union-attr]
        told = dict(zip(names, given, strict=True))
        there = rows[key(told)]
        equal = [at for at, row in enumerate(there) if row == told]
        before = there.pop(equal[-1] if equal else 0)
    after: Row | None = None
    if isinstance(change, Insert | Update):
        sent = {n: v for n, v in zip(names, change.new, strict=True) if v is not UNCHANGED}
        after = {**(before or {}), **sent}  # type: ignore[dict-item]
        rows.setdefault(key(after), []).append(after)
    was = before is not None and expected(before, transforms) is not None
    matches = after is not None and expected(after, transforms) is not None
    if was and matches:
        return change
    if was:
        old = tuple(before[n] for n in names)  # type: ignore[index]
        return Delete(change.relation, old, OldKind.FULL)
    return Insert(change.relation, tuple(after[n] for n in names)) if matches else nothing  # type: ignore[index]


class Silver:
    """What MERGE means, on a dictionary of rows by key."""

    def __init__(self, columns: list[tuple[str, str]]) -> None:
        self.columns = columns
        self.rows: dict[Key, dict[str, Any]] = {}

    def frame(self, spark: Any) -> Any:
        kinds = {"int": pa.int32(), "string": pa.string()}
        data = {name: [row[name] for row in self.rows.values()] for name, _ in self.columns}
        return spark.createDataFrame(pa.table(data, schema=pa.schema([(n, kinds[k]) for n, k in self.columns])))

    def merge(self, net: list[dict[str, Any]], unsent: frozenset[int]) -> None:
        keys = [(row["seed"], row["id"]) for row in net]
        assert len(set(keys)) == len(keys), "one row a key"
        for key, row in zip(keys, net, strict=True):
            if row[OP] == "D":
                self.rows.pop(key, None)
                continue
            old, new = self.rows.get(key), {}
            for at, (name, _) in enumerate(self.columns):
                if at in unsent and row[unknown(at)]:
                    assert old is not None, "an unknown value needs a row that has it"
                    new[name] = old[name]
                else:
                    new[name] = row[name]
            self.rows[key] = new


class Apply:
    """Applies one bronze, in spans that end at `cuts`."""

    def __init__(self, spark: Any, bronze: Path, target: Target) -> None:
        self.spark, self.target, self.reader = spark, target, BronzeReader(bronze)
        self.quarantined: list[tuple[int, int, frozenset[str]]] = []
        self.quarantined_keys: set[tuple[str | None, ...]] = set()
        self.silver: Silver | None = None

    def to(self, cuts: list[int]) -> Silver:
        after = 10
        for upto in cuts:
            self._span(Span(1, after, upto))
            after = upto
        assert self.silver is not None
        return self.silver

    def _span(self, span: Span) -> None:
        files = self.reader.files()
        seen = outline(files, T, span, snapshot=False)
        if not seen.rows:
            return
        shape = make_shape(seen.layouts, self.reader.layouts([T]), None)
        projection = projection_of(self.spark, make_project(Path("/nowhere")), self.target, shape)
        self.silver = self.silver or Silver([(c.name, c.type) for c in projection.silver.columns])
        rows = read_changes(self.spark, span_files(files, T, span, snapshot=False), T, span, snapshot=False)
        rows = rows.coalesce(1)  # as it is done for a span of this size
        kind, frame, quarantined = (
            kind_of(self.target, shape.relation),
            self.silver.frame(self.spark),
            QuarantineState({(0, 0): frozenset(self.quarantined_keys)} if self.quarantined_keys else {}),
        )
        folded = fold(evaluate_rules(type_changes(rows, frame, self.target, kind, projection, seen, span, quarantined)))
        self.silver.merge(folded.net.toArrow().to_pylist(), folded.part.unsent)
        for row in [] if folded.quarantined is None else folded.quarantined.to_pylist():
            self.quarantined.append((row["position"], row["ordinal"], frozenset(row["rules"])))
            self.quarantined_keys |= {tuple(k) for k in (row["key"], row["from_key"]) if k is not None}


def layout_of(identity: ReplicaIdentity) -> Relation:
    types = dict.fromkeys(NAMES[:3], "int4") | dict.fromkeys(NAMES[3:], "text")
    return table("public.many", key=["seed", "id"], identity=identity, **types)


def remembered() -> list[Change]:
    """Histories that spans once made a difference to, at keys of their own."""
    default, full = layout_of(ReplicaIdentity.DEFAULT), layout_of(ReplicaIdentity.FULL)

    def row(seed: str, at: str, amount: str, large: Any = UNCHANGED) -> Any:
        return (seed, at, amount, large, large)

    def moved(seed: str, at: str, to: str, amount: str) -> Update:
        return Update(default, row(seed, to, amount), (seed, at, None, None, None), OldKind.KEY)

    large = "large 1 of fifteen"
    return [
        # A row leaves, comes back without its large values, is held, and moves: only the values it had tell it is out.
        Insert(default, row("-1", "1", "5", large)),
        Update(default, row("-1", "1", "70")),
        Update(default, row("-1", "1", "6")),
        moved("-1", "1", "2", "80"),
        Update(default, row("-1", "2", "7", large)),
        # A row leaves by moving, which only the values it had tell, and is deleted as one that never matched.
        Insert(default, row("-2", "1", "5", large)),
        moved("-2", "1", "2", "80"),
        Delete(full, row("-2", "2", "80", large), OldKind.FULL),
        Insert(full, row("-2", "2", "6", large)),
        Update(default, row("-2", "2", "70")),
    ]


def bronze_of(
    path: Path,
    phases: Sequence[tuple[ReplicaIdentity, int]],
    seed: int,
    large: set[str],
    more: Sequence[Change] = (),
) -> tuple[Path, list[Transaction]]:
    """`phases`: replica identities, one after the other, each with its number of transactions a history. `more`: changes
    behind them, each a transaction.
    """
    layouts = [layout_of(identity) for identity, _ in phases]
    made = [History(seed + n, layouts[:1], fixed={"seed": str(n)}, large=frozenset(large)) for n in range(SEEDS)]
    transactions: list[Transaction] = []
    for layout, (_, many) in zip(layouts, phases, strict=True):
        for history in made:
            history.add_column(layout)
        at = len(transactions)
        transactions += interleave(seed + at, made, SEEDS * many, first=1000 + 10 * at)
    for change in more:
        position = transactions[-1].bounds.position + 10
        transactions.append(Transaction(boundaries(position), (change,), (position,)))
    bronze = DeltaBronze(path / "bronze", durability="os")
    bronze.begin_stream("test", 10)
    bronze.append([raw_transaction(t) for t in transactions])
    return path / "bronze", transactions


@pytest.mark.parametrize(
    ("transforms", "identity", "large"),
    [
        (TRANSFORMS, ReplicaIdentity.DEFAULT, {"body"}),  # body is kept: silver tells what was not sent of it
        (FILTERED, ReplicaIdentity.FULL, {"body", "note"}),
    ],
)
def test_any_cut_gives_the_oracles_state_projected_and_filtered(
    spark: Any, tmp_path: Path, transforms: Transforms, identity: ReplicaIdentity, large: set[str]
) -> None:
    seed = one_seed()
    print(f"seed {seed}, {SEEDS} histories, identity {identity.name}, {transforms.where}")
    bronze, transactions = bronze_of(tmp_path, [(identity, 8)], seed, large)
    target = Target(T, "silver", "many", "delta", None, (AMOUNT,), transforms=transforms)

    def fails(_: TableName, row: Row) -> bool:
        return row["amount"] is not None and int(row["amount"]) > 49 and expected(row, transforms) is not None

    oracle = Oracle(fails=fails)
    oracle.run(matching(transactions, transforms))
    positions = [t.bounds.position for t in transactions]
    apply = Apply(spark, bronze, target)
    silver = apply.to([*sorted(random.Random(seed).sample(positions, 2)), positions[-1]])
    rows = [expected(row, transforms) for row in oracle.tables.get(T, {}).values()]
    assert silver.rows == {(row["seed"], row["id"]): row for row in rows if row is not None}
    assert sorted((position, ordinal) for position, ordinal, _ in apply.quarantined) == sorted(oracle.quarantined)
    assert apply.quarantined


def test_a_row_that_enters_at_a_key_before_the_one_that_has_it_moves_out_stays(spark: Any, tmp_path: Path) -> None:
    """Keys that are checked at the end of the transaction: for a while two rows have one."""
    layout = layout_of(ReplicaIdentity.FULL)

    def row(at: str, amount: str, body: str | None) -> Any:
        return ("7", at, amount, body, None)

    def update(old: Any, new: Any) -> Update:
        return Update(layout, new, old, OldKind.FULL)

    there, outside = row("1", "40", "there"), row("2", "4", None)
    bronze = DeltaBronze(tmp_path / "bronze", durability="os")
    bronze.begin_stream("test", 10)
    enters, leaves = update(outside, row("1", "5", "came")), update(there, row("2", "40", None))
    for position, changes in ((1000, [Insert(layout, there), Insert(layout, outside)]), (1010, [enters, leaves])):
        bronze.append([raw_transaction(Transaction(boundaries(position), tuple(changes)))])
    target = Target(T, "silver", "many", "delta", None, (), transforms=FILTERED)
    for cuts in ([1000, 1010], [1010]):
        silver = Apply(spark, tmp_path / "bronze", target).to(cuts)
        assert [(key, one["body"], one["price"]) for key, one in silver.rows.items()] == [((7, 1), "came", 5)]


def test_what_cannot_be_worked_out_is_held_the_same_in_any_batching(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come in with values that were not sent: those changes are held, later ones of their keys wait, by a
    definition that knows no spans. In between the server is told to log whole rows.

    Without what a deferred constraint allows: a key that the server logs alone is one that it checks at once.
    """
    monkeypatch.setattr(histories, "KINDS", {k: n for k, n in histories.KINDS.items() if k not in histories.DEFERRED})
    seed = one_seed()
    for partly in PARTLY if BUDGET > 1 else [random.Random(seed).choice(PARTLY)]:
        print(f"CDC_LAKE_SEED={seed}, {SEEDS} histories, {partly.name}")
        default, full = ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL
        phases = [(default, 5), (full, 1), (default, 2)]
        bronze, transactions = bronze_of(tmp_path / partly.name, phases, seed, {"body", "note"}, remembered())
        oracle = partly.oracle()
        oracle.run(transactions)
        apply = Apply(spark, bronze, partly.target)
        positions = [t.bounds.position for t in transactions]
        silver = apply.to([*sorted(random.Random(seed).sample(positions, 2)), positions[-1]])
        rows = [expected(row, partly.transforms) for row in oracle.rows.values()]
        assert silver.rows == {(row["seed"], row["id"]): row for row in rows if row is not None}
        assert sorted(apply.quarantined) == sorted(oracle.quarantined)
        assert apply.quarantined_keys == oracle.waiting
        assert {WAITS, NOT_SENT, frozenset({rule_name(partly.rule)})} <= {
            reasons for _, _, reasons in oracle.quarantined
        }


@pytest.mark.parametrize("identity", [ReplicaIdentity.FULL, ReplicaIdentity.DEFAULT])
def test_every_change_has_what_the_server_said_of_the_old_row_by_silvers_names(
    spark: Any, tmp_path: Path, identity: ReplicaIdentity
) -> None:
    seed = one_seed()
    print(f"seed {seed}, {SEEDS} histories, identity {identity.name}")
    bronze, transactions = bronze_of(tmp_path, [(identity, 8)], seed, {"body"})
    target = Target(
        T,
        "silver",
        "many",
        "delta",
        None,
        (),
        kind="append",
        old_values=True,
        transforms=replace(TRANSFORMS, compute=()),
    )
    names = {"seed": "seed", "id": "id", "amount": "price", "body": "body"}
    wanted = []
    for one in transactions:
        for at, change in enumerate(one.changes, start=1):
            if isinstance(change, Message):
                continue
            old = () if isinstance(change, Insert | Truncate) else change.old or ()
            said = dict(zip(change.relation.names, old, strict=True)) if old else {}  # type: ignore[union-attr]
            values = {f"_old_{silver}": said.get(name) for name, silver in names.items()}
            wanted.append({"_position": one.bounds.position, "_ordinal": at, **values})
    reader, span = BronzeReader(bronze), Span(1, 10, transactions[-1].bounds.position)
    files = reader.files()
    seen, layouts = outline(files, T, span, snapshot=False), reader.layouts([T])
    kind = kind_of(target, layouts[seen.layouts[-1]])
    shape = shape_of(seen.layouts, layouts, target, kind)
    projection = projection_of(spark, make_project(Path("/nowhere")), target, shape)
    rows = read_changes(spark, span_files(files, T, span, snapshot=False), T, span, snapshot=False, truncates=True)
    net = fold(evaluate_rules(type_changes(rows, None, target, kind, projection, seen, span, NOTHING_WAITS))).net
    assert not {"note", "_old_note", "amount", "_old_amount"} & set(net.columns)
    found = net.select(*wanted[0]).orderBy("_position", "_ordinal").toArrow().to_pylist()
    texts = [{k: v if v is None or k[:4] != "_old" else str(v) for k, v in row.items()} for row in found]
    assert texts == wanted
    assert any(row["_old_id"] for row in texts)
