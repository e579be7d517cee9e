"""Guessing how a payload is written, from its first bytes: for `inspect payload`, never for a stream asked for.

Specification: section 11.1 of the family's formats (first bytes of a payload). A framed payload begins with the top
byte of a length, which is no letter below a gigabyte; a bare line begins with a letter or a brace.
"""

from __future__ import annotations

import re
from typing import Final

from cdc_lake.decode.mppdb.records import Style
from cdc_lake.errors import UnknownStatement

_HEARTBEAT: Final = 26  # bytes: letter, three numbers, `F`
_FRAMED_HEARTBEAT: Final = 33  # what the length of a framed one counts
_RECORD: Final = 12  # bytes before the body: length and LSN
_FIRST_PRINTABLE: Final = 0x20
_LAST_PRINTABLE: Final = 0x7E
_PARALLEL: Final = (b"BEGIN CSN:", b"commit", b"COMMIT XID:")
_SERIAL: Final = re.compile(rb"(?:BEGIN|COMMIT|ABORT|PREPARE)(?: |\s*\Z)|prefix: |message: ")
_HINT: Final = "say how: `--style serial` takes any line, b, t and j what parallel decoding prints"
_RENDERED: Final = b"current_lsn: "  # what pg_recvlogical prints of style b
_RENDERED_HINT: Final = "capture what the server sends with `cdc-lake record`, or read in style t or j"
_NAME: Final = rb'(?:"(?:[^"]|"")*"|[^\s".:,]+)'
_QUALIFIED: Final = _NAME + rb"\." + _NAME
# `table public.t: INSERT:`, of serial decoding (3.0.x may leave out the operation); parallel: `table public t INSERT:`
_SERIAL_ROW: Final = re.compile(
    rb"table " + _QUALIFIED + rb"(?:, " + _QUALIFIED + rb")*:(?: (?:INSERT|UPDATE|DELETE|TRUNCATE):|\s*\Z)"
)


def guess(payload: bytes, style: Style | None = None) -> tuple[Style, bool]:
    """The style, if it is not known, and whether the payload is a batch.

    Raises UnknownStatement for a bare line of no known kind; bytes of no known kind are called binary.
    """
    if style is Style.SERIAL or not payload:
        return style or Style.BINARY, False
    framed = not is_line(payload)
    if style is not None:
        return style, framed
    return (_framed(payload), True) if framed else (_line(payload), False)


def is_line(payload: bytes) -> bool:
    """Whether a payload is a bare line: it begins with a sign, not with the top byte of a length."""
    return bool(payload) and _FIRST_PRINTABLE <= payload[0] <= _LAST_PRINTABLE


def _framed(payload: bytes) -> Style:
    kind, after = payload[_RECORD : _RECORD + 1], payload[_RECORD + 1 : _RECORD + 2]
    heartbeat = kind == b"h" and int.from_bytes(payload[:4], "big") == _FRAMED_HEARTBEAT
    if heartbeat or kind not in (b"B", b"C", b"c", b"t", b"{", b"h"):
        return Style.BINARY
    # BEGIN and COMMIT are words in text; in binary a number or an option's letter follows
    if (kind == b"B" and after != b"E") or (kind == b"C" and after != b"O"):
        return Style.BINARY
    return Style.JSON if _has_json(payload) else Style.TEXT


def _has_json(payload: bytes) -> bool:
    at = 0
    while (size := int.from_bytes(payload[at : at + 4], "big")) and at + _RECORD < len(payload):
        if payload[at + _RECORD : at + _RECORD + 1] == b"{":
            return True
        at += 4 + size
    return False


def _line(payload: bytes) -> Style:
    if payload.startswith(b"{"):
        return Style.JSON
    if payload.startswith(b"h"):
        return Style.BINARY if len(payload) == _HEARTBEAT and payload.endswith(b"F") else Style.TEXT
    if payload.startswith(b"table "):
        return Style.SERIAL if _SERIAL_ROW.match(payload) else Style.TEXT
    if payload.startswith(_PARALLEL):
        return Style.TEXT
    if _SERIAL.match(payload):
        return Style.SERIAL
    if payload.startswith(_RENDERED):
        raise UnknownStatement("pg_recvlogical's own words for style b, not what the server sent", hint=_RENDERED_HINT)
    raise UnknownStatement("nothing says how this is written", hint=_HINT)
