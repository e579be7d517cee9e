"""Repeats: transactions that a server sends again although bronze holds them, held against what bronze has.

A repeat is dropped by its position. It is the same transaction as long as its xid and its content are the same: another
one at a position that was landed means that server and bronze tell two histories. What was landed under another
configuration may differ in content; so may what is read by other layouts where the stream's bytes do not say it all
(the GaussDB family, whose catalog speaks of now). That is noted. A transaction that bronze does not hold (it is in the
initial copy, or left by retention) has nothing to be held against.

A restart stays quick: only what the newest files of bronze hold is looked at, and content of so many repeats only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import pyarrow.compute as pc

from cdc_lake.bronze.contract import COMMIT
from cdc_lake.bronze.port import BronzeState, Tabulate
from cdc_lake.bronze.reader import BronzeReader, within
from cdc_lake.decode.digest import content_of
from cdc_lake.decode.in_parts import InParts
from cdc_lake.decode.raw import Raw
from cdc_lake.errors import DecodeError, RepeatDiffers
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.stream.order import Closed, Order
from cdc_lake.source.stream import shown

_FILES: Final = 8  # of bronze, the newest ones
_CONTENTS: Final = 1000  # repeats of a connection whose content is computed again
_LARGEST: Final = 1 << 20  # bytes of a transaction whose content is


class RepeatsChecked:
    """An order that looks at what comes again, besides another one (implements `order.Order`).

    `reader` is asked for at the first repeat; `configuration` is the number of the pipeline's. `by_catalog`: content
    says something only as long as the layouts are the same.
    """

    def __init__(
        self,
        order: Order,
        reader: Callable[[], BronzeReader],
        state: BronzeState,
        *,
        configuration: int,
        tabulate: Tabulate,
        by_catalog: bool = False,
        tell: Tell,
    ) -> None:
        self._order = order
        self._reader = reader
        self._state = state
        self._configuration = configuration
        self._tabulate = tabulate
        self._by_catalog = by_catalog
        self._tell = tell
        self._landed: dict[int, dict[str, Any]] | None = None
        self._left = _CONTENTS
        self._noted = False

    @property
    def repeats(self) -> int:
        """See Order."""
        return self._order.repeats

    @property
    def waiting(self) -> int:
        """See Order."""
        return self._order.waiting

    def take(self, transaction: Raw) -> Sequence[Closed]:
        """See Order. Raises RepeatDiffers."""
        closed = self._order.take(transaction)  # what it says of a server that lost something says more
        if transaction.bounds.position <= self._state.upto and transaction.count:
            self._check(transaction)
        return closed

    def tend(self, opened: Collection[int] = ()) -> Sequence[Closed]:
        """See Order."""
        return self._order.tend(opened)

    def _check(self, transaction: Raw) -> None:
        if self._landed is None:
            self._landed = self._read(transaction.bounds.position)
        row = self._landed.get(transaction.bounds.position)
        if row is None:
            return
        if None not in (row["xid"], transaction.bounds.xid) and row["xid"] != transaction.bounds.xid:
            raise self._differs(transaction, f"as transaction {transaction.bounds.xid}, and was {row['xid']}")
        info = json.loads(row["info"])
        if info["configuration"] != self._configuration:
            text = f"what comes again was landed under configuration {info['configuration']}, and stays as it is"
            self._note(text, configuration=info["configuration"])
        elif "undecodable" not in info and self._affords(transaction):
            self._compare(transaction, info["content"])

    def _compare(self, transaction: Raw, content: str) -> None:
        try:
            columns = self._tabulate([transaction])
        except DecodeError as error:
            if not self._by_catalog:
                raise
            self._note(f"what comes again cannot be read by the catalog of now: {error.message}", code=error.code)
            return
        if columns.undecoded or content_of(columns.digests).hex() == content:
            return
        at = transaction.bounds.position
        if self._by_catalog and {columns.relations[n].layout for n in columns.relation if n >= 0} != self._layouts(at):
            text = "what comes again has other layouts by the catalog of now, and stays as it is"
            self._note(text, position=shown(self._state.stream, at))
            return
        raise self._differs(transaction, "with other content")

    def _layouts(self, position: int) -> set[int]:
        """The layouts by which the changes of a transaction in bronze are read."""
        span = Span(self._state.epoch, position - 1, position)
        files = self._reader().files()
        paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto)
        rows = files.read(paths, ["layout"], within(span) & pc.field("op").isin([*"IUDTM"]))
        return {layout for layout in rows["layout"].unique().to_pylist() if layout is not None}

    def _affords(self, transaction: Raw) -> bool:
        self._left -= 1
        return self._left >= 0 and transaction.size <= _LARGEST and not isinstance(transaction, InParts)

    def _read(self, first: int) -> dict[int, dict[str, Any]]:
        """COMMIT rows from a position on, by their own."""
        span = Span(self._state.epoch, first - 1, self._state.upto)
        files = self._reader().files()
        paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto, op=COMMIT)[-_FILES:]
        rows = files.read(paths, ["position", "xid", "info"], within(span) & (pc.field("op") == COMMIT))
        return {row["position"]: row for row in rows.to_pylist()}

    def _note(self, text: str, **facts: int | str) -> None:
        if not self._noted:
            self._noted = True
            self._tell(Progress("receive", text, facts=dict(facts)))

    def _differs(self, transaction: Raw, how: str) -> RepeatDiffers:
        at = shown(self._state.stream, transaction.bounds.position)
        return RepeatDiffers(f"the transaction at {at} comes again {how}")
