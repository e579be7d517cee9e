"""Fifteen scenarios of what a server should not send, and of tables that are altered in mid-transaction.

What cannot be decoded stops the receiver before it is confirmed, or is landed as the bytes that came, at its position,
with everything around it. What can be is landed under the layout that was in force for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Update
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.memory_server import MemoryServer
from cdc_lake_testing.messages import encode_change, relation, table
from tests.bronze_replay import bronze_rows
from tests.pipeline_file import make_project
from tests.tally import tally

ORDERS = table("public.orders", id="int8", note="text")
OTHERS = table("public.others", id="int8", note="text")


def row(number: int, layout: Relation = ORDERS) -> Insert:
    return Insert(layout, (str(number), *("note" for _ in layout.columns[1:])))


GOOD = encode_change(row(7))
HEAD, VALUES = GOOD[:6], GOOD[8:]
OTHER_TYPE = relation(replace(ORDERS, columns=(ORDERS.columns[0], replace(ORDERS.columns[1], type_oid=999_999))))

POISON: dict[str, list[bytes]] = {
    "a value that ends behind its frame": [HEAD + struct.pack(">H", 2) + b"t\0\0\0\x017" + b"t\0\0\0\x63note"],
    "a length below zero": [HEAD + struct.pack(">H", 2) + b"t\xff\xff\xff\xff7" + b"t\0\0\0\4note"],
    "a kind of value that nobody knows": [GOOD.replace(b"t\0\0\0\4note", b"z\0\0\0\4note")],
    "fewer values than columns": [HEAD + struct.pack(">H", 1) + b"t\0\0\0\x017"],
    "more values than columns": [HEAD + struct.pack(">H", 3) + VALUES + b"n"],
    "text that is no UTF-8": [GOOD.replace(b"note", b"n\xff\xfee")],
    "bytes behind the row": [GOOD + b"\0"],
    "a tuple that is none": [GOOD[:5] + b"Q" + GOOD[6:]],
    "a message of a newer server": [b"J" + GOOD[1:]],
    "a table announced with a type that nobody knows": [OTHER_TYPE, GOOD],
    "a table announced in half a message": [relation(ORDERS)[:-3], GOOD],
}
"""Frames of a transaction between good ones."""


def project_of(root: Path) -> Project:
    return make_project(root, bronze={"batch": {"max_delay": "5 ms"}})


def with_poison(frames: Sequence[bytes], *, keeps: bool) -> MemoryServer:
    """Three transactions, the second one of these frames behind a good row, the third of another table."""
    server = MemoryServer([ORDERS, OTHERS], keeps=keeps)
    server.commit(row(1), row(2))
    server.commit(row(3), row(4), frames=[encode_change(row(3)), *frames])
    server.commit(row(5, OTHERS))
    return server


def landed(project: Project) -> list[tuple[int, str]]:
    return [(one["position"], one["new"][0]) for one in bronze_rows(project) if one["op"] == "I"]


@pytest.mark.parametrize("name", POISON)
def test_by_the_policy_stop_nothing_of_it_is_confirmed_nor_anything_behind_it(name: str, tmp_path: Path) -> None:
    project, server = project_of(tmp_path), with_poison(POISON[name], keeps=False)
    for _ in range(2):
        ended = server.received(project)
        assert isinstance(ended, DecodeError)
        assert ended.remedy
        state = bronze_reader(project).state()
        assert state is not None
        assert landed(project) == [(1100, "1"), (1100, "2")]
        assert server.confirmed == state.confirm == 1100
    tally("R15", [name], stops=1)


@pytest.mark.parametrize("name", POISON)
def test_by_the_policy_land_its_bytes_are_kept_at_its_position_and_the_rest_is_applied(
    name: str, tmp_path: Path
) -> None:
    frames = POISON[name]
    project, server = project_of(tmp_path), with_poison(frames, keeps=True)
    assert server.received(project) is None
    assert landed(project) == [(1100, "1"), (1100, "2"), (1300, "5")]
    kept = [one for one in bronze_rows(project) if one["position"] == 1200 and one["op"] != "R"]
    assert [one["op"] for one in kept] == ["B", *("X" for _ in [GOOD, *frames]), "C"]
    assert [one["raw"] for one in kept[1:-1]] == [encode_change(row(3)), *frames]
    assert [one["ordinal"] for one in kept] == list(range(len(kept)))
    assert verify(bronze_reader(project)).holds
    tally("R15", [name], scenarios=1)


# ── tables that are altered ──

WIDER = table("public.orders", id="int8", note="text", more="text")
NARROWER = table("public.orders", id="int8")
OTHERWISE = table("public.orders", id="int8", note="int8")
WHOLE = table("public.orders", identity=ReplicaIdentity.FULL, id="int8", note="text")

ALTERED: dict[str, list[Change]] = {
    "a column comes": [row(1), row(2, WIDER), Update(WIDER, ("1", "note", "more")), row(3, WIDER)],
    "a column goes": [row(1), row(2, NARROWER), Delete(NARROWER, ("1",), OldKind.KEY)],
    "a type becomes another one": [row(1), Insert(OTHERWISE, ("2", "17")), Update(OTHERWISE, ("1", "18"))],
    "rows are told whole": [row(1), row(2, WHOLE), Delete(WHOLE, ("1", "note"), OldKind.FULL)],
}
"""The changes of a transaction in which a table is altered."""


@pytest.mark.parametrize("name", ALTERED)
def test_a_table_that_is_altered_in_mid_transaction_lands_under_the_layout_of_each_change(
    name: str, tmp_path: Path
) -> None:
    changes, project = ALTERED[name], project_of(tmp_path)
    last = changes[-1]
    assert isinstance(last, Insert | Update | Delete)
    server = MemoryServer([last.relation])
    server.commit(*changes)
    server.commit(row(9, last.relation) if name != "a type becomes another one" else Insert(OTHERWISE, ("9", "9")))
    ended = server.received(project)
    invariants(project, Known(silver=False, committed=server.known(), ended=ended)).assert_held(
        "I1", "I2", "I3", "I5", "I6"
    )
    tally("R15", [name], scenarios=1)


def test_there_are_fifteen() -> None:
    assert len({*POISON, *ALTERED}) == 15
