"""The benchmarks keep their books: each script has a scenario, figures say what results say, and a fall is seen."""
# ruff: noqa: E402 - scripts import each other by their names, from their own folder

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.model.change import Delete, Insert, OldKind, Transaction, Update
from cdc_lake_testing.messages import boundaries, raw_transaction, table

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import costs
import end_state
import figures
import history
import page
import plots
import regress
import run
import scenarios
import span_pair
from workload_spans import Workload, orders


def backlog(*rates: tuple[float, float]) -> dict[str, Any]:
    """A result of rounds of ours and of the peer; the first warms up."""
    runs = [
        {"round": n, "peer": peer, "rate": rate, "seconds": 1e6 / rate, "changes": 10**6, "cpu": 3.5, "rss_mib": 300.0}
        for n, both in enumerate(rates)
        for peer, rate in zip(("cdc_lake", "pg_recvlogical"), both, strict=True)
    ]
    machine = {"cores": 2, "processor": "x", "memory_gib": 1, "system": "s", "python": "3", "load": [0.5]}
    return {
        "name": "pgoutput_backlog", "at": "2026-01-31T12:00:00+00:00", "version": "1.2", "machine": machine,
        "parameters": {"changes": 10**6}, "runs": runs, "tables": [],
    }  # fmt: skip


GOOD = {"pgoutput_backlog": backlog((1, 1), (100_000, 100_000), (120_000, 100_000), (140_000, 100_000))}


def test_every_script_that_measures_is_of_a_scenario() -> None:
    main = 'if __name__ == "__main__"'
    scripts = {path.name for path in BENCHMARKS.glob("*.py") if main in path.read_text()}
    mapped = {one.script for scenario in scenarios.SCENARIOS for one in scenario.runs}
    apart = {"run.py", "page.py", "history.py", "bare_session.py", *scenarios.ASIDE}
    assert scripts == mapped | apart
    assert [f"P{n}" for n in range(1, 17)] == [one.name for one in scenarios.SCENARIOS][:16]


@pytest.mark.parametrize(("options", "status"), [([], 1), (["--quick"], 0)])
def test_what_is_left_out_is_named_at_the_end_and_a_full_run_says_so_by_its_exit_code(
    options: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    runs = [
        scenarios.Measurement("peers.py", ("--all",), ("--few",), needs="not/there"),
        scenarios.Measurement("own.py"),
    ]
    monkeypatch.setattr(run, "chosen", lambda _names: runs)
    monkeypatch.setattr(run.subprocess, "run", lambda command, **_: ran.append(Path(command[1]).name))
    monkeypatch.setattr(sys, "argv", ["run.py", *options])
    assert run.main() == status
    assert ran == (["own.py"] if options else ["own.py", "page.py"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"left out: peers.py {'--few' if options else '--all'}, which needs not/there"


def timed_places(path: Path) -> list[tuple[str, str]]:
    """Owner and name of what a script replaces to time it: `(owner, "name", "step")`, `patch.object(owner, "name")`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        parts = node.elts if isinstance(node, ast.Tuple) and len(node.elts) == 3 else []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("patch.object"):
            parts = [*node.args[:2], ast.Constant("")]
        match parts:
            case [ast.Name(id=owner), ast.Constant(value=str() as name), ast.Constant(value=str())]:
                found.append((owner, name))
    return found


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_times_or_leaves_out_is_there(path: Path) -> None:
    if places := timed_places(path):
        module = importlib.import_module(path.stem)
        owners = [(vars(module)[owner], name) for owner, name in places if owner in vars(module)]
        assert not [(owner, name) for owner, name in owners if not hasattr(owner, name)]
    for name in re.findall(r'"(cdc_lake(?:\.\w+)+)"', path.read_text()):
        assert pkgutil.resolve_name(name) is not None


AS_SHIPPED = [path.stem for path in sorted(BENCHMARKS.glob("*.py")) if "import as_shipped" in path.read_text()]


@pytest.mark.parametrize("name", AS_SHIPPED)
def test_what_receives_has_the_memory_of_what_is_shipped(name: str) -> None:
    """Of a child of a process that imports this, which imports it too."""
    child = f"import {name}, pyarrow, sys; print(pyarrow.default_memory_pool().backend_name, 'pandas' in sys.modules)"
    parent = f"import {name}, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    given = {key: value for key, value in os.environ.items() if key != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run([sys.executable, "-c", parent], cwd=BENCHMARKS, env=given, capture_output=True, check=True)
    best = "jemalloc" if "jemalloc" in pa.supported_memory_backends() else "system"
    assert done.stdout.decode().split() == [best, "False"]


def test_figures_are_of_scenarios_and_of_results_that_a_run_saves() -> None:
    names = {one.name for one in scenarios.SCENARIOS}
    assert {one.scenario for one in figures.FIGURES} <= names
    assert len({one.name for one in figures.FIGURES}) == len(figures.FIGURES)
    saved = "".join(path.read_text() for path in BENCHMARKS.glob("*.py"))
    plugins = {"pgoutput_backlog", "test_decoding_backlog"}  # named by their plugin
    assert not [one.result for one in figures.FIGURES if f'"{one.result}"' not in saved and one.result not in plugins]


def test_scenarios_are_chosen_by_name_and_a_shared_run_is_run_once() -> None:
    assert scenarios.chosen(["P5", "P3", "P6"]).count(scenarios.BACKLOG) == 1
    assert scenarios.chosen(["P13"]) == [scenarios.STREAMED]
    with pytest.raises(ValueError, match="P17"):
        scenarios.chosen(["P17"])


def test_a_ratio_is_of_the_same_round_and_the_first_round_warms_up() -> None:
    assert figures.named("P3 limit").of(GOOD) == pytest.approx([1.0, 1.2, 1.4])
    assert figures.named("P3 rate").of(GOOD) == [100_000, 120_000, 140_000]
    assert figures.named("P8 p99").of(GOOD) == []


def test_a_figure_is_reached_from_the_right_side() -> None:
    rate, cpu = figures.named("P3 rate"), figures.named("P5 processor")
    assert (rate.reached(120_000), rate.reached(119_999)) == (True, False)
    assert (cpu.reached(4), cpu.reached(4.01)) == (True, False)
    assert figures.named("P4 limit").reached(0.1) is None


def test_a_script_prints_the_targets_of_the_figures() -> None:
    printed = figures.judged("pgoutput_backlog", GOOD["pgoutput_backlog"]["runs"])
    assert ("pgoutput into bronze, changes/s", "120,000", "≥ 120,000", "reached") in printed
    assert figures.judged("pgoutput_backlog", []) == figures.judged("nothing of ours", []) == []


def test_what_the_receiver_may_take_is_400_megabytes_and_not_mebibytes() -> None:
    memory = figures.named("P6 backlog")
    assert (memory.reached(381), memory.reached(382), memory.bound) == (True, False, "≤ 381")


def test_memory_is_with_the_process_that_hashes_and_without_three_times_a_row() -> None:
    runs = [{"kind": "a", "megabytes": n * 100, "row": 100, "rss_mib": 600.0 + n, "beside_mib": 10.0} for n in (1, 2)]
    assert figures.sized(runs) == [pytest.approx(612 - 3 * 100 * 10**6 / 2**20)]
    assert figures.growth(runs) == [602 / 601]


def test_a_line_of_the_history_has_the_figures_and_no_name_of_a_machine(tmp_path: Path) -> None:
    document = GOOD["pgoutput_backlog"] | {"host": "somebody's"}
    history.append(document, tmp_path / "history.jsonl")
    (kept,) = history.lines(tmp_path / "history.jsonl")
    assert kept["figures"]["P3 rate"] == [100_000, 120_000, 140_000, 3]
    assert (kept["version"], kept["at"]) == ("1.2", "2026-01-31T12:00:00+00:00")
    assert set(kept["machine"]) == set(history.MACHINE)
    assert "somebody" not in json.dumps(kept)


def test_a_ratio_that_fell_by_more_than_its_rounds_differ_is_seen(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    regress.keep(GOOD, "1.2", baseline)
    (same,) = regress.check(GOOD, baseline)
    assert (same.verdict, same.allowance) == ("as good", pytest.approx(2 * 0.2 / 1.2))
    half = {"pgoutput_backlog": backlog((1, 1), (60_000, 100_000), (60_000, 100_000), (60_000, 100_000))}
    (fell,) = regress.check(half, baseline)
    assert (fell.verdict, fell.change) == ("fell", pytest.approx(-0.5))


def test_of_a_ratio_that_is_to_be_small_a_larger_one_is_worse() -> None:
    slower = regress.compared(figures.named("compare ratio"), [1.0, 1.0], [1.5, 1.5])
    assert (slower.verdict, round(slower.change, 2)) == ("fell", -0.33)
    assert regress.compared(figures.named("compare ratio"), [1.0, 1.0], [0.5, 0.5]).verdict == "as good"


def test_where_rounds_differ_too_much_nothing_is_said() -> None:
    assert regress.compared(figures.named("compare ratio"), [0.5, 1.0, 3.0], [4.0, 4.0, 4.0]).verdict == "too noisy"


def test_the_check_ends_with_1_where_a_ratio_fell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    regress.keep(GOOD, "1.2", tmp_path / "baseline.json")
    monkeypatch.setattr(regress.check, "__defaults__", (tmp_path / "baseline.json",))
    monkeypatch.setattr(run, "documents", lambda: GOOD)
    assert run.check([]) == 0
    worse = {"pgoutput_backlog": backlog((1, 1), (50_000, 100_000), (50_000, 100_000))}
    monkeypatch.setattr(run, "documents", lambda: worse)
    assert (run.check([]), run.check(["P1"])) == (1, 0)


def test_the_page_says_reached_missed_and_not_measured() -> None:
    lines = page.figures(GOOD).splitlines()
    of = {words: next(line for line in lines if line.startswith(f"| {words}")) for words in
          ("pgoutput into bronze, changes/s", "COMMIT to bronze", "the receiver's processor time")}  # fmt: skip
    assert of["pgoutput into bronze, changes/s"].endswith("| 120,000 | 100,000 to 140,000 | ≥ 120,000 | reached |")
    assert of["COMMIT to bronze"].endswith("| not measured |")
    assert of["the receiver's processor time"].endswith("| reached |")
    slow = {"pgoutput_backlog": backlog((1, 1), (90_000, 100_000))}
    assert "[missed](#receiving-a-backlog-into-bronze)" in page.figures(slow)


def test_the_cost_of_rounds_is_shown_by_side() -> None:
    runs = [
        {"case": "delta", "round": n, "costs": {"ours": {"seconds": n, "cpu": 2 * n, "files_written": 3}}}
        for n in (0, 1, 2, 3)
    ]
    spent = costs.table_of(runs)
    assert spent is not None
    assert spent["rows"] == [["delta, ours", "1 / 2 / 3", "2 / 4 / 6", "3"]]
    assert costs.table_of([{"case": "delta", "round": 1, "seconds": 3.0}]) is None


def test_pictures_are_drawn_of_what_there_is_and_of_nothing() -> None:
    some, none = plots.pictures(GOOD, [history.line(GOOD["pgoutput_backlog"])]), plots.pictures({}, [])
    for chart in (*some.values(), *none.values()):
        assert ET.fromstring(chart.svg).tag.endswith("svg")


def test_the_page_is_made_from_the_results() -> None:
    found, again = page.documents(), "run `python benchmarks/page.py`"
    assert page.PAGE.read_text() == page.page((BENCHMARKS / "performance.md.in").read_text(), found), again
    for name, chart in plots.pictures(found, history.lines()).items():
        assert (page.PICTURES / f"{name}.svg").read_text() == chart.svg + "\n", again


def test_a_run_that_left_something_else_than_it_was_given_fails(tmp_path: Path) -> None:
    relation = table("public.orders", id="int8", **{f"c{n}": "text" for n in range(3)}, quantity="int4")
    rows = [Insert(relation, (str(n), "a", "b", "c", "7")) for n in range(4)]
    changes = (*rows, Update(relation, ("1", "a", "b", "c", "9")), Delete(relation, ("2", *[None] * 4), OldKind.KEY))
    bronze = DeltaBronze(tmp_path)
    bronze.begin_stream("s", 0)
    bronze.append([raw_transaction(Transaction(boundaries(1), changes))])
    reader, state = BronzeReader(tmp_path), {"rows": 3, "ids": 4, "quantity": 23}
    end_state.landed("all of it", reader, state, transactions=1, changes=6)
    with pytest.raises(SystemExit, match="'changes': 6"):
        end_state.landed("a change less", reader, state, transactions=1, changes=7)
    with pytest.raises(SystemExit, match="'quantity': 23"):
        end_state.landed("another value", reader, state | {"quantity": 24}, transactions=1, changes=6)
    (file,) = tmp_path.glob("*.parquet")
    edited = [{**row, "op": "I"} if row["op"] == "D" else row for row in pq.read_table(file, schema=SCHEMA).to_pylist()]
    pq.write_table(pa.Table.from_pylist(edited, schema=SCHEMA), file)
    with pytest.raises(SystemExit, match="the chain is broken"):
        end_state.landed("edited", BronzeReader(tmp_path), state, transactions=1, changes=6)


def test_silver_with_other_rows_than_it_was_given_fails_a_run(tmp_path: Path) -> None:
    project, workload = span_pair.project_of(tmp_path, "x", "delta", ["orders"]), Workload(orders("orders"), 10, 0)
    target = project.target(workload.layout.table)
    write_deltalake(str(project.silver_path(target)), workload.inserted(range(5)))
    assert end_state.held_rows(project, target, workload.inserted(range(5))) == 5
    for others in (range(4), range(1, 6)):
        with pytest.raises(SystemExit, match="has other rows than it was given"):
            end_state.held_rows(project, target, workload.inserted(others))
