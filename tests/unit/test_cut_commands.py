"""The verbs of `cuts`, and what Iceberg and Delta are told of pins."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import cdc_lake
from cdc_lake.control.cuts import parse_cut, pinned_cuts
from cdc_lake.errors import NotPinned, VersionGone
from cdc_lake.model.position import Latest, as_of
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.cut_retention import Keeper, pin_cut, unpin_cut
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.maintenance import retention_changes
from tests.cut_lake import CutLake, forget, ids, listed
from tests.shell import output_of

SHOP = """\
version: 1
pipeline: shop
source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}
silver: {defaults: {format: iceberg}}
"""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CutLake:
    """Iceberg tables a and b, with cuts at 200 and 300."""
    (tmp_path / "shop.yaml").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    lake = CutLake(tmp_path, "iceberg")
    for position in (200, 300):
        lake.land(position, minutes=position / 100)
        versions = {name: lake.write(name, ids(position)) for name in ("a", "b")}
        quarantined = {"a": 0, "b": 2 if position == 300 else 0}
        lake.cut(
            position,
            position / 100,
            **{n: lake.state(n, v, position, quarantined_keys=quarantined[n]) for n, v in versions.items()},
        )
    return lake


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    return output_of(capsys, "cuts", *arguments, code=code)


def tags(lake: CutLake, name: str) -> dict[str, int]:
    table = iceberg_table(lake.project, lake.project.target(TableName("public", name)))
    assert table is not None
    return {tag: ref.snapshot_id for tag, ref in table.refs().items() if tag != "main"}


def test_list_shows_the_newest_first_and_what_stays_readable(lake: CutLake, capsys: Any) -> None:
    pin_cut(lake.project, "audit", as_of(200), None, None)
    lines = said(capsys, "list").splitlines()
    assert lines[0].split() == ["epoch", "position", "committed", "tables", "stays", "readable"]
    assert lines[1].split() == ["1", "0/12C", "2026-01-01T00:03:00+00:00", "2,", "2", "keys", "held"]
    assert lines[2].split() == ["1", "0/C8", "2026-01-01T00:02:00+00:00", "2", "audit", "(no", "end)"]
    assert said(capsys, "list", "--limit", "1").splitlines()[-1] == "… and 1 older cut"
    document = json.loads(said(capsys, "list", "--pinned", "--json"))
    assert document["schema"] == "cdc-lake/cuts-list/1"
    assert [cut["position"] for cut in document["cuts"]] == ["0/C8"]
    assert document["cuts"][0]["pins"] == [{"name": "audit", "scheduled": False, "until": None}]


def test_a_pipeline_file_is_enough_to_read(lake: CutLake) -> None:
    session = cdc_lake.Pipeline.load("shop.yaml").cut()
    assert repr(session) == "CutSession(shop at 0/12C of epoch 1, 2 tables)"
    assert listed(session.read("a")) == listed(cdc_lake.Pipeline.load("shop.yaml").read("a")) == [300]
    assert [cut.position for cut in cdc_lake.Pipeline(lake.project).cuts().cuts] == ["0/12C", "0/C8"]


def test_show_says_of_each_table_which_version_it_is_and_whether_it_is_there(lake: CutLake, capsys: Any) -> None:
    version = cdc_lake.Pipeline(lake.project).cut(as_of=200).tables["public.a"].version
    assert version is not None
    forget(lake, "a", version)
    document = json.loads(said(capsys, "show", "0/C8", "--json"))
    assert [(t["source"], t["readable"]) for t in document["tables"]] == [("public.a", False), ("public.b", True)]
    assert document["tables"][0]["version"] == version
    text = said(capsys, "show", "2026-01-01T00:02:30Z")
    assert text.startswith("0/C8 of epoch 1, committed 2026-01-01T00:02:00+00:00")
    assert "its version is gone" in text
    assert "active, 2 keys held" in said(capsys, "show")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show", "0/1"), "STA675"), (("show", "0/FFFF"), "STA676"), (("show", "2026-01-01"), "STA679"),
        (("show", "nobody"), "STA679"), (("pin", "9x"), "LAK463"), (("pin", "latest"), "LAK463"),
        (("pin", "x", "--end"), "LAK463"), (("pin", "at_20260101T000000Z"), "LAK463"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_says_so(lake: CutLake, capsys: Any, arguments: tuple[str, ...], code: str) -> None:
    assert f"error[{code}]" in said(capsys, *arguments, code=4 if code == "STA676" else 1)
    assert lake.control.read("pins").num_rows == 0


@pytest.mark.obeys("STA676")
def test_a_position_that_is_not_reached_leaves_the_latest(lake: CutLake, capsys: Any) -> None:
    assert "or read `latest`" in said(capsys, "show", "0/FFFF", code=4)
    assert said(capsys, "show", "latest") == said(capsys, "show")


@pytest.mark.obeys("LAK463")
def test_pin_keeps_a_cut_under_a_name_until_it_is_ended(lake: CutLake, capsys: Any) -> None:
    text = said(capsys, "pin", "month_end", "--at", "0/C8")
    assert text == "the cut at 0/C8 stays readable as `month_end` until it is unpinned\n"
    early = cdc_lake.Pipeline(lake.project).cut(as_of="month_end")
    assert early.position == "0/C8"
    for name in ("a", "b"):
        assert tags(lake, name) == {"cut_month_end": early.tables[f"public.{name}"].version}
    assert "error[LAK463]" in said(capsys, "pin", "month_end", code=1)
    said(capsys, "pin", "quarter", "--for", "90d")
    assert set(tags(lake, "a")) == {"cut_month_end", "cut_quarter"}
    until = {one.name: one.until for one in pinned_cuts(lake.control)}
    assert until["month_end"] is None
    assert until["quarter"] is not None
    said(capsys, "pin", "month_end", "--end")
    assert set(tags(lake, "a")) == {"cut_quarter"}
    assert "error[STA679]" in said(capsys, "show", "month_end", code=1)


def test_a_tag_keeps_its_version_from_being_expired(lake: CutLake) -> None:
    pin_cut(lake.project, "audit", as_of(200), None, None)
    version = tags(lake, "a")["cut_audit"]
    with pytest.raises(ValueError, match="protected"):
        forget(lake, "a", version)
    assert listed(cdc_lake.Pipeline(lake.project).read("a", as_of="audit")) == [200]


@pytest.mark.obeys("LAK462")
def test_a_cut_whose_versions_are_gone_cannot_be_pinned_and_the_next_one_is(lake: CutLake) -> None:
    version = cdc_lake.Pipeline(lake.project).cut(as_of=200).tables["public.b"].version
    assert version is not None
    forget(lake, "b", version)
    with pytest.raises(VersionGone):
        pin_cut(lake.project, "late", as_of(200), None, None)
    assert pinned_cuts(lake.control) == ()
    pin_cut(lake.project, "late", Latest(), None, None)
    assert listed(cdc_lake.Pipeline(lake.project).read("b", as_of="late")) == listed(
        cdc_lake.Pipeline(lake.project).read("b")
    )


def test_a_pin_that_ran_out_loses_its_tag_and_one_of_a_version_that_is_gone_is_told(lake: CutLake) -> None:
    pin_cut(lake.project, "short", Latest(), None, timedelta(hours=-1))
    assert tags(lake, "a") == {}
    pin_cut(lake.project, "audit", as_of(200), None, None)
    table = iceberg_table(lake.project, lake.project.target(TableName("public", "a")))
    assert table is not None
    version = tags(lake, "a")["cut_audit"]
    table.manage_snapshots().remove_tag("cut_audit").commit()
    forget(lake, "a", version)
    heard: list[Any] = []
    keeper = Keeper(lake.project, lake.control, None, heard.append)
    keeper.keep()
    keeper.keep()
    assert [one.text for one in heard] == ["the version of silver.a that `audit` pins no longer exists"]
    assert set(tags(lake, "b")) == {"cut_audit"}


def test_the_schedule_pins_cuts_and_tags_them(lake: CutLake) -> None:
    cuts = lake.project.pipeline.silver.cuts.model_copy(update={"pin_every": 60_000})
    silver = lake.project.pipeline.silver.model_copy(update={"cuts": cuts})
    object.__setattr__(lake.project, "pipeline", lake.project.pipeline.model_copy(update={"silver": silver}))
    keeper = Keeper(lake.project, lake.control, None, silent)
    for row in lake.control.cuts(lake.control.cut_places()):
        keeper.cut(parse_cut(row))
    made = pinned_cuts(lake.control)
    assert [one.name for one in made] == ["at_20260101T010200Z", "at_20260101T010300Z"]
    assert all(one.scheduled for one in made)
    assert made[0].until == made[0].cut.written_at + timedelta(days=7)
    assert tags(lake, "a") == {}  # both have run out: the cuts of this lake were written in the past


def test_pins_are_ended_by_their_name_once(lake: CutLake) -> None:
    pin_cut(lake.project, "once", Latest(), None, None)
    assert unpin_cut(lake.project, "once").ended
    with pytest.raises(NotPinned, match="no cut is pinned as `once`"):
        unpin_cut(lake.project, "once")
    pin_cut(lake.project, "once", as_of(200), None, None)  # the name is free again
    assert cdc_lake.Pipeline(lake.project).cut(as_of="once").position == "0/C8"


def test_retention_on_delta_is_set_for_pins_and_put_back_behind_them(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    lake.write("a", ids(1))
    target = lake.project.target(TableName("public", "a"))

    def asked(needed: timedelta | None) -> tuple[str, ...]:
        return retention_changes(lake.project, target, needed)

    assert asked(None) == asked(timedelta(days=6)) == ()  # Delta keeps that long by itself
    (statement,) = asked(timedelta(days=40))
    assert "'delta.deletedFileRetentionDuration' = 'interval 984 hours'" in statement
    assert "'delta.logRetentionDuration' = 'interval 984 hours'" in statement
    assert "'interval 876000 hours'" in asked(timedelta.max)[0]
    (statement,) = asked(timedelta(days=10))
    assert "'delta.deletedFileRetentionDuration' = 'interval 264 hours'" in statement
    assert "'delta.logRetentionDuration' = 'interval 720 hours'" in statement
    ours = {"hours": 264, "before": {"delta.deletedFileRetentionDuration": "interval 2 days"}}
    ours["before"] |= {"delta.logRetentionDuration": None}
    properties = {
        "delta.deletedFileRetentionDuration": "interval 264 hours",
        "delta.logRetentionDuration": "interval 720 hours",
        "cdc_lake.promised": json.dumps(ours),
    }
    table = DeltaTable(str(lake.project.silver_path(target)))
    table.alter.set_table_properties(properties, raise_if_not_exists=False)
    assert asked(timedelta(days=10)) == ()
    back, gone = asked(None)
    assert back.endswith("SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 2 days')")
    assert gone.endswith("UNSET TBLPROPERTIES IF EXISTS ('cdc_lake.promised', 'delta.logRetentionDuration')")
