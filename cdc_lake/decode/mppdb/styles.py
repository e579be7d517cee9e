"""What style a payload is written in, by its first bytes: to verify that it is the one that was asked for.

A server in the middle of an upgrade falls back to serial decoding without a word, and an option left out may have a
default nobody expects. Only what is certainly of another style is refused: a bare row of JSON may be of serial decoding
or of style j.
"""

from __future__ import annotations

import re
from typing import Final

from cdc_lake.decode.mppdb import heartbeat
from cdc_lake.decode.mppdb.framing import HEAD
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.errors import StyleMismatch

_SERIAL: Final = "serial decoding"
_LINE: Final = "style t or j without batches"
_BATCH: Final = "style t or j in batches"
_BINARY: Final = "style b"
_JSON: Final = "JSON without batches"
_ROW: Final = "text without batches"

_LINES: Final = (
    (re.compile(rb"BEGIN(?: [0-9O]|\Z)|COMMIT (?:[0-9]|CSN)"), _SERIAL),
    (re.compile(rb"BEGIN CSN:|commit(?: |\Z)|COMMIT XID:"), _LINE),
    (re.compile(rb"\{"), _JSON),
    (re.compile(rb"table "), _ROW),
)
_STATEMENT: Final = re.compile(rb"BEGIN|commit|COMMIT|table |\{")
_LETTER: Final = re.compile(rb"[BCIUDh]")


def verify(payload: bytes, style: Style, *, batch: bool) -> None:
    """Raises StyleMismatch if `payload` is certainly of another style than `style`, in batches if `batch`."""
    found = _look(payload)
    if found is not None and found not in _fitting(style, batch=batch):
        raise StyleMismatch(asked=_asked(style, batch=batch), found=found)


def _look(payload: bytes) -> str | None:
    first = payload[:1]
    if first in (b"{", b"B", b"C", b"c", b"t"):
        return next((found for start, found in _LINES if start.match(payload)), None)
    if len(payload) <= HEAD or heartbeat.bare(payload) is not None:
        return None
    if first in (b"\0", b"\1") and _STATEMENT.match(payload, HEAD):
        return _BATCH
    return _BINARY if first == b"\0" and _LETTER.match(payload, HEAD) and payload[HEAD] != heartbeat.LETTER[0] else None


def _fitting(style: Style, *, batch: bool) -> tuple[str, ...]:
    match style, batch:
        case Style.SERIAL, _:
            return (_SERIAL, _JSON, _ROW)
        case Style.BINARY, _:
            return (_BINARY,)
        case _, True:
            return (_BATCH,)
        case Style.TEXT, _:
            return (_LINE, _ROW)
    return (_LINE, _JSON)


def _asked(style: Style, *, batch: bool) -> str:
    if style is Style.SERIAL:
        return _SERIAL
    batches = "" if style is Style.BINARY else " in batches" if batch else " without batches"
    return f"style {style.value}{batches}"
