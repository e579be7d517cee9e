"""Columns of one transaction as bytes, put down and taken up again by the same process: Arrow's stream of one batch.

Relations stay in memory: there are few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.digest import DIGEST_SIZE, Digests
from cdc_lake.decode.plain import POSITIONS, TUPLES
from cdc_lake.model.relation import Relation

_SCHEMA: Final = pa.schema(
    {
        "op": pa.uint8(),
        "relation": pa.int32(),
        "lsn": pa.int64(),
        "new": TUPLES,
        "old": TUPLES,
        "old_kind": pa.string(),
        "unchanged": POSITIONS,
        "info": pa.string(),
        "digests": pa.binary(DIGEST_SIZE),
    }
)


def to_bytes(columns: ChangeColumns) -> pa.Buffer:
    """Of changes of one transaction, all of which could be decoded, in arrays that are not chunked."""
    digests = pa.py_buffer(Digests.of([columns.digests]).data)
    arrays = [
        *(pa.array(values) for values in (columns.op, columns.relation, columns.lsn)),
        *(columns.new, columns.old, columns.old_kind, columns.unchanged, columns.info),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(DIGEST_SIZE), len(columns), [None, digests]),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as stream:
        stream.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
    return sink.getvalue()


def from_bytes(data: bytes, relations: Sequence[Relation]) -> ChangeColumns:
    """The changes again; their values are not copied."""
    batch = pa.ipc.open_stream(data).read_next_batch()
    given: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    numbers: dict[str, Any] = {name: np.asarray(given.pop(name)) for name in ("op", "relation", "lsn")}
    digests = given.pop("digests")
    _, whole = digests.buffers()
    return ChangeColumns(
        relations=list(relations),
        transaction=np.zeros(batch.num_rows, np.int32),
        digests=Digests(whole[: batch.num_rows * DIGEST_SIZE].to_pybytes()),
        **numbers,
        **given,
    )
