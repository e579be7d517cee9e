"""What verbs print that need Spark: one story over one PostgreSQL, one lake and one session.

`CDC_LAKE_GOLDEN=write` writes the files of `tests/golden` again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.golden_server import Step, play, project

ALLOWED = "drop column note of golden.orders"
SPARK = {
    "run-first": Step(["run", "--once", "-q"], "runtime.run.run"),
    "plan-waits": Step(
        ["plan", "--exit-code"],
        "ops.plan.plan",
        6,
        [
            "ALTER TABLE orders DROP COLUMN note, ADD COLUMN region text",
            "INSERT INTO orders VALUES (4, 40, 'north')",
            "INSERT INTO customers VALUES (3, 'Cyd')",
        ],
        first=["pause", "customers"],
    ),
    "run-waits": Step(["run", "--once", "-q"], "runtime.run.run", 1),
    "run-allowed": Step(["run", "--once", "-q", "--allow", ALLOWED], "runtime.run.run"),
    "compare": Step(["compare", "-q"], "comparison.compare.compare"),
    "rebuild": Step(["rebuild", "orders", "--dry-run", "--keys", "2", "-q"], "runtime.apply.rebuild.rebuild"),
}


@pytest.mark.spark
@pytest.mark.live
# py4j leaves its sockets to the garbage collector
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
def test_verbs_with_spark_print_what_is_kept(
    spark: Any, database: Database, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(SPARK, database, project(database, lake_root / "golden"), monkeypatch, spark=spark)
