"""The WAL budget: which step of the ladder fits, what each asks for, and that a slot is never dropped unasked."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from pydantic import ValidationError

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.cli.commands.status import status_text
from cdc_lake.config.loader import load_project
from cdc_lake.config.model import Batch
from cdc_lake.config.project import Project
from cdc_lake.config.source import WalBudget
from cdc_lake.connectors import wal_budget as wal_note
from cdc_lake.connectors.wal_budget import (
    DROP_AFTER,
    ApplyYield,
    BudgetLevel,
    BudgetStatus,
    BudgetVerdict,
    Mark,
    WalNote,
    WalSample,
    add_mark,
    judge,
    prune_samples,
)
from cdc_lake.control.cuts import TableState
from cdc_lake.errors import SlotGivenUp
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.ops.html_pages import findings
from cdc_lake.ops.status import status
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.receive.wal_budget_monitor import WalBudgetMonitor, budget_exceeded_error
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.golden_lake import YAML
from tests.mistakes import kept
from tests.pipeline_file import make_project
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
BUDGET = WalBudget(max_bytes=100 * MIB)
DROPS = WalBudget(max_bytes=100 * MIB, on_exceeded="drop_slot")


def look(at: float, mib: float, *, confirmed: int | None = None, safe: int | None = None) -> WalSample:
    """A slot whose log begins where bronze is, unless `confirmed` says otherwise."""
    kept = int(mib * MIB)
    return WalSample(at, 1000 * MIB + kept, 1000 * MIB if confirmed is None else confirmed, kept, safe)


def rungs(budget: WalBudget, looks: Sequence[WalSample]) -> list[BudgetLevel]:
    """The step after each look, one after the other."""
    found: list[BudgetLevel] = []
    for n in range(len(looks)):
        found.append(judge(budget, looks[: n + 1], (), found[-1] if found else BudgetLevel.CALM).rung)
    return found


@pytest.mark.parametrize(
    ("mib", "expected"),
    [(0, "calm"), (49, "calm"), (50, "smaller batches"), (75, "bronze only"), (100, "exceeded"), (900, "exceeded")],
)
def test_a_step_is_taken_by_the_share_that_is_used(mib: float, expected: str) -> None:
    found = judge(BUDGET, [look(0, mib)])
    assert found.rung.value == expected
    assert found.used == pytest.approx(mib / 100)


def test_a_step_is_left_only_well_below_where_it_begins() -> None:
    kept = [74, 75, 74, 61, 59, 51, 41, 39]
    assert [one.value for one in rungs(BUDGET, [look(0, mib) for mib in kept])] == [
        "smaller batches", "bronze only", "bronze only", "bronze only", "smaller batches", "smaller batches",
        "smaller batches", "calm",
    ]  # fmt: skip


def test_growth_that_leads_over_the_budget_soon_is_met_early() -> None:
    slowly = [look(10 * n, 30 + 0.1 * n) for n in range(7)]
    assert judge(BUDGET, slowly).rung is BudgetLevel.CALM
    soon = [look(10 * n, 30 + n) for n in range(7)]  # 0.1 MiB a second: 640 s to go
    found = judge(BUDGET, soon)
    assert found.growth == pytest.approx(0.1 * MIB, rel=0.01)
    assert found.exceeded_in == pytest.approx(640, rel=0.01)
    assert found.rung is BudgetLevel.SMALLER
    assert judge(BUDGET, [look(10 * n, 30 + 3 * n) for n in range(7)]).rung is BudgetLevel.BRONZE_ONLY
    assert judge(BUDGET, soon[:3]).growth is None, "twenty seconds say nothing"
    assert judge(BUDGET, [look(10 * n, n) for n in range(7)]).rung is BudgetLevel.CALM, "a small part of it neither"


def test_a_limit_of_the_server_that_is_lower_counts() -> None:
    assert judge(BUDGET, [look(0, 30, safe=10 * MIB)]).used == pytest.approx(0.75)
    assert judge(BUDGET, [look(0, 30, safe=500 * MIB)]).used == pytest.approx(0.3)
    assert judge(BUDGET, [look(0, 30, safe=-1)]).rung is BudgetLevel.EXCEEDED


def test_age_counts_from_where_bronze_is_and_a_server_that_rests_grows_no_older() -> None:
    budget = WalBudget(max_age=60_000)
    rests = [WalSample(10.0 * n, 5000, 5000, 3 * MIB) for n in range(100)]
    assert judge(budget, rests).age == 0, "restart positions move with traffic only"
    stuck = [*rests, WalSample(1000, 9000, 5000, 3 * MIB), WalSample(1050, 9000, 5000, 3 * MIB)]
    found = judge(budget, stuck)
    assert found.age == 60  # since the look at 990, when nothing was missing
    assert found.rung is BudgetLevel.EXCEEDED
    moved = [*stuck, WalSample(1060, 9500, 9000, 3 * MIB)]
    assert judge(budget, moved).age == 10


def test_age_outlasts_a_receiver_by_the_marks_that_it_leaves() -> None:
    budget = WalBudget(max_age=3_600_000)
    marks: list[Mark] = []
    for n in range(2000):
        marks = add_mark(budget, marks, WalSample(10.0 * n, 5000 + n, 5000 + n, 0))
    assert len(marks) <= 40
    assert marks[-1][0] - marks[0][0] > 3600
    later = [WalSample(30_000, 9_000_000, 5000 + 1999, MIB)]
    assert 10_000 <= judge(budget, later, marks).age <= 10_200


def test_only_what_is_of_use_is_remembered() -> None:
    looks: list[WalSample] = []
    for n in range(1000):
        looks = prune_samples([*looks, look(10.0 * n, 1)])
    assert len(looks) == 31


def test_a_transaction_that_is_open_for_long_is_told_from_a_bronze_that_is_behind() -> None:
    held = WalSample(0, 2000 * MIB, 1999 * MIB, 90 * MIB)
    assert "a long-running transaction" in judge(BUDGET, [held]).reason
    assert "behind" in judge(BUDGET, [look(0, 120)]).reason


def test_an_alert_is_only_told() -> None:
    budget = WalBudget(max_bytes=100 * MIB, on_exceeded="alert")
    assert [judge(budget, [look(0, mib)]).rung for mib in (60, 90, 100)] == [
        BudgetLevel.CALM,
        BudgetLevel.CALM,
        BudgetLevel.EXCEEDED,
    ]


@pytest.mark.parametrize("seed", seeds(20))
def test_a_slot_is_dropped_only_where_every_look_of_a_minute_exceeded_the_budget_and_it_is_asked_for(seed: int) -> None:
    rng = random.Random(seed)
    looks, at, mib = [], 0.0, 90.0
    for _ in range(60):
        at += rng.choice((5, 10, 30))
        mib = max(0.0, mib + rng.uniform(-30, 40))
        looks.append(look(at, mib))
    for budget in (BUDGET, DROPS):
        for n, rung in enumerate(rungs(budget, looks)):
            recent = [one for one in looks[: n + 1] if looks[n].observed_at - one.observed_at < DROP_AFTER]
            before = [one for one in looks[: n + 1] if looks[n].observed_at - one.observed_at >= DROP_AFTER]
            all_exceeded = bool(before) and all(one.retained >= 100 * MIB for one in [*recent, before[-1]])
            assert (rung is BudgetLevel.DROP) == (budget is DROPS and all_exceeded)


def test_more_of_the_budget_never_means_a_lower_step() -> None:
    for before in (BudgetLevel.CALM, BudgetLevel.SMALLER, BudgetLevel.BRONZE_ONLY, BudgetLevel.EXCEEDED):
        heights = [judge(BUDGET, [look(0, mib)], (), before).rung.height for mib in range(0, 200, 5)]
        assert heights == sorted(heights)


def test_a_budget_needs_a_limit() -> None:
    with pytest.raises(ValidationError, match="needs `max_bytes` or `max_age`"):
        WalBudget(on_exceeded="alert")


# ── what the steps ask for ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def project(tmp_path: Path) -> Project:
    file = tmp_path / "shop.yaml"
    file.write_text(YAML)
    return load_project(file)


@pytest.fixture
def told() -> list[ProgressEvent]:
    return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def at(now: float) -> None:
        monkeypatch.setattr(wal_note.time, "time", lambda: now)

    return at


def test_batches_get_smaller_and_apply_waits_until_it_is_over(
    project: Project, told: list[ProgressEvent], clock: Callable[[float], None]
) -> None:
    gives_way = ApplyYield(project, told.append)
    given = Batch()
    with WalBudgetMonitor(project, BUDGET, told.append) as watch:
        clock(10)
        watch.evaluate_sample(look(10, 10))
        assert (watch.limits(given), gives_way()) == (given, False)
        watch.evaluate_sample(look(20, 60))
        assert watch.limits(given).max_bytes == given.max_bytes // 4
        assert watch.limits(Batch(max_rows=1)).max_rows == 1
        assert not gives_way()
        watch.evaluate_sample(look(30, 80))
        clock(30)
        assert gives_way()
        assert gives_way()
        watch.evaluate_sample(look(40, 10))
        clock(40)
        assert (watch.limits(given), gives_way()) == (given, False)
        watch.evaluate_sample(look(50, 80))
        clock(50)
        assert gives_way()
        clock(50 + wal_note.FRESH + 1)
        assert not gives_way(), "a receiver that looks no more holds nobody up"
    words = [one.text for one in told if one.stage == "apply"]
    assert words == [
        "silver waits: 80% of the WAL budget is used, and bronze has priority",
        "silver resumes: the WAL budget is no longer at risk",
    ] * 2  # fmt: skip
    assert any("smaller batches: 60.0 MiB of WAL are retained, 60% of the budget" in one.text for one in told)


def test_an_exceeded_budget_is_a_warning_now_and_then_and_the_slot_stays(
    project: Project, told: list[ProgressEvent]
) -> None:
    with WalBudgetMonitor(project, BUDGET, told.append) as watch:
        for n in range(100):
            watch.evaluate_sample(look(1000 + 10 * n, 150))
        watch.enforce_wal_budget()
    warnings = [one for one in told if one.stage == "warning"]
    assert [one.facts["code"] for one in warnings] == ["SRC235", "SRC235"], "in a thousand seconds"
    assert "150.0 MiB of WAL for slot `shop`" in warnings[0].text
    assert "the budget is 100.0 MiB" in warnings[0].text


def test_the_mistake_is_told_with_what_is_kept_and_why() -> None:
    budget = WalBudget(max_bytes=50 << 30, max_age=7_200_000)
    found = judge(budget, [WalSample(0, 0, 0, 0), WalSample(10_800, 61 << 30, 0, 61 << 30)])
    kept("wal-budget-exceeded", budget_exceeded_error("shop", budget, found))


def test_a_slot_is_given_up_where_the_pipeline_says_so(project: Project, told: list[ProgressEvent]) -> None:
    with WalBudgetMonitor(project, DROPS, told.append) as watch:
        for n in range(6):
            watch.evaluate_sample(look(1000 + 10 * n, 150))
        watch.enforce_wal_budget()
        watch.evaluate_sample(look(1060, 150))
        with pytest.raises(SlotGivenUp, match="is dropped, as the pipeline is configured"):
            watch.enforce_wal_budget()


def test_a_receiver_that_ends_leaves_its_marks_and_no_state(project: Project, told: list[ProgressEvent]) -> None:
    with WalBudgetMonitor(project, BUDGET, told.append) as watch:
        watch.evaluate_sample(look(10, 80))
    assert WalNote(project).read() is None
    assert WalNote(project).begin() == [(10, 1080 * MIB)]


@pytest.mark.parametrize(
    "said",
    [
        b'{"at": 0, "seen": {}}',
        b'{"at": "now", "seen": {"step": "calm"}}',
        b'{"seen": {"step": "calm"}}',
        b'{"marks": 5}',
        b'{"marks": [5]}',
        b'{"marks": [[1, 1e999]]}',
        b'{"marks": [["a", 1]]}',
        b"[" * 4000,
    ],
)
def test_a_note_that_says_something_else_says_nothing(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "lake" / "logs").mkdir(parents=True)
    (tmp_path / "lake" / "logs" / "shop.wal").write_bytes(
        said.replace(b'"at": 0', f'"at": {time.time()}'.encode()).ljust(4096)
    )
    note = WalNote(make_project(tmp_path))
    assert note.read() is None
    assert note.begin() == []


def test_status_and_its_page_show_the_budget(
    project: Project, told: list[ProgressEvent], clock: Callable[[float], None]
) -> None:
    assert status(project).wal_budget is None
    with WalBudgetMonitor(project, BUDGET, told.append) as watch:
        clock(60)
        for n in range(7):
            watch.evaluate_sample(look(10 * n, 60 + 3 * n))
        seen = status(project)
        assert seen.wal_budget is not None
        assert isinstance(seen.wal_budget, BudgetStatus)
        text = " ".join(status_text(seen, 100).split())
        assert "budget bronze only 78% of the WAL budget, 307.2 KiB/s more, used up in 73.3 s" in text
        assert "apply waits" in text
        begun = replace(seen, stream="pg:1:shop:shop:0/3E8")
        assert "Silver waits for bronze" in {one.text for one in findings(begun)}
        worse = replace(begun, wal_budget=replace(seen.wal_budget, used=1.5))
        assert "The server retains too much WAL" in {one.text for one in findings(worse)}


def test_what_is_told_of_a_verdict_has_no_empty_words() -> None:
    for rung in BudgetLevel:
        assert BudgetVerdict(rung, 0.6, 1, 0.0, None, None, open_long=False).reason


class Walk(SpanLoop):
    """Goes the way of apply without writing: which spans it would, and what it is told to do behind each."""

    def __init__(self, project: Project, answers: list[bool]) -> None:
        self.spans: list[int] = []
        local = cast(
            "SparkSession", SimpleNamespace(conf={"spark.master": "local"})
        )  # all else of Spark is stood in for
        super().__init__(project, local, silent, gives_way=lambda: answers.pop(0))

    def _apply_span(
        self, state: StreamCheckpoint, tables: dict[str, TableState], after: int, commits: list[CommitRow], upto: int
    ) -> tuple[int, dict[str, TableState]]:
        self.spans.append(upto)
        return upto, tables


def test_apply_gives_way_at_the_end_of_a_span_and_goes_on_later(tmp_path: Path) -> None:
    project = make_project(tmp_path, "p", snapshot={"mode": "none"}, apply={"span_rows": 1})
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream("test", 10)
    rows = table("public.t", id="int4")
    for n in (1, 2, 3):
        bronze.append([raw_transaction(Transaction(boundaries(100 * n), (Insert(rows, (str(n),)),)))])
    stop = threading.Event()
    walk = Walk(project, [False, True])
    walk.run(None, stop)
    assert walk.spans == [100]
    walk = Walk(project, [True])
    walk.run(None, stop)
    assert walk.spans == []
    walk = Walk(project, [False, False, False])
    walk.run(None, stop)
    assert walk.spans == [100, 200, 300]
