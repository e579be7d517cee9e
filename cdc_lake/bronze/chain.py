"""The chain, verified: are the transactions in bronze the ones that were landed, all of them, once and unedited?

Digests are computed again from the values in the rows by the definition in `decode.digest`, without the wire and
without the code that landed them; then contents, counts and hashes are compared with what each COMMIT row says, from
transaction to transaction, and the last hash with the head that the table's newest commit of ours names. Where a stream
shows every CSN, the numbers between two transactions are accounted for too: by transactions without rows, which the
later one counts, and by recorded gaps.

File by file, in memory that grows neither with bronze nor with a transaction. What is right is seen by columns
(`bronze.chain_columns`), what is not is looked at row by row (`bronze.chain_link`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cdc_lake.bronze.chain_verdict import Beside, ChainVerdict
from cdc_lake.bronze.chain_walk import Broken, Pinned, Walk
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.errors import BronzeBusy
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Tell, silent

__all__ = ["Beside", "ChainVerdict", "verify"]

_TURNS = 100


def verify(
    reader: BronzeReader,
    span: Span | None = None,
    *,
    beside: Callable[[], Mapping[int, Beside]] = dict,
    tell: Tell = silent,
) -> ChainVerdict:
    """Verify a span (None: every epoch from its start). What lies before a span is taken on trust.

    `beside` gives what is known of each epoch beside bronze; it is asked once the version to verify is chosen.
    Bronze may go on meanwhile. Raises BronzeBusy where no version can be read in peace.
    """
    pinned = _pinned(reader)
    if pinned is None:
        return ChainVerdict(0, 0, None)
    walk = Walk(reader, pinned, span, beside())
    try:
        walk.run(tell)
    except Broken as broken:
        epoch, _ = broken.place
        return replace(walk.verdict, broken_at=broken.place, reason=broken.reason, stream=walk.stream_of(epoch))
    return walk.verdict


def _pinned(reader: BronzeReader) -> Pinned | None:
    """The newest version, all parts of it from the same one; None where no stream was started."""
    for _ in range(_TURNS):
        version = reader.version()
        state, files, trimmed = reader.state(), reader.files(), reader.trimmed()
        left = {e: at for e, at in trimmed.items() if reader.highest_commit(e, upto=at[0]) is None}
        if reader.version() == version:
            return None if state is None else Pinned(state, files, left)
    raise BronzeBusy("bronze changed each time it was looked at", where=reader.place, hint="run it again")
