"""Memory that a thread's chunks have one after the other, and never two of them at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc_lake.decode import columnar_reader
from cdc_lake.decode.columnar_reader import PADDING, FrameBuffer, in_room


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
