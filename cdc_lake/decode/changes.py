"""Changes as columns: the one form in which bronze takes them, whoever decoded them.

Every array has one entry a change, in the order of the transactions and of the changes inside each. A TRUNCATE of
several tables is one entry a table. Values are text as the server printed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdc_lake.model.relation import Relation


@dataclass(frozen=True)
class ChangeColumns:
    """n changes in columns.

    Shapes: `transaction` int32 ndarray, index into the batch's transactions, ascending; `op` uint8 ndarray, the ASCII
    code of `I U D T M`; `relation` int32 ndarray, index into `relations`, -1 where there is none; `lsn` int64
    ndarray; `new`, `old` pyarrow list<string> arrays, NULL where there is no such tuple; `old_kind` pyarrow string
    array (`key`, `full`, NULL); `unchanged` pyarrow list<int32> array of positions in `new`, NULL where every value was
    sent; `info` pyarrow string array, JSON of a truncate's flags or a message's prefix and content, else NULL;
    `digests` one 32-byte digest a change (`decode.digest`).
    """

    relations: list[Relation]
    transaction: Any
    op: Any
    relation: Any
    lsn: Any
    new: Any
    old: Any
    old_kind: Any
    unchanged: Any
    info: Any
    digests: list[bytes]

    def __len__(self) -> int:
        return len(self.op)
