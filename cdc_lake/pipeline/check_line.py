"""One finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckLine:
    """`ok`: right, wrong, or None for what works but should be known; `fix`: what to do, SQL or a command."""

    ok: bool | None
    subject: str
    text: str
    fix: str = ""
    code: str = ""
