"""At which failpoints tests strike, by what they draw from: the lists of a module that it uses, and what tests are parametrised by."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from cdc_lake.observability.failpoints import FAILPOINTS

ROOT = Path(__file__).parents[1]


def struck(folder: Path) -> dict[str, set[str]]:
    """Failpoint → the modules below a folder that kill or break off there."""
    found: dict[str, set[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        if not re.search(r"^from cdc_lake\.observability(\.failpoints)? import .*", source, re.MULTILINE):
            continue
        module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for name in {*listed_in(module, source), *_parametrised(module)}:
            found.setdefault(name, set()).add(module.__name__)
    return found


def listed_in(module: ModuleType, source: str) -> Iterator[str]:
    """What is in the module's lists, its own or another's, that it draws from."""
    for name, value in vars(module).items():
        used = re.findall(rf"^(?!from |import |{name}\b).*\b{name}\b", source, re.MULTILINE)
        if name.isupper() and isinstance(value, list | tuple | Mapping) and used:
            yield from _names(value.values() if isinstance(value, Mapping) else value)


def _parametrised(module: ModuleType) -> Iterator[str]:
    for test in vars(module).values():
        for mark in getattr(test, "pytestmark", ()) if callable(test) else ():
            if mark.name == "parametrize":
                yield from _names(mark.args[1])


def _names(values: Iterable[Any]) -> Iterator[str]:
    """The failpoints among values and what they are made of: `name` or `name:n`, alone, in a tuple, of a point to break at."""
    for value in values:
        if isinstance(value, str) and value.partition(":")[0] in FAILPOINTS:
            yield value.partition(":")[0]
        elif isinstance(value, tuple):
            yield from _names(value)
        elif isinstance(points := getattr(value, "failpoints", None), tuple) and hasattr(value, "crash"):
            yield from _names(points)
