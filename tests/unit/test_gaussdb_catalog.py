"""Bytes of defaults in forms that the stand-in does not make; the usual ones are in `tests/live/added_columns.py`."""

from __future__ import annotations

import pytest

from cdc_lake.model.relation import Missing
from cdc_lake.source.gaussdb.catalog import missing_of


def told(type_name: str, kept: str | None, *, has_default: bool = True) -> Missing | None:
    return missing_of(
        type_name,
        kept,
        has_default=has_default,
        decode=lambda image: image.decode("gbk"),
        printed=lambda number: number.replace("0.", ".", 1),
    )


@pytest.mark.parametrize(
    ("type_name", "kept", "text"),
    [
        ("numeric", "28000000 0081 0c00 480d", "12.34"),  # the short header
        ("numeric", "20000000 3fa0 0100", "-1" + "0" * 252),  # its greatest weight
        ("numeric", "0d 0081 0c00 480d", "12.34"),  # one byte of length
        ("numeric", "20000000 7f82 0500", ".0005"),
        ("numeric", "20000000 00d0 0000", None),  # a form of columnar tables
        ("numeric", "18000000 00c0", "NaN"),
        ("text", "20000000 c3fb d7d6", "名字"),
        ("int1", "ff", "255"),
        ("smalldatetime", "0080ad77fc790200", "2022-02-02 00:00:00"),
        ("timestamp", "ffffffffffffff7f", None),
        ("timetz", "000000000000000000000000", None),
    ],
)
def test_bytes_are_read_or_nobody_can_say(type_name: str, kept: str, text: str | None) -> None:
    assert told(type_name, kept.replace(" ", "")) == Missing(text)


def test_without_bytes_old_rows_are_null_unless_there_is_a_default():
    assert told("int4", None, has_default=False) is None
    assert told("int4", None) == Missing(None)
