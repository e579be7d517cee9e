"""The process of a command: it ends with its parent's input, gives memory back, and loads no pandas for nothing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake_testing.ports import free_port

SCRIPT = """
import sys, threading, time
from cdc_lake.cli.process import stop_when_input_ends
ended = threading.Event()
stop_when_input_ends(ended)
print("over" if ended.wait(float(sys.argv[1])) else "goes on", flush=True)
"""


def test_a_process_that_watches_its_input_can_end_before_the_input_does() -> None:
    words = [sys.executable, "-c", SCRIPT, "0.1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"goes on\n"
        assert child.wait(60) == 0, child.stderr.read()


def test_the_end_of_the_input_is_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, "10"], input=b"x", capture_output=True, check=True)
    assert done.stdout == b"over\n"


GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas and thresholds are glibc's")
BEST = "jemalloc" if "jemalloc" in pa.supported_memory_backends() else "system"
SAYS = """
import json, sys
import pyarrow as pa
print(json.dumps({"pandas": "pandas" in sys.modules, "memory": pa.default_memory_pool().backend_name}))
"""
LOAD = """
from cdc_lake.cli import arrow_memory as lean_arrow
lean_arrow.load()
"""
MALLOC_INFO = """
import ctypes, json, re, threading
from pathlib import Path
from tempfile import TemporaryDirectory

def malloc_info():
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    with TemporaryDirectory() as folder:
        file = Path(folder) / "told.xml"
        stream = ctypes.c_void_p(libc.fopen(bytes(file), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        return file.read_text()
"""
THREADS = f"""{MALLOC_INFO}
gate = threading.Barrier(8)

def takes():
    gate.wait()  # all at once, as one that ends leaves its arena to the next
    taken = [bytes(10_000) for _ in range(100)]
    gate.wait()
    return taken

threads = [threading.Thread(target=takes) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(dict(arenas=malloc_info().count("<heap nr="))))
"""
LARGE = f"""{MALLOC_INFO}
def of_the_system():
    return int(re.search('type="mmap" count="[0-9]+" size="([0-9]+)"', malloc_info())[1])

larger = bytes(8 << 20)
del larger  # from now on glibc would take as much from its arenas
before = of_the_system()
small, large = bytes(1 << 20), bytes(2 << 20)
print(json.dumps({{"of the system": (of_the_system() - before) // 100_000}}))
"""
IDLE = """
import json
from pathlib import Path
from cdc_lake.observability.events import ProgressEvent

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256

def left_idle(mebibytes):
    taken = [b"x" * 100_000 for _ in range(10 * mebibytes)]
    return taken[-1]  # the rest is given back, and this one stands behind it

stages, sizes = [], []
tell = lean_arrow.giving_back(lambda progress: stages.append(progress.stage))
before = resident()
for mebibytes, stage in [(120, "landed"), (500, "receive"), (0, "landed"), (500, "snapshot")]:
    held = left_idle(mebibytes) if mebibytes else None
    tell(ProgressEvent(stage, ""))
    sizes.append(resident() - before)
print(json.dumps({"stages": stages, "sizes": sizes}))
"""
RECEIVES = f"""
import sys
from cdc_lake.cli.app import main
try:
    main()
except SystemExit as end:
    print(end.code, file=sys.stderr)
{SAYS}
"""


def told(code: str, *words: str, **variables: str) -> dict[str, Any]:
    """What a Python of its own says on its last line."""
    given = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"} | variables
    done = subprocess.run([sys.executable, "-c", code, *words], env=given, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_the_receiver_loads_arrow_without_pandas_and_with_jemalloc_where_it_has_it(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    source = f"{{type: postgres, host: 127.0.0.1, port: {free_port()}, database: d, user: u, tables: ['public.*']}}"
    file.write_text(f"version: 1\npipeline: shop\nsource: {source}\n")
    said = told(RECEIVES, "run", "--only", "receive", "--once", "--pipeline", str(file))
    assert said == {"pandas": False, "memory": BEST}


def test_what_it_starts_chooses_for_itself() -> None:
    starts = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {LOAD + SAYS!r}], check=True)"
    assert told(LOAD + starts)["memory"] == BEST


def test_memory_that_was_chosen_is_used() -> None:
    assert told(LOAD + SAYS, ARROW_DEFAULT_MEMORY_POOL="mimalloc")["memory"] == "mimalloc"


@GLIBC
def test_its_threads_share_two_arenas_unless_a_number_was_chosen() -> None:
    assert told(LOAD + THREADS)["arenas"] == 2
    assert told(LOAD + THREADS, MALLOC_ARENA_MAX="4")["arenas"] == 4


@GLIBC
def test_what_is_large_is_the_systems_unless_a_threshold_was_chosen() -> None:
    assert told(LOAD + LARGE)["of the system"] == 21  # the large one alone
    assert told(LOAD + LARGE, MALLOC_MMAP_THRESHOLD_="800000")["of the system"] == 31
    assert told(LOAD + LARGE, GLIBC_TUNABLES="glibc.malloc.mmap_threshold=16777216")["of the system"] == 0
    assert told(LARGE)["of the system"] == 0


@GLIBC
def test_what_lies_idle_goes_back_behind_a_commit_where_it_is_much() -> None:
    said = told(LOAD + IDLE)
    assert said["stages"] == ["landed", "receive", "landed", "snapshot"]
    little, between, behind_a_commit, behind_a_copys = said["sizes"]
    assert little > 100  # MiB: idle, and left so
    assert between > 400
    assert behind_a_commit < 40
    assert behind_a_copys < 40


def test_a_data_frame_can_be_had_all_the_same() -> None:
    pytest.importorskip("pandas")
    code = """
from cdc_lake.cli import arrow_memory as lean_arrow
lean_arrow.load()
import json
import pyarrow as pa
frame = pa.table({"a": [1, None]}).to_pandas()
import pandas as pd
print(json.dumps([len(frame), pa.array(pd.Series([1.0, None])).null_count]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [2, 1]
