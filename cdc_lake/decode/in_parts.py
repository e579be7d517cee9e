"""In parts: large transactions of any format, which memory does not hold."""

from __future__ import annotations

from typing import TypeAlias

from cdc_lake.decode.gaussdb.batches import SpooledRecords
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.transaction import ReceivedTransaction

InParts: TypeAlias = SpooledTransaction | SpooledRecords
"""Both can be asked for their parts, cut otherwise, and released."""


def release_transaction(transaction: ReceivedTransaction) -> None:
    """It does not land: give back what it has on disk."""
    if isinstance(transaction, InParts):
        transaction.release()
