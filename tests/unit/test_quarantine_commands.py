"""`quarantine release` and `quarantine discard`: what they choose, say, refuse and record; a step that dies decides all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cdc_lake
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.control.coordination import apply_lease
from cdc_lake.control.table_pauses import pause, resume
from cdc_lake.errors import AnotherApply, DecidedOtherwise, NotQuarantined, QuarantineRemains
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.quarantine import FIRST_ORDINAL
from cdc_lake.observability import failpoints as at
from cdc_lake.runtime.quarantine import Choice, decide, list_quarantine
from cdc_lake.tables.control_schema import CutRow, utc_now
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.shell import output_of

SHOP = """\
version: 1
pipeline: shop
source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}
silver:
  tables:
    - from: public.orders
      rules:
        - {rule: in_set, column: note, values: [a], on_fail: quarantine}
        - {rule: not_null, column: note, on_fail: quarantine}
"""
ORDERS = table("public.orders", id="int4", note="text")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Keys 7 and 8 wait together, by a rule; 9 by a value, 5 by two rules, 6 by a rule that 7 has too."""
    (tmp_path / "shop.yaml").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    made = cdc_lake.Pipeline.load(tmp_path / "shop.yaml").project
    bronze = DeltaBronze(made.bronze, durability="os")
    bronze.begin_stream("s", 100)
    changes = (Insert(ORDERS, ("7", "x")), Insert(ORDERS, ("9", "b")))
    bronze.append([raw_transaction(Transaction(boundaries(position), changes)) for position in (200, 240)])
    control = control_tables(made)
    state = {"table": "silver.orders", "format": "delta", "version": 1, "position": 250, "state": "active", "held": 5}
    layout = {"layout": ORDERS.layout}
    control.record(CutRow(1, "s", 250, None, json.dumps({"public.orders": {**state, **layout}}), utc_now()))
    rows: list[tuple[int, int, str, list[str], str, str | None]] = [
        (200, 1, "failed", ["in_set_note"], "7", None),
        (200, 2, "failed", ["type_note"], "9", None),
        (210, 1, "failed", ["in_set_note", "not_null_note"], "5", None),
        (220, 1, "failed", ["in_set_note"], "6", None),
        (240, 1, "waiting", [], "8", "7"),
    ]
    control.append("quarantine", [_held(*row) for row in rows])
    return made


def _held(position: int, ordinal: int, reason: str, rules: list[str], key: str, before: str | None) -> dict[str, Any]:
    return {
        "stream": "s", "epoch": 1, "generation": 1, "relation": "public.orders", "table": "silver.orders",
        "op": "I" if before is None else "U", "layout": ORDERS.layout, "new": [key, "x"], "old": None, "old_kind": None,
        "unchanged": None, "span_upto": 250, "recorded_at": utc_now(), "position": position, "ordinal": ordinal,
        "reason": reason, "rules": rules, "key": [key], "from_key": None if before is None else [before],
    }  # fmt: skip


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    return output_of(capsys, "quarantine", *arguments, code=code)


def decisions(project: Project) -> list[dict[str, Any]]:
    return control_tables(project).read("decisions").sort_by("ordinal").to_pylist()


def test_without_yes_the_changes_are_listed_and_nothing_is_decided(project: Project, capsys: Any):
    text = said(capsys, "release", "orders", "--key", "7", "--reason", "looked at")
    assert text == (
        "table          position  op  key  held by\n"
        "silver.orders  0/C8:1    I   (7)  in_set_note\n"
        "silver.orders  0/F0:1    U   (8)  queued behind a quarantined change of its key\n"
        "\n"
        "2 changes would be released: add --yes to do it\n"
    )
    assert decisions(project) == []


def test_a_decision_takes_what_waits_together_and_is_recorded_whole(project: Project, capsys: Any):
    text = said(capsys, "release", "orders", "--key", "8", "--reason", "looked at", "--yes")
    assert text.endswith("\n2 changes released: the next run carries it out, before position 0/FB\n")
    rows = decisions(project)
    assert [(row["of_position"], row["of_ordinal"], row["ordinal"]) for row in rows] == [
        (200, 1, FIRST_ORDINAL), (240, 1, FIRST_ORDINAL + 1),
    ]  # fmt: skip
    assert {(row["verb"], row["reason"], row["position"]) for row in rows} == {("release", "looked at", 251)}
    assert [row["new"] for row in rows] == [["7", "x"], ["8", "x"]]
    assert [row["xid"] for row in rows] == [200, 240], "as in bronze"
    listed = said(capsys, "list")
    assert "in_set_note; to be released" in listed
    assert [one.decided for one in list_quarantine(project).changes].count("release") == 2


def test_a_decision_on_a_paused_table_says_that_it_waits_for_resume(project: Project, capsys: Any):
    pause(project, "orders")
    text = said(capsys, "discard", "orders", "--key", "9", "--reason", "looked at", "--yes")
    assert text.endswith("\n1 change discarded: a run carries it out once the table is resumed, before position 0/FB\n")
    resume(project, "orders")
    assert not decide(project, "discard", "orders", Choice(("6",)), "looked at", yes=True).paused


def test_twice_is_once_and_the_opposite_is_refused(project: Project, capsys: Any):
    said(capsys, "release", "orders", "--key", "7", "--reason", "looked at", "--yes")
    assert said(capsys, "release", "orders", "--key", "7", "--reason", "again", "--yes") == (
        "2 changes were released before\n"
    )
    assert len(decisions(project)) == 2
    with pytest.raises(DecidedOtherwise):
        decide(project, "discard", "orders", Choice(("7",)), "no", yes=True)
    later = CutRow(1, "s", 300, None, control_tables(project).last_cut("s").tables.replace("250", "300"), utc_now())  # type: ignore[union-attr]
    control_tables(project).record(later)
    assert [one.key for one in list_quarantine(project).changes] == [("9",), ("5",), ("6",)]
    assert said(capsys, "release", "orders", "--key", "7", "--reason", "again", "--yes") == (
        "2 changes were released before\n"
    ), "also where it is carried out"


def test_by_rule_only_what_nothing_else_holds_is_chosen_and_the_rest_is_named(project: Project, capsys: Any):
    text = said(capsys, "release", "public.orders", "--all", "--rule", "in_set_note", "--reason", "fine")
    assert "(5) stays held: it is also held by not_null_note\n" in text
    assert "3 changes would be released" in text
    everything = json.loads(said(capsys, "release", "orders", "--all", "--reason", "fine", "--json"))
    assert everything["schema"] == "cdc-lake/held-release/1"
    assert [(one["keys"], one["why"]) for one in everything["left"]] == [
        ([["9"]], "no rule of the pipeline that could be waived holds it, but type_note")
    ]
    assert len(json.loads(said(capsys, "discard", "orders", "--all", "--reason", "fine", "--json"))["changes"]) == 5


def test_what_cannot_be_decided_is_refused_where_it_is_named(project: Project, capsys: Any):
    with pytest.raises(QuarantineRemains, match="type_note"):
        decide(project, "release", "orders", Choice(("9",)), "fine", yes=True)
    assert len(decide(project, "discard", "orders", Choice(("9",)), "fine", yes=False).changes) == 1
    with pytest.raises(NotQuarantined, match="has that key"):
        decide(project, "release", "orders", Choice(("77",)), "fine", yes=True)
    assert "QUA510" in said(capsys, "release", "nowhere", "--key", "1", "--reason", "fine", code=1)
    assert decisions(project) == []


def test_without_a_choice_or_a_reason_the_command_line_is_wrong(project: Project, capsys: Any):
    for arguments in (
        ("release", "orders", "--reason", "fine"),
        ("release", "orders", "--key", "7", "--all", "--reason", "fine"),
        ("discard", "orders", "--key", "7", "--rule", "in_set_note", "--reason", "fine"),
        ("discard", "orders", "--key", "7"),
    ):
        said(capsys, *arguments, code=2)


def test_while_another_process_applies_nothing_is_decided(project: Project):
    with apply_lease(project):
        with pytest.raises(AnotherApply):
            cdc_lake.Pipeline(project).release_quarantined("orders", key=["7"], reason="fine")
        assert decide(project, "release", "orders", Choice(("7",)), "fine", yes=False).changes


@pytest.mark.parametrize("point", [at.FILE_OPEN, at.COMMIT_WRITTEN])
@pytest.mark.parametrize("verb", ["release", "discard"])
def test_a_process_that_dies_has_decided_all_or_nothing(project: Project, point: str, verb: Any):
    with broken_off(point) as reached:
        decide(project, verb, "orders", Choice(("7",)), "fine", yes=True)
    assert reached
    assert len(decisions(project)) in {0, 2}
    decide(project, verb, "orders", Choice(("7",)), "fine", yes=True)
    assert [(row["of_position"], row["verb"]) for row in decisions(project)] == [(200, verb), (240, verb)]


@pytest.mark.parametrize("verb", ["release", "discard"])
def test_what_is_no_name_of_a_table_is_told_so(project: Project, capsys: Any, verb: str):
    assert "STA690" in said(capsys, verb, "a..b", "--all", "--reason", "looked at", code=1)
