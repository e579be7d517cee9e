"""As of: how people name the moment they want to read, as one closed union.

A text is a position as it is printed (`0/16B3748` an LSN, `951909` a CSN), an integer one as the tables store it. Which
cut that is, the cuts say (`pipeline.state.find_cut`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from cdc_lake.errors import CutUnknown
from cdc_lake.model.position import Csn, Lsn, Position


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest cut."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A position as bronze and the cuts store it."""

    value: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number as text: a CSN where the server has them, otherwise a stored position."""

    value: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A time; it has its zone."""

    time: datetime


@dataclass(frozen=True, slots=True)
class Named:
    """The cut that a promise of this name keeps."""

    name: str


AsOf: TypeAlias = Latest | Stored | Number | Position | Lsn | Csn | Moment | Named
"""What a reader may ask for. `Lsn` and `Csn` are that number whatever orders the stream; `Position` has its epoch."""

Given: TypeAlias = AsOf | str | int | datetime
"""The same as people give it."""

PROMISE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_NUMBER = re.compile(r"[0-9]{1,19}")
_TIME = re.compile(r"[0-9]{4}-?[0-9]{2}.*")


def as_of(given: Given) -> AsOf:
    """Read what was given. Raises CutUnknown, MalformedPosition."""
    if isinstance(given, str):
        return _text(given.strip())
    if isinstance(given, datetime):
        return _moment(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return Stored(given)
    if isinstance(given, Latest | Stored | Number | Position | Lsn | Csn | Moment | Named):
        return given
    raise CutUnknown(f"`{given}` names no cut: it is of type {type(given).__name__}")


def _text(text: str) -> AsOf:
    if text == "latest":
        return Latest()
    if "/" in text:
        return Lsn.parse(text)
    if _NUMBER.fullmatch(text):
        return Number(Csn.parse(text).value)
    if PROMISE_NAME.fullmatch(text):
        return Named(text)
    try:
        return _moment(datetime.fromisoformat(text))
    except ValueError as bad:
        what = "is not a time" if _TIME.fullmatch(text) else "is no position, time or name"
        raise CutUnknown(f"`{text}` {what}") from bad


def _moment(time: datetime) -> Moment:
    if time.tzinfo is None:
        raise CutUnknown(f"the time `{time.isoformat()}` has no zone")
    return Moment(time)
