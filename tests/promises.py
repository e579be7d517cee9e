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
    side_by_side: bool = False
    """Whether two files of them may run at a time: none asserts what it takes."""


PROMISES = (
    Promise(
        "R1",
        "the receiver killed at every crash point of its own, with twenty seeds",
        ("tests/live/test_receiver_kills.py",),
        {"kills": 260},
    ),
    Promise(
        "R2",
        "the receiver killed at any moment under load, on three kinds of source, into either format",
        ("tests/live/test_random_kills.py",),
        {"kills": 300, "changes": 2_000_000},
        kinds=6,
    ),
    Promise(
        "R3",
        "silver: broken off at every step of apply, of upkeep, of a new layout and of a rebuild, its JVM killed, it alone, both",
        ("tests/spark/test_apply_crashes.py", "tests/spark/test_apply_kills.py"),
        {"breaks": 200, "kills with the JVM": 18, "kills of Python alone": 14},
        kinds=29,  # each step of apply, upkeep, layouts and rebuilds, each crash point, either way: "at any moment" may find nobody there
        side_by_side=True,
    ),
    Promise(
        "R4",
        "streams repeated, cut, rewound and out of order, transactions streamed, prepared and rolled back in part, storage "
        "that lies, clocks that jump, receivers and applies that die: every transaction once, in order; every cut names silver "
        "as it was committed; net changes of any spans amount to what was committed",
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
        "the server stopped at once under load, its slot back behind what bronze holds",
        ("tests/live/test_immediate_stops.py",),
        {"stops": 20, "slots behind bronze": 5},
    ),
    Promise(
        "R6",
        "bytes that nobody should send, two to ten million frames of each of six formats: taken alike by both decoders, or refused "
        "in words; none takes a second, memory is bounded",
        ("tests/property/test_fuzz.py",),
        {"frames": 24_000_000, "inputs": 400_000},
    ),
    Promise(
        "R7",
        "the fast decoder of every format equals the plain one, and what servers sent amounts to their final tables",
        (
            "tests/property/test_mppdb_agreement.py",
            "tests/property/test_rows_agree.py",
            "tests/unit/samples/test_samples_602.py",
            "tests/unit/samples/test_samples_older.py",
            "tests/unit/test_test_decoding.py",
        ),
        {"rows": 10_000_000, "different rows": 300_000, "recorded streams": 29},
        side_by_side=True,
    ),
    Promise(
        "R8",
        "bugs that are planted are found, in histories that pass without them",
        ("tests/property/test_negative_controls.py", "tests/spark/test_negative_controls_of_silver.py"),
        {"controls": 10, "found within 60 seconds": 10},
    ),
    Promise(
        "R9",
        "the disk is full after any number of bytes, or puts nothing down any more",
        ("tests/unit/test_disk_full.py", "tests/spark/test_silver_disk_full.py"),
        {"budgets of bytes": 150, "failed syncs": 100},
    ),
    Promise(
        "R10",
        "a store fails, lies about it, tears what it writes, or forgets; a commit to bronze or to silver fails before it is "
        "made, in its middle, or made all the same, on both formats, or another program takes its place, and no file of a version "
        "that is there goes; power is lost",
        (
            "tests/property/test_faulty_store.py",
            "tests/unit/test_power_loss.py",
            "tests/spark/test_doubted_commits.py",
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
        "the network cuts anywhere, resets, stalls, breaks into single bytes, falls silent, is away: who is back is tried within "
        "a second and a quarter by the first attempt, and was read within two",
        ("tests/live/test_network_faults.py",),
        {"cuts": 2000, "silences": 9, "outages": 9, "read again in time": 9},
    ),
    Promise(
        "R12",
        "the source is lost: the error that names it, or recovery, and nothing behind what was lost",
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
        "state is lost: checkpoints, control tables, bronze, silver; or there are two of a pipeline",
        (
            "tests/live/test_state_loss.py",
            "tests/spark/test_state_loss_of_silver.py",
            "tests/spark/test_apply_rivals.py",
            "tests/spark/test_apply_upkeep.py",
        ),
        {"losses": 30},
    ),
    Promise(
        "R14",
        "a transaction of any size takes the memory of a small one, on three kinds of source, into either format",
        ("tests/live/test_memory.py",),
        {"transactions": 26, "megabytes": 7870},
        kinds=11,
    ),
    Promise(
        "R15",
        "what no type can hold is kept back with its place, what cannot be decoded stops before it is confirmed or lands as "
        "its bytes, a table altered in mid-transaction lands under the layout of each change",
        ("tests/spark/test_misfits.py", "tests/unit/test_undecodable_stops.py", "tests/unit/test_poison_scenarios.py"),
        {"casts": 40, "stops": 20, "scenarios": 15},
    ),
    Promise(
        "R16",
        "two receivers, two appliers, upkeep beside them: the second is refused or fenced",
        ("tests/live/test_rivals.py", "tests/spark/test_apply_rivals.py"),
        {"rounds": 100, "compacted": 40, "removed": 20},
    ),
    Promise(
        "R17",
        "a receiver under half of the load that it can take, with a fault every five seconds: memory, files and lag stay bounded",
        ("tests/live/test_soak.py",),
        {"strikes": 120, "seconds": 600, "commits": 17_000, "percent of the peak": 45},
    ),
    Promise(
        "R18",
        "the clock is wrong or jumps: the same rows in bronze, cuts that are true",
        ("tests/live/test_clock.py", "tests/spark/test_clock_silver.py"),
        {"shifts": 100},
    ),
    Promise(
        "R19",
        "exactly the planted differences are told, among rows of every type and in a table of five million",
        ("tests/live/test_compare_property.py",),
        {"comparisons": 52, "rows compared": 10_000_000},
    ),
    Promise(
        "R20",
        "no secret in what is said or written where something fails",
        ("tests/unit/test_secrets_canary.py", "tests/live/test_secrets_live.py", "tests/live/test_source_losses.py"),
        {"paths": 250},
        kinds=16,
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
