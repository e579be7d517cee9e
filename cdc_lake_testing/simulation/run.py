"""A simulated history: receivers start and die until bronze has what a server committed; then everything is checked."""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.connectors.open_stream import ReceiverHealth
from cdc_lake.errors import AnotherReceiver, DecodeError, LakeError, SourceError
from cdc_lake.model.change import (
    UNCHANGED,
    Boundaries,
    Change,
    Delete,
    Insert,
    OldKind,
    Transaction,
    Truncate,
    Tuple,
    Update,
)
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake.observability import failpoints
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.loop import ReceiveLoop
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import table
from cdc_lake_testing.simulation.kinds import Gauss, Postgres
from cdc_lake_testing.simulation.server import SimulatedServer
from cdc_lake_testing.simulation.streamed import Streaming
from cdc_lake_testing.simulation.table import SimulatedTable, Store
from cdc_lake_testing.simulation.world import Died, World

POINTS = (
    failpoints.COMMIT_RECEIVED, failpoints.STATE_READ, failpoints.FILE_WRITTEN, failpoints.BRONZE_COMMITTED,
    failpoints.CONFIRMED, failpoints.PREPARE_KEPT, failpoints.PREPARE_ENDED, failpoints.PREPARE_CLEANED,
)  # fmt: skip
"""Where a receiver dies, beside between any two of its steps."""
RELATIONS = (
    table("public.orders", id="int4", amount="int4", body="text"),
    table("public.lines", key=["id", "line"], identity=ReplicaIdentity.FULL, id="int4", line="int4", body="text"),
)
MOST_CONNECTIONS = 5_000
PIPELINE = "version: 1\npipeline: shop\nsource: {type: postgres, host: h, database: d, user: u, tables: ['public.*']}\n"


@dataclass(frozen=True)
class Played:
    """What a history came to. `met`: what went wrong in it, by name, and how often. `landed`: what bronze holds."""

    commits: int
    met: Counter[str]
    landed: Sequence[Transaction]
    expected: Sequence[Transaction]


@cache
def project() -> Project:
    """A pipeline, for its limits."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "shop.yaml")
        file.write_text(PIPELINE, encoding="utf-8")
        return load_project(file)


def play(seed: int, transactions: int = 200, kind: str = "pg") -> Played:
    """The history of a seed, to its end. Raises AssertionError where bronze is not what was committed."""
    dice = random.Random(f"{seed} {kind}")
    world = World(dice, stormy=dice.choice((0.0, 0.1, 0.2, 0.4)))
    server_kind = _kind(kind, dice, transactions, world)
    store = Store()
    server = SimulatedServer(server_kind, world, store)
    settings = _limits(dice)
    for _ in range(MOST_CONNECTIONS):
        if _process(settings, server, store, world):
            break
    else:
        msg = f"no end after {MOST_CONNECTIONS} processes: {world.met}"
        raise AssertionError(msg)
    played = Played(len(store.versions), world.met, list(transactions_of(store.rows())), server_kind.expected)
    check(played, store)
    if isinstance(server_kind, Streaming):
        server_kind.check(store, world.met)
    return played


def _kind(kind: str, dice: random.Random, transactions: int, world: World) -> Postgres | Gauss | Streaming:
    # of PostgreSQL some values are not sent; a TRUNCATE the family does not tell in style b
    large, truncates = (frozenset[str](), 0) if kind == "gauss" else (frozenset({"body"}), 20)
    history = History(dice.getrandbits(32), RELATIONS, large=large, truncates=truncates)
    made, position = [], 100
    for _ in range(transactions):
        position += dice.randint(60, 1_000)
        one = history.transaction(position)
        empty = dice.random() < 0.1
        made.append(Transaction(one.bounds, ()) if empty and not one.changes else one)
    match kind:
        case "pg":
            return Postgres(made, RELATIONS)
        case "streamed":
            return Streaming(made, RELATIONS, world)
    return Gauss(made, RELATIONS, world)


def _limits(dice: random.Random) -> Project:
    """The pipeline with limits of batches by chance."""
    given = project()
    batch = given.pipeline.bronze.batch.model_copy(
        update={
            "max_rows": dice.choice((1, 20, 100, 100_000)),
            "max_transactions": dice.choice((1, 5, 10, 30, 20_000)),
            "max_delay": dice.choice((1, 200, 5_000)),
        }
    )
    bronze = given.pipeline.bronze.model_copy(update={"batch": batch})
    return replace(given, pipeline=given.pipeline.model_copy(update={"bronze": bronze}))


def _process(settings: Project, server: SimulatedServer, store: Store, world: World) -> bool:
    """One process from its start to its end; True where it had nothing more to do."""
    bronze = TableBronze(SimulatedTable(store, world), clock=world.wall_clock, worker=world.worker)
    run = ReceiveLoop(
        settings, bronze, control_tables(settings), once=True, stop=threading.Event(), report=silent,
        connected=nullcontext(), health=ReceiverHealth(world.clock), clock=world.clock, worker=world.worker,
    )  # fmt: skip
    dies = world.dice.random() < world.stormy * 0.5
    failpoints.arm(f"{world.dice.choice(POINTS)}:{world.dice.randint(1, 4)}" if dies else "", partial(_die, world))
    try:
        for _ in range(MOST_CONNECTIONS):
            try:
                run.run(server.connect(bronze.state() or bronze.begin_stream("pg:1:d:s:0/0", *server.kind.start)))
            except (SourceError, LakeError):
                world.now += 1.0  # the pause before the next attempt
            else:
                return True
    except (Died, AnotherReceiver, DecodeError):
        return False
    finally:
        failpoints.arm("")
    return False


def _die(world: World) -> None:
    world.met["process died"] += 1
    raise Died


def check(played: Played, store: Store) -> None:
    """Everything committed is there once, in order, whole and as it was; no watermark went back."""
    expected = [one for one in played.expected if one.changes]
    assert [one.bounds.position for one in played.landed] == [one.bounds.position for one in expected]
    for one, other in zip(played.landed, expected, strict=True):
        assert one.changes == other.changes, f"the transaction at {one.bounds.position}"
    states = [version.state for version in store.versions if version.state is not None]
    marks = [(state.upto, state.confirm) for state in states]
    assert marks == sorted(marks), "a watermark went back"


def transactions_of(rows: pa.Table) -> Iterator[Transaction]:
    """What rows of bronze, in the order they landed, say was committed."""
    told: Any = zip(*(rows[name].to_pylist() for name in Landed._fields), strict=True)
    landed = list(map(Landed._make, told))
    layouts = {row.layout: Relation.from_description(json.loads(row.info)) for row in landed if row.op == "R"}
    for position, some in groupby((row for row in landed if row.op != "R"), attrgetter("position")):
        group = list(some)
        assert [row.ordinal for row in group] == list(range(len(group))), "a transaction is not whole, or twice"
        assert (group[0].op, group[-1].op) == ("B", "C")
        changes = tuple(_change(row, layouts[row.layout]) for row in group[1:-1])
        yield Transaction(Boundaries(position, position), changes)


class Landed(NamedTuple):
    """A row of bronze, as far as it is looked at."""

    position: int
    ordinal: int
    op: str
    layout: int
    new: list[str | None] | None
    old: list[str | None] | None
    old_kind: str | None
    unchanged: list[int] | None
    info: Any


def _change(row: Landed, relation: Relation) -> Change:
    new: Tuple = tuple(row.new or ())
    if row.unchanged:
        new = tuple(UNCHANGED if at in row.unchanged else value for at, value in enumerate(new))
    old = None if row.old is None else tuple(row.old)
    kind = None if row.old_kind is None else OldKind(row.old_kind)
    match row.op:
        case "I":
            return Insert(relation, new)
        case "U":
            return Update(relation, new, old, kind)
        case "D":
            return Delete(relation, old, kind)
    said = json.loads(row.info or "{}")
    return Truncate(relation, said.get("cascade", False), said.get("restart_identity", False))
