"""Redaction that changes in the middle of a stream: tables that hold such columns wait, others go on."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Literal

import pytest

from cdc_lake.config.project import Target
from cdc_lake.connectors.redaction import NOTHING, changed_columns, check_unchanged
from cdc_lake.errors import DestructiveChange
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.tables.control_schema import ConfigurationRow
from cdc_lake_testing.messages import table

USERS = table("public.users", id="int8", email="text", ssn="text")
ORDERS = table("public.orders", id="int8", email="text")
HASHED = {"redact": [["public.*.email", "sha256"]], "key": "a"}


def changed(before, after) -> list[str]:
    return changed_columns(before, after, lambda: [USERS, ORDERS])


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
