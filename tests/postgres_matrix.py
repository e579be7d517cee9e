"""docs/reference/postgres-matrix.md: what the tests of behaviours found on each version of PostgreSQL.

python -m tests.postgres_matrix        all versions, then the page
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "postgres-matrix.md"
TESTS = "tests/live/test_postgres_versions.py"
VERSIONS = (14, 15, 16, 17, 18)
HEAD = """\
<!-- Made by `python -m tests.postgres_matrix`; do not edit. -->

# What each version of PostgreSQL can do

This page is made by the tests that it speaks of (`make matrix`): each behaviour was shown on a real server of each version,
by changes that end in bronze as the source has them. An empty field: the version does not have it, and what
asks for it is refused with an error.

"""


def page(found: Mapping[int, Mapping[str, str]], titles: list[str]) -> str:
    """The page, of what was found on each version."""
    rows = [["", *(of["version"] for of in found.values())], ["---"] * (len(found) + 1)]
    rows += [[title, *(of[title] for of in found.values())] for title in titles]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def run(version: int) -> dict[str, str]:
    """What the tests found on a version; SystemExit where they failed."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        environment = {**os.environ, "CDC_LAKE_TEST_POSTGRES": str(version), "CDC_LAKE_MATRIX": file.name}
        command = [sys.executable, "-m", "pytest", "-q", TESTS]
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            raise SystemExit(f"the tests fail on PostgreSQL {version}")
        return dict(json.loads(Path(file.name).read_text()))


def main() -> None:
    found = {version: run(version) for version in VERSIONS}
    titles = [title for title in found[VERSIONS[-1]] if title != "version"]
    PAGE.write_text(page(found, titles))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
