"""Reading at a cut without Spark: all tables at one position, or an error that says which is not and what helps."""

from __future__ import annotations

import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cdc_lake
from cdc_lake.errors import CutNotReached, NotInCut, SilverMissing, TableBehind, VersionGone
from cdc_lake.model.position import Latest, Position
from cdc_lake.runtime.cut_retention import show_cut
from cdc_lake.silver.kinds import rows_as_of
from tests.cut_lake import CutLake, at, forget, ids, listed
from tests.pipeline_file import make_project
from tests.tarballs import unpack

FORMATS = pytest.mark.parametrize("fmt", ["delta", "iceberg"])
TIME = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["delta", "iceberg"])
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> CutLake:
    """Tables a and b with cuts at 200 and 300; b goes on behind the last one."""
    lake = CutLake(tmp_path, request.param)
    for position in (200, 300, 400):
        lake.land(position, minutes=position / 100)
    first = lake.write("a", ids(1)), lake.write("b", ids(10))
    lake.cut(200, 2, a=lake.state("a", first[0], 200), b=lake.state("b", first[1], 200))
    second = lake.write("a", ids(1, 2)), lake.write("b", ids(10, 20))
    lake.cut(300, 3, a=lake.state("a", second[0], 300), b=lake.state("b", second[1], 300, quarantined_keys=3))
    lake.write("b", ids(10, 20, 30))
    return lake


def test_a_session_answers_for_every_table_from_the_same_cut(lake: CutLake) -> None:
    latest = cdc_lake.Pipeline(lake.project).cut()
    assert (latest.position, latest.epoch, latest.commit_ts) == ("0/12C", 1, at(3))
    assert listed(latest.read("public.a")) == [1, 2]
    assert listed(latest.read("b")) == [10, 20]
    early = cdc_lake.Pipeline(lake.project).cut(as_of="0/12B")
    assert early.position == "0/C8"
    assert [listed(early.read(name)) for name in ("a", "b", "silver.a", "public.b")] == [[1], [10], [1], [10]]
    assert listed(cdc_lake.Pipeline(lake.project).read("b", as_of=at(2.5))) == [10]


def test_what_is_held_is_said(lake: CutLake) -> None:
    session = cdc_lake.Pipeline(lake.project).cut()
    assert session.quarantined == {"public.b": 3}
    assert session.tables["public.a"].quarantined_keys == 0
    said = json.loads(session.read("b").schema.metadata[b"cdc_lake"])
    assert (said["position"], said["epoch"], said["state"], said["quarantined_keys"]) == ("0/12C", 1, "active", 3)
    assert said["version"] == session.tables["public.b"].version


@pytest.mark.obeys("STA677")
def test_a_table_that_is_behind_is_refused_unless_it_is_allowed(lake: CutLake) -> None:
    state = lake.state(
        "b", cdc_lake.Pipeline(lake.project).cut(as_of=200).tables["public.b"].version, 200, state="failed"
    )
    lake.cut(400, 4, a=cdc_lake.Pipeline(lake.project).cut().tables["public.a"], b=state)
    with pytest.raises(TableBehind, match=r"silver.b is still at 0/C8 in the cut at 0/190"):
        cdc_lake.Pipeline(lake.project).cut()
    assert listed(cdc_lake.Pipeline(lake.project).read("a")) == [1, 2]
    with pytest.raises(TableBehind):
        cdc_lake.Pipeline(lake.project).read("b")
    allowed = cdc_lake.Pipeline(lake.project).cut(allow_behind=True)
    assert (listed(allowed.read("b")), allowed.tables["public.b"].position) == ([10], 200)
    assert listed(cdc_lake.Pipeline(lake.project).read("b", allow_behind=True)) == [10]


@pytest.mark.obeys("STA678")
def test_a_table_that_the_cut_does_not_list_is_an_error_and_those_that_it_lists_are_read(lake: CutLake) -> None:
    for name in ("c", "public.c", "silver.c", "x y", ""):
        with pytest.raises(NotInCut) as refused:
            cdc_lake.Pipeline(lake.project).read(name)
        assert "`cdc-lake cuts show` lists the tables" in refused.value.remedy
    for one in show_cut(lake.project, Latest(), None).tables:
        assert cdc_lake.Pipeline(lake.project).read(one.source) == cdc_lake.Pipeline(lake.project).read(one.table)


def test_a_version_that_is_gone_is_an_error_of_its_own(lake: CutLake) -> None:
    early = cdc_lake.Pipeline(lake.project).cut(as_of=200)
    version = early.tables["public.a"].version
    assert version is not None
    forget(lake, "a", version)
    with pytest.raises(VersionGone, match=rf"version {version} of silver.a, which the cut at 0/C8 names"):
        early.read("a")
    assert listed(early.read("b")) == [10]
    assert listed(cdc_lake.Pipeline(lake.project).read("a")) == [1, 2]


def test_a_table_that_was_there_and_held_nothing_has_columns_and_no_rows(lake: CutLake) -> None:
    lake.cut(400, 4, a=lake.state("a", None, 400), c=lake.state("c", None, 400))
    assert cdc_lake.Pipeline(lake.project).read("a").num_rows == 0
    assert cdc_lake.Pipeline(lake.project).read("a").column_names == ["id"]
    with pytest.raises(SilverMissing):
        cdc_lake.Pipeline(lake.project).read("c")


def history(*versions: tuple[int, int, int | None]) -> pa.Table:
    """Versions of rows: id, from, to; all of epoch 1."""
    ended = [end is not None for _, _, end in versions]
    return pa.table(
        {
            "id": pa.array([id_ for id_, _, _ in versions], pa.int32()),
            "valid_from_epoch": pa.array([1] * len(versions), pa.int32()),
            "valid_from": pa.array([begin for _, begin, _ in versions], pa.int64()),
            "valid_from_ts": pa.array([TIME] * len(versions), pa.timestamp("us", tz="UTC")),
            "valid_to_epoch": pa.array([1 if end else None for end in ended], pa.int32()),
            "valid_to": pa.array([end for _, _, end in versions], pa.int64()),
            "valid_to_ts": pa.array([TIME if end else None for end in ended], pa.timestamp("us", tz="UTC")),
            "is_current": pa.array([not end for end in ended], pa.bool_()),
        }
    )


@FORMATS
def test_a_history_answers_for_a_version_that_is_gone(tmp_path: Path, fmt: str) -> None:
    lake = CutLake(tmp_path, fmt)
    first = history((1, 100, None), (2, 200, None))
    old = lake.write("h", first)
    lake.cut(200, 2, h=lake.state("h", old, 200))
    now = lake.write("h", history((1, 100, 300), (1, 300, None), (2, 200, 300), (3, 300, None)))
    lake.cut(300, 3, h=lake.state("h", now, 300))

    def answers() -> tuple[Any, Any]:
        whole = cdc_lake.Pipeline(lake.project).read("h", as_of=200, versions=True)
        return cdc_lake.Pipeline(lake.project).read("h", as_of=200).to_pylist(), whole.sort_by("id").to_pylist()

    there = answers()
    assert sorted(row["id"] for row in there[0]) == [1, 2]
    assert there[1] == first.to_pylist()
    forget(lake, "h", old)
    gone = answers()
    assert sorted(gone[0], key=str) == sorted(there[0], key=str)
    assert gone[1] == there[1]
    assert listed(cdc_lake.Pipeline(lake.project).read("h")) == [1, 3]


def test_a_history_of_another_generation_does_not_answer(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    old = lake.write("h", history((1, 100, None)))
    lake.cut(200, 2, h=lake.state("h", old, 200))
    now = lake.write("h", history((1, 300, None)))
    lake.cut(300, 3, h=lake.state("h", now, 300, generation=2))
    forget(lake, "h", old)
    with pytest.raises(VersionGone):
        cdc_lake.Pipeline(lake.project).read("h", as_of=200)


@FORMATS
def test_an_append_table_answers_for_a_version_that_is_gone(tmp_path: Path, fmt: str) -> None:
    lake = CutLake(tmp_path, fmt)
    text, long = pa.string(), pa.int64()
    own = {"_op": text, "_epoch": pa.int32(), "_position": long, "_ordinal": long, "_csn": long, "_lsn": long}
    own |= {"_xid": long, "_commit_ts": pa.timestamp("us", tz="UTC"), "_unchanged": pa.list_(text)}

    def changes(*positions: int) -> pa.Table:
        rows = [{"id": n, "_epoch": 1, "_position": position, "_op": "I"} for n, position in enumerate(positions)]
        return pa.Table.from_pylist(rows, schema=pa.schema({"id": pa.int32(), **own}))

    old = lake.write("p", changes(150, 200))
    lake.cut(200, 2, p=lake.state("p", old, 200))
    now = lake.write("p", changes(150, 200, 300))
    lake.cut(300, 3, p=lake.state("p", now, 300))
    assert listed(cdc_lake.Pipeline(lake.project).read("p", as_of=200)) == [0, 1]
    forget(lake, "p", old)
    assert listed(cdc_lake.Pipeline(lake.project).read("p", as_of=200)) == [0, 1]
    assert listed(cdc_lake.Pipeline(lake.project).read("p")) == [0, 1, 2]


def test_a_history_is_asked_by_epoch_before_position() -> None:
    rows = history((1, 500, None), (2, 100, 900))
    later = rows.set_column(1, "valid_from_epoch", pa.array([1, 2], pa.int32()))
    later = later.set_column(4, "valid_to_epoch", pa.array([None, 2], pa.int32()))
    assert listed(rows_as_of(later, Position(1, 499), versions=False)) == []
    assert listed(rows_as_of(later, Position(1, 9_999), versions=False)) == [1]
    assert listed(rows_as_of(later, Position(2, 50), versions=False)) == [1]
    assert listed(rows_as_of(later, Position(2, 100), versions=False)) == [1, 2]
    assert listed(rows_as_of(later, Position(2, 900), versions=False)) == [1]
    reopened = rows_as_of(later, Position(2, 899), versions=True)
    assert reopened["is_current"].to_pylist() == [True, True]
    assert reopened["valid_to"].to_pylist() == [None, None]


def test_a_lake_of_0_2_0_is_read_at_its_cuts(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parents[1] / "data" / "lake_0_2_0.tar.xz") as archive:
        unpack(archive, tmp_path)
    project = make_project(tmp_path, "old_delta", silver={"defaults": {"namespace": "old_delta"}})
    early = cdc_lake.Pipeline(project).cut(as_of=139)
    assert (early.position, early.quarantined) == ("0/78", {"public.t": 1})
    assert listed(early.read("t")) == [2, 3, 500]
    assert listed(cdc_lake.Pipeline(project).read("t")) == [6, 7]
    with pytest.raises(CutNotReached, match="bronze has more transactions up to 0/96"):
        cdc_lake.Pipeline(project).cut(as_of="0/96")
