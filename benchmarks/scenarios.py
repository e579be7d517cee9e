"""The scenarios, P1 to P16 and what has no number: what each shows, and the runs that measure it.

A run is a script with its arguments, in full and quick; scenarios that share a run name the same one, and it is run
once. What a figure has to reach stands in `figures.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

DEBIAN = "/usr/lib/postgresql/15/bin"
"""Where Debian's package puts the programs of a server with `test_decoding`, which the wheel's has not."""


@dataclass(frozen=True)
class Measurement:
    """A script with its arguments. `needs`: a folder or file without which it is left out."""

    script: str
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ()
    """None: it is not among the quick ones."""
    spark: bool = False
    needs: str | None = None


def _run(
    script: str, full: str = "", quick: str | None = "", *, spark: bool = False, needs: str | None = None
) -> Measurement:
    small = None if quick is None else tuple(shlex.split(quick))
    return Measurement(script, tuple(shlex.split(full)), small, spark=spark, needs=needs)


DECODE = _run("decode_mppdb.py", "--save", "--rows 20000 --seconds 5")
DECODE_TEXT = _run("decode_mppdb_text.py", "--save", "--rows 10000 --seconds 5")
GAUSSDB = _run("gaussdb_backlog.py", "", "--rows 100000 --rounds 1 --long 300000 --no-save")
BACKLOG = _run("pgoutput_backlog.py", "", "--changes 100000 --rounds 2 --no-save")
PEERS = _run("beside_peers.py", "", "--changes 20000 --rounds 1 --no-save", needs=".venv-peers/bin/python")
LINES = _run(
    "pgoutput_backlog.py",
    f"--plugin test_decoding --programs {DEBIAN}",
    f"--plugin test_decoding --programs {DEBIAN} --changes 50000 --rounds 1 --no-save",
    needs=f"{DEBIAN}/pg_ctl",
)
STREAMED = _run("streamed.py", "", "--changes 100000 --rounds 1 --sizes 10 30 --no-save")
LARGE = _run("large_memory.py", "", "--sizes 10 30 --only 'pgoutput 1' 'style b' --no-save")
LARGE_ROWS = _run("large_memory.py", "--row 64", "--row 4 --sizes 4 --only 'pgoutput 1' --no-save")
COPY = _run("snapshot.py", "", "--rows 300000 --rounds 1 --no-save")
COMMITS = _run("bronze_commit.py", "", "--commits 500 --turns 5 --no-save")
LATENCY = _run("latency.py", "", "--seconds 5 --no-save")
MERGE = _run("apply_span.py", "", "--rows 500000 --changes 10000 --rounds 1 --warm 1 --no-save", spark=True)
MERGE_KEYS = _run(
    "apply_span.py",
    "--keys recent new --rounds 3 --warm 6 --marks only",
    "--keys recent new --rows 500000 --changes 5000 --rounds 1 --warm 1 --marks only --no-save",
    spark=True,
)
SMALL = _run("small_spans.py", "", "--rounds 2 --no-save", spark=True)
SILVER_LATE = _run(
    "source_to_silver.py",
    "--changes 100000 --one 0 --rounds 20 --shipped",
    None,
    spark=True,
)
SILVER = _run("source_to_silver.py", "", "--changes 100000 --rows 500000 --rounds 2 --one 100000 --no-save", spark=True)
SILVER_LONG = _run("source_to_silver.py", "--changes 10000000 --rounds 0", None, spark=True)
COLD = _run("cold_start.py", "", "--rounds 1 --rows 100000 --no-save", spark=True)
TABLES = _run("many_tables.py", "", "--rounds 1 --most 50 --no-save", spark=True)
READ = _run("bronze_read.py", "", "--rows 1000000 --no-save")
GATE = _run("gate.py", "", "--rows 200000 --changes 5000 --rounds 1 --warm 1 --no-save", spark=True)
COMPARE = _run("compare.py", "", "--rows 200000 --rounds 1 --no-save")
CLUSTER = _run(
    "cluster.py",
    "",
    "--rows 200000 --changes 100000 --rounds 1 --load 99 --no-save",
    spark=True,
    needs="/usr/bin/unshare",
)
REBUILD = _run("rebuild.py", "", "--rows 50000 --rounds 1 --no-save", spark=True)


@dataclass(frozen=True)
class Scenario:
    """What is shown, by which runs."""

    name: str
    what: str
    runs: tuple[Measurement, ...]


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("P1", "decoding the formats of the wire to Arrow, on one core", (DECODE, DECODE_TEXT)),
    Scenario("P2", "the GaussDB family's wire into committed bronze", (GAUSSDB,)),
    Scenario("P3", "a backlog of pgoutput into committed bronze, beside peers", (BACKLOG, PEERS)),
    Scenario("P4", "the same with test_decoding", (LINES,)),
    Scenario("P5", "the receiver's processor time", (BACKLOG,)),
    Scenario(
        "P6", "the receiver's memory: a backlog, one transaction, a copy", (BACKLOG, STREAMED, LARGE, LARGE_ROWS, COPY)
    ),
    Scenario("P7", "a commit of bronze, and a table with many of them", (COMMITS,)),
    Scenario("P8", "time from COMMIT to bronze", (LATENCY,)),
    Scenario("P9", "100,000 net changes into 5 million rows of silver", (MERGE, MERGE_KEYS)),
    Scenario("P10", "what a small span costs", (SMALL,)),
    Scenario("P11", "time from COMMIT to silver of a small transaction, with default settings", (SILVER_LATE,)),
    Scenario("P12", "a backlog from the source to silver", (SILVER, SILVER_LONG)),
    Scenario("P13", "one transaction of a million rows", (STREAMED,)),
    Scenario("P14", "the initial copy", (COPY,)),
    Scenario("P15", "a cold start to the first applied change", (COLD,)),
    Scenario("P16", "pipelines of 1 to 500 tables", (TABLES,)),
    Scenario("read", "reading a part of bronze, and all of it", (READ,)),
    Scenario("gate", "what twenty rules cost", (GATE,)),
    Scenario("compare", "one changed value found by compare", (COMPARE,)),
    Scenario("rebuild", "a silver table rebuilt from bronze", (REBUILD,)),
    Scenario("cluster", "a span on one worker of a Spark cluster, and on two", (CLUSTER,)),
)

ASIDE = ("bronze_store.py", "decode_pgoutput.py", "redaction.py", "wire_read.py")
"""Measure and print, but no scenario: a store's stand-in, a part on its own."""


def chosen(names: Iterable[str]) -> list[Measurement]:
    """The runs of these scenarios, of all where none is named, each once. Raises ValueError."""
    wanted, known = list(names), {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    some = [known[name] for name in wanted] if wanted else list(SCENARIOS)
    return list(dict.fromkeys(run for scenario in some for run in scenario.runs))
