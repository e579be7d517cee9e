"""Numbers of things in words, for every message that counts."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 problem`, `2,000 problems`; the noun is one that takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
