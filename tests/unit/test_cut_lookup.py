"""Finding a cut: what is asked for gives the last cut that holds nothing behind it, or an error that says why not."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.control.cut_lookup import find_cut
from cdc_lake.control.cuts import PinnedCut, parse_cut, record
from cdc_lake.errors import BeforeFirstCut, CutNotReached, CutUnknown, MalformedPosition
from cdc_lake.model.position import Csn, Lsn, Named, Position, as_of
from tests.cut_lake import GAUSS_CSN, GAUSS_LSN, PG, CutLake, at


def found(lake: CutLake, given: Any, epoch: int | None = None) -> tuple[int, int]:
    cut = find_cut(lake.project, as_of(given), epoch)
    return cut.epoch, cut.position


@pytest.fixture
def lake(tmp_path: Path) -> CutLake:
    """Transactions at 200, 300, 400, 500, cuts at the copy and behind the first, second and fourth."""
    lake = CutLake(tmp_path)
    lake.cut(100)
    for n, position in enumerate((200, 300, 400, 500)):
        lake.land(position, minutes=n)
    lake.cut(200, 0)
    lake.cut(300, 1)
    lake.cut(500, 3)
    return lake


@pytest.mark.parametrize(
    ("given", "position"),
    [
        ("latest", 500), (500, 500), (499, 300), (300, 300), (299, 200), (100, 100), ("0/12C", 300), ("0/12b", 200),
        ("300", 300), (Lsn(450), 300), (Position(1, 250), 200),
    ],
)  # fmt: skip
def test_a_position_gives_the_last_cut_at_or_below_it(lake: CutLake, given: Any, position: int) -> None:
    assert found(lake, given) == (1, position)


@pytest.mark.parametrize("given", [99, "0/63", 0, -1])
def test_a_position_before_the_first_cut_is_an_error(lake: CutLake, given: Any) -> None:
    with pytest.raises(BeforeFirstCut, match="first cut of epoch 1, which is at 0/64"):
        found(lake, given)


def test_without_any_cut_nothing_is_found(tmp_path: Path) -> None:
    for given in ("latest", 200, "2026-01-01T00:00:00Z"):
        with pytest.raises(BeforeFirstCut, match="nothing was applied"):
            found(CutLake(tmp_path / given if isinstance(given, str) else tmp_path), given)


def test_what_bronze_holds_and_silver_does_not_is_not_reached(lake: CutLake) -> None:
    lake.land(600, minutes=4)
    assert found(lake, 599) == (1, 500)  # bronze has nothing between
    assert found(lake, "latest") == (1, 500)
    for given in (600, 601, "0/258"):
        with pytest.raises(CutNotReached):
            found(lake, given)


def test_what_bronze_has_not_come_to_is_not_reached(lake: CutLake) -> None:
    with pytest.raises(CutNotReached, match="bronze itself has reached only 0/1F4"):
        found(lake, 501)


@pytest.mark.parametrize(
    ("minutes", "position"),
    [(0, 200), (0.99, 200), (1, 300), (2.5, 300), (3, 500), (600, 500)],
)
def test_a_time_gives_the_last_cut_that_was_committed_by_then(lake: CutLake, minutes: float, position: int) -> None:
    assert found(lake, at(minutes)) == (1, position)
    assert found(lake, at(minutes).isoformat()) == (1, position)


def test_a_time_before_everything_is_an_error(lake: CutLake) -> None:
    with pytest.raises(BeforeFirstCut, match="no cut contains only what was committed by"):
        found(lake, at(-1))


def test_a_time_that_landed_transactions_reach_is_not_reached(lake: CutLake) -> None:
    lake.land(600, minutes=4)
    assert found(lake, at(3.9)) == (1, 500)
    with pytest.raises(CutNotReached, match="1 transaction committed by"):
        found(lake, at(4))


def test_of_times_the_latest_up_to_a_cut_counts_because_clocks_go_back(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    for position, minutes in ((200, 0), (300, 10), (400, 4), (500, 11)):
        lake.land(position, minutes=minutes)
        lake.cut(position, minutes)
    assert found(lake, at(9)) == (1, 200)
    assert found(lake, at(10)) == (1, 400)
    assert found(lake, at(11)) == (1, 500)


def test_a_cut_of_copied_rows_alone_is_older_than_the_moment_it_was_written(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    lake.cut(100)
    with pytest.raises(BeforeFirstCut):
        found(lake, at(59))
    assert found(lake, at(60)) == (1, 100)


@pytest.mark.parametrize(
    "text", ["2026-01-01", "2026-01-01T12:00:00", "20260101T120000", "yesterday", "a b", "", "1.5"]
)
def test_what_names_no_cut_is_an_error(lake: CutLake, text: str) -> None:
    with pytest.raises(CutUnknown):
        found(lake, text)
    with pytest.raises(CutUnknown, match="has no time zone"):
        found(lake, datetime(2026, 1, 1))  # noqa: DTZ001 - the point of the test


@pytest.mark.parametrize("given", [True, 1.5, None, date(2026, 1, 1), ["latest"]])
def test_what_is_of_another_type_names_no_cut(lake: CutLake, given: Any) -> None:
    with pytest.raises(CutUnknown, match="it is of type"):
        found(lake, given)


def test_a_malformed_position_stays_one(lake: CutLake) -> None:
    with pytest.raises(MalformedPosition):
        found(lake, "0/xyz")


def test_positions_are_of_the_newest_stream_unless_an_epoch_is_named(lake: CutLake) -> None:
    lake.begin("pg:7:shop:cdc2:0/64")
    assert found(lake, "latest") == (1, 500)
    lake.cut(120)
    lake.land(150, minutes=5)
    lake.cut(150, 5)
    assert found(lake, "latest") == (2, 150)
    assert found(lake, 149) == (2, 120)
    assert found(lake, Position(1, 320)) == (1, 300)
    assert found(lake, 320, 1) == (1, 300)
    assert found(lake, "latest", 1) == (1, 500)
    assert found(lake, 9_999, 1) == (1, 500)  # the stream is over, and nothing of it is left out
    assert found(lake, at(2)) == (1, 300)
    assert found(lake, at(5)) == (2, 150)
    with pytest.raises(BeforeFirstCut, match="first cut of epoch 2"):
        found(lake, 119)
    with pytest.raises(CutUnknown, match="there are some of 1, 2"):
        found(lake, 119, 3)


def test_a_csn_in_a_stream_ordered_by_the_log_gives_the_last_cut_without_a_greater_one(tmp_path: Path) -> None:
    lake = CutLake(tmp_path, stream=GAUSS_LSN)  # the copy holds everything up to CSN 50
    lake.cut(100)
    for position, csn in ((200, 51), (300, 53), (400, 52), (500, 60)):
        lake.land(position, csn=csn)
        lake.cut(position, 0)
    assert [found(lake, Csn(csn))[1] for csn in (50, 51, 52, 53, 59, 60)] == [100, 200, 200, 400, 400, 500]
    assert found(lake, "53") == (1, 400)
    assert found(lake, 300) == (1, 300)  # an integer is what the tables store
    with pytest.raises(CutNotReached):
        found(lake, Csn(61))
    with pytest.raises(BeforeFirstCut, match="the initial copy, which is at 50"):
        found(lake, Csn(49))
    lake.land(600, csn=70)
    with pytest.raises(CutNotReached):
        found(lake, Csn(70))
    assert found(lake, Csn(69)) == (1, 500)


def test_an_lsn_in_a_stream_ordered_by_csn_gives_the_last_cut_without_a_greater_one(tmp_path: Path) -> None:
    lake = CutLake(tmp_path, stream=GAUSS_CSN)  # the copy holds everything up to CSN 50, the slot is at 0/64
    lake.cut(50)
    for csn, lsn in ((51, 200), (52, 400), (53, 300), (54, 500)):
        lake.land(csn, csn=csn, lsn=lsn)
        lake.cut(csn, 0)
    assert [found(lake, Lsn(lsn))[1] for lsn in (100, 200, 300, 399, 400, 499, 500)] == [50, 51, 51, 51, 53, 53, 54]
    assert found(lake, "53") == found(lake, 53) == (1, 53)
    assert found(lake, Csn(52)) == (1, 52)


def test_a_csn_means_nothing_where_the_server_has_none(lake: CutLake) -> None:
    with pytest.raises(CutUnknown, match="the stream has no CSNs"):
        found(lake, Csn(300))
    assert lake.stream == PG


def test_a_pin_is_found_by_its_name_until_it_ends(lake: CutLake) -> None:
    cut = parse_cut(lake.control.cuts(lake.control.cut_places())[1])
    record(lake.control, PinnedCut("month_end", scheduled=False, cut=cut, until=None), at(0))
    assert as_of("month_end") == Named("month_end")
    assert found(lake, "month_end") == (1, 200)
    record(lake.control, PinnedCut("month_end", scheduled=False, cut=cut, until=at(1)), at(1))
    with pytest.raises(CutUnknown, match="ended at 2026-01-01"):
        found(lake, "month_end")
