"""Changes as columns: the one form in which bronze takes them, whoever decoded them.

Every array has one entry a change, in the order of the transactions and of the changes inside each. A TRUNCATE of
several tables is one entry a table. Values are text as the server printed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lake.model.relation import Relation
from cdc_lake.model.undecoded import Undecoded


@dataclass(frozen=True)
class ChangeColumns:
    """n changes in columns.

    Shapes: `transaction` int32 ndarray, index into the batch's transactions, ascending; `op` uint8 ndarray, the ASCII
    code of `I U D T M X`; `relation` int32 ndarray, index into `relations`, -1 where there is none; `lsn` int64
    ndarray; `new`, `old` pyarrow list<string> arrays, NULL where there is no such tuple; `old_kind` pyarrow string
    array (`key`, `full`, NULL); `unchanged` pyarrow list<int32> array of positions in `new`, NULL where every value was
    sent; `info` pyarrow string array, JSON of a truncate's flags or a message's prefix and content, else NULL;
    `digests` one 32-byte digest a change (`decode.digest`). A batch that was decoded in parts has chunked arrays.

    A transaction that could not be decoded has only rows `X`: `raw` is a pyarrow binary array of their bytes, NULL
    elsewhere (None: there are no such rows), `undecoded` says why, by index of the transaction.

    `configuration`: number of the pipeline's configuration (which tables, what is redacted) that they were made under.
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
    digests: Sequence[bytes]
    raw: Any = None
    undecoded: Mapping[int, Undecoded] = field(default_factory=dict)
    configuration: int = 1

    def __len__(self) -> int:
        return len(self.op)

    def at(self, places: Any) -> ChangeColumns:
        """The changes at these places, an ascending int64 ndarray; `relations` stay as they are."""
        taken = pa.array(places)
        return replace(
            self,
            transaction=self.transaction[places],
            op=self.op[places],
            relation=self.relation[places],
            lsn=self.lsn[places],
            new=self.new.take(taken),
            old=self.old.take(taken),
            old_kind=self.old_kind.take(taken),
            unchanged=self.unchanged.take(taken),
            info=self.info.take(taken),
            digests=[self.digests[place] for place in places.tolist()],
            raw=None if self.raw is None else self.raw.take(taken),
        )

    def without_first(self, transactions: int) -> ChangeColumns:
        """The changes of all transactions but so many at the beginning."""
        if not transactions:
            return self
        first = int(np.searchsorted(self.transaction, transactions))
        return replace(
            self,
            transaction=self.transaction[first:] - transactions,
            op=self.op[first:],
            relation=self.relation[first:],
            lsn=self.lsn[first:],
            new=self.new[first:],
            old=self.old[first:],
            old_kind=self.old_kind[first:],
            unchanged=self.unchanged[first:],
            info=self.info[first:],
            digests=self.digests[first:],
            raw=None if self.raw is None else self.raw[first:],
            undecoded={at - transactions: why for at, why in self.undecoded.items() if at >= transactions},
        )
