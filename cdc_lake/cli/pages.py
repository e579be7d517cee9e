"""The pages of error codes: in the wheel beside the package, in a checkout in `docs/errors`."""

from __future__ import annotations

import difflib
from pathlib import Path

from cdc_lake.config.problems import UnknownCode

_PACKAGE = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """Where the pages are."""
    shipped = _PACKAGE / "docs" / "errors"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "docs" / "errors"


def codes() -> list[str]:
    """Every code that has a page."""
    return sorted(f.stem for f in folder().glob("*.md"))


def page(code: str) -> str:
    """The page of a code. Raises UnknownCode."""
    known, wanted = codes(), code.strip().upper()
    if wanted not in known:
        digits = wanted[:3] + wanted[3:].translate(str.maketrans("OIL", "011"))
        close = difflib.get_close_matches(digits, known, n=1)
        hint = f"did you mean {close[0]}? `cdc-lake explain --list` lists all codes" if close else None
        raise UnknownCode(f"there is no code `{code}`", hint=hint)
    return (folder() / f"{wanted}.md").read_text(encoding="utf-8")


def titles() -> list[tuple[str, str]]:
    """Each code with the title of its page."""
    result = []
    for code in codes():
        first = (folder() / f"{code}.md").read_text(encoding="utf-8").partition("\n")[0]
        result.append((code, first.partition(":")[2].strip()))
    return result
