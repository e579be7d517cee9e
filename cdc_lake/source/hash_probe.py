"""Whether a server hashes as `lake.server_hash` does: it is asked for the hash of a few values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc_lake.lake.server_hash import Hashes
from cdc_lake.source.connection import Session, named


def hashes_alike(session: Session) -> bool:
    """Whether a server has the functions, and hashes some values as we do: bytes are in words of its own machine."""
    text, number = "größe of a text in several rounds", -4321098765
    with named("asking how the server hashes"):
        there = session.execute(
            "SELECT count(to_regprocedure(name)) FROM unnest(ARRAY['hashint4extended(integer,bigint)', "
            "'hashint8extended(bigint,bigint)', 'hashfloat8extended(double precision,bigint)', "
            "'hashtextextended(text,bigint)']) AS name"
        ).fetchone()
        if there is None or int(str(there[0])) < 4:
            return False
        row = session.execute(
            'SELECT hashtextextended(%s COLLATE "C", '
            "hashfloat8extended(-1.5, hashint8extended(%s, hashint4extended(7, 1))))",
            [text, number],
        ).fetchone()
    first = Hashes.first(1, 1).int4(np.array([7], np.int32)).int8(np.array([number], np.int64))
    ours = first.float8(np.array([-1.5])).text(pa.array([text], pa.large_string())).numbers
    return row is not None and int(str(row[0])) == int(ours.view(np.int64)[0])
