"""Errors and diagnostics as text: what failed, where, then the hint. The same form everywhere."""

from __future__ import annotations

from cdc_lake.errors import CdcLakeError
from cdc_lake.model.diagnostic import Diagnostic, Severity
from cdc_lake.model.printable import printable

_BOLD, _RED, _YELLOW, _CYAN, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[36m", "\x1b[0m"


def error_text(error: CdcLakeError, *, colour: bool = False) -> str:
    """An error; one that carries diagnostics is shown as them."""
    found: tuple[Diagnostic, ...] = getattr(error, "diagnostics", ())
    if found:
        return "\n\n".join(diagnostic_text(d, colour=colour) for d in found)
    return _text("error", error.code, error.message, error.where, error.remedy, colour=colour)


def diagnostic_text(found: Diagnostic, *, colour: bool = False) -> str:
    """One diagnostic."""
    where = str(found.location) if found.location else ""
    return _text(found.severity.value, found.code, found.summary, where, found.hint, colour=colour)


def _text(severity: str, code: str, summary: str, where: str, hint: str, *, colour: bool) -> str:
    head = f"{severity}[{code}]"
    label = "hint"
    if colour:
        tint = _RED if severity == Severity.ERROR.value else _YELLOW
        head, label = f"{_BOLD}{tint}{head}{_RESET}", f"{_CYAN}{label}{_RESET}"
    lines = [f"{head}: {printable(summary)}"]
    if where:
        lines.append(f"  in {printable(where)}")
    if hint:
        lines += ["", f"{label}: {printable(hint)}"]
    return "\n".join(lines)
