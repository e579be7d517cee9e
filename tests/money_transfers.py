"""Money that moves between tables, and a reader of it in a process of its own."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

import cdc_lake
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.model.change import Change, Insert, Update
from cdc_lake.model.relation import Relation
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import table

CURRENCIES = {"euro": ("d1", "d2"), "yen": ("d1", "i1"), "peso": ("i1", "i2")}
"""Each moves between two tables: of Delta, of both formats, of Iceberg."""

TABLES: dict[str, Relation] = {
    name: table(f"public.{name}", id="int4", euro="int8", yen="int8", peso="int8") for name in ("d1", "d2", "i1", "i2")
}
ACCOUNTS, EACH = 8, 1000
TOTAL = 2 * ACCOUNTS * EACH
_NAIVE_EVERY = 5  # of so many reads one is followed by one of the newest versions


class Bank:
    """The accounts as the source has them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._rows = {name: {n: dict.fromkeys(CURRENCIES, EACH) for n in range(ACCOUNTS)} for name in TABLES}

    def opened(self) -> tuple[Change, ...]:
        """The transaction that opens all accounts."""
        return tuple(Insert(TABLES[name], self._tuple(name, n)) for name in TABLES for n in range(ACCOUNTS))

    def moved(self) -> tuple[Change, ...]:
        """A transaction that moves some of each currency from an account of one table to one of the other."""
        changes: list[Change] = []
        for currency, pair in CURRENCIES.items():
            giver, taker = self._random.sample(pair, 2)
            amount = self._random.randint(1, 90)
            for name, sign in ((giver, -1), (taker, 1)):
                account = self._random.randrange(ACCOUNTS)
                self._rows[name][account][currency] += sign * amount
                changes.append(Update(TABLES[name], self._tuple(name, account)))
        return tuple(changes)

    def _tuple(self, name: str, account: int) -> tuple[str, ...]:
        return (str(account), *map(str, self._rows[name][account].values()))


def total(read: Callable[[str], pa.Table], currency: str) -> int:
    """What there is of a currency in the two tables that have it."""
    return sum(int(pc.sum(read(name)[currency]).as_py() or 0) for name in CURRENCIES[currency])


class Reader:
    """Reads all the time, at the latest cut and now and then at the newest versions, until it is left."""

    def __init__(self, project: Project) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._stop, self._reads, self._naively_broken = spawn.Event(), spawn.Value("q", 0), spawn.Value("q", 0)
        self._answer, theirs = spawn.Pipe(duplex=False)
        document = project.pipeline.model_dump_json(by_alias=True)
        arguments = (document, project.root, self._stop, self._reads, self._naively_broken, theirs)
        self._process = spawn.Process(target=_read, args=arguments, daemon=True)
        self.found: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if kind is None:
            assert self._answer.poll(60), "the reader died"
            self.found = self._answer.recv()
        self._process.join(60)

    @property
    def reads(self) -> int:
        """How many it has done."""
        assert self._process.is_alive(), "the reader died"
        return int(self._reads.value)

    @property
    def naively_broken(self) -> int:
        """How many reads of the newest versions have shown broken sums."""
        return int(self._naively_broken.value)


def _read(document: str, root: Path, stop: Event, reads: Any, naively_broken: Any, answer: Any) -> None:
    project = Project(Pipeline.model_validate_json(document), root / "shop.yaml", root)
    chance = random.Random(1)
    broken, naive, positions = [], 0, set()
    while not stop.is_set():
        currency = chance.choice(list(CURRENCIES))
        session = cdc_lake.Pipeline(project).cut(as_of="latest")
        positions.add(session.position)
        if (found := total(session.read, currency)) != TOTAL:
            broken.append((session.position, currency, found))
        reads.value += 1
        if reads.value % _NAIVE_EVERY == 0:
            naive += 1
            naively_broken.value += (
                total(lambda name: table_log(project, project.target(TABLES[name].table)).read(), currency) != TOTAL
            )
    answer.send({"broken": broken, "naive": naive, "cuts": len(positions)})
