"""Transactions as values of the model, decoded row by row: what columnar decoding is compared with."""

from __future__ import annotations

from cdc_lake.decode.gaussdb import batches
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.pgoutput import parser
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import Transaction


def of_messages(raw: BufferedTransaction) -> Transaction:
    """The model's value of a raw transaction. Raises DecodeError."""
    decoded = list(parser.changes(raw))
    return Transaction(raw.bounds, tuple(c for _, c in decoded), tuple(raw.lsns[index] for index, _ in decoded))


def of_records(raw: RecordTransaction, layouts: RelationResolver) -> Transaction:
    """The model's value of a raw transaction. Raises DecodeError."""
    decoded = batches.changes(raw, layouts)
    return Transaction(raw.bounds, tuple(c for _, c in decoded), tuple(raw.lsns[index] for index, _ in decoded))
