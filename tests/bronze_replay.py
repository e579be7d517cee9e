"""Bronze through the oracle: the copies and the transactions of its newest stream, one by one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, TypeAlias

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.model.change import UNCHANGED, Boundaries, Change, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.oracle import Oracle

Tables: TypeAlias = dict[TableName, dict[Any, Any]]


def bronze_rows(project: Project) -> list[dict[str, Any]]:
    files = bronze_reader(project).files()
    rows = files.read(files.select(), SCHEMA.names).to_pylist()
    return sorted(rows, key=lambda r: (r["epoch"], r["position"], r["ordinal"] if r["ordinal"] is not None else -1))


def landed_position(project: Project) -> int:
    """How far bronze is."""
    state = bronze_reader(project).state()
    assert state is not None
    return state.upto


def tables_from_bronze(project: Project) -> Tables:
    """The tables as they are at the end."""
    *_, (_, tables) = replayed(project)
    return {table: state for table, state in tables.items() if state}


def replayed(project: Project) -> Iterator[tuple[int, Tables]]:
    """The tables behind each copy and each transaction, with its position.

    A table begins with its newest whole copy, at that copy's position: what was before is of no account.
    """
    rows = bronze_rows(project)
    epoch = max(r["epoch"] for r in rows)
    rows = [r for r in rows if r["epoch"] == epoch]
    points = copy_points(project, epoch)
    layouts = {r["layout"]: Relation.from_description(json.loads(r["info"])) for r in rows if r["op"] == "R"}
    oracle = Oracle()
    yield 0, oracle.tables
    commits = [r["position"] for r in rows if r["op"] == "C"]
    assert len(commits) == len(set(commits)), "a transaction is in bronze twice"
    for position, given in itertools.groupby(rows, key=lambda r: r["position"]):
        group = list(given)
        copied = [r for r in group if r["op"] == "S" and points.get(r["relation"], position) == position]
        assert len({r["ordinal"] for r in copied}) == len(copied), "ordinals of copied rows are used twice"
        changes: list[Change] = [change_of(r, layouts[r["layout"]]) for r in copied]
        changes += [
            change_of(r, layouts[r["layout"]])
            for r in group
            if r["op"] in "IUDT" and points.get(r["relation"], -1) < position
        ]
        oracle.apply(Transaction(Boundaries(position, position), tuple(changes)))
        yield position, oracle.tables


def copy_points(project: Project, epoch: int) -> dict[str, int]:
    """The position of each table's newest whole copy."""
    rows = [r for r in control_tables(project).snapshots() if (r.epoch, r.state) == (epoch, "complete")]
    return {entry["relation"]: entry.get("position", row.position) for row in rows for entry in json.loads(row.tables)}


def change_of(row: dict[str, Any], relation: Relation) -> Change:
    new = None if row["new"] is None else list(row["new"])
    for at in row["unchanged"] or ():
        new[at] = UNCHANGED  # type: ignore[index,call-overload]
    old = None if row["old"] is None else tuple(row["old"])
    kind = None if row["old_kind"] is None else OldKind(row["old_kind"])
    match row["op"]:
        case "I" | "S":
            return Insert(relation, tuple(new or ()))
        case "U":
            return Update(relation, tuple(new or ()), old, kind)
        case "D":
            assert old is not None
            assert kind is not None
            return Delete(relation, old, kind)
    return Truncate(relation)
