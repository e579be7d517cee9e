"""Every way into the lake redacts, and redaction that changes in the middle of a stream makes tables wait."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.base import ReceiverContext
from cdc_lake.connectors.gaussdb.csn_order import keep_late
from cdc_lake.connectors.redaction import (
    NOTHING,
    RedactedBronze,
    changed_columns,
    check_unchanged,
    redaction_of,
    with_redaction,
)
from cdc_lake.connectors.snapshot_copy import TableCopy, copy_tables
from cdc_lake.control.snapshots import COMPLETE
from cdc_lake.control.streams import record_copy
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.redaction import Redaction, Strategy
from cdc_lake.errors import DestructiveChange, RedactionUnfit
from cdc_lake.model.change import Insert, Message, Transaction
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_planning import rebuild_plan
from cdc_lake.tables.control_files import LocalControlFiles
from cdc_lake.tables.control_schema import ConfigurationRow
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.canary import leaks
from tests.pipeline_file import make_project

CANARY = "kanari3n"
USERS = table("public.users", id="int8", email="text", ssn="text", note="text")
ONE = raw_transaction(
    Transaction(boundaries(100), (Insert(USERS, ("1", CANARY, CANARY, "plain")), Message(CANARY, CANARY.encode())))
)


def redaction(**strategies: Strategy) -> Redaction:
    return Redaction(lambda _, name: strategies.get(name), key=b"k" * 16)


def pipeline_of(root: Path, **bronze: Any) -> Project:
    return make_project(root, bronze=bronze)


def test_transactions_copies_and_what_came_too_late_hold_no_canary(tmp_path: Path):
    one = redaction(email=Strategy.SHA256, ssn=Strategy.DROP)
    bronze = RedactedBronze(DeltaBronze(tmp_path / "bronze", durability="os"), one)
    state = bronze.begin_stream("s", 50)
    bronze.append_snapshot("i", 0, USERS, pa.array([["1", CANARY, CANARY, "plain"]]), 0, 50)
    bronze.append([ONE])
    kept = keep_late(LocalControlFiles(tmp_path / "control" / "late"), state, ONE, with_redaction(tabulate, one))
    assert Path(kept).exists()
    assert leaks(tmp_path, [CANARY]) == []
    assert leaks(tmp_path, ["plain"])
    assert verify(BronzeReader(tmp_path / "bronze")).transactions == 1


@pytest.mark.parametrize("noted", ["as landed", "as it was at the source, by 0.3.0"])
def test_a_redacted_copy_without_changes_can_be_built_again(tmp_path: Path, noted: str):
    project = pipeline_of(tmp_path, redact=[{"columns": ["public.*.ssn"], "strategy": "drop"}])
    bronze = RedactedBronze(DeltaBronze(project.bronze, durability="os"), redaction_of(project))
    state = bronze.begin_stream("s", 50)
    empty = table("public.empty", id="int8", ssn="text")
    full: TableCopy[None] = TableCopy(USERS, (lambda _: iter([pa.array([["1", CANARY, CANARY, "plain"]])]),))
    none: TableCopy[None] = TableCopy(empty, (lambda _: iter(()),))
    context = ReceiverContext(project, bronze, control_tables(project), threading.Event(), silent)
    copied = copy_tables(context, [full, none], [None], "initial-1", 50, ())
    reader = bronze_reader(project)
    landed = {str(one.table): number for number, one in reader.layouts().items()}
    assert {str(one.relation): one.layout for one in copied} == landed
    if noted != "as landed":
        copied = tuple(replace(one, layout=(USERS if one.rows else empty).layout) for one in copied)
    record_copy(control_tables(project), state, COMPLETE, copied)
    plan = rebuild_plan(project, reader, state, USERS.table, 50)
    assert (plan.layout, plan.form.names) == (landed["public.users"], ("id", "email", "note"))
    assert rebuild_plan(project, reader, state, empty.table, 50).layout == landed["public.empty"]


@pytest.mark.parametrize("strategy", [Strategy.DROP, Strategy.NULL])
def test_a_column_that_becomes_part_of_the_key_stops_the_receiver(tmp_path: Path, strategy: Strategy):
    bronze = RedactedBronze(DeltaBronze(tmp_path, durability="os"), redaction(ssn=strategy))
    bronze.begin_stream("s", 50)
    bronze.append([ONE])
    keyed = table("public.users", key=["id", "ssn"], id="int8", ssn="text")
    with pytest.raises(RedactionUnfit, match=r"`ssn` of .* identifies its rows"):
        bronze.append([raw_transaction(Transaction(boundaries(200), (Insert(keyed, ("1", CANARY)),)))])
    assert leaks(tmp_path, [CANARY]), "what has no rule is landed as it is"


def test_columns_that_the_pipeline_keys_by_cannot_be_lost():
    rules = Redaction(
        lambda _, name: Strategy.NULL if name == "note" else None, keys=lambda _: ("id", "note"), key=None
    )
    with pytest.raises(RedactionUnfit, match="`note`"):
        rules.relation(USERS)


@pytest.mark.parametrize("bronze", [{"undecodable": "land", "redact_key": "k" * 16}, {}])
def test_nothing_gets_past_a_pipeline_that_was_made_without_a_file(tmp_path: Path, bronze: dict[str, str]):
    rules = [{"columns": ["public.*.email"], "strategy": "sha256"}]
    with pytest.raises(RedactionUnfit):
        redaction_of(pipeline_of(tmp_path, redact=rules, **bronze))


USERS_WITHOUT_NOTE = table("public.users", id="int8", email="text", ssn="text")
ORDERS = table("public.orders", id="int8", email="text")
HASHED = {"redact": [["public.*.email", "sha256"]], "key": "a"}


def changed(before, after) -> list[str]:
    return changed_columns(before, after, lambda: [USERS_WITHOUT_NOTE, ORDERS])


def test_what_bronze_holds_and_is_redacted_otherwise_is_named():
    assert changed(NOTHING, HASHED) == ["public.orders.email", "public.users.email"]
    assert changed(HASHED, NOTHING) == ["public.orders.email", "public.users.email"]
    assert changed(HASHED, {**HASHED, "key": "b"}) == ["public.orders.email", "public.users.email"]
    more = {**HASHED, "redact": [*HASHED["redact"], ["public.users.ssn", "drop"]]}
    assert changed(HASHED, more) == ["public.users.ssn"]


def test_rules_that_mean_the_same_or_what_comes_later_change_nothing():
    same = {**HASHED, "redact": [["public.orders.email", "sha256"], ["public.users.email", "sha256"]]}
    assert changed(HASHED, same) == []
    assert changed(HASHED, {**HASHED, "redact": [*HASHED["redact"], ["public.*.phone", "drop"]]}) == []

    def unread():
        raise AssertionError("bronze is read although nothing changed")

    assert changed_columns(HASHED, dict(HASHED), unread) == []


def row(number: int, changed: list[str], epoch: int, position: int | None) -> ConfigurationRow:
    return ConfigurationRow(number, "", "{}", json.dumps(changed), epoch, position, datetime(2026, 1, 1, tzinfo=UTC))


def target(name: str, kind: Literal["current", "history"] = "current") -> Target:
    return Target(TableName("public", name), "silver", name, "delta", None, (), kind=kind)


def test_a_table_waits_from_where_a_column_of_it_changes():
    rows = [row(1, [], 0, None), row(2, ["public.users.email"], 1, 100)]
    users, orders = target("users"), target("orders")
    for span in (Span(1, 0, 100), Span(2, 0, 900)):
        check_unchanged(rows, users, span, lambda: 0)
    check_unchanged(rows, orders, Span(1, 0, 900), lambda: 0)
    check_unchanged(rows, target("user"), Span(1, 0, 900), lambda: 0)
    for span in (Span(1, 50, 101), Span(1, 500, 900)):
        with pytest.raises(DestructiveChange, match=r"`public.users.email` is redacted differently"):
            check_unchanged(rows, users, span, lambda: 0)


def test_a_copy_that_is_behind_the_change_has_the_column_as_it_is_redacted_now():
    rows = [row(1, ["public.users.email"], 1, 100)]
    users = target("users")
    check_unchanged(rows, users, Span(1, 150, 900), lambda: 101)
    with pytest.raises(DestructiveChange):
        check_unchanged(rows, users, Span(1, 50, 900), lambda: 100)


@pytest.mark.parametrize(("kind", "verb"), [("current", "resync public.users"), ("history", "restart")])
def test_the_hint_is_what_can_be_done_for_the_kind(kind: Literal["current", "history"], verb: str):
    with pytest.raises(DestructiveChange) as refused:
        check_unchanged([row(1, ["public.users.email"], 1, 100)], target("users", kind), Span(1, 50, 900), lambda: 0)
    assert re.findall("`cdc-lake (.*?)`", refused.value.remedy) == [verb]
