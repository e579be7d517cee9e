"""Random schemas and values, and every type that is read in binary: what the server prints is what silver has, by pgoutput
in text and in binary and by test_decoding, but for rows with values that the type ledger says are held.
"""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.ops.plan import TableLedger, type_ledger
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.quarantine import list_quarantine
from cdc_lake.runtime.receive.receiver import receive
from tests.conftest import Database
from tests.live.test_binary_values import RANDOM, create_cases
from tests.live.test_random_schemas import WAYS, RandomTable, any_kinds, changed
from tests.live.test_receive_loop import tables_at_source
from tests.odd_names import odd_names
from tests.pipeline_file import make_project
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture
from tests.seeds import seeds
from tests.silver_rows import Texts, silver_rows
from tests.type_cases import insert

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:The 'without_files' parameter:DeprecationWarning"),
]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
FITTING = 0.95
"""Of values of moments. Where a row has one that does not fit, all of the row is held, so most rows must have none."""
EVERY_CASE = TableName("public", "every_type")


def single(text: str) -> str:
    return repr(struct.unpack("f", struct.pack("f", float(text)))[0])


NUMBERS: dict[str, Callable[[str], str]] = {
    "float": lambda text: single(text).replace("inf", "Infinity").replace("nan", "NaN"),
    "double": lambda text: repr(float(text)).replace("inf", "Infinity").replace("nan", "NaN"),
    "decimal": lambda text: f"{Decimal(text):f}",
}
"""The number that is meant, by the type in silver that has many texts of one; all others have one, the server's."""


def project_of(database: Database, root: Path, way: str, formats: dict[TableName, str]) -> Project:
    given = WAYS[way]
    source = {**database.source, **given, "slot": {"name": f"{database.name}_{way}", **given.get("slot", {})}}
    tables = [{"from": str(name), "format": fmt} for name, fmt in formats.items()]
    if way != "binary":  # of the others tests/spark/test_types_copy_and_stream.py has it
        source["tables"] = ["public.*", f"!{EVERY_CASE}"]
        tables = [one for one in tables if one["from"] != str(EVERY_CASE)]
    silver = {"tables": tables, "defaults": {"namespace": f"{database.name}_{way}"}}
    name = f"{database.name}_{way}"
    return make_project(root, name, source=source, silver=silver, bronze={"durability": "os"})


def received(project: Project) -> None:
    bronze = DeltaBronze(project.bronze, "os")
    receive(project, bronze, once=True, stop=threading.Event(), report=silent, slot_patience=60)


@dataclass(frozen=True)
class Expected:
    """A table with the columns of its key, of which the first is a number, and the numbers of rows that are held."""

    source: TableName
    key: tuple[str, ...]
    misfits: set[int]


def assert_as_printed(project: Project, database: Database, tables: list[Expected]) -> None:
    printed, changes = tables_at_source(database), list_quarantine(project).changes
    ledgers = {one.table: one for one in type_ledger(project)}
    for table in tables:
        ledger = ledgers[str(table.source)]
        mine = [change for change in changes if change.source == ledger.table]
        assert {abs(int(change.key[0] or "")) for change in mine} == table.misfits, table.source
        may_hold = {f"type_{one.silver_column}" for one in ledger.columns if one.held}
        assert {rule for change in mine for rule in change.rules} <= may_hold
        found = silver_rows(project, project.target(table.source))
        ours = fitting(table, ({one.column: row[one.silver_column] for one in ledger.columns} for row in found), ledger)
        theirs = fitting(table, printed.get(table.source, {}).values(), ledger)
        assert ours == theirs, f"{table.source} differs"
        assert ours


def fitting(table: Expected, rows: Iterable[Texts], ledger: TableLedger) -> dict[tuple[str | None, ...], Texts]:
    """The rows that are not held by their keys, numbers that have many texts as silver's type has them."""
    read = {one.column: NUMBERS.get(one.silver_type.partition("(")[0], str) for one in ledger.columns}
    listed = ({name: text and read[name](text) for name, text in row.items()} for row in rows)
    keyed = {tuple(row[name] for name in table.key): row for row in listed}
    return {key: row for key, row in keyed.items() if abs(int(key[0] or "")) not in table.misfits}


@pytest.mark.parametrize("seed", seeds(BUDGET))
def test_what_the_server_prints_is_what_silver_has_whichever_way_it_is_sent(
    spark: Any, lake_root: Path, database: Database, seed: int
) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    with database.connect() as conn:
        kinds = [any_kinds(dice), *([dice.sample([*RANDOM], len(RANDOM))] if BUDGET > 1 else [])]
        names = odd_names(dice, len(kinds))
        tables = [RandomTable.made(conn, dice, *one, FITTING) for one in zip(names, kinds, strict=True)]
        cases = create_cases(conn)
        steps = changed(conn, tables, dice)
        next(steps)
        sources = [*(TableName("public", name) for name in names), EVERY_CASE]
        formats = {
            way: dict(zip(sources, dice.choices(("delta", "iceberg"), k=len(sources)), strict=True)) for way in WAYS
        }
        projects = [project_of(database, lake_root, way, formats[way]) for way in WAYS]
        for project in projects:
            received(project)
        next(steps, None)
        for half in (0, 1):
            insert(conn, EVERY_CASE.name, cases, half)
        conn.execute("UPDATE every_type SET id = id + 1000 WHERE id % 3 = 0 AND note = 'fits'")
        held = {number for (number,) in conn.execute("SELECT id FROM every_type WHERE note = 'held'").fetchall()}
    expected = [Expected(TableName("public", one.name), one.key, one.misfits) for one in tables]
    for way, project in zip(WAYS, projects, strict=True):
        received(project)
        apply(project, once=True, stop=threading.Event(), report=silent, spark=spark)
        more = [Expected(EVERY_CASE, ("id",), held)] if way == "binary" else []
        assert_as_printed(project, database, [*expected, *more])
