"""What verbs print that need a server and no Spark: one story over one PostgreSQL.

`CDC_LAKE_GOLDEN=write` writes the files of `tests/golden` again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TESTED, Database
from tests.golden_server import Step, play, project

LIVE = {
    "check-wrong": Step(["check"], "ops.check.runner.examine", 1, ["CREATE TABLE bare (a int)"]),
    "check": Step(["check"], "ops.check.runner.examine", 0, ["DROP TABLE bare"]),
    "plan-first": Step(["plan"], "ops.plan.plan"),
    "slot-create": Step(["slot", "create", "-q"], "ops.slots.create_slot"),
    "slot-list": Step(["slot", "list"], "ops.slots.list_slots"),
    "slot-inspect": Step(["slot", "inspect"], "ops.slots.inspect_slot"),
    "compare-too-early": Step(["compare", "-q"], "comparison.compare.compare", 1),
    "plan-paused": Step(["plan"], "ops.plan.plan", first=["pause", "customers"]),
    "run-receive": Step(
        ["run", "--once", "--only", "receive", "-q"], "runtime.run.run", 0, ["INSERT INTO customers VALUES (3, 'Cyd')"]
    ),
    "status-live": Step(["status"], "ops.status.status"),
    "resync-dry": Step(["resync", "orders", "--dry-run", "-q"], "runtime.resync.resync"),
    "resync": Step(["resync", "orders", "customers", "-q"], "runtime.resync.resync"),
    "slot-advance": Step(["slot", "advance"], "ops.slots.advance_slot", first=["slot", "advance"]),
    "inspect-chain-source": Step(
        ["inspect", "chain", "--against", "source", "-q"], "comparison.bronze_vs_source.against_source"
    ),
    "record": Step(
        ["record", "shop.yaml", "shop.rec", "--transactions", "2", "--redact"],
        "devtools.replay.record",
        meanwhile="UPDATE customers SET name = name || '.' WHERE id = 1",
    ),
    "restart": Step(["restart"], "runtime.restart.restart"),
    "slot-drop": Step(["slot", "drop"], "ops.slots.drop_slot"),
}

SAY_MORE = 17
OF_NEWER = {"slot-list", "slot-inspect"}
"""What is kept of them has what no server says before 17: whether a slot is for failover, synced, idle since when."""


@pytest.mark.live
def test_verbs_on_a_server_print_what_is_kept(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = {case: step for case, step in LIVE.items() if TESTED >= SAY_MORE or case not in OF_NEWER}
    play(story, database, project(database, tmp_path / "golden"), monkeypatch)
