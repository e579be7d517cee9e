"""Writes docs/performance.md from the results in `benchmarks/results/`: every number of the page is typed here.

    python benchmarks/page.py

The text around the tables is in `benchmarks/performance.md.in`; `{{name}}` stands for the tables of a result.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from measured import RESULTS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"


def markdown(table: dict[str, Any]) -> list[str]:
    head = table["head"]
    lines = [f"**{table['title']}**", "", f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in table["rows"]), ""]


def section(result: dict[str, Any]) -> str:
    values = ", ".join(
        f"{name} {value:,}" for name, value in result["parameters"].items() if isinstance(value, int | float)
    )
    on = result["machine"]
    load = on["load"][0] if on["load"] else "not recorded"
    lines = [f"Parameters: {values}. Load average of the machine when it ended: {load}.", ""]
    for table in result["tables"]:
        lines += markdown(table)
    return "\n".join(lines).rstrip()


def main() -> None:
    page = (HERE / "performance.md.in").read_text()
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    for result in results:
        page = page.replace("{{" + result["name"] + "}}", section(result))
    if results:
        on = results[0]["machine"]
        text = f"{on['cores']} cores ({on['processor']}), {on['memory_gib']} GiB, {on['system']}, Python {on['python']}"
        page = page.replace("{{machine}}", text)
    PAGE.write_text(re.sub(r"{{\w+}}", "Not measured yet.", page))
    print(f"wrote {PAGE.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
