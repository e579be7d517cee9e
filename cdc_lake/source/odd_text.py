"""Values of tables that are read as a whole, where they may be bytes that are no text (`decode.not_text`)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.not_text import PREFIX, settled
from cdc_lake.errors import TextNotInEncoding
from cdc_lake.model.change import Tuple
from cdc_lake.model.relation import Relation


def text_of(data: bytes, relation: Relation, codec: Codec) -> str:
    """A value of a table. Raises TextNotInEncoding, which names the table."""
    try:
        return codec.text(data)
    except TextNotInEncoding as error:
        error.where = f"a row of {relation.table}"
        raise


def in_columns(values: Tuple, relation: Relation, codec: Codec) -> Tuple:
    """A row as its columns want its values, of a codec with the policy `hex`. Raises TextNotInEncoding."""

    def error(at: int) -> TextNotInEncoding:
        raised = TextNotInEncoding(codec.encoding, at=at)
        raised.where = f"a row of {relation.table}"
        return raised

    return settled(relation.table, relation.names, values, codec.in_hex, codec.encode, error)


def odd_column(values: pa.ChunkedArray, relation: Relation, name: str, codec: Codec) -> pa.ChunkedArray:
    """A large_string column whose bytes may be no text, or text in another encoding. Raises TextNotInEncoding."""
    data = values.cast(pa.large_binary())
    if codec.python == "utf-8" and _plain(values):
        return values
    chunks = []
    for chunk in data.chunks:
        texts = [None if value is None else text_of(value, relation, codec) for value in chunk.to_pylist()]
        odd = [None if text is None else _in_column(text, relation, name, codec) for text in texts]
        chunks.append(pa.array(odd, pa.large_string()))
    return pa.chunked_array(chunks, pa.large_string())


def _in_column(text: str, relation: Relation, name: str, codec: Codec) -> str:
    if not text.startswith(PREFIX):
        return text
    place = relation.names.index(name)
    row: Tuple = tuple(text if at == place else None for at in range(len(relation.names)))
    return str(in_columns(row, relation, codec)[place])


def _plain(values: pa.ChunkedArray) -> bool:
    """Whether all of it is UTF-8 and nothing begins as a value in hexadecimal digits does."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return not pc.any(pc.starts_with(values, PREFIX)).as_py()
