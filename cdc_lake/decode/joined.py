"""Columns of consecutive transactions as one: a batch is decoded in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.digest import Digests
from cdc_lake.decode.plain import Numbering
from cdc_lake.model.undecoded import Undecoded


def concatenated(arrays: list[pa.Array]) -> pa.Array:
    """Arrays, at least one, as one; copied only where there are several."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def joined(parts: Sequence[tuple[ChangeColumns, int]], one: Callable[[list[Any]], Any]) -> ChangeColumns:
    """The columns of all parts, at least one; each comes with how many transactions it is of.

    `one` makes one of several Arrow arrays: `pa.concat_arrays` copies them, `pa.chunked_array` does not.
    """
    if len(parts) == 1:
        return parts[0][0]
    numbering = Numbering()
    transaction, relation = [], []
    undecoded: dict[int, Undecoded] = {}
    first = 0
    for columns, transactions in parts:
        numbers = np.array([*map(numbering.number, columns.relations), -1], np.int32)
        relation.append(numbers[columns.relation])
        transaction.append(columns.transaction + np.int32(first))
        undecoded |= {first + at: why for at, why in columns.undecoded.items()}
        first += transactions
    every = [columns for columns, _ in parts]
    return replace(
        every[0],
        relations=numbering.relations,
        transaction=np.concatenate(transaction),
        op=np.concatenate([columns.op for columns in every]),
        relation=np.concatenate(relation),
        lsn=np.concatenate([columns.lsn for columns in every]),
        **{name: one([getattr(c, name) for c in every]) for name in ("new", "old", "old_kind", "unchanged", "info")},
        digests=Digests.of([columns.digests for columns in every]),
        raw=one([pa.nulls(len(c), pa.binary()) if c.raw is None else c.raw for c in every]) if undecoded else None,
        undecoded=undecoded,
    )
