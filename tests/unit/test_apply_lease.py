"""The lease on a pipeline's silver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cdc_lake.errors import AnotherApply
from cdc_lake.tables.control_tables import lease

HOLD = """
import sys, time
from pathlib import Path
from cdc_lake.tables.control_tables import lease
with lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lease_is_refused_while_held_and_goes_with_a_killed_process(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AnotherApply, match=f"process {holder.pid} "), lease(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with lease(tmp_path):
        pass
    with lease(tmp_path):
        pass
