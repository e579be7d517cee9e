"""Captured: of transactions, only the rows of tables that the pipeline takes.

The server filters by a white list, which cannot say every pattern, and which TRUNCATE ignores. So what it lets through
is filtered again: rows here, before anything is counted, the tables of a TRUNCATE where it is read (`plain`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from cdc_lake.decode.mppdb.binary import binary_table
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.decode.mppdb.plain import read_record
from cdc_lake.decode.mppdb.records import Row, Style, Truncated
from cdc_lake.errors import DecodeError
from cdc_lake.model.relation import TableName

_U16: Final = struct.Struct(">H")


class Captured:
    """Leaves out what is not captured. `takes` is asked once a table; what cannot be read is kept, to be an error."""

    def __init__(self, layouts: Layouts, takes: Callable[[TableName], bool]) -> None:
        self._layouts = layouts
        self._takes = takes
        self._known: dict[bytes, bool] = {}

    def rows(
        self, style: Style, records: Sequence[bytes], lsns: Sequence[int], size: int
    ) -> tuple[Sequence[bytes], Sequence[int], int]:
        """Of rows, their LSNs and bytes those that are captured."""
        wanted = self._binary if style is Style.BINARY else self._other
        places = [at for at, record in enumerate(records) if wanted(record, style)]
        if len(places) == len(records):
            return records, lsns, size
        kept = [records[at] for at in places]
        return kept, [lsns[at] for at in places], sum(map(len, kept))

    def _binary(self, record: bytes, _style: Style) -> bool:
        """Schema and table stand at the head, each behind its length."""
        if len(record) < 5:
            return True
        middle = 3 + _U16.unpack_from(record, 1)[0]
        if middle + 2 > len(record):
            return True
        head = record[1 : middle + 2 + _U16.unpack_from(record, middle)[0]]
        known = self._known.get(head)
        if known is None:
            try:
                table = binary_table(record, self._layouts.codec)
            except DecodeError:
                return True
            if table is None:  # no row: what it is of, its head does not say
                return True
            known = self._known[head] = self._takes(table)
        return known

    def _other(self, record: bytes, style: Style) -> bool:
        try:
            read = read_record(style, record, self._layouts)
        except DecodeError:
            return True  # said where the transaction is decoded, with its place
        match read:
            case Row(table=table):
                return self._takes(table)
            case Truncated(tables=tables):
                return any(self._takes(table) for table in tables)
            case _:
                return True
