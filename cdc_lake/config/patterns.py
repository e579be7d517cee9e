r"""Regular expressions that mean the same in Java, where the gate runs, and in Python, where a report is made.

What one of the two lacks or reads differently is refused with its name and place. Both are told to take `\n` alone for
the end of a line and ASCII for `\w`, `\d`, `\s`; for that each gets flags of its own in front (`java`, `python`).
"""

from __future__ import annotations

import re
import warnings

_LEADING_FLAGS = re.compile(r"\(\?([is]+)\)")
_COUNT = re.compile(r"\{[0-9]{1,4}(,[0-9]{0,4})?\}")
_ONE_SIDED_ESCAPES = {
    "b": "a word ends elsewhere in each Java: write `(^|[^0-9A-Za-z_])`",
    "B": "a word ends elsewhere in each Java",
    "v": r"Java takes seven characters for it, Python one: write `\x0b`",
    "Z": r"the end of the text is `$`",
    "U": r"Java does not have it: write the character, or `\uXXXX`",
    "N": r"write the character, or `\uXXXX`",
    "0": r"Java reads digits behind it: write `\x00`",
}
_ONE_SIDED_GROUPS = {
    "(?P": "Java names groups otherwise: leave the name out",
    "(?(": "Java does not have it",
    "(?#": "Java does not have it",
}
_FLAGS = re.compile(r"\(\?([a-zA-Z-]+)[:)]")


class NotPortable(ValueError):
    """Why a pattern cannot be used, to a person; `at` counts characters from 1, 0 where no place is known."""

    def __init__(self, why: str, at: int = 0) -> None:
        super().__init__(f"{why}, at character {at}" if at else why)


def check_pattern(pattern: str) -> None:
    """Raise NotPortable for what is no regular expression, or not the same one in Java and in Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of sets that `_scan` refuses
            re.compile(python(pattern))
    except re.error as problem:
        shift = len(python(pattern)) - len(pattern)
        raise NotPortable(f"{problem.msg}", max(0, (problem.pos or 0) - shift) + 1) from problem
    except (ValueError, OverflowError, RecursionError) as problem:
        raise NotPortable(str(problem)) from problem
    _scan(pattern)


def python(pattern: str) -> str:
    """The pattern as Python has to be given it."""
    leading = _LEADING_FLAGS.match(pattern)
    return f"(?a{leading[1]}){pattern[leading.end() :]}" if leading else f"(?a){pattern}"


def java(pattern: str) -> str:
    """The pattern as Java has to be given it."""
    return f"(?d){pattern}"


def _scan(pattern: str) -> None:
    """Walk over a pattern that Python compiles, character by character."""
    at, in_set = 0, False
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at += _escape(pattern, at)
        elif in_set:
            in_set = _in_set(pattern, at)
            at += 1
        elif sign == "[":
            opened = at + 2 if pattern[at + 1 : at + 2] == "^" else at + 1
            if pattern[opened : opened + 1] == "]":
                raise NotPortable(r"write `\]` for a bracket in a set", opened + 1)
            at, in_set = opened, True
        elif sign == "{":
            if (found := _COUNT.match(pattern, at)) is None:
                raise NotPortable(r"Java takes `{` for a count: write `{2}`, `{2,}` or `{0,2}`, else `\{`", at + 1)
            at = found.end()
        else:
            _group(pattern, at)
            at += 1


def _escape(pattern: str, at: int) -> int:
    """Judge a backslash; how many characters belong together."""
    of = pattern[at + 1]
    if of in _ONE_SIDED_ESCAPES:
        raise NotPortable(rf"`\{of}` does not mean the same in Java and in Python: {_ONE_SIDED_ESCAPES[of]}", at + 1)
    if of.isdigit() and pattern[at + 2 : at + 3].isdigit():
        raise NotPortable(r"Java and Python read two digits behind `\` differently: put `(?:)` between them", at + 1)
    return 2


def _in_set(pattern: str, at: int) -> bool:
    """Judge a character of a set; whether the set goes on."""
    sign = pattern[at]
    if sign == "[" or pattern[at : at + 2] in {"&&", "--", "~~", "||"}:
        raise NotPortable(rf"`{sign}` in a set is not the same in Java and in Python: write `\{sign}`", at + 1)
    return sign != "]"


def _group(pattern: str, at: int) -> None:
    """Judge a group that begins here, if one does."""
    for start, why in _ONE_SIDED_GROUPS.items():
        if pattern.startswith(start, at):
            raise NotPortable(f"`{start}` is not the same in Java and in Python: {why}", at + 1)
    flags = _FLAGS.match(pattern, at)
    if flags is not None and set(flags[1]) - set("is-"):
        raise NotPortable("only the flags `i` and `s` are the same in Java and in Python", at + 1)
