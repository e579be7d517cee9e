"""What check, plan and status say of a GaussDB family server that is down, and what will order a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.source import FamilySource
from cdc_lake.connectors.gaussdb.csn_order import order_of
from cdc_lake.connectors.gaussdb.introspection import order_in_words
from cdc_lake.model.diagnostic import size
from cdc_lake.model.position import OrderDomain
from cdc_lake.ops.findings import room
from tests.unit.test_cli_commands import cdc_lake

DOWN = """\
version: 1
pipeline: shop
source: {type: opengauss, host: 127.0.0.1, port: 1, database: d, user: u, password: "${env:PW}", tables: ["public.*"]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(DOWN)
    return tmp_path


@pytest.mark.parametrize("arguments", [["plan"], ["check", "--sql"]])
def test_a_family_server_that_is_down_ends_with_4(project: Path, arguments: list[str]) -> None:
    done = cdc_lake(project, *arguments, PW="hunter2")
    assert done.code == 4
    assert done.err.startswith("error[SRC201]: ")
    assert "Traceback" not in done.err


def test_check_and_status_tell_that_a_family_server_is_down(project: Path) -> None:
    checked = cdc_lake(project, "check", "--json", PW="hunter2")
    assert checked.code == 1
    lines = json.loads(checked.out)["lines"]
    assert [line["code"] for line in lines if line["subject"] == "server"] == ["SRC201"]
    seen = cdc_lake(project, "status", "--json", PW="hunter2")
    assert seen.code == 0
    status = json.loads(seen.out)
    assert (status["reachable"], status["slot"]["state"]) == (False, "unknown")
    assert "hunter2" not in checked.out + checked.err + seen.out + seen.err


SERIAL = {"decoding": {"parallel-decode-num": 1}}
CSN_SLOT = {"type": "gaussdb", "slot": {"output_order": "csn"}}


@pytest.mark.parametrize(
    ("given", "exports", "order"),
    [
        ({}, True, None),
        ({}, False, OrderDomain.LSN),
        ({"order": "csn"}, True, OrderDomain.CSN),
        ({"order": "lsn"}, True, OrderDomain.LSN),
        (SERIAL, True, OrderDomain.LSN),
        ({"mode": "polling"}, True, OrderDomain.LSN),
        ({"type": "gaussdb", "node": "data_node"}, True, OrderDomain.LSN),
        ({"type": "gaussdb", "node": "coordinator"}, True, OrderDomain.CSN),
        (CSN_SLOT, True, OrderDomain.CSN),
        (CSN_SLOT, False, OrderDomain.CSN),
    ],
)
def test_what_orders_a_stream_is_known_beforehand_unless_it_has_to_be_looked_at(
    given: dict[str, Any], exports: bool, order: OrderDomain | None
) -> None:
    fields = {"type": "opengauss", "host": "h", "port": 1, "database": "d", "user": "u", "tables": ["a.*"], **given}
    assert order_of(FamilySource.model_validate(fields), exports=exports) is order
    assert ("probe" in order_in_words(order)) == (order is None)


def test_room_counts_what_is_needed_beside_what_is_used() -> None:
    assert room("slots", 7, 8, 1, "max_replication_slots", "SRC211").ok
    full = room("slots", 8, 8, 1, "max_replication_slots", "SRC211")
    assert (full.ok, full.code) == (False, "SRC211")
    assert "max_replication_slots = 13" in full.fix
    assert room("slots", 8, 8, 0, "max_replication_slots", "SRC211").ok


def test_sizes_have_a_unit_that_fits() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5 << 20)] == ["0 B", "1023 B", "1.0 KiB", "5.0 MiB"]
