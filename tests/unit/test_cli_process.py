"""Watching standard input for the end of a parent."""

from __future__ import annotations

import subprocess
import sys

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
