"""Kept inputs: what was taken from recordings, and what fuzzing found that goes another way through a decoder.

`python -m tests.fuzz gather` and `grow` write the files of tests/data/fuzz; one holds the inputs of one target.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "fuzz"
_LENGTH = struct.Struct(">I")


def read(name: str) -> list[bytes]:
    """The inputs that are kept for a target."""
    file = FOLDER / f"{name}.xz"
    if not file.exists():
        return []
    data, found, at = lzma.decompress(file.read_bytes()), [], 0
    while at < len(data):
        end = at + 4 + _LENGTH.unpack_from(data, at)[0]
        found.append(data[at + 4 : end])
        at = end
    return found


def write(name: str, inputs: Iterable[bytes]) -> Sequence[bytes]:
    """Keep these, each once."""
    kept = sorted(set(inputs), key=lambda one: (len(one), one))
    FOLDER.mkdir(exist_ok=True)
    data = b"".join(_LENGTH.pack(len(one)) + one for one in kept)
    (FOLDER / f"{name}.xz").write_bytes(lzma.compress(data, preset=9))
    return kept
