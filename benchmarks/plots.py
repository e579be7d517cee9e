"""The pictures of docs/performance.md, drawn from the results and the history by the charts of the notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from figures import FIGURES, Figure, each, spread

from notebooks.charts import Chart, bars, lines

Documents = Mapping[str, Mapping[str, Any]]


def pictures(documents: Documents, history: Sequence[Mapping[str, Any]]) -> dict[str, Chart]:
    """Each picture by its name."""
    return {
        "peers": beside_peers(documents),
        "targets": share_of_targets(documents),
        "memory": growth_of_memory(documents),
        "tables": growth_with_tables(documents),
        "history": over_time(history),
    }


def short(figure: Figure) -> str:
    return f"{figure.scenario} {figure.words.split(' beside ')[0]} / {figure.peer}"[:60]


def beside_peers(documents: Documents) -> Chart:
    """How many times as fast as the peer, above 1 where ours is faster."""
    found = {}
    for figure in FIGURES:
        if figure.peer and (values := figure.of(documents)):
            middle = spread(values)[1]
            found[f"{figure.name} / {figure.peer}"] = round(1 / middle if figure.most else middle, 2)
    return bars("Times as fast as the peer of the same run", found, unit=" x")


def share_of_targets(documents: Documents) -> Chart:
    """How far each figure with a target is: 100 % is reached."""
    found = {}
    for figure in FIGURES:
        if figure.target is not None and (values := figure.of(documents)):
            middle = spread(values)[1]
            share = 1.0 if middle <= 0 else figure.target / middle if figure.most else middle / figure.target
            found[figure.name] = min(300.0, round(100 * share))
    return bars("Share of the target, 100 % is reached (cut at 300 %)", found, unit=" %")


def growth_of_memory(documents: Documents) -> Chart:
    """The receiver's peak by the size of one transaction."""
    runs = documents["streamed"]["runs"] if "streamed" in documents else []
    peaks = {f"{run['megabytes']:,} MB": round(run["rss_mib"]) for run in runs if "megabytes" in run}
    return bars("The receiver's peak memory by the size of one transaction", peaks, unit=" MiB")


def growth_with_tables(documents: Documents) -> Chart:
    """A span of five tables by the size of the pipeline."""
    runs = documents["many_tables"]["runs"] if "many_tables" in documents else []
    sizes = sorted({(run["format"], run["tables"]) for run in runs if run["touched"] == 5})
    found = {
        f"{fmt}, {tables} tables": round(spread(each(runs, "seconds", format=fmt, tables=tables, touched=5))[1], 2)
        for fmt, tables in sizes
    }
    return bars("A span of 10,000 changes of five tables, by the size of the pipeline", found, unit=" s")


def over_time(history: Sequence[Mapping[str, Any]]) -> Chart:
    """Figures with a target of the receiver and of silver, as a share of it."""
    wanted = ("P3 rate", "P2 wire", "P13 rate", "P14 rate", "P9 delta, marks", "P12 delta")
    series: dict[str, list[tuple[datetime, float]]] = {}
    for figure in FIGURES:
        if figure.name not in wanted or figure.target is None:
            continue
        for line in history:
            if figure.name in line["figures"]:
                middle = line["figures"][figure.name][1]
                share = figure.target / middle if figure.most else middle / figure.target
                series.setdefault(f"{figure.name}: {figure.words}", []).append(
                    (datetime.fromisoformat(line["at"]), 100 * share)
                )
    return lines("Share of the target over time", series, unit=" %")
