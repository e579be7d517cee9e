"""Lines that only PostgreSQL's `test_decoding` prints: logical messages, two-phase, streamed transactions.

Everything else it prints (BEGIN, COMMIT, rows, TRUNCATE) has the form of the GaussDB family and is read there.
Specification: PostgreSQL's source, contrib/test_decoding/test_decoding.c, and the regression results beside it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc_lake.decode.describe import Described, lsn_text, present


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A logical message; `content` is None where it was streamed, which leaves it out."""

    transactional: bool
    prefix: str
    content: str | None


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """A line of two-phase or streamed decoding: `kind` names it, what it did not say is None."""

    kind: str
    gid: str | None = None
    xid: int | None = None
    time: str | None = None


_TIME: Final = rb"(?: \(at (?P<time>[^)]*)\))?"
_TXN: Final = rb"(?: TXN (?P<xid>\d+))?"
_GID: Final = rb" (?P<gid>E?'(?:[^']|'')*')(?:, txid (?P<xid>\d+))?"
_PHASES: Final = tuple(
    (re.compile(form, re.DOTALL), kind)
    for form, kind in (
        (rb"PREPARE TRANSACTION" + _GID + _TIME, "prepare"),
        (rb"COMMIT PREPARED" + _GID + _TIME, "commit_prepared"),
        (rb"ROLLBACK PREPARED" + _GID + _TIME, "rollback_prepared"),
        (rb"opening a streamed block for transaction" + _TXN, "stream_start"),
        (rb"closing a streamed block for transaction" + _TXN, "stream_stop"),
        (rb"aborting streamed \(sub\)transaction" + _TXN, "stream_abort"),
        (rb"preparing streamed transaction(?: TXN)?" + _GID + _TIME, "stream_prepare"),
        (rb"committing streamed transaction" + _TXN + _TIME, "stream_commit"),
        (rb"streaming change for (?:transaction|TXN (?P<xid>\d+))", "stream_change"),
        (rb"streaming truncate for (?:transaction|TXN (?P<xid>\d+))", "stream_truncate"),
    )
)
_MESSAGE: Final = re.compile(rb"(?:streaming )?message: transactional: ([01]) prefix: ")
_ENDS: Final = (b"", b"\n", b"\r\n")  # what a program that printed the line may have put behind it
_SIZE: Final = re.compile(rb", sz: (\d+)(?: content:|\Z)")


def line(payload: bytes, decode: Callable[[bytes], str]) -> MessageLine | PhaseLine | None:
    """The record of a line, None where it is none of these. `decode` reads text of the stream's encoding."""
    if (head := _MESSAGE.match(payload)) is not None:
        return _message(payload, head, decode)
    for form, kind in _PHASES:
        if (found := form.fullmatch(payload)) is not None:
            said = found.groupdict()
            return PhaseLine(
                kind,
                None if said.get("gid") is None else _unquoted(decode(said["gid"])),
                None if said.get("xid") is None else int(said["xid"]),
                None if said.get("time") is None else decode(said["time"]),
            )
    return None


def described_line(found: MessageLine | PhaseLine, lsn: int | None) -> Described:
    """The JSON object of a line, in the form of `decode.describe`."""
    if isinstance(found, MessageLine):
        body = {"prefix": found.prefix, "transactional": found.transactional, "content": found.content}
        return present(type="message", lsn=lsn_text(lsn), **body)
    return present(type=found.kind, lsn=lsn_text(lsn), gid=found.gid, xid=found.xid, timestamp=found.time)


def _message(payload: bytes, head: re.Match[bytes], decode: Callable[[bytes], str]) -> MessageLine | None:
    """The size says which `, sz: ` ends the prefix: both prefix and content may hold such words."""
    for at in _SIZE.finditer(payload, head.end()):
        size, rest = int(at[1]), payload[at.end() :]
        streamed = not at[0].endswith(b":")
        if streamed or (len(rest) >= size and rest[size:] in _ENDS):
            prefix = decode(payload[head.end() : at.start()])
            return MessageLine(head[1] == b"1", prefix, None if streamed else decode(rest[:size]))
    return None


def _unquoted(literal: str) -> str:
    """A string constant's text: quotes doubled; backslashes doubled too where it begins with E."""
    text = literal[literal.index("'") + 1 : -1].replace("''", "'")
    return text.replace("\\\\", "\\") if literal.startswith("E") else text
