"""Statements of the text formats as the columnar decoder reads rows: a chunk of values, and groups of rows in it."""

from __future__ import annotations

from typing import Final

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.json_walk import json_rows
from cdc_lake.decode.mppdb.literal_walk import regular_chunk
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.decode.mppdb.shapes import Group
from cdc_lake.decode.mppdb.statements import Statements
from cdc_lake.decode.mppdb.text import TableHeads
from cdc_lake.decode.mppdb.text_walk import text_rows
from cdc_lake.decode.walk import Chunk, require

_JSON: Final = ord("{")


def text_groups(
    source: Statements, style: Style, codec: Codec, known: TableHeads | None = None
) -> tuple[Chunk, list[Group]]:
    """The rows of these statements by shape, and a chunk of their values, in the form of `shapes`.

    `chunk.data[chunk.start]` are the letters of their operations, as in a chunk of style b. Types of the rows' fields
    are by name. Only for databases in UTF-8. Raises Irregular where a statement is no row, or no regular one.
    """
    require(codec.python == "utf-8")
    if source.data[source.start[0]] == _JSON:
        require(style is not Style.TEXT)
        return regular_chunk(source, json_rows(source, codec), escaped=True)
    require(style is not Style.JSON)
    found = text_rows(source, codec, known, serial=style is Style.SERIAL)
    return regular_chunk(source, found, escaped=False)
