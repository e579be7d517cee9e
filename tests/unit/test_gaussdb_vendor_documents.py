"""What the vendors' documents say of options, and what is done about it: suggestions, memory bounds, heartbeats."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from cdc_lake.config.loader import validate
from cdc_lake.config.source import FamilySource
from cdc_lake.errors import OptionRefused, OptionUnknown
from cdc_lake.ops.check.gaussdb import memory_lines
from cdc_lake.source.gaussdb.wire.auth import server_error
from cdc_lake.source.gaussdb.wire.protocol import ServerMessage
from tests.unit.test_gaussdb_assembler import assembler
from tools.docs.decoding_options import options_page

HEAD = (
    "version: 1\npipeline: p\nsource: {{type: gaussdb, host: h, port: 8000, database: d, user: u, tables: [a.b]{0}}}\n"
)


def hints(folder: Path, more: str) -> str:
    file = folder / "p.yaml"
    file.write_text(HEAD.format(more), encoding="utf-8")
    return " ".join(found.hint for found in validate([file]))


def test_names_of_the_documents_are_understood_as_they_are_meant(tmp_path: Path) -> None:
    assert "did you mean `sending-batch`?" in hints(tmp_path, ", decoding: {batch-sending: 1}")
    said = hints(tmp_path, ", slot: {name: Replication_Slot}")
    assert "did you mean `replication_slot`?" in said
    assert "? . -" in said


@pytest.mark.parametrize(
    ("option", "memory", "verdict", "most"),
    [
        ("max-txn-in-memory: 3000", 12 << 30, None, None),
        ("max-txn-in-memory: 3073", 12 << 30, False, 3072),
        ("max-reorderbuffer-in-memory: 6", 12 << 30, None, None),
        ("max-reorderbuffer-in-memory: 7", 12 << 30, False, 6),
        ("max-txn-in-memory: 200", None, "unknown", None),
        ("max-txn-in-memory: 3073, parallel-decode-num: 1", 12 << 30, None, None),
    ],
)
def test_check_compares_memory_options_with_the_servers_memory(
    option: str, memory: int | None, verdict: object, most: int | None
) -> None:
    given = dict(part.split(": ") for part in option.split(", "))
    source = FamilySource.model_validate(
        {"type": "gaussdb", "host": "h", "port": 8000, "database": "d", "user": "u", "tables": ["a.b"],
         "decoding": {name: int(value) for name, value in given.items()}}
    )  # fmt: skip
    lines = list(memory_lines(source, memory))
    if verdict is None:
        assert not lines
    elif verdict == "unknown":
        assert [line.ok for line in lines] == [None]
    else:
        assert [(line.ok, line.code) for line in lines] == [(False, OptionRefused.code)]
        assert lines[0].fix.endswith(f": {most}}}")


def test_a_user_that_does_not_exist_is_an_option_that_the_server_refuses() -> None:
    said = ServerMessage("ERROR", "42704", 'role "anna" does not exist')
    error = server_error(said, "starting replication")
    assert isinstance(error, OptionRefused)
    assert "exclude-users" in error.remedy
    assert "dynamic-resolution" in error.remedy


def test_a_heartbeat_says_how_new_the_decoded_log_is() -> None:
    beating = assembler()
    assert beating.newest_decoded is None
    beating.feed(b"h" + struct.pack(">QQq", 7, 8, 1_700_000_000), 1)
    assert (beating.heartbeats, beating.newest_decoded) == (1, 1_700_000_000_000_000)


def test_the_page_of_options_says_what_the_documents_say() -> None:
    page = options_page()
    for option in ("parallel-decode-num", "sender-timeout", "standby-connection", "dynamic-resolution", "auto-advance"):
        assert f"\n| `{option}`" in page.partition("## Where cdc_lake differs")[2], option
    assert OptionUnknown.code in page
