"""How far the way of an INSERT is from the wire to a durable commit in bronze: files entered, and depth of calls.

Measured as it runs, over a server in memory: the loop, the assembler, the decoder, the writer and Delta are the real
ones. What opens a stream, redaction, and the retries around a lake that is away are not on that way, nor is what
reports the commit. Of `apply` see tests/spark/test_apply_merge_plans.py.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import cdc_lake
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.model.change import Insert
from cdc_lake.runtime.receive.loop import ReceiveLoop
from cdc_lake_testing.memory_server import MemoryServer
from cdc_lake_testing.messages import table

PACKAGE = f"{Path(str(cdc_lake.__file__)).parent}/"
FILES_AT_MOST, DEPTH_AT_MOST = 25, 10
ORDERS = table("public.orders", id="int8", note="text")


class Calls(threading.local):
    """The functions of the package that a thread is in, as far as they count."""

    def __init__(self) -> None:
        self.under: list[str] = []


def test_an_insert_gets_from_the_wire_to_bronze_through_few_files_and_calls(tmp_path: Path) -> None:
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    document = {"version": 1, "pipeline": "shop", "source": source}
    project = Project(Pipeline.model_validate(document), tmp_path / "p.yaml", tmp_path)
    server = MemoryServer([ORDERS])
    server.commit(Insert(ORDERS, ("1", "note")))
    assert server.received(project) is None  # the table is made
    server.commit(Insert(ORDERS, ("2", "note")))
    calls, files, deepest = Calls(), set[str](), list[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(PACKAGE) or "<" in code.co_name:
            return
        if event == "return":
            if calls.under:
                calls.under.pop()
            return
        calls.under.append(f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_qualname}")
        if not any(name.endswith("._report_commit") for name in calls.under):
            files.add(code.co_filename.removeprefix(PACKAGE))
            deepest[:] = max(deepest, [*calls.under], key=len)

    run = ReceiveLoop.run

    def traced(loop: ReceiveLoop, stream: Any) -> None:
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            run(loop, stream)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    with mock.patch.object(ReceiveLoop, "run", traced):
        assert server.received(project) is None
    print(f"{len(files)} files, {len(deepest)} calls deep:", *sorted(files), *deepest, sep="\n")
    assert {"runtime/receive/loop.py", "decode/pgoutput/parser.py", "bronze/writer.py", "tables/delta_log.py"} <= files
    assert len(files) <= FILES_AT_MOST
    assert len(deepest) <= DEPTH_AT_MOST
