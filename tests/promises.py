"""The promises that faults are tried on, the tests that keep each, and when a run of them is green."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Promise:
    """A promise, the tests that keep it, and how much they must count at full budget."""

    number: str
    says: str
    tests: tuple[str, ...]
    least: Mapping[str, int] = field(default_factory=dict)
    kinds: int = 0
    """How many different faults must have come about."""
    budget: int = 10
    """CDC_LAKE_BUDGET of a full run."""
    lake: str = ""
    """CDC_LAKE_TEST_LAKE of a run: `s3` puts the lake into an object store."""
    counted_as: str = ""
    """The promise whose tests these are, if another one's."""
    side_by_side: bool = False
    """Whether two files of them may run at a time: none asserts what it takes."""


PROMISES = (
    Promise(
        "R1",
        "the receiver survives kill -9 at each of its crash points, with twenty seeds",
        ("tests/live/test_receiver_kills.py",),
        {"kills": 260},
    ),
    Promise(
        "R2",
        "the receiver survives kill -9 at any moment under load, for three kinds of source and both formats",
        ("tests/live/test_random_kills.py",),
        {"kills": 300, "changes": 2_000_000},
        kinds=6,
    ),
    Promise(
        "R3",
        "silver survives an interruption of every step of apply, maintenance, a layout change and a rebuild, and the death of the "
        "JVM, of Python, or of both",
        ("tests/spark/test_apply_crashes.py", "tests/spark/test_apply_kills.py"),
        {"breaks": 200, "kills with the JVM": 18, "kills of Python alone": 14},
        kinds=29,  # each step of apply, upkeep, layouts and rebuilds, each crash point, either way: "at any moment" may find nobody there
        side_by_side=True,
    ),
    Promise(
        "R4",
        "repeated, disconnected, rewound and out-of-order streams, streamed, prepared and partly rolled-back transactions, faulty "
        "storage, clock jumps, and receivers and apply processes that die: every transaction lands once and in order, every cut "
        "refers to silver as it was committed, and the net changes of any spans add up to what was committed",
        (
            "tests/property/test_simulation.py",
            "tests/property/test_simulated_silver.py",
            "tests/property/test_csn_order.py",
            "tests/property/test_bronze_batching.py",
            "tests/spark/test_net_change_property.py",
        ),
        {
            "histories": 10_000,
            "simulated transactions": 300_000,
            "walks into silver": 2_000,
            "histories in Spark": 10_000,
        },
        side_by_side=True,
    ),
    Promise(
        "R5",
        "no change is lost if the server is stopped immediately under load and its slot falls back behind bronze",
        ("tests/live/test_immediate_stops.py",),
        {"stops": 20, "slots behind bronze": 5},
    ),
    Promise(
        "R6",
        "for arbitrary bytes, two to ten million frames in each of six formats, both decoders agree or refuse with an error; "
        "no frame takes a second, and memory stays bounded",
        ("tests/property/test_fuzz.py",),
        {"frames": 24_000_000, "inputs": 400_000},
    ),
    Promise(
        "R7",
        "the vectorized decoder of every format agrees with the row decoder, and recorded streams yield the servers' final tables",
        (
            "tests/property/test_gaussdb_binary_agreement.py",
            "tests/property/test_decoder_agreement.py",
            "tests/unit/samples/test_samples_602.py",
            "tests/unit/samples/test_samples_older.py",
            "tests/unit/test_test_decoding.py",
        ),
        {"rows": 10_000_000, "different rows": 300_000, "recorded streams": 29},
        side_by_side=True,
    ),
    Promise(
        "R8",
        "the tests find bugs that are planted, in histories that pass without these bugs",
        ("tests/property/test_negative_controls.py", "tests/spark/test_silver_negative_controls.py"),
        {"controls": 10, "found within 60 seconds": 10},
    ),
    Promise(
        "R9",
        "bronze and silver stay intact if the disk is full after any number of bytes, or can no longer store anything",
        ("tests/unit/test_bronze_disk_full.py", "tests/spark/test_silver_disk_full.py"),
        {"budgets of bytes": 150, "failed syncs": 100},
    ),
    Promise(
        "R10",
        "bronze and silver stay intact if a store fails, returns wrong answers, tears its writes or loses them; if a commit fails "
        "before, in the middle of or after its write, on both formats; if another program overwrites a commit; if power "
        "fails; no file of an existing version is ever removed",
        (
            "tests/property/test_faulty_store.py",
            "tests/unit/test_bronze_power_loss.py",
            "tests/spark/test_commit_outcome_unknown.py",
            "tests/spark/test_overwritten_commits.py",
        ),
        {
            "requests hit": 200,
            "commits to bronze hit": 200,
            "commits to silver hit": 100,
            "commits to silver taken": 4,
            "losses of power": 20,
        },
        kinds=22,
        side_by_side=True,
    ),
    Promise(
        "R11",
        "the receiver survives a network that disconnects anywhere, resets, stalls, delivers single bytes, falls silent or is "
        "down; the first attempt to reconnect follows within 1.25 seconds, and reading resumes within two seconds",
        ("tests/live/test_network_faults.py",),
        {"cuts": 2000, "silences": 9, "outages": 9, "read again in time": 9},
    ),
    Promise(
        "R12",
        "if the source is lost, the receiver recovers or names the loss in an error, and lands nothing after the gap",
        (
            "tests/live/test_source_faults.py",
            "tests/live/test_source_losses.py",
            "tests/live/test_tls_live.py",
            "tests/live/test_failover.py",
        ),
        {"losses": 12},
        kinds=12,
    ),
    Promise(
        "R13",
        "if state is lost (checkpoints, control tables, bronze, silver) or a pipeline is deployed twice, the pipeline recovers or "
        "names the fault in an error",
        (
            "tests/live/test_state_loss.py",
            "tests/spark/test_silver_state_loss.py",
            "tests/spark/test_apply_concurrent.py",
            "tests/spark/test_apply_during_maintenance.py",
        ),
        {"losses": 30},
    ),
    Promise(
        "R14",
        "a transaction of any size needs no more memory than a small one, for three kinds of source and both formats",
        ("tests/live/test_memory.py",),
        {"transactions": 26, "megabytes": 7870},
        kinds=11,
    ),
    Promise(
        "R15",
        "a value that no type can hold is quarantined with its location; what cannot be decoded stops the receiver before the "
        "acknowledgement or lands as bytes; a table that is altered within a transaction lands with the layout of each change",
        (
            "tests/spark/test_unconvertible_values.py",
            "tests/unit/test_gaussdb_undecodable_stops.py",
            "tests/unit/test_poison_scenarios.py",
        ),
        {"casts": 40, "stops": 20, "scenarios": 15},
    ),
    Promise(
        "R16",
        "of two receivers or two apply processes, with maintenance running as well, the second is refused or fenced",
        ("tests/live/test_concurrent_receivers.py", "tests/spark/test_apply_concurrent.py"),
        {"rounds": 100, "compacted": 40, "removed": 20},
    ),
    Promise(
        "R17",
        "at half of its maximum load and with a fault every five seconds, the receiver's memory, files and lag stay bounded",
        ("tests/live/test_soak.py",),
        {"strikes": 120, "seconds": 600, "commits": 17_000, "percent of the peak": 45},
    ),
    Promise(
        "R18",
        "with a wrong or jumping clock, bronze has the same rows and cuts stay correct",
        ("tests/live/test_clock.py", "tests/spark/test_clock_silver.py"),
        {"shifts": 100},
    ),
    Promise(
        "R19",
        "compare reports exactly the planted differences, among rows of every type and in a table of five million rows",
        ("tests/live/test_compare_random_tables.py",),
        {"comparisons": 52, "rows compared": 10_000_000},
    ),
    Promise(
        "R20",
        "no message or file contains a secret, whatever fails",
        ("tests/unit/test_secrets_canary.py", "tests/live/test_secrets_live.py", "tests/live/test_source_losses.py"),
        {"paths": 250},
        kinds=16,
    ),
    Promise(
        "R21",
        "with the lake in an object store, the receiver survives kill -9 at each of its crash points, with twenty seeds",
        ("tests/live/test_receiver_kills.py",),
        {"kills": 260},
        lake="s3",
        counted_as="R1",
    ),
    Promise(
        "R22",
        "with the lake in an object store, silver survives an interruption of every step of apply, maintenance, a layout change "
        "and a rebuild, and the death of the JVM, of Python, or of both",
        ("tests/spark/test_apply_crashes.py", "tests/spark/test_apply_kills.py"),
        {"breaks": 150, "kills with the JVM": 14, "kills of Python alone": 10},
        kinds=22,  # without those of Spark's stream on bronze, which there is only in a folder
        lake="s3",
        counted_as="R3",
    ),
    Promise(
        "R23",
        "with the lake in an object store, of two receivers, with maintenance running as well, the second is fenced",
        ("tests/live/test_concurrent_receivers.py",),
        {"rounds": 100},
        lake="s3",
        counted_as="R16",
    ),
    Promise(
        "R24",
        "a lake in an object store loses and doubles nothing if requests fail, also after they were carried out, are slow or refused "
        "for a while; two writers of a Delta table lose no commit",
        ("tests/spark/test_lake_in_store.py",),
        {"requests hit": 500, "commits that raced": 100},
        kinds=3,
    ),
)


@dataclass(frozen=True)
class Found:
    """What a run of a promise's tests came to."""

    promise: Promise
    passed: bool
    counts: Mapping[str, int]
    faults: Sequence[str]
    seconds: float

    def verdict(self, *, small: bool) -> str:
        """`green`, or `red` and why."""
        if not self.passed:
            return "red: a test failed"
        wanted = {what: 1 if small else least for what, least in self.promise.least.items()}
        short = [what for what, least in wanted.items() if self.counts.get(what, 0) < least]
        short += ["kinds of faults"] if not small and len(self.faults) < self.promise.kinds else []
        return f"red: too few {', '.join(short)}" if short else "green"
