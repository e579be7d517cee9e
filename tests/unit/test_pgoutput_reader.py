"""Reads are bounds-checked and know where they stand."""

from __future__ import annotations

import pytest

from cdc_lake.decode.pgoutput.messages import Reader
from cdc_lake.errors import InvalidText, MalformedMessage, TruncatedMessage


def test_numbers_are_big_endian_and_signed_as_named():
    reader = Reader(b"\xff" + b"\xff\xfe" + b"\xff" * 4 + b"\xff" * 4 + b"\xff" * 7 + b"\xfe")
    assert [reader.u8(), reader.u16(), reader.i32(), reader.u32(), reader.i64()] == [255, 65534, -1, 2**32 - 1, -2]
    reader.finish()


@pytest.mark.parametrize(
    ("read", "need"),
    [("u8", 1), ("u16", 2), ("i32", 4), ("u32", 4), ("i64", 8), ("lsn", 8), ("cstring", 1)],
)
def test_a_read_past_the_end_names_what_was_needed_and_where(read, need):
    reader = Reader(b"ab")
    reader.take(2)
    with pytest.raises(TruncatedMessage, match=f"{need} bytes announced, 0 left") as caught:
        getattr(reader, read)()
    assert caught.value.offset == 2


def test_a_refused_read_does_not_move():
    reader = Reader(b"abc")
    with pytest.raises(TruncatedMessage):
        reader.i32()
    assert (reader.offset, reader.take(3)) == (0, b"abc")


def test_a_negative_size_is_refused():
    with pytest.raises(TruncatedMessage):
        Reader(b"abc").take(-1)


def test_a_string_ends_at_its_zero_byte():
    reader = Reader(b"\xc3\xa9\x00\x00x")
    assert (reader.cstring(), reader.cstring(), reader.offset) == ("é", "", 4)
    with pytest.raises(TruncatedMessage, match="2 bytes announced, 1 left"):
        reader.cstring()


def test_invalid_utf8_names_its_byte_and_keeps_no_value():
    reader = Reader(b"__ab\xffd")
    reader.take(2)
    with pytest.raises(InvalidText) as caught:
        reader.text(4)
    assert caught.value.offset == 4
    assert caught.value.__context__ is None


def test_an_lsn_above_63_bits_is_refused():
    with pytest.raises(MalformedMessage, match="63 bits"):
        Reader(b"\x80" + bytes(7)).lsn()


def test_bytes_after_the_end_are_refused():
    reader = Reader(b"abc")
    reader.u8()
    with pytest.raises(MalformedMessage, match="2 bytes after the end") as caught:
        reader.finish()
    assert caught.value.offset == 1
