"""What the fault tests found, promise by promise: kept in docs/reliability.json, of which docs/reliability.md is made.

python -m tests.reliability            every promise at its full budget; each is kept as soon as it ran
python -m tests.reliability R3 R9      those
python -m tests.reliability --small    at the budget of `make test`; nothing is kept
python -m tests.reliability --page     the page again, from what is kept
python -m tests.reliability --others   what has pytest run the other tests alone

A promise is red, and the exit code 1, where a test failed or what was counted is less than the promise asks for. What is
kept names the commit it ran on, so a tree with changes of its own keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from tests.promises import PROMISES, Found, Promise

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
TREES = ("cdc_lake", "cdc_lake_testing", "tests")
"""What a row is about."""
AT_A_TIME = 2
"""Files of tests, where they may run side by side."""
HEAD = """\
<!-- Made from reliability.json by `python -m tests.reliability`; do not edit. -->

# Reliability: guarantees and fault tests

This page lists each guarantee of cdc_lake with the latest run of its fault tests at full budget. Such a run
(`python -m tests.reliability R3`) takes from half a minute to several hours. A row is green if every test passed, so that no
change was lost or applied twice, and if the run counted at least as many faults as the guarantee requires. The result applies to
the version in its row. `make test` runs the quick part of the same tests, at a small budget, for every later change.

"""
MET = """
## Faults injected, and how to repeat a run

Random choices are drawn from a seed: on the version of a row, `CDC_LAKE_CHANCE` with the seed of that row draws the same
choices on any machine. Whatever depends on timing, such as the moment at which a loaded server is disconnected, differs from run
to run. The version is the name of the commit in the repository where the tests ran. Commits that have been squashed since have
other names; a commit is the same version if `git rev-parse COMMIT:cdc_lake COMMIT:tests` (and `COMMIT:cdc_lake_testing`) prints
the hashes in the row.

"""
MORE = """
## More guarantees

Each of these guarantees has tests that every run of the suite includes.

| guarantee | tests |
| --- | --- |
| A first run that follows only the README, on a PostgreSQL 16 that the demo did not start, ends with silver equal to the source; errors provoked on purpose are fixed by following the printed hints | [test_readme_first_run.py](../tests/live/test_readme_first_run.py) |
| The demo and the notebooks run as they are published; the [recipes](guides/recipes.md) work on a server that has the problem | [test_notebooks.py](../tests/spark/test_notebooks.py), [test_recipes.py](../tests/live/test_recipes.py) |
| Silver and quarantine have the same content however the stream is divided into spans and whatever crashes or is replayed, for every kind of table, on Delta and Iceberg | [test_apply_property.py](../tests/spark/test_apply_property.py), [test_net_change_property.py](../tests/spark/test_net_change_property.py) |
| A silver table rebuilt from bronze at any position equals the source table at that position and replaces the old table in one commit; a silver table that somebody restored or wrote to stops until you decide | [test_rebuild.py](../tests/spark/test_rebuild.py), [test_rebuild_positions.py](../tests/spark/test_rebuild_positions.py), [test_apply_concurrent.py](../tests/spark/test_apply_concurrent.py) |
| After kill -9 at any crash point between two durable steps, of the receiver alone or of both loops, the lake ends equal to the source (each run of the tests kills both loops at some of these points, chosen at random; `make test-long` at all of them) | [test_receiver_kills.py](../tests/live/test_receiver_kills.py), [test_faults.py](../tests/live/test_faults.py) |
| If two processes write the same silver table, the later one is refused and changes nothing | [test_apply_concurrent.py](../tests/spark/test_apply_concurrent.py) |
| If another program's commit overwrites the version of a merge, which is possible for a Delta table in a local folder, apply detects the loss and repeats the merge | [test_overwritten_commits.py](../tests/spark/test_overwritten_commits.py) |
| A receiver that is killed at random moments loses no change and repeats none | [test_random_kills.py](../tests/live/test_random_kills.py), [test_bronze_writer.py](../tests/unit/test_bronze_writer.py) |
| The receiver acknowledges only what is durable in bronze, however long a merge takes | [test_receive_loop.py](../tests/live/test_receive_loop.py), [test_bronze_writer.py](../tests/unit/test_bronze_writer.py) |
| The initial snapshot and the stream meet without a gap or an overlap | [test_source_stream.py](../tests/live/test_source_stream.py) |
| A large transaction is spooled to disk and committed to bronze at once, with the same rows as from memory; a receiver that is killed while the transaction is streamed receives it again from its start | [test_large_transactions.py](../tests/live/test_large_transactions.py), [test_streamed_transactions.py](../tests/property/test_streamed_transactions.py), [test_gaussdb_large_transactions.py](../tests/property/test_gaussdb_large_transactions.py) |
| A prepared transaction survives a restart of the receiver and lands at the position of its COMMIT PREPARED, like any other transaction; if its file is lost, the loss of its changes never goes unnoticed | [test_two_phase_live.py](../tests/live/test_two_phase_live.py), [through test_decoding](../tests/live/test_test_decoding_two_phase_live.py), [test_prepared_transactions.py](../tests/property/test_prepared_transactions.py) |
| The receiver detects changes that others make to the publication, and copies the table again; it never takes a new table for the old one of the same name; you can specify which rows are captured | [test_publication_altered.py](../tests/live/test_publication_altered.py), [test_snapshot_swapped_tables.py](../tests/live/test_snapshot_swapped_tables.py), [test_inheritance_live.py](../tests/live/test_inheritance_live.py), [test_row_filters.py](../tests/live/test_row_filters.py) |
| Tables that are copied in parts, added, removed and added again, or copied again while the other tables continue, end equal to the source | [test_resync_live.py](../tests/live/test_resync_live.py), [test_resync.py](../tests/spark/test_resync.py), [test_pgbench.py](../tests/spark/test_pgbench.py) |
| Primary-key updates and swaps, TRUNCATE and unchanged TOAST columns leave silver with exactly the rows of the source | [test_apply_cases.py](../tests/spark/test_apply_cases.py) |
| NULL, the empty string and *unchanged* remain three different values | [test_bronze_row_builder.py](../tests/unit/test_bronze_row_builder.py) |
| Readers at a cut never see a half-applied transfer between two tables, even while apply processes are killed at every step | [test_money_transfers.py](../tests/spark/test_money_transfers.py), [test_cut_lookup_random.py](../tests/property/test_cut_lookup_random.py) |
| A value that its silver type cannot represent exactly is quarantined with its text, never truncated or replaced by NULL | [test_types_copy_and_stream.py](../tests/spark/test_types_copy_and_stream.py), [the table of types](reference/types.md) |
| Verification of bronze finds the first row or transaction that was edited, removed, moved or repeated | [test_bronze_chain_edits.py](../tests/property/test_bronze_chain_edits.py), [test_bronze_hash_chain.py](../tests/unit/test_bronze_hash_chain.py) |
| Bronze gives the same guarantees as Delta and as Iceberg, on disk and in an object store whose requests fail or return wrong answers | [test_bronze_writer.py](../tests/unit/test_bronze_writer.py), [test_faulty_store.py](../tests/property/test_faulty_store.py) |
| Redacted values appear in no file and no message: stream, snapshot, keys, large values, recordings | [test_redaction_canary.py](../tests/spark/test_redaction_canary.py), [test_redaction_live.py](../tests/live/test_redaction_live.py) |
| No output contains a secret: next to a mistake in the pipeline file, in the refusal of a server, in a traceback | [test_secrets_canary.py](../tests/unit/test_secrets_canary.py), [test_secrets_live.py](../tests/live/test_secrets_live.py) |
| Names with any characters are quoted in every statement, including the statements printed for a superuser | [test_quoting_live.py](../tests/live/test_quoting_live.py), [test_quoting.py](../tests/property/test_quoting.py) |
| A transaction that cannot be decoded is stored as bytes at its position; after it is decoded later, silver is the same as if it had been decoded at once | [test_undecodable_silver.py](../tests/spark/test_undecodable_silver.py) |
| Compacted bronze has the same rows and the same hashes, while receive and apply continue | [test_bronze_compaction.py](../tests/unit/test_bronze_compaction.py), [test_apply_during_maintenance.py](../tests/spark/test_apply_during_maintenance.py) |
| A power failure loses nothing that was acknowledged; a full disk corrupts nothing | [test_bronze_power_loss.py](../tests/unit/test_bronze_power_loss.py), [test_bronze_disk_full.py](../tests/unit/test_bronze_disk_full.py) |
| If a promoted server lacks transactions that bronze holds, the receiver detects this and names them | [test_failover.py](../tests/live/test_failover.py), [test_gaussdb_failover.py](../tests/unit/test_gaussdb_failover.py) |
| `cdc-lake compare` finds every planted difference, accounts for quarantined changes, and reports when it cannot decide | [test_compare_tables.py](../tests/live/test_compare_tables.py) |
| `/healthz` reports success only while the receiver commits to bronze and acknowledges; dashboard and alerts use only metrics that exist | [test_receiver_metrics.py](../tests/live/test_receiver_metrics.py), [test_alerts_and_dashboard.py](../tests/unit/test_alerts_and_dashboard.py) |
| A rule counts the same rows in the pipeline and in Great Expectations | [test_quality_counts.py](../tests/spark/test_quality_counts.py) |
| Recorded openGauss streams in every decoding style produce, row by row, the tables on the servers that sent them, except for values that the servers do not send | [test_samples_602.py](../tests/unit/samples/test_samples_602.py), [test_samples_older.py](../tests/unit/samples/test_samples_older.py) |
| In CSN order, bronze at each of 16 CSNs equals the snapshot that a server with 14 concurrent writers returned for that CSN | [test_receive_csn.py](../tests/unit/test_receive_csn.py), [test_apply_csn.py](../tests/spark/test_apply_csn.py) |
| Every decoding style, framing and slot order of the GaussDB family delivers all changes of a live database to bronze | [test_gaussdb_receive.py](../tests/live/test_gaussdb_receive.py) |
| Over the GaussDB protocol, dropped connections, crashes, repeated data and kill -9 lose and repeat no change, and a missing CSN is named | [test_gaussdb_faults.py](../tests/live/test_gaussdb_faults.py), [test_receiver_kills.py](../tests/live/test_receiver_kills.py), [test_random_kills.py](../tests/live/test_random_kills.py) |
| A damaged payload raises an error that gives its position, in every format; both decoders of style b report the same error | [test_gaussdb_binary_agreement.py](../tests/property/test_gaussdb_binary_agreement.py) |
| Every mistake ends with an error code, a location, a remedy and the documented exit code, never with a traceback | [test_readme_first_run.py](../tests/live/test_readme_first_run.py), [test_config_diagnostics.py](../tests/unit/test_config_diagnostics.py) |
"""


def added_up(lines: Sequence[str], number: str) -> tuple[Counter[str], list[str]]:
    """Counts and named faults of a promise, of all processes that wrote them."""
    counts: Counter[str] = Counter()
    faults: set[str] = set()
    for told in map(json.loads, lines):
        if told["promise"] == number:
            counts.update(told["counts"])
            faults.update(told["faults"])
    return counts, sorted(faults)


def tried(promise: Promise, chance: str, *, small: bool) -> Found:
    """Run a promise's tests."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tally.jsonl"
        file.touch()
        budget = "1" if small else str(promise.budget)
        settings = {"CDC_LAKE_TALLY": str(file), "CDC_LAKE_BUDGET": budget, "CDC_LAKE_CHANCE": chance}
        settings |= {"CDC_LAKE_TEST_LAKE": promise.lake} if promise.lake else {}
        ours = {name: value for name, value in os.environ.items() if name != "CDC_LAKE_SEED"}  # one seed alone

        def passed(tests: Sequence[str]) -> bool:
            command = [sys.executable, "-m", "pytest", "-q", "-m", "", "--timeout", "3600", *tests]
            return subprocess.run(command, cwd=ROOT, env={**ours, **settings}, check=False).returncode == 0

        began = time.monotonic()
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            each = [(test,) for test in promise.tests] if promise.side_by_side else [promise.tests]
            all_passed = all([*pool.map(passed, each)])
        counts, faults = added_up(file.read_text(encoding="utf-8").splitlines(), promise.counted_as or promise.number)
    return Found(promise, all_passed, counts, faults, time.monotonic() - began)


@dataclass(frozen=True)
class Row:
    """What is kept of a run: what it found, the tests it ran, and whence they can be had again."""

    found: Found
    tests: Sequence[str]
    version: str
    day: str
    chance: str
    trees: Mapping[str, str] = field(default_factory=dict)
    """Folder → its hash in git: commits that have them are the version, also where its own commit is gone."""

    @property
    def verdict(self) -> str:
        """That of the run, by what the promise asks for today."""
        if tuple(self.tests) != self.found.promise.tests:
            return "to be run again: its tests are others now"
        return self.found.verdict(small=False)

    def document(self) -> dict[str, Any]:
        """The row in JSON."""
        found = self.found
        return {
            "version": self.version,
            "day": self.day,
            "chance": self.chance,
            "seconds": round(found.seconds),
            "passed": found.passed,
            "counts": dict(found.counts),
            "faults": list(found.faults),
            "tests": list(self.tests),
            **({"trees": dict(self.trees)} if self.trees else {}),
        }

    @classmethod
    def of(cls, promise: Promise, document: Mapping[str, Any]) -> Self:
        """The row that was written."""
        passed, counts, faults, seconds = (document[name] for name in ("passed", "counts", "faults", "seconds"))
        found = Found(promise, passed, counts, faults, seconds)
        said = (document[name] for name in ("tests", "version", "day", "chance"))
        return cls(found, *said, document.get("trees", {}))


def kept() -> dict[str, Row]:
    """What is kept, by the number of the promise; KeyError for a promise that is none."""
    promises = {promise.number: promise for promise in PROMISES}
    documents = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    return {number: Row.of(promises[number], document) for number, document in documents.items()}


def keep(row: Row) -> None:
    """Put a row in the place of the one that its promise had, and make the page anew."""
    rows = kept() | {row.found.promise.number: row}
    documents = {p.number: rows[p.number].document() for p in PROMISES if p.number in rows}
    KEPT.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


def page(rows: Mapping[str, Row]) -> str:
    """The page of what is kept."""
    ran = [rows[promise.number] for promise in PROMISES if promise.number in rows]
    green = sum(row.verdict == "green" for row in ran)
    never = len(PROMISES) - len(ran)
    were = "was" if never == 1 else "were"
    summary = f"{green} of {len(PROMISES)} guarantees are green; {never} {were} never run at full budget.\n\n"
    first = [["", "guarantee", "verdict", "counted", "seconds", "version", "day"]]
    second = [["", "faults", "tests", "seed", "cdc_lake and tests"]]
    for promise in PROMISES:
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in promise.tests)
        if (row := rows.get(promise.number)) is None:
            first.append([promise.number, promise.says, "**never run**", "", "", "", ""])
            second.append([promise.number, "", tests, "", ""])
            continue
        verdict = row.verdict if row.verdict == "green" else f"**{row.verdict}**"
        said = [counted(row.found), f"{row.found.seconds:,.0f}", row.version, row.day]
        first.append([promise.number, promise.says, verdict, *said])
        trees = " ".join(f"`{row.trees[folder][:12]}`" for folder in TREES if folder in row.trees)
        second.append([promise.number, "; ".join(row.found.faults), tests, f"`{row.chance}`", trees])
    return HEAD + summary + table(first) + MORE + MET + table(second)


def counted(found: Found) -> str:
    """What a run counted, in words."""
    return ", ".join(f"{count:,} {what}" for what, count in found.counts.items())


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown, the first one above the others."""
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in ruled)


def of_git(*words: str) -> str:
    """What git says of the tree that runs."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def version() -> str | None:
    """The version that runs; None of a tree with changes that no commit has, but for what is kept here."""
    ours = [f":!{path.relative_to(ROOT)}" for path in (KEPT, PAGE)]
    return None if of_git("status", "--porcelain", "--", ".", *ours) else of_git("describe", "--always")


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability")
    parser.add_argument("promises", nargs="*", choices=[[], *(p.number for p in PROMISES)], metavar="R1")
    parser.add_argument("--small", action="store_true", help="at the budget of `make test`; nothing is kept")
    parser.add_argument("--others", action="store_true", help="print what has pytest leave out the tests of promises")
    parser.add_argument("--page", action="store_true", help="make the page again from what is kept; nothing is run")
    asked = parser.parse_args(words)
    if asked.others:
        print(*(f"--ignore={test}" for test in sorted({test for promise in PROMISES for test in promise.tests})))
        return 0
    if asked.page:
        PAGE.write_text(page(kept()), encoding="utf-8")
        return 0
    red = False
    for promise in (p for p in PROMISES if not asked.promises or p.number in asked.promises):
        chance = os.environ.get("CDC_LAKE_CHANCE") or of_git("rev-parse", "HEAD^{tree}")
        before = None if asked.small else version()
        found = tried(promise, chance, small=asked.small)
        verdict = found.verdict(small=asked.small)
        red = red or verdict != "green"
        print(
            f"{promise.number}: {verdict}; {counted(found)}; {', '.join(found.faults)}; {found.seconds:,.0f} s",
            flush=True,
        )
        if before is not None and before == version():
            trees = {folder: of_git("rev-parse", f"HEAD:{folder}") for folder in TREES}
            keep(Row(found, promise.tests, before, f"{datetime.now(UTC):%Y-%m-%d}", chance, trees))
        elif not asked.small:
            print(f"{promise.number} is not kept: the tree has changes that no commit has")
    return int(red)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
