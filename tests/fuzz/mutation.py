"""Inputs by chance: samples of which one to three parts are altered, in the ways that decoders have to bear."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

INTERESTING = (0, 1, 2, 7, 8, 9, 16, 32, 127, 128, 255, 256, 32_767, 65_535, 1 << 31, (1 << 31) - 1, (1 << 32) - 1)
INTERESTING += ((1 << 63) - 1, 1 << 63, (1 << 64) - 1)
LONGEST = 1 << 16


def mutants(seed: object, samples: Sequence[bytes], words: Sequence[bytes]) -> Iterator[bytes]:
    """Without end, the same for the same seed."""
    dice = random.Random(str(seed))
    draw = dice.random
    telling = [*words, b"\0", b"\xff"]
    while True:
        data = bytearray(samples[int(draw() * len(samples))])
        for _ in range(1 if draw() < 0.6 else 2 + int(draw() * 2)):
            _alter(data, draw, samples, telling)
        yield bytes(data[:LONGEST])


def _alter(data: bytearray, draw: Callable[[], float], samples: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = int(draw() * (len(data) + 1))
    match int(draw() * 12):
        case 0 | 1 | 10 if at < len(data):
            data[at] ^= 1 << int(draw() * 8)
        case 2 | 11 if at < len(data):
            data[at] = int(draw() * 256)
        case 3:
            del data[at : at + 1 + int(draw() * 8)]
        case 4:
            data[at:at] = words[int(draw() * len(words))]
        case 5:
            word = words[int(draw() * len(words))]
            data[at : at + len(word)] = word
        case 6:
            data[at:at] = data[at : at + int(draw() * 40)]
        case 7:
            other = samples[int(draw() * len(samples))]
            data[at:] = other[int(draw() * (len(other) + 1)) :]
        case 8:
            size = (1, 2, 4, 8)[int(draw() * 4)]
            number = INTERESTING[int(draw() * len(INTERESTING))] & ((1 << 8 * size) - 1)
            data[at : at + size] = number.to_bytes(size, "big" if draw() < 0.8 else "little")
        case 9 if draw() < 0.3:
            del data[at:]
        case _:
            data[at:at] = bytes([int(draw() * 256)])
