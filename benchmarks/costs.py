"""What the rounds of a result cost: processor seconds, memory, files and bytes written, as one table of the page.

Facts of a run that were recorded are shown, smallest, median and largest of the rounds that count; a run with `costs`
has them by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from figures import MEGA, counted, printed, spread

FACTS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("s", ("seconds",), 1),
    ("processor s", ("cpu", "processor"), 1),
    ("peak MiB", ("rss_mib", "peak_mib", "driver_mib"), 1),
    ("MB written", ("bronze_bytes", "bytes_written"), 1 / MEGA),
    ("files written", ("files", "files_written"), 1),
)
"""What is shown, by which names runs have it, and to what scale."""
NAMES = ("what", "peer", "role", "case", "format", "how", "kind")


def table_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The table, None where nothing but seconds was recorded."""
    by_label: dict[str, dict[str, list[float]]] = {}
    for label, run in _sides(counted(runs)):
        facts = by_label.setdefault(label, {})
        for head, names, scale in FACTS:
            if (name := next((one for one in names if isinstance(run.get(one), int | float)), None)) is not None:
                facts.setdefault(head, []).append(run[name] * scale)
    heads = [head for head, _, _ in FACTS if any(head in facts for facts in by_label.values())]
    if not set(heads) - {"s"}:
        return None
    rows = [[label, *(_cell(facts.get(head, [])) for head in heads)] for label, facts in by_label.items()]
    return {"title": "Rounds: smallest, median, largest", "head": ["", *heads], "rows": rows}


def _sides(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for run in runs:
        label = ", ".join(str(run[name]) for name in NAMES if isinstance(run.get(name), str))
        label += f", {run['megabytes']:,} MB" if "megabytes" in run else ""
        if "costs" not in run:
            yield label, run
        for side, facts in run.get("costs", {}).items():
            yield ", ".join(filter(None, (label, side))), facts


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, middle, high = (printed(value) for value in spread(values))
    return middle if low == high else f"{low} / {middle} / {high}"
