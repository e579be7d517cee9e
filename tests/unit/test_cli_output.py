"""`status --watch` and progress, as a terminal and as a file sees them; what is written gives a terminal no commands."""

from __future__ import annotations

import io
import json
import random
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_lake.cli import output
from cdc_lake.cli.commands import status as watching
from cdc_lake.cli.commands.status import watch_status
from cdc_lake.cli.output import CommandOutput, OutputOptions
from cdc_lake.cli.progress_bars import Bars
from cdc_lake.cli.text import GREEN, RESET, Pace, progress_line, table
from cdc_lake.connectors.open_stream import backlog
from cdc_lake.errors import NoStream, StoreUnavailable
from cdc_lake.model.diagnostic import printable
from cdc_lake.model.position import OrderDomain
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.status import Status, status
from tests.cut_lake import CutLake, ids
from tests.golden_commands import Terminal
from tests.odd_names import odd_text
from tests.seeds import one_seed


class Ended(Exception):
    """Enough was watched."""


@pytest.fixture
def found(tmp_path: Path) -> Status:
    lake = CutLake(tmp_path)
    lake.land(200, minutes=2)
    lake.cut(200, 2, t=lake.state("t", lake.write("t", ids(200)), 200))
    return status(lake.project)


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause behind the third look ends the watching, as Ctrl-C would."""
    pauses = iter([None, None, Ended()])

    def pause(every: float) -> None:
        assert every == 5
        if (end := next(pauses)) is not None:
            raise end

    monkeypatch.setattr(watching, "time", SimpleNamespace(sleep=pause))  # its own: other threads sleep too


def watched(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, found: Status, look: OutputOptions) -> str:
    monkeypatch.setattr(sys, "stdout", out)
    answers: Iterator[Any] = iter([found, StoreUnavailable("the lake's disk is away", where="/lake"), found])

    def ask() -> Status:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    with pytest.raises(Ended):
        watch_status(CommandOutput(look, "status"), ask, 5)
    return out.getvalue()


def test_one_of_something_is_said_to_be_one() -> None:
    assert progress_line(ProgressEvent("merge", "silver.t", 1, unit="changes")) == "merge     silver.t · 1 change"
    assert progress_line(ProgressEvent("merge", "silver.t", 0, unit="changes")) == "merge     silver.t · 0 changes"


def test_a_terminal_shows_one_screen_that_changes(monkeypatch: pytest.MonkeyPatch, found: Status) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    text = watched(monkeypatch, Terminal(), found, OutputOptions())
    screens = text.split("\x1b[H")[1:]
    assert len(screens) == 3
    assert all(screen.endswith("\x1b[J\n") and "\x1b[2J" not in screen for screen in screens)
    assert screens[0].startswith("pipeline  shop")
    assert "every 5 s, Ctrl-C ends" in screens[0]
    assert "the lake's disk is away" in screens[1]
    monkeypatch.setenv("LINES", "8")
    CommandOutput(OutputOptions(), "status").screen("\n".join(map(str, range(20))))
    assert "5\x1b[K\n… 14 more lines" in sys.stdout.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_each_look_is_a_line(monkeypatch: pytest.MonkeyPatch, found: Status) -> None:
    first, away, again = watched(monkeypatch, io.StringIO(), found, OutputOptions()).splitlines()
    assert first == again
    assert first.split("  ")[1:] == ["shop", "silver at 0/C8, 0 B behind", "source not reachable", "1 snapshot"]
    assert away.endswith("LAK435: the lake's disk is away")


def test_with_json_each_look_is_a_document(monkeypatch: pytest.MonkeyPatch, found: Status) -> None:
    documents = [
        json.loads(one) for one in watched(monkeypatch, Terminal(), found, OutputOptions(json=True)).splitlines()
    ]
    assert [one["schema"] for one in documents] == ["cdc-lake/status/1", "cdc-lake/error/1", "cdc-lake/status/1"]


def test_what_waiting_does_not_heal_ends_it() -> None:
    def ask() -> Status:
        raise NoStream("x")

    with pytest.raises(NoStream):
        watch_status(CommandOutput(OutputOptions(), "status"), ask, 5)


def test_a_way_to_a_known_end_has_a_rate_and_the_time_that_is_left() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])

    def told(at: float, done: int, total: int | None = 1000, unit: str = "rows") -> str:
        now[0] = at
        return pace.describe_pace(ProgressEvent("snapshot", "copying", done, total, unit))

    assert told(0, 100) == ""
    assert told(0.5, 150) == "", "too early to say"
    assert told(2, 500) == "200 rows/s, 2.5 s left"
    assert told(4, 1000) == "", "done"
    assert told(5, 0, 60) == ""
    assert told(15, 3, 60) == "0.3 rows/s, 3 min left"
    assert told(16, 1, 50) == "", "it began anew"
    assert told(20, 5, None) == ""
    assert told(30, 2 << 20, 1 << 30, "bytes of WAL") == ""
    assert told(32, 6 << 20, 1 << 30, "bytes of WAL") == "2.0 MiB/s, 8 min left"


def test_a_line_says_how_much_how_fast_and_how_long() -> None:
    one = backlog("applied", 3 << 20, 1 << 20, 5 << 20, OrderDomain.LSN)
    assert progress_line(one, "1.0 MiB/s, 2.0 s left") == (
        "backlog   applied up to 0/300000 · 2.0 MiB of 4.0 MiB of WAL · 1.0 MiB/s, 2.0 s left"
    )
    beyond = backlog("received", 70, 10, 60, OrderDomain.CSN)
    assert progress_line(beyond) == "backlog   received up to 70 · 50 of 50 CSNs"


def test_a_bar_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    out, now = Terminal(), [0.0]
    bars = Bars(out, colour=False)
    bars._pace = Pace(lambda: now[0])
    for at, done in ((0.0, 0), (10.0, 100)):
        now[0] = at
        bars.show(ProgressEvent("rebuild", "silver.t", done, 400, "spans"))
    bars.close()
    assert "100 of 400 spans" in out.getvalue()
    assert "10 spans/s, 30.0 s left" in out.getvalue()


CLEARS = "a\x1b[2Jb"


def test_names_of_people_stay_as_they_are() -> None:
    for name in ("größe", "日本", "имя", "e\u0301", "😀", "a\u00a0b", "`;'\"\\"):
        assert printable(name) == name


def test_commands_are_escaped_and_line_feeds_where_a_line_is_asked_for() -> None:
    assert printable(f"{CLEARS}\u202e\u2028\x9b\n") == "a\\x1b[2Jb\\u202e\\u2028\\x9b\n"
    assert printable("a\nb\tc", keep="") == "a\\nb\\tc"


def test_only_colours_pass_and_only_where_there_is_colour() -> None:
    text = f"{GREEN}live{RESET} {CLEARS}"
    assert printable(text, colour=True) == f"{GREEN}live{RESET} a\\x1b[2Jb"
    assert "\x1b" not in printable(text)


def test_a_row_of_a_table_is_one_line() -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    dice = random.Random(seed)
    for _ in range(200):
        rows = [[odd_text(dice), odd_text(dice)] for _ in range(3)]
        lines = table(rows)
        assert len(lines) == len(rows)
        assert all(len(line.splitlines()) <= 1 for line in lines)  # none of a row of blanks alone
        assert not [one for line in lines for one in line if unicodedata.category(one)[0] == "C"]


def test_results_and_narration_are_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    output.reset()  # of a test before this one
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    view = CommandOutput(OutputOptions(), "status")
    view.result(None, f"table {CLEARS}\n")
    view.report(ProgressEvent("copy", f"copying {CLEARS}"))
    assert "table a\\x1b[2Jb" in out.getvalue()
    assert "copying a\\x1b[2Jb" in err.getvalue()
    assert "\x1b" not in out.getvalue() + err.getvalue()
