"""The encoder of the family's server: what real servers sent comes out again, byte for byte."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Heartbeat, Operation, Record, Row, Style, Truncated
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, encode_payload
from cdc_lake_testing.gaussdb.recorded import messages, payloads
from cdc_lake_testing.gaussdb.shape import timestamp_text

DATA = Path(__file__).resolve().parents[1] / "data" / "opengauss"
VERSIONS = ("6.0.2", "5.0.3", "3.0.0")
HEADS = frozenset({TableName("My Schema", 'Tab.le "x"'), TableName("public", "table x INSERT")})
UTF8 = Codec("UTF8")
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
EXAMPLES = settings(max_examples=150 * BUDGET, derandomize=True, deadline=None)


@lru_cache(maxsize=1)
def streams(version: str) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO((DATA / version / "streams.tar.xz").read_bytes())) as archive:
        return {Path(m.name).stem: archive.extractfile(m).read() for m in archive.getmembers() if m.isfile()}


def how_asked(name: str, version: str) -> tuple[Print, bool]:
    """Style and batch of a recorded stream, from its name."""
    parts = name.split("_")
    style = next((Style(letter) for letter in "btj" if letter in parts or f"{letter}b1" in parts), Style.SERIAL)
    plugin = "test_decoding" if name.endswith("test_decoding") else "mppdb_decoding"
    label = "commit_lsn" if version == "3.0.0" else "first_lsn"
    return Print(style, plugin=plugin, label=label), "batch1" in parts or parts[-1].endswith("b1")


def framing_of(payload: bytes, how: Print, *, batch: bool) -> Framing:
    if how.style is Style.BINARY:
        return Framing(batch, Ending.TIMER if payload.endswith(b"P\0\0\0\0") else Ending.SIZE)
    return Framing(batch)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_payload_is_encoded_again_to_itself(version: str) -> None:
    seen: set[tuple[Style, str, bytes]] = set()
    for name, recording in streams(version).items():
        how, batch = how_asked(name, version)
        for lsn, payload in payloads(messages(recording)):
            key = (how.style, how.plugin, payload)
            if key in seen:
                continue
            seen.add(key)
            found = records(
                payload, how.style, batch=batch, codec=UTF8, header_lsn=lsn, plugin=how.plugin, tables=HEADS
            )
            again = encode_payload(found, how, framing_of(payload, how, batch=batch))
            assert again == payload, name
    assert len(seen) > 1000


def test_worked_example_of_a_transaction_in_binary() -> None:
    lsn = 0x2816A28
    time = "2024-02-06 07:17:19.45874+08"
    table = TableName("public", "t1")
    fields = (
        Field("a", "1", type_oid=23),
        Field("b", "2", type_oid=23),
        Field("c", "hello", type_oid=25),
    )
    transaction: list[Record] = [
        Begin(lsn, 2014, lsn, time=time, user="cdc_user"),
        Row(Operation.INSERT, table, fields, lsn=lsn),
        Commit(0x2816B90, xid=15504, time=time),
    ]
    payload = encode_payload(transaction, Print(Style.BINARY), Framing(True, Ending.SIZE))
    assert payload.hex() == (
        "00000047000000000281 6a2842 00000000000007de 0000000002816a28 540000001c"
        + time.encode().hex()
        + "4e00000008"
        + b"cdc_user".hex()
        + "50"
        "00000040 0000000002816a28 49 0006 7075626c6963 0002 7431 4e 0003"
        "0001 61 00000017 00000001 31 0001 62 00000017 00000001 32 0001 63 00000019 00000005 68656c6c6f 50"
        "00000033 0000000002816b90 43 58 0000000000003c90 540000001c" + time.encode().hex() + "46"
    ).replace(" ", "")
    timed = encode_payload(transaction, Print(Style.BINARY), Framing(True, Ending.TIMER))
    assert timed == payload[:-1] + b"P\0\0\0\0"


def test_worked_examples_of_rows_in_binary() -> None:
    table, how, framing = TableName("public", "t1"), Print(Style.BINARY), Framing(False, Ending.SIZE)
    key = (Field("a", "1", type_oid=23),)
    deleted = encode_payload([Row(Operation.DELETE, table, old=key, lsn=0x2816D60)], how, framing)
    assert deleted.hex() == "000000240000000002816d604400067075626c6963000274314f0001000161000000170000000131" + "46"
    keyless = encode_payload([Row(Operation.DELETE, table, lsn=0x2816D60)], how, framing)
    assert keyless.hex() == "000000150000000002816d604400067075626c696300027431" + "46"
    empty = (Field("n", None, type_oid=25), Field("e", "", type_oid=25))
    row = encode_payload([Row(Operation.INSERT, table, empty, lsn=0x3000028)], how, Framing(True, Ending.TIMER))
    assert row[-26:].hex() == "00016e00000019ffffffff00016500000019000000005000000000"[-52:]


def test_heartbeat_of_the_documents_bare_and_framed() -> None:
    beat = Heartbeat(0x2816A28, 0x2816C20, 0x18D7B8FD1E2 * 1000, lsn=0x2816A28)
    how = Print(Style.BINARY)
    bare = "680000000002816a280000000002816c200000018d7b8fd1e2"
    assert encode_payload([beat], how, Framing()).hex() == bare + "46"
    framed = encode_payload([beat], how, Framing(False, Ending.SIZE))
    assert framed.hex() == "000000210000000002816a28" + bare + "46"


def test_a_commit_of_gaussdb_is_in_upper_case() -> None:
    how = Print(Style.TEXT, upper_commit=True)
    assert encode_payload([Commit(xid=15504)], how, Framing()) == b"COMMIT XID: 15504"


def test_gbk_bytes_that_look_like_backslashes_are_escaped_in_json_one_by_one() -> None:
    field = Field("v", "誠", "text", 25)  # its second byte in GBK is 0x5c
    row = Row(Operation.INSERT, TableName("public", "t"), (field,))
    payload = encode_payload([row], Print(Style.JSON, "gbk"), Framing())
    assert b'"columns_val":["\'' + "誠".encode("gbk") + b"\\'\"]" in payload
    found = records(payload, Style.JSON, batch=False, codec=Codec("GBK"))
    assert found == [Row(Operation.INSERT, row.table, (Field("v", "誠", "text"),))]


def test_times_are_written_without_trailing_zeros() -> None:
    assert timestamp_text(1_707_175_039_458_740) == "2024-02-05 23:17:19.45874+00"
    assert timestamp_text(1_707_175_039_000_000) == "2024-02-05 23:17:19+00"


def test_records_a_style_never_prints_are_refused() -> None:
    with pytest.raises(ValueError, match="never prints Truncated"):
        encode_payload([Truncated((TableName("a", "b"),))], Print(Style.BINARY), Framing(False, Ending.SIZE))
    with pytest.raises(ValueError, match="2 records"):
        encode_payload([Commit(), Commit()], Print(Style.TEXT), Framing())


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=8)
PLAIN = st.one_of(NAMES.filter(lambda n: " " not in n), st.sampled_from(["order", "Id", "a.b", "名", 'q"q', "t1"]))
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
TYPES = {
    "integer": (23, st.integers(-(2**31), 2**31 - 1).map(str)),
    "numeric": (1700, st.sampled_from(["NaN", ".1", "-.000001", "0.0", "12.50"])),
    "boolean": (16, st.sampled_from("tf")),
    "bit varying": (1562, st.text("01", max_size=9)),
    "text": (25, TEXTS),
    "integer[]": (1007, st.just("{1,NULL,2}")),
    "timestamp without time zone": (1114, st.just("2024-01-01 00:00:00.5")),
}


@st.composite
def fields(draw: st.DrawFn) -> tuple[Field, ...]:
    count = draw(st.integers(1, 4))
    made = []
    for _ in range(count):
        kind = draw(st.sampled_from(sorted(TYPES)))
        oid, values = TYPES[kind]
        made.append(Field(draw(NAMES), draw(st.none() | values), kind, oid))
    return tuple(made)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    operation = draw(st.sampled_from(Operation))
    new = None if operation is Operation.DELETE else draw(fields())
    old = None if operation is Operation.INSERT else draw(st.none() | fields())
    table = TableName(draw(PLAIN), draw(PLAIN))
    return Row(operation, table, new, old, draw(st.integers(0, 2**64 - 1)))


NUMBERS = st.integers(0, 2**64 - 1)
TIMES = st.none() | st.integers(0, 4_000_000_000_000_000).map(timestamp_text)
BEGINS = st.builds(
    lambda lsn, csn, xid, time, origin: Begin(lsn, csn, lsn, xid, time, origin),
    NUMBERS,
    NUMBERS,
    st.none() | NUMBERS,
    TIMES,
    st.none() | st.integers(0, 2**32 - 1),
)
COMMITS = st.builds(lambda lsn, xid, time: Commit(lsn, None, xid, time), NUMBERS, st.none() | NUMBERS, TIMES)


def seen_by(style: Style, found: Iterator[Record] | list[Record]) -> list[Record]:
    """The records as a style shows them: types by OID or by name; JSON cannot tell an empty tuple from none."""

    def shown(tuple_: tuple[Field, ...] | None) -> tuple[Field, ...] | None:
        if tuple_ is None:
            return None
        if style is Style.BINARY:
            return tuple(Field(f.name, f.value, None, f.type_oid) for f in tuple_)
        return tuple(Field(f.name, f.value, f.type_name, None) for f in tuple_)

    return [Row(r.operation, r.table, shown(r.new), shown(r.old), r.lsn) if isinstance(r, Row) else r for r in found]


@EXAMPLES
@given(st.lists(rows() | BEGINS | COMMITS, min_size=1, max_size=6), st.sampled_from("btj"), st.booleans())
def test_whatever_is_encoded_in_a_batch_is_decoded_again(found: list[Record], letter: str, timer: bool) -> None:
    style = Style(letter)
    ending = Ending.TIMER if timer else Ending.SIZE
    payload = encode_payload(found, Print(style), Framing(True, ending))
    tables = frozenset(r.table for r in found if isinstance(r, Row))
    assert records(payload, style, batch=True, codec=UTF8, tables=tables) == seen_by(style, found)
