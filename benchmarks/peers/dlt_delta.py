"""A peer, in its own environment: dlt's verified source `pg_replication` drains a slot into a Delta table.

    .venv-peers/bin/python benchmarks/peers/dlt_delta.py '{"slot": ..., "sources": DIR}'

Asked for is a merge, so that the table becomes what the source is. Seconds are those of its three steps: extract,
normalise, load. The table is looked at afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BATCH = 10_000


def main() -> None:
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    os.environ |= {"DLT_DATA_DIR": str(folder / "data"), "RUNTIME__DLTHUB_TELEMETRY": "false"}
    os.chdir(folder)
    sys.path.insert(0, given["sources"])
    import dlt  # noqa: PLC0415 - it reads its settings when it is imported
    from pg_replication import replication_resource  # noqa: PLC0415 - it imports dlt

    address = f"postgresql://{given['user']}:{given['password']}@{given['host']}:{given['port']}/{given['database']}"
    pipeline = dlt.pipeline(
        "peer",
        destination=dlt.destinations.filesystem(f"file://{folder / 'out'}"),
        dataset_name="peer",
        pipelines_dir=str(folder / "pipelines"),
    )
    changes = replication_resource(given["slot"], given["publication"], credentials=address, target_batch_size=BATCH)
    begun = time.perf_counter()
    pipeline.extract(changes, write_disposition={"disposition": "merge", "strategy": "upsert"}, table_format="delta")
    extracted = time.perf_counter()
    pipeline.normalize()
    normalised = time.perf_counter()
    pipeline.load()
    ended = time.perf_counter()
    facts: dict[str, Any] = {
        "seconds": ended - begun,
        "extract": extracted - begun,
        "normalise": normalised - extracted,
        "load": ended - normalised,
    }
    print(json.dumps(facts | found(folder / "out" / "peer" / "orders")), flush=True)


def found(table: Path) -> dict[str, int]:
    """What is in the table."""
    from deltalake import DeltaTable  # noqa: PLC0415 - dlt's seconds have no import of ours in them

    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["id", "quantity"])
    return {
        "rows": rows.num_rows,
        "ids": sum(value or 0 for value in rows["id"].to_pylist()),
        "quantity": sum(value or 0 for value in rows["quantity"].to_pylist()),
    }


if __name__ == "__main__":
    main()
