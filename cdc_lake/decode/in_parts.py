"""In parts: large transactions of any format, which memory does not hold."""

from __future__ import annotations

from typing import TypeAlias

from cdc_lake.decode.large import LargeTransaction
from cdc_lake.decode.mppdb.large_records import LargeRecords
from cdc_lake.decode.raw import Raw

InParts: TypeAlias = LargeTransaction | LargeRecords
"""Both can be asked for their parts, cut otherwise, and released."""


def dropped(transaction: Raw) -> None:
    """It does not land: give back what it has on disk."""
    if isinstance(transaction, InParts):
        transaction.release()
