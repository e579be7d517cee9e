"""Writes docs/performance.md and its pictures from the results in `benchmarks/results/`: no number of a table is typed.

    python benchmarks/page.py

The text around the tables is in `benchmarks/performance.md.in`; `{{name}}` stands for the tables of a result, and
`{{figures}}`, `{{scenarios}}` and `{{machine}}` for what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import costs
import history
from figures import FIGURES, printed, spread
from measured import RESULTS
from plots import pictures
from scenarios import SCENARIOS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
PICTURES = PAGE.parent / "performance"

Documents = Mapping[str, Mapping[str, Any]]


def documents(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The results by name."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {one["name"]: one for one in found}


def markdown(table: Mapping[str, Any]) -> list[str]:
    head = table["head"]
    lines = [f"**{table['title']}**", ""] if table["title"] else []
    lines += [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in table["rows"]), ""]


def section(result: Mapping[str, Any]) -> str:
    """The tables of a result, with its parameters and what its rounds cost."""
    values = ", ".join(
        f"{name} {value:,}"
        for name, value in result["parameters"].items()
        if isinstance(value, int | float) and not name.startswith("target")
    )
    on = result["machine"]
    load = on["load"][0] if on["load"] else "not recorded"
    at = f" Version {result['version']}, {result['at'][:10]}." if "at" in result else ""
    lines = [f"Parameters: {values}. {on['processor']}, load average when it ended: {load}.{at}", ""]
    spent = costs.table_of(result["runs"])
    for table in (*result["tables"], *([spent] if spent else [])):
        if table["title"] != "Targets":  # of results from before: what is to be reached stands in `figures.py`
            lines += markdown(table)
    return "\n".join(lines).rstrip()


def figures(found: Documents) -> str:
    """A line for each figure: reached or missed, and where it says why."""
    rows = []
    for figure in FIGURES:
        values = figure.of(found)
        name = f"{figure.words}, {figure.scenario}" if figure.scenario.startswith("P") else figure.words
        if not values:
            rows.append([name, "", "", figure.bound, "not measured"])
            continue
        low, middle, high = spread(values)
        rounds = f"{printed(low)} to {printed(high)}" if len(values) > 1 else ""
        good = figure.reached(middle)
        verdict = "reached" if good else "" if good is None else f"[missed](#{figure.section})"
        rows.append([name, printed(middle), rounds, figure.bound, verdict])
    return "\n".join(
        markdown({"title": "", "head": ["", "median", "of the rounds", "target", ""], "rows": rows})
    ).rstrip()


def scenarios() -> str:
    rows = [
        [one.name, one.what, ", ".join(f"`{' '.join((run.script, *run.full))}`" for run in one.runs)]
        for one in SCENARIOS
    ]
    lines = ["| | what | how |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def machines(found: Documents) -> list[str]:
    """Each machine that results are from, in words."""
    several = dict.fromkeys(
        f"{on['cores']} cores ({on['processor']}), {on['memory_gib']} GiB, {on['system']}, Python {on['python']}"
        for on in (result["machine"] for result in found.values())
    )
    return list(several)


def page(template: str, found: Documents) -> str:
    """The page's text."""
    for name, result in found.items():
        template = template.replace("{{" + name + "}}", section(result))
    template = template.replace("{{figures}}", figures(found)).replace("{{scenarios}}", scenarios())
    if found:
        template = template.replace("{{machine}}", "; ".join(machines(found)))
    return re.sub(r"{{\w+}}", "Not measured yet.", template)


def main() -> None:
    found = documents()
    PAGE.write_text(page((HERE / "performance.md.in").read_text(), found))
    PICTURES.mkdir(exist_ok=True)
    for name, chart in pictures(found, history.lines()).items():
        (PICTURES / f"{name}.svg").write_text(chart.svg + "\n")
    print(f"wrote {PAGE.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
