"""Checks that a reader of bronze sees all of each transaction that it sees."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.reader import BronzeReader

_OF_NONE = pa.array(["R", "S"])
"""Rows that belong to no transaction: layouts, and what was copied."""


def assert_whole_transactions(reader: BronzeReader) -> None:
    """Of each transaction: BEGIN, changes counted without a hole, COMMIT."""
    files = reader.files()
    parts = list(files.batches(files.paths, ["epoch", "position", "ordinal", "op"]))
    rows = pa.concat_tables(parts) if parts else None
    rows = None if rows is None else rows.filter(pc.invert(pc.is_in(rows["op"], _OF_NONE)))
    if rows is None or not rows.num_rows:
        return
    epoch, position, ordinal = (rows[name].to_numpy() for name in ("epoch", "position", "ordinal"))
    order = np.lexsort((position, epoch))  # stable: each transaction's rows stay in the order they are read in
    epoch, position, ordinal = epoch[order], position[order], ordinal[order]
    begins, ends = (pc.equal(rows["op"], letter).to_numpy()[order] for letter in "BC")
    first = np.append(True, (np.diff(epoch) != 0) | (np.diff(position) != 0))
    last = np.append(first[1:], True)
    numbers = np.arange(len(order))
    counted = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
    wrong = (ordinal != counted) | (begins != first) | (ends != last)
    if wrong.any():
        at = int(wrong.argmax())
        here = (epoch == epoch[at]) & (position == position[at])
        assert not wrong.any(), f"a part of {(int(epoch[at]), int(position[at]))}: {ordinal[here].tolist()}"
