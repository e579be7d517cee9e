"""Arrow values: the server's text as Arrow columns of the silver types, without Spark.

The mapping is that of `lake.types`; `tests/spark/test_ledger_views.py` holds the two ways of reading it against each
other. A text has a value or it does not: nothing is clipped, rounded or guessed, and what has none is reported. Each
kind of value has a grammar first, because Arrow's casts are lenient ('0x10' is an integer to them).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.types import ColumnType, Family, column_type
from cdc_lake.model.relation import Column

_NAMED: Final = {
    "string": pa.string(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_ZONE = r"[+-](0[0-9]|1[0-5])(:[0-5][0-9](:[0-5][0-9])?)?"
_GRAMMAR: Final = {
    Family.INTEGER: r"^(0|-?[1-9][0-9]*)$",
    Family.DECIMAL: r"^-?((0|[1-9][0-9]*)([.][0-9]+)?|[.][0-9]+)$",  # the GaussDB family prints .5 and -.5
    Family.FLOAT: r"^(-?([0-9]+([.][0-9]+)?|[.][0-9]+)(e[+-][0-9]+)?|NaN|-?Infinity)$",
    Family.BOOLEAN: r"^[tf]$",
    Family.BINARY: r"^\\x([0-9a-f]{2})*$",
    Family.HEX: "^([0-9A-F]{2})*$",
    Family.DATE: f"^{_DATE}$",
    Family.TIMESTAMP: f"^{_DATE} {_TIME}$",
    Family.TIMESTAMPTZ: f"^{_DATE} {_TIME}{_ZONE}$",
}
_NEVER: Final = {  # what the grammar cannot leave out
    Family.DECIMAL: "^-[0.]+$",
    Family.DATE: "^0000",
    Family.TIMESTAMP: "^0000",
    Family.TIMESTAMPTZ: "^0000",
}


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type that Delta and Iceberg give the column's silver type."""
    return _arrow(column_type(column))


def read_texts(texts: Any, column: Column) -> tuple[Any, Any | None]:
    """The values of a string array, and a boolean array of the texts that have none (None: there are none).

    NULL stays NULL; a text without a value is NULL too, and marked.
    """
    kind = column_type(column)
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if kind.family is Family.TEXT:
        return texts, None
    fits = pc.match_substring_regex(texts, _GRAMMAR[kind.family])
    if kind.family in _NEVER:
        fits = pc.and_not(fits, pc.match_substring_regex(texts, _NEVER[kind.family]))
    wrong = np.asarray(pc.fill_null(pc.invert(fits), fill_value=False))
    values, failed = _read(pc.if_else(fits, texts, None) if wrong.any() else texts, kind)
    wrong |= failed
    return values, pa.array(wrong) if wrong.any() else None


def _read(texts: Any, kind: ColumnType) -> tuple[Any, Any]:
    """Values and which failed, by halves: the few that cannot be read cost the others next to nothing."""
    try:
        values = _cast(texts, kind)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, _arrow(kind)), np.ones(1, bool)
        middle = len(texts) // 2
        parts = [_read(half, kind) for half in (texts[:middle], texts[middle:])]
        return pa.concat_arrays([values for values, _ in parts]), np.concatenate([failed for _, failed in parts])
    failed = np.zeros(len(texts), bool)
    if kind.family is Family.FLOAT:  # what is too large is read as an infinity
        said = pc.is_in(texts, pa.array(["Infinity", "-Infinity"]))
        failed = np.asarray(pc.fill_null(pc.and_not(pc.is_inf(values), said), fill_value=False))
        if failed.any():
            values = pc.if_else(pa.array(failed), None, values)
    return values, failed


def _cast(texts: Any, kind: ColumnType) -> Any:
    """The values of texts that follow the grammar; raises ArrowInvalid where one is out of range."""
    match kind.family:
        case Family.BOOLEAN:
            return pc.equal(texts, "t")
        case Family.BINARY:
            return pa.array(
                [None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], pa.binary()
            )
        case Family.HEX:
            return pa.array([None if text is None else bytes.fromhex(text) for text in texts.to_pylist()], pa.binary())
        case Family.TIMESTAMPTZ if len(texts) == 1 and texts[0].is_valid:
            # Arrow reads zones of hours and minutes; before standard time they had seconds
            return pa.array([_instant(texts[0].as_py())], _arrow(kind))
        case _:
            return pc.cast(texts, _arrow(kind))


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError) as cause:
        raise pa.ArrowInvalid("no instant of the years 1 to 9999") from cause


def _arrow(kind: ColumnType) -> pa.DataType:
    given = _DECIMAL.fullmatch(kind.sql)
    return pa.decimal128(int(given[1]), int(given[2])) if given else _NAMED[kind.sql]
