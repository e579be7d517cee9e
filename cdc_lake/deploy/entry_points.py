"""The entry points of the wheel, as its metadata declares them: what jobs may call, and with which parameters."""

from __future__ import annotations

import configparser
import zipfile
from collections.abc import Mapping
from pathlib import Path

PACKAGE = "cdc_lake"
GROUP = "cdc_lake.jobs"
"""Not `console_scripts`: nobody wants a command called `apply` on the path."""

ENTRY_POINTS: Mapping[str, frozenset[str]] = {
    "receive": frozenset({"pipeline", "environment", "once"}),
    "apply": frozenset({"pipeline", "environment", "once"}),
    "report": frozenset({"pipeline", "environment"}),
    "maintain": frozenset({"pipeline", "environment"}),
}
"""Parameters by entry point; `pipeline` is asked for."""

NEEDED = "pipeline"


def wheel_name(version: str) -> str:
    """The file name of the wheel of a version."""
    return f"{PACKAGE}-{version}-py3-none-any.whl"


def in_wheel(file: Path) -> frozenset[str]:
    """Names of the entry points of a wheel. Raises OSError, zipfile.BadZipFile."""
    with zipfile.ZipFile(file) as wheel:
        names = [n for n in wheel.namelist() if n.endswith(".dist-info/entry_points.txt")]
        declared = configparser.RawConfigParser(delimiters=("=",))
        declared.optionxform = str  # type: ignore[assignment,method-assign]  # names as they are written
        for name in names:
            declared.read_string(wheel.read(name).decode("utf-8"))
    return frozenset(declared[GROUP]) if GROUP in declared else frozenset()
