"""Targets of files that are read back: recordings, parked transactions, notes of the receiver."""

from __future__ import annotations

import io
import random
import tempfile
from functools import cache
from pathlib import Path
from unittest import mock

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.connectors.prepared_transactions import PreparedTransactions, file_name
from cdc_lake.connectors.spool import Spool
from cdc_lake.connectors.wal_budget import WalNote
from cdc_lake.control.coordination import ReceiverNote
from cdc_lake.decode.pgoutput.parser import Prepared
from cdc_lake.decode.pgoutput.spooled import Announcement, PreparedContent
from cdc_lake.decode.pgoutput.two_phase import encode_prepared, read_back
from cdc_lake.decode.transaction import MemoryFrames
from cdc_lake.devtools.recording import RecordingHeader, RecordingReader, is_recording
from cdc_lake.errors import CdcLakeError, MalformedMessage
from cdc_lake.tables.control_files import LocalControlFiles
from cdc_lake_testing import messages
from cdc_lake_testing.recordings import confirms_by_keepalive
from tests.fuzz.target import Finding, Target, refused
from tests.pipeline_file import make_project
from tests.scripted_server import data

STATE = StreamCheckpoint("pg:1:d:s:0/0", 3, 100, 100, b"")


@cache
def folder() -> Path:
    """Of this process, where what is read from a path is written first."""
    return Path(tempfile.mkdtemp(prefix="cdc_fuzz_"))


# ── recordings ──


def some_recordings() -> list[bytes]:
    dice = random.Random(7)
    found = []
    for nth in range(20):
        entries = [data(at, dice.randbytes(dice.randrange(30))) for at in range(dice.randrange(5))]
        entries += [b"k" + bytes(17), b"k" + bytes(32)][: dice.randrange(3)]
        head = RecordingHeader("gaussdb", "mppdb_decoding", {"decode-style": "b"}, redacted=nth % 5 == 0).line()
        found.append((head if nth % 2 else b"") + b"".join(len(one).to_bytes(4, "big") + one for one in entries))
    return found


def a_recording(data: bytes) -> bool:
    is_recording(io.BytesIO(data))
    try:
        reader = RecordingReader(io.BytesIO(data), "a file")
        if (header := reader.header) is not None:
            header.line()
            confirms_by_keepalive(header)
        size = sum(len(getattr(entry, "payload", b"")) for entry in reader)
    except CdcLakeError as error:
        return refused(error)
    if size > len(data):
        raise Finding(f"{size} bytes of payloads in {len(data)}")
    return True


# ── parked transactions ──


def some_parked() -> list[bytes]:
    dice = random.Random(8)
    found = []
    for nth in range(20):
        frames = MemoryFrames()
        frames.extend([dice.randbytes(dice.randrange(9)) for _ in range(nth)], list(range(nth)))
        announced = [Announcement(0, messages.relation(messages.table("public.a", id="int8")), 5)]
        fault = MalformedMessage("wrong", offset=3) if nth % 4 == 0 else None
        parked = PreparedContent(frames, announced, [b"{}"], dice.choice((None, "o")), fault)
        found.append(bytes([nth % 2]) + b"".join(encode_prepared(Prepared(7, "gid", 10, 20, 30), parked)))
    return found


def a_parked_file(data: bytes) -> bool:
    """The file of a transaction as a receiver finds it at its start; the first byte: whether an end is noted."""
    place = LocalControlFiles(folder() / "parked", durable=False)
    for name in place.sizes():
        place.remove(name)
    name, size = file_name(STATE.epoch, 7, "gid"), len(data) // 2
    place.put(name, lambda: [data[1:]])
    if data[:1] == b"\1":
        place.put(f"{name}.end", lambda: [data[size : size + 20]])
    try:
        with Spool(folder() / "spool", 1 << 30, 1 << 20) as spool:
            found = PreparedTransactions(place, spool, STATE, highest=lambda: 1000, changed=lambda *_: False)
            _ = found.waiting
        _, content = read_back(lambda at, size: place.read(name, at, size) or b"", 64, name)
        sizes = [len(frame) for frames, _ in content.frames.parts() for frame in frames]
    except CdcLakeError as error:
        return refused(error)
    if len(sizes) != len(content.frames):
        raise Finding(f"{len(sizes)} frames of {len(content.frames)}")
    return True


# ── notes ──


def some_notes() -> list[bytes]:
    return [
        b'{"since": "2026-01-01 00:00:00+00:00", "tried": "2026-01-01 00:00:00+00:00", "code": "A", "message": "m", "where": ""}',
        b'{"at": 1.5, "seen": {"step": "calm", "reason": "", "used": 0.1, "retained_bytes": 1, "age_seconds": 1.0, "growth": null, "exceeded_in": null, "pauses_apply": false}, "marks": [[1.0, 5]]}',
        b'{"at": 1.5, "seen": null, "marks": []}',
        b"null",
        b" " * 64,
        b"[" * 2000,
    ]  # fmt: skip


def a_note(data: bytes) -> bool:
    """A note is a hint: whatever stands in it, who reads it goes on."""
    project = make_project(folder())
    (project.lake / "logs").mkdir(parents=True, exist_ok=True)
    for ending in ("receiver", "wal"):
        (project.lake / "logs" / f"shop.{ending}").write_bytes(data)
    waiting = ReceiverNote(project).read()
    note = WalNote(project)
    with mock.patch("time.time", return_value=1.0):
        seen = note.read()
    marks = note.begin()
    return waiting is not None or seen is not None or bool(marks)


RECORDING_WORDS = (
    b'{"format": "cdc-lake/recording/1"',
    b'"options": {',
    b'"redacted": true',
    b"\0\0\0\x1aw",
    b"\0\0\0\x12k",
    b"[" * 99,
)
NOTE_WORDS = (
    b"null",
    b"{}",
    b"[]",
    b'"at"',
    b'"seen"',
    b'"marks"',
    b"1e999",
    b"NaN",
    b"true",
    b'"2026-01-01"',
    b"[" * 99,
    b"{",
)


@cache
def targets() -> tuple[Target, ...]:
    return (
        Target("recording", a_recording, some_recordings, RECORDING_WORDS),
        Target("parked", a_parked_file, some_parked, (b"CDC_LAKE PREPARED 1\n", b"\0\0\0\0", b"\xff\xff\xff\x7f")),
        Target("note", a_note, some_notes, NOTE_WORDS),
    )
