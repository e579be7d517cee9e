"""What a message of the event trigger may say, and what of it counts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cdc_lake.decode.historic_catalog import Attribute
from cdc_lake.decode.pgoutput.messages import RelationMessage
from cdc_lake.decode.pgoutput.parser import parse
from cdc_lake.decode.pgoutput.relations import ColumnFacts, DdlMessages, RelationCache, TableFacts
from cdc_lake.model.relation import Missing, Relation
from cdc_lake_testing import messages
from cdc_lake_testing.messages import oid_of, table

BEFORE = table("public.t", id="int8", a="text", b="text")
OID = oid_of(BEFORE.table)


def column(name: str, number: int, kind: int = 25, **more: Any) -> dict[str, Any]:
    return {"name": name, "number": number, "type": kind, "modifier": -1, "filled": False, **more}


def told(*columns: dict[str, Any], oid: Any = OID, version: Any = 1) -> bytes:
    return json.dumps({"version": version, "tables": [{"oid": oid, "columns": list(columns)}]}).encode()


ID, A, B = column("id", 1, 20), column("a", 2), column("b", 3)


def announced(relation: Relation) -> RelationMessage:
    message = parse(messages.relation(relation))
    assert isinstance(message, RelationMessage)
    return message


def facts(key: str = "id", **numbers: int) -> TableFacts:
    return TableFacts((key,), {20: "int8", 25: "text"}, {name: ColumnFacts(n) for name, n in numbers.items()})


def resolved(content: list[bytes], relation: Relation, now: TableFacts) -> tuple[Relation, list[str]]:
    said: list[str] = []
    place = RelationCache({relation.table: now}, DdlMessages(say=said.append))
    for one in content:
        place.take_told(one)
    return place.resolve_relation(announced(relation)), said


def numbers(relation: Relation) -> list[int | None]:
    return [one.number for one in relation.columns]


def test_columns_have_the_numbers_of_their_place_also_where_the_catalog_has_other_names_by_now() -> None:
    found, said = resolved([told(ID, A, B)], BEFORE, facts("ident", ident=1, aa=2, b=4))
    assert (numbers(found), found.primary_key, found.oid, said) == ([1, 2, 3], ("id",), OID, [])
    without, _ = resolved([], BEFORE, facts("ident", ident=1, aa=2, b=4))
    assert numbers(without) == [None, None, 4], "the catalog of now gives `b` the number of another one"


def test_the_newest_state_that_has_the_announced_columns_counts() -> None:
    other = column("a", 5)
    found, _ = resolved(
        [told(ID, A, B), told(ID, column("c", 2), B), told(ID, other, B)], BEFORE, facts(id=1, b=3, a=5)
    )
    assert numbers(found) == [1, 5, 3]


def test_a_column_that_is_not_published_may_be_in_a_state() -> None:
    found, _ = resolved([told(ID, column("hidden", 2), column("a", 3), column("b", 4))], BEFORE, facts(hid=2, aa=3))
    assert numbers(found) == [1, 3, 4]


def test_what_old_rows_hold_is_taken_from_the_catalog_or_unknown_and_never_from_a_message() -> None:
    now = facts(id=1)
    columns = {**now.columns, "a": ColumnFacts(2, Missing("x"))}
    found, _ = resolved([told(ID, A, column("b", 3, filled=True))], BEFORE, replace(now, columns=columns))
    assert [one.missing for one in found.columns] == [None, Missing("x"), Missing(None)]


@pytest.mark.parametrize("more", [[], [column("hidden", 3)]])
def test_a_state_that_the_catalog_speaks_against_is_not_used_and_said(more: list[dict[str, Any]]) -> None:
    """Whoever says that `b` was number 9 leaves out number 3, which is still there, or gives it to another column."""
    found, said = resolved([told(ID, A, column("b", 9), *more)], BEFORE, facts(id=1, a=2, b=3))
    assert numbers(found) == [1, 2, 3]
    assert said == ["a message about public.t contradicts the catalog, which has other columns; it is ignored"]


@pytest.mark.parametrize(
    "state",
    [
        told(ID, A),
        told(ID, A, column("b", 3, kind=20)),
        told(ID, A, column("b", 3, modifier=7)),
        told(ID, A, B, oid=OID + 1),
    ],
)
def test_a_state_of_other_columns_or_another_table_is_nothing_for_this_one(state: bytes) -> None:
    found, said = resolved([state], BEFORE, facts(id=7, a=8, b=9))
    assert (numbers(found), said) == ([7, 8, 9], [])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[1]",
        b"{}",
        b"[" * 100_000,
        told(ID, A, version=2),
        told(ID, ID),
        told(ID, column("a", 1)),
        told(column("id", True)),  # type: ignore[arg-type]
        told(column("id", "1")),  # type: ignore[arg-type]
        told(column("id", 1, filled=None)),
        told(ID | {"name": 7}),
        told(ID, oid="1"),
        b'{"version": 1, "tables": [{"oid": 1, "columns": {"name": 1}}]}',
    ],
)
def test_a_message_that_is_none_of_the_triggers_is_said_and_not_used(content: bytes) -> None:
    found, said = resolved([content], BEFORE, facts(id=1, a=2, b=3))
    assert numbers(found) == [1, 2, 3]
    assert [text.partition(":")[0] for text in said] == [
        "a message about altered tables does not have the form of version 1"
    ]


def test_a_layout_that_was_landed_tells_the_numbers_of_its_columns() -> None:
    landed = resolved([told(ID, A, B)], BEFORE, facts(id=1, a=2, b=3))[0]
    place = RelationCache({BEFORE.table: facts("ident", ident=1, bb=3)}, DdlMessages([landed]))
    assert place.resolve_relation(announced(BEFORE)) == landed


def test_a_landed_column_that_was_dropped_and_made_again_is_the_catalogs_to_tell() -> None:
    landed = resolved([told(ID, A, B)], BEFORE, facts(id=1, a=2, b=3))[0]
    place = RelationCache({BEFORE.table: facts(id=1, a=2, b=4)}, DdlMessages([landed]))
    assert numbers(place.resolve_relation(announced(BEFORE))) == [1, 2, 4]
    place.take_told(told(ID, A, B))
    assert numbers(place.resolve_relation(announced(BEFORE))) == [1, 2, 3], "reported in the stream"


def test_a_landed_layout_does_not_tell_which_names_were_swapped_since() -> None:
    landed = resolved([told(ID, A, B)], BEFORE, facts(id=1, a=2, b=3))[0]
    now = replace(
        facts(id=1, a=3, b=2),
        attributes=(Attribute(1, "id", 20), Attribute(2, "b", 25), Attribute(3, "a", 25)),
    )
    swapped = table("public.t", id="int8", b="text", a="text")
    place = RelationCache({BEFORE.table: now}, DdlMessages([landed]), lambda _oid, _table: landed)
    assert numbers(place.resolve_relation(announced(swapped))) == [1, 2, 3]
