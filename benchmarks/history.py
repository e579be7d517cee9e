"""Every result ever saved, a line each, in `history.jsonl`: when, by which version, on what machine, which figures.

    python benchmarks/history.py

adds lines for results that git has and the history has not: those from before it was kept. A line has the smallest
value, the median, the largest and the number of rounds of each figure; no name of a machine.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from figures import FIGURES, spread

HERE = Path(__file__).parent
HISTORY = HERE / "history.jsonl"
MACHINE = ("cores", "processor", "memory_gib", "system", "python", "load")

Line = dict[str, Any]


def product() -> str:
    """The version of what is measured."""
    return version("cdc_lake")


def line(document: Mapping[str, Any]) -> Line:
    """What the history keeps of a result."""
    figures = {}
    for figure in FIGURES:
        if values := figure.of({document["name"]: document}):
            figures[figure.name] = [*(round(value, 4) for value in spread(values)), len(values)]
    return {
        "at": document["at"],
        "version": document["version"],
        "name": document["name"],
        "parameters": {name: value for name, value in document["parameters"].items() if isinstance(value, int | str)},
        "machine": {name: document["machine"][name] for name in MACHINE},
        "figures": figures,
    }


def lines(path: Path = HISTORY) -> list[Line]:
    """All of it, oldest first."""
    some = [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []
    return sorted(some, key=lambda one: one["at"])


def append(document: Mapping[str, Any], path: Path = HISTORY) -> None:
    """Add a result that has figures."""
    if (one := line(document))["figures"]:
        with path.open("a") as out:
            out.write(json.dumps(one) + "\n")


def of_git() -> list[dict[str, Any]]:
    """The results that were ever committed, with when and by which version."""
    found: dict[str, dict[str, Any]] = {}
    for known in _git("log", "--reverse", "--format=%H %cI", "--", "benchmarks/results").splitlines():
        commit, _, at = known.partition(" ")
        release = re.search(r'^version = "(.+)"$', _git("show", f"{commit}:pyproject.toml"), re.MULTILINE)
        changed = _git("diff-tree", "-r", "--root", "--no-commit-id", "--diff-filter=AM", "--name-only", commit)
        for path in (one for one in changed.splitlines() if re.fullmatch(r"benchmarks/results/\w+\.json", one)):
            document = json.loads(_git("show", f"{commit}:{path}"))
            key = json.dumps([document["name"], document["runs"]])
            found.setdefault(key, {"at": at, "version": release[1] if release else "?", **document})
    return list(found.values())


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=HERE.parent, check=True, capture_output=True, text=True).stdout


def main() -> None:
    known = {(one["name"], one["at"]) for one in lines()}
    added = 0
    for document in of_git():
        try:
            one = line(document)
        except (KeyError, IndexError, ValueError) as cause:  # another form: its script was rewritten since
            print(f"left out: {document['name']} of {document['at']}, {type(cause).__name__} {cause}")
            continue
        if one["figures"] and (one["name"], one["at"]) not in known:
            append(document)
            added += 1
    print(f"{added} lines added")


if __name__ == "__main__":
    main()
