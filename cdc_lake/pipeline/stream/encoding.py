"""Text that is not valid in the encoding of its database: what the pipeline wants of it, by column."""

from __future__ import annotations

from functools import lru_cache

from cdc_lake.config.capture import compile_columns
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.codec import Codec, Policy
from cdc_lake.decode.not_text import InHex
from cdc_lake.model.relation import TableName


def in_hex(project: Project) -> InHex | None:
    """Which columns keep bytes that are no text in hexadecimal digits; None: no column does."""
    source = project.pipeline.source
    if source.encoding_errors == "hex":
        return lambda _table, _column: True
    if not source.hex_columns:
        return None
    patterns = [compile_columns(text) for text in source.hex_columns]

    @lru_cache(maxsize=4096)
    def found(table: TableName, column: str) -> bool:
        name = table.column(column)
        return any(pattern.fullmatch(name) for pattern in patterns)

    return found


def codec_by_name(project: Project, encoding: str) -> Codec:
    """The codec of a database's encoding, with the pipeline's policy. Raises UnknownEncoding."""
    wanted = in_hex(project)
    return Codec(encoding) if wanted is None else Codec(encoding, Policy.HEX, wanted)


def sql_codec(project: Project, encoding: str) -> Codec:
    """The codec of what a server of the family answers to COPY: UTF-8, which it makes of a database's encoding.

    Where bytes that are no text are wanted it is the database's own: the server could not make UTF-8 of them.
    """
    own = codec_by_name(project, encoding)
    return own if own.policy is Policy.HEX and own.python != "utf-8" else codec_by_name(project, "UTF8")
