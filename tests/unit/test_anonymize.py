"""Overwritten recordings: nothing of a value is left, and everything else is where it was."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import Ddl, Field, Operation, Other, Record, Row, Style, Truncated
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.decode.pgoutput.parser import parse
from cdc_lake.devtools import anonymize
from cdc_lake.devtools.anonymize import Filler, overwritten_record
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Transaction, Update
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake_testing.gaussdb.encode import Framing, Print, encode_payload
from cdc_lake_testing.messages import boundaries, encode_stream, table
from tests.unit.test_gaussdb_recordings import VERSIONS, archive, how, payloads

FILLER = Filler(b"secret")
EACH = 4 if os.environ.get("CDC_LAKE_BUDGET", "1") == "1" else 1
"""Of so many recorded messages one is taken."""
TEXTS = (
    "secret",
    "O'Secret",
    'a "secret"\\n\n',
    "SECRET 1234",
    "sécret 漢字",
    "",
    "]}secret",
    " new-tuple: secret",
    "\\",
)
STYLES = [(style, batch) for style in Style for batch in (False, True) if style is not Style.SERIAL or not batch]


def shape(record: Record) -> object:
    """A record without its values: which are there, and how long the bytes of each are."""
    if not isinstance(record, Row):
        return record
    return replace(record, new=outline(record.new), old=outline(record.old))


def outline(fields: tuple[Field, ...] | None) -> tuple[Field, ...] | None:
    return None if fields is None else tuple(replace(one, value=kept(one.value)) for one in fields)


def kept(value: object) -> object:
    return None if value is None else value if value is UNCHANGED else "a value"


def values(found: list[Record]) -> Iterator[str]:
    for record in found:
        if isinstance(record, Row):
            yield from (f.value for f in (*(record.new or ()), *(record.old or ())) if isinstance(f.value, str))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_stream_decodes_to_the_same_without_its_values(version: str):
    texts = 0
    for name, stream in archive(version).items():
        style, batch = how(name)
        plugin = "test_decoding" if "test_decoding" in name else "mppdb_decoding"
        for lsn, payload in list(payloads(stream))[:400:EACH]:
            before = records(payload, style, batch=batch, codec=Codec(), header_lsn=lsn, plugin=plugin)
            if any(isinstance(one, Other | Ddl) for one in before):
                continue
            after, readable = overwritten_record(payload, style, batch=batch, codec=Codec(), filler=FILLER)
            assert readable
            assert len(after) == len(payload)
            found = records(after, style, batch=batch, codec=Codec(), header_lsn=lsn, plugin=plugin)
            assert [shape(one) for one in found] == [shape(one) for one in before], name
            for old, new in zip(values(before), values(found), strict=True):
                texts += 1
                assert old != new or sum(c.isalnum() for c in old) < 6, name
    assert texts > 1000


@pytest.mark.parametrize(("style", "batch"), STYLES)
@pytest.mark.parametrize("encoding", ["UTF8", "GBK"])
def test_rows_of_any_text_keep_their_shape(style: Style, batch: bool, encoding: str):
    chance, codec = random.Random(5), Codec(encoding)
    texts = [text for text in TEXTS if encoding == "UTF8" or "é" not in text]
    for _ in range(100):
        row = Row(chance.choice(list(Operation)), TableName("public", "t"), None, None, 7)
        new, old = (
            tuple(Field(f"c{at}", chance.choice((None, *texts)), "text", 25) for at in range(4)) for _ in range(2)
        )
        match row.operation:
            case Operation.INSERT:
                row = replace(row, new=new)
            case Operation.UPDATE:
                row = replace(row, new=new, old=old)
            case Operation.DELETE:
                row = replace(row, old=old)
        framed = batch or style is Style.BINARY
        payload = encode_payload([row], Print(style, codec.python), Framing(batch=framed))
        after, readable = overwritten_record(payload, style, batch=batch, codec=codec, filler=FILLER)
        assert readable
        assert len(after) == len(payload)
        assert not any(part in after for part in (b"secret", b"Secret", b"SECRET", "漢字".encode(codec.python)))
        before, found = (records(p, style, batch=batch, codec=codec, header_lsn=7) for p in (payload, after))
        assert [shape(one) for one in found] == [shape(one) for one in before]


@pytest.mark.parametrize("style", [Style.TEXT, Style.JSON])
@pytest.mark.parametrize("value", ["true", "false", "-1.5e+10", ".5", "NaN", "-Infinity", "B'1011'", "null"])
def test_literals_without_quotes_stay_literals(style: Style, value: str):
    text = f"table public t INSERT: c[x]:{value}"
    row = f'{{"table_name":"public.t","op_type":"INSERT","columns_name":["c"],"columns_type":["x"],"columns_val":["{value}"],"old_keys_name":[],"old_keys_type":[],"old_keys_val":[]}}'
    payload = (text if style is Style.TEXT else row).encode()
    after, readable = overwritten_record(payload, style, batch=False, codec=Codec(), filler=FILLER)
    before, found = (records(p, style, batch=False, codec=Codec()) for p in (payload, after))
    assert readable
    assert [shape(one) for one in found] == [shape(one) for one in before]


def test_equal_values_have_equal_fillers_under_one_secret_only():
    assert Filler(b"a").value(b"secret-1") == Filler(b"a").value(b"secret-1")
    assert Filler(b"a").value(b"secret-1") != Filler(b"b").value(b"secret-1")
    assert Filler().value(b"secret-1") != Filler().value(b"secret-1")
    assert Filler(b"a").value(b"Ab1-\xff ")[3:4] == b"-"


@pytest.mark.parametrize("payload", [b"table public.t: INSERT: secret", b"{secret", b"BEGIN secret", b"unknown secret"])
def test_what_cannot_be_read_is_overwritten_as_a_whole(payload: bytes):
    after, _ = overwritten_record(payload, Style.SERIAL, batch=False, codec=Codec(), filler=FILLER)
    assert b"secret" not in after
    assert len(after) == len(payload)


def test_truncates_stay_and_ddl_keeps_its_head():
    truncate = b"table public.t: TRUNCATE: (no-flags)"
    (found,) = records(truncate, Style.SERIAL, batch=False, codec=Codec())
    assert isinstance(found, Truncated)
    assert overwritten_record(truncate, Style.SERIAL, batch=False, codec=Codec(), filler=FILLER) == (truncate, True)
    ddl = b"prefix: DDL, lsn: 1, relid 5, cmdtype: cmd, size: 9, content: a secret "
    after, readable = overwritten_record(ddl, Style.SERIAL, batch=False, codec=Codec(), filler=FILLER)
    assert readable
    assert after.startswith(ddl[: ddl.index(b"a secret")])
    assert b"secret" not in after


def test_messages_of_pgoutput_keep_all_but_their_values():
    users = table("public.users", identity=ReplicaIdentity.FULL, id="int8", note="text")
    one = Transaction(
        boundaries(1000),
        (
            Insert(users, ("secret-1", None)),
            Update(users, ("secret-1", UNCHANGED), ("secret-1", "sécret"), OldKind.FULL),
            Delete(users, ("secret-1", None), OldKind.FULL),
            Message("secret", b"secret\0"),
        ),
    )
    for _, payload in encode_stream([one]):
        after, readable = anonymize.overwritten_message(payload, FILLER)
        assert readable
        assert len(after) == len(payload)
        assert type(parse(after)) is type(parse(payload))
        if payload[:1] not in b"IUDM":
            assert after == payload
        assert b"cret" not in after
    assert anonymize.overwritten_message(b"Isecret", FILLER)[1] is False
    assert b"secret" not in anonymize.overwritten_message(b"Isecret", FILLER)[0]
