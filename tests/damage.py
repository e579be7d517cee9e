"""Damage: bytes that were altered in one place, in the ways that decoders have to bear."""

from __future__ import annotations

import random


def damaged(rng: random.Random, frame: bytes, telling: bytes) -> bytes:
    """The bytes cut, shortened, lengthened or altered at one place. `telling`: bytes that mean something there."""
    at = rng.randrange(len(frame) + 1)
    match rng.randrange(7):
        case 0:
            return frame[:at]
        case 1:
            return frame[:at] + frame[at + 1 + rng.randrange(3) :]
        case 2:
            return frame[:at] + bytes([rng.choice(telling)]) + frame[at:]
        case 3:
            return frame + bytes(rng.choice(telling) for _ in range(1 + rng.randrange(9)))
        case 4:
            return frame[:at] + rng.choice([rng.randbytes(4), b"\xff\xff\xff\xff"]) + frame[at + 4 :]
        case _ if not frame:
            return bytes([rng.choice(telling)])
        case _:
            at = min(at, len(frame) - 1)
            byte = rng.choice(telling) if rng.random() < 0.5 else frame[at] ^ 1 << rng.randrange(8)
            return frame[:at] + bytes([byte]) + frame[at + 1 :]
