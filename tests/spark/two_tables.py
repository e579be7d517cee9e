"""A pipeline of two tables of kind `current`, of which one has a rule that holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdc_lake.config.project import Project
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake_testing.messages import table
from cdc_lake_testing.oracle import Row
from tests.pipeline_file import make_project

PLAIN = table("public.plain", id="int4", amount="int4", body="text")
WHOLE = table(
    "public.whole", key=["a", "b"], identity=ReplicaIdentity.FULL, a="int4", b="text", amount="int4", body="text"
)
RULE = {"rule": "between", "column": "amount", "min": 0, "max": 89, "on_fail": "quarantine"}
LIMIT = 89


def breaks(name: TableName, row: dict[str, str | None]) -> bool:
    return name == PLAIN.table and row["amount"] is not None and int(row["amount"]) > LIMIT


def same(found: list[dict[str, Any]], expected: list[Row]) -> bool:
    """Whether silver's rows are the oracle's, whose columns may be fewer or more by one that was just added."""
    columns = {c for row in (*found, *expected) for c in row}
    said = [{c: None if row.get(c) is None else str(row[c]) for c in columns} for row in found]
    return sorted(map(_text, said)) == sorted(_text({c: row.get(c) for c in columns}) for row in expected)


def _text(row: dict[str, str | None]) -> str:
    return str(sorted(row.items()))


def lake(root: Path, fmt: str, seed: int, **sections: Any) -> Project:
    """A project of its own inside the session's lake, so that its Iceberg catalog is the session's."""
    name = f"two{seed}_{fmt}"
    tables = [{"from": "public.plain", "rules": [RULE]}]
    return make_project(
        root,
        name,
        silver={"defaults": {"format": fmt, "namespace": name}, "tables": tables},
        snapshot={"mode": "none"},
        apply={"span_rows": 30 + seed % 60, "parallelism": 2},
        **{"bronze": {"durability": "os"}, **sections},
    )
