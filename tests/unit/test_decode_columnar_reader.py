"""Values that are copied one behind the other: no offset goes beyond what 32 bits hold, and however they are copied they
are the same.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cdc_lake.decode import columnar_reader
from cdc_lake.decode.columnar_reader import PADDING, FallBackToRowDecoder, FrameBuffer, copy_texts, gather_bytes
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
