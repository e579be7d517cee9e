"""Recordings: what was written is read, a file cut anywhere is told from a whole one, a source plays them."""

from __future__ import annotations

import io
import struct

import pytest

from cdc_lake.devtools.recording import (
    Alive,
    Data,
    RecordingHeader,
    RecordingReader,
    RecordingWriter,
    copy_data,
    is_recording,
)
from cdc_lake.errors import RecordingNotWritten, RecordingUnreadable
from cdc_lake_testing.recordings import RecordingSource

HEADER = RecordingHeader(
    "postgres", "pgoutput", {"proto_version": "1"}, "UTF8", "0/16B3748", "2026-01-01T00:00:00+00:00"
)


def data(lsn: int, payload: bytes) -> bytes:
    return struct.pack(">cQQq", b"w", lsn, lsn, 5) + payload


def alive(end: int) -> bytes:
    return struct.pack(">cQqB", b"k", end, 5, 0)


def family_alive(end: int) -> bytes:
    return struct.pack("<cQiiqBB6s", b"k", end, 1, 1, 5, 0, 0, b"\xde\xad\xbe\xef\x00\x01")


def entries(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


BODIES = (data(16, b"B" * 3), alive(17), family_alive(18), data(20, b""), data(1 << 62, b"x" * 300))


def written(path, bodies=BODIES):
    with RecordingWriter(path, HEADER) as writer:
        for body in bodies:
            writer.append(body)
    return path


def test_what_was_written_is_read(tmp_path):
    with RecordingReader.open(written(tmp_path / "a.rec")) as reader:
        assert reader.header == HEADER
        assert list(reader) == [
            Data(16, 5, b"BBB"),
            Alive(17),
            Alive(18),
            Data(20, 5, b""),
            Data(1 << 62, 5, b"x" * 300),
        ]


def test_a_recording_needs_no_header():
    reader = RecordingReader(io.BytesIO(entries(*BODIES)), "bare")
    assert reader.header is None
    assert len(list(reader)) == len(BODIES)


def test_a_file_is_never_overwritten(tmp_path):
    path = tmp_path / "a.rec"
    path.write_bytes(b"precious")
    with pytest.raises(RecordingNotWritten):
        RecordingWriter(path, HEADER)
    assert path.read_bytes() == b"precious"


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(RecordingNotWritten) as refused:
        RecordingWriter(tmp_path / "none" / "a.rec", HEADER)
    assert "folder" in refused.value.remedy


def test_a_file_cut_anywhere_is_a_shorter_stream_only_at_a_border(tmp_path):
    whole = written(tmp_path / "a.rec").read_bytes()
    head = len(HEADER.line())
    borders = {head}
    for body in BODIES:
        borders.add(max(borders) + 4 + len(body))
    for size in range(head, len(whole)):
        reader = RecordingReader(io.BytesIO(whole[:size]), "cut")
        if size in borders:
            list(reader)
        else:
            with pytest.raises(RecordingUnreadable) as broken:
                list(reader)
            assert broken.value.offset == max(b for b in borders if b <= size)


@pytest.mark.parametrize(
    "line",
    [b'{"format": "cdc-lake/recording/2"}\n', b'{"format": "cdc-lake/recording/1"}\n', b'{"format": "cdc-lake/recording/1", '],
)  # fmt: skip
def test_a_header_that_is_none_is_said(line):
    with pytest.raises(RecordingUnreadable):
        RecordingReader(io.BytesIO(line), "odd")


def test_a_header_of_other_things_than_words_is_said():
    whole = RecordingHeader("gaussdb", "mppdb_decoding").line()
    for wrong in (b'"source": ["gaussdb"]', b'"source": null', b'"source": ' + b"[" * 5000):
        line = whole.replace(b'"source": "gaussdb"', wrong)
        with pytest.raises(RecordingUnreadable, match="the header of the recording"):
            RecordingReader(io.BytesIO(line), "f")


def test_a_length_beyond_the_end_asks_for_no_memory():
    class Careful(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is None or size <= 1 << 20
            return super().read(size)

    reader = RecordingReader(Careful(struct.pack(">I", (1 << 32) - 1) + b"w" * 50), "f")
    with pytest.raises(RecordingUnreadable, match="4294967295 bytes announced, 50 left"):
        reader.read_entry()


def test_an_entry_of_another_kind_is_said():
    for body in (b"", b"z", b"w" + bytes(20), b"k" + bytes(5)):
        with pytest.raises(RecordingUnreadable):
            list(RecordingReader(io.BytesIO(entries(body)), "odd"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (HEADER.line(), True),
        (entries(*BODIES), True),
        (entries(family_alive(0)), True),
        (entries(data(1, b"")), True),
        (b"", False),
        (b"wwww", False),
        (b'{"table_name":"public.t"}', False),
        (bytes.fromhex("000000190000000002816a2842") + bytes(17), False),
        (b"BEGIN CSN: 1 first_lsn: 0/1", False),
        (b"I\x00\x00\x40\x00N\x00\x01n", False),
        (data(1, b"BEGIN"), False),
        (bytes(4), False),
    ],
)
def test_a_recording_is_told_from_a_payload(content, expected):
    file = io.BytesIO(content)
    assert is_recording(file) is expected
    assert file.tell() == 0


def test_copy_data_takes_only_the_two_kinds():
    assert copy_data(data(7, b"x")) == Data(7, 5, b"x")
    assert copy_data(family_alive(9)) == Alive(9)
    assert copy_data(b"BEGIN") is None
    assert copy_data(b"") is None


def test_the_worked_header_and_keepalive():
    header = bytes.fromhex("77 0000000002816dc0 0000000002816dc0 0002b3aff38215b4")
    assert copy_data(header + b"payload") == Data(0x2816DC0, 0x0002B3AFF38215B4, b"payload")
    alive = bytes.fromhex("6b f06d810200000000 02000000 01000000 b41582f3afb30200 00 00 000000000000")
    assert copy_data(alive) == Alive(0x2816DF0)


def test_a_source_plays_a_recording(tmp_path):
    source = RecordingSource(written(tmp_path / "a.rec"))
    assert source.header == HEADER
    assert source.poll(0) == [(16, b"BBB"), (20, b""), (1 << 62, b"x" * 300)]
    assert source.keepalive_end == 18
    assert source.ended
    assert source.poll(0) == []
    source.confirm(20)
    source.confirm(16)
    assert source.confirmed == 20
    assert not source.reply_requested
    source.tick(ping=True)
    source.close()


@pytest.mark.parametrize(
    ("header", "end"),
    [
        (RecordingHeader("postgres", "pgoutput"), 18),
        (RecordingHeader("opengauss", "mppdb_decoding", {"parallel-decode-num": "1"}), 18),
        (RecordingHeader("opengauss", "mppdb_decoding", {"parallel-decode-num": "4"}), 0),
    ],
)
def test_a_keepalive_counts_only_where_it_promises_something(tmp_path, header, end):
    with RecordingWriter(tmp_path / "a.rec", header) as writer:
        for body in BODIES:
            writer.append(body)
    source = RecordingSource(tmp_path / "a.rec")
    source.poll(0)
    assert source.keepalive_end == end
    source.close()


def test_a_recording_is_for_its_owner_only(tmp_path):
    assert written(tmp_path / "a.rec").stat().st_mode & 0o077 == 0


def test_a_source_gives_about_a_megabyte_at_a_time(tmp_path):
    many = [data(at, bytes(1 << 18)) for at in range(1, 10)]
    source = RecordingSource(written(tmp_path / "a.rec", many))
    polls = []
    while not source.ended:
        polls.append([lsn for lsn, _ in source.poll(0)])
    assert [lsn for poll in polls for lsn in poll] == list(range(1, 10))
    assert max(len(poll) for poll in polls) == 4
    source.close()


def test_a_recording_that_is_not_there_is_said(tmp_path):
    with pytest.raises(RecordingUnreadable):
        RecordingSource(tmp_path / "none.rec")
