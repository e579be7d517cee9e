"""The columnar reader: offsets within 32 bits, and memory that a thread's chunks have one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc_lake.decode import columnar_reader
from cdc_lake.decode.columnar_reader import (
    PADDING,
    FallBackToRowDecoder,
    FrameBuffer,
    copy_texts,
    gather_bytes,
    in_room,
)
from cdc_lake.decode.gaussdb import literal_columnar
from cdc_lake.decode.gaussdb.literal_columnar import ROOM, rewritten

VALUES = (b"plain", b"it''s", b"", b"\xc3\xa9", b'a \\"b\\"', b"\\u0009''\\n", b"''''", b"\\\\")


def source(values: tuple[bytes, ...]) -> tuple[Any, Any, Any]:
    """What `rewritten` reads of statements: values with something between them; and their bounds."""
    sizes = np.array([len(value) for value in values])
    behind = np.cumsum(sizes + 3)
    data = b"".join(value + b"', " for value in values)
    return (
        SimpleNamespace(bytes=bytearray(data + b"\0" * ROOM + PADDING), room=len(data)),
        behind - sizes - 3,
        behind - 3,
    )


def texts(chunk: FrameBuffer, slots: Any) -> list[bytes]:
    return [bytes(chunk.bytes[first:behind]) for first, behind in slots.tolist()]


@pytest.mark.parametrize("escaped", [False, True])
def test_beside_a_large_value_small_ones_are_what_they_are_without_it(
    escaped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for large in (False, True):
        monkeypatch.setattr(literal_columnar, "is_large", lambda _size, _count, large=large: large)
        found.append(texts(*rewritten(*source(VALUES), escaped=escaped, inner=True)))
    assert found[0] == found[1]
    assert found[1][:4] == [b"plain", b"it's", b"", b"\xc3\xa9"]
    assert found[1][4:6] == ([b'a "b"', b"\t'\n"] if escaped else [b'a \\"b\\"', b"\\u0009'\\n"])


@pytest.mark.parametrize("large", [False, True])
def test_values_that_are_more_than_offsets_reach_are_not_walked(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = FrameBuffer.from_frames([b"abc", b"defgh"])
    slots = chunk.start | (chunk.end << 32)
    statements, start, end = source(VALUES)
    size = int((end - start).sum()) + ROOM * len(VALUES)
    for module in (columnar_reader, literal_columnar):
        monkeypatch.setattr(module, "is_large", lambda _size, _count: large)
    monkeypatch.setattr(columnar_reader, "_LARGEST_OFFSET", max(size, len(chunk.bytes)))
    assert bytes(gather_bytes(chunk, chunk.start, chunk.end)[1]) == bytes(copy_texts(chunk, slots)[1]) == b"abcdefgh"
    rewritten(statements, start, end, escaped=False, inner=True)
    monkeypatch.setattr(columnar_reader, "_LARGEST_OFFSET", size - 1)
    with pytest.raises(FallBackToRowDecoder):
        rewritten(statements, start, end, escaped=False, inner=True)
    monkeypatch.setattr(columnar_reader, "_LARGEST_OFFSET", len(chunk.bytes) - 1)
    with pytest.raises(FallBackToRowDecoder):
        copy_texts(chunk, slots)
    monkeypatch.setattr(columnar_reader, "_LARGEST_OFFSET", 7)
    with pytest.raises(FallBackToRowDecoder):
        gather_bytes(chunk, chunk.start, chunk.end)


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_the_next_one_has_the_memory_of_one_that_is_gone() -> None:
    first = in_room([b"abc", b"defgh"], 8)
    assert bytes(first) == b"abcdefgh"
    there = address(first)
    del first
    second = in_room([b"xy"], 2)
    assert (bytes(second), address(second)) == (b"xy", there)


@pytest.mark.parametrize("looks", [memoryview, pa.py_buffer, partial(np.frombuffer, dtype=np.uint8)])
def test_who_still_looks_at_one_keeps_it(looks: Callable[[memoryview], Any]) -> None:
    kept = looks(in_room([b"abcd"], 4))
    assert bytes(in_room([b"wxyz"], 4)) == b"wxyz"
    assert bytes(kept) == b"abcd"


def test_threads_have_their_own() -> None:
    mine = in_room([b"mine"], 4)
    there = address(mine)
    del mine
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(address(in_room([b"else"], 4))))
    thread.start()
    thread.join()
    assert found != [there]


def test_a_large_one_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_reader, "_LARGEST_BUFFER", 100)
    small = in_room([b"-"], 1)
    there = address(small)
    del small
    large = in_room([bytes(60), bytes(60)], 120)
    assert (len(large), address(large) == there) == (120, False)
    del large
    assert address(in_room([b"-"], 1)) == there


def test_a_chunk_may_be_written_to_and_reads_eight_bytes_at_its_end() -> None:
    chunk = FrameBuffer.from_frames([b"abc", b"de"])
    assert bytes(chunk.bytes) == b"abcde" + PADDING
    assert (chunk.start.tolist(), chunk.end.tolist()) == ([0, 3], [3, 5])
    chunk.data[0] = ord("x")
    assert bytes(chunk.bytes[:3]) == b"xbc"
    assert int(chunk.window[5]) == 0
    assert bytes(FrameBuffer.from_frames([]).bytes) == PADDING
