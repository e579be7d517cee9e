"""The bronze contract: what every row of a bronze table means. Version 1.

One append-only table a pipeline. Rows of one commit stand in `(position, ordinal)` order in one data file, layout rows
(`R`, no ordinal) first. A transaction is `B`, its changes, `C`, in one commit, or it is not there at all.
"""

from __future__ import annotations

import pyarrow as pa

CONTRACT_VERSION = 1

BEGIN, RELATION, INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE, COMMIT, SNAPSHOT, UNDECODABLE = "BRIUDTMCSX"

COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("stream", pa.string(), "source identity and slot incarnation; a recreated slot is another stream"),
    ("epoch", pa.int32(), "number of the stream within the pipeline; orders before position"),
    ("position", pa.int64(), "commit position in the stream's order domain"),
    (
        "ordinal",
        pa.int64(),
        (
            "0 = BEGIN, then the changes, last = COMMIT; NULL for layout rows; for rows of the copy unique over all "
            "tables; below zero for rows that were read again, which are so right before the position"
        ),
    ),
    (
        "op",
        pa.string(),
        "B begin, R layout, I U D T changes, M logical message, C commit, S row of a snapshot, X undecodable",
    ),
    ("csn", pa.int64(), "commit sequence number, NULL where the source has none"),
    ("first_lsn", pa.int64(), "LSN of the transaction's first record, NULL where the source does not give it"),
    ("commit_lsn", pa.int64(), "LSN of the commit record"),
    ("lsn", pa.int64(), "LSN of the change itself"),
    ("xid", pa.int64(), "transaction id as the stream gives it, 32 bit on PostgreSQL"),
    ("commit_ts", pa.timestamp("us", tz="UTC"), "commit time by the source's clock"),
    ("relation", pa.string(), "schema.table; a dot or backslash inside a part is escaped by a backslash"),
    ("layout", pa.int64(), "63-bit hash of the layout the arrays follow"),
    ("new", pa.list_(pa.string()), "new tuple, text by position in the layout; NULL = SQL NULL"),
    ("old", pa.list_(pa.string()), "old key or old row, text by position in the layout"),
    ("old_kind", pa.string(), "key or full, NULL where there is no old tuple"),
    ("unchanged", pa.list_(pa.int32()), "positions in `new` that were not sent because they did not change"),
    ("raw", pa.binary(), "the undecodable bytes, X only"),
    (
        "info",
        pa.string(),
        "JSON; B: user, origin; R: the layout; T: flags; M: prefix, content; C: counts, bytes, digests, empty_before",
    ),
    ("ingest_ts", pa.timestamp("us", tz="UTC"), "when the receiver built the row"),
)
"""Name, type and meaning of each column; the reference page is generated from it."""

SCHEMA = pa.schema([pa.field(name, kind) for name, kind, _ in COLUMNS])


def order_app(stream: str) -> str:
    """The application id whose version is `upto`: every transaction at or below it is in bronze.

    In the csn domain it is the complete CSN: every CSN up to it has arrived, with rows, without, or as a recorded gap.
    """
    return f"cdc_lake:{stream}"


def confirm_app(stream: str) -> str:
    """The application id whose version is the slot position that may be confirmed; an ordinary slot's is an LSN."""
    return f"cdc_lake:{stream}:confirm"


def snapshot_app(stream: str, snapshot: str) -> str:
    """The application id of one snapshot's chunks; version = chunk number."""
    return f"cdc_lake:{stream}:snapshot:{snapshot}"
