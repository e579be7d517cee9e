"""Output plugins of PostgreSQL: what each is asked for, the same by stream, by SQL function and in a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdc_lake.source.quoting import identifier

PGOUTPUT: Final = "pgoutput"
TEST_DECODING: Final = "test_decoding"

LINE_OPTIONS: Final[Mapping[str, str]] = {"include-xids": "1", "include-timestamp": "1", "skip-empty-xacts": "1"}
"""Of test_decoding. Not `stream-changes`: what is streamed before its commit comes without values."""

PHASED_LINE_OPTIONS: Final[Mapping[str, str]] = {**LINE_OPTIONS, "skip-empty-xacts": "0"}
"""The same for a slot with two-phase decoding. PostgreSQL 18.1 itself dies, with all its sessions, where it is to leave
out an empty transaction that is prepared and only locked rows (pg_decode_prepare_txn).
"""


def message_options(publication: str) -> dict[str, str]:
    """Of pgoutput."""
    return {"proto_version": "1", "publication_names": identifier(publication)}
