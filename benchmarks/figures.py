"""What the results say, figure by figure: the value of each round, and what it has to reach.

A figure belongs to a scenario (`scenarios.py`) and reads one result (`results/*.json`). Its median counts. Those beside
a peer of the same run are ratios: they do not move with the machine, so they are what `regress.py` compares.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Run = Mapping[str, Any]
Runs = Sequence[Run]

MEGA = 10**6
RECEIVER_MIB = 400 * MEGA / 2**20
"""What the receiver may take, 400 MB: besides three times the largest row, where rows are large."""
ROWS = 3


@dataclass(frozen=True)
class Figure:
    """One line of the page. `target` None: it is shown, and nothing is asked of it."""

    name: str
    words: str
    result: str
    values: Callable[[Runs], Iterable[float]]
    target: float | None
    section: str
    """Of the page: where it is explained, also why it is missed."""
    most: bool = False
    """The target is what it may be at most, not at least."""
    unit: str = ""
    peer: str = ""
    """Beside whom: the figure is a ratio."""

    @property
    def scenario(self) -> str:
        """The scenario that measures it."""
        return self.name.partition(" ")[0]

    def reached(self, value: float) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.target is None:
            return None
        return value <= self.target if self.most else value >= self.target

    @property
    def bound(self) -> str:
        """The target as it is shown."""
        return "" if self.target is None else f"{'≤' if self.most else '≥'} {printed(self.target)}"

    def of(self, documents: Mapping[str, Mapping[str, Any]]) -> list[float]:
        """The values of a result, none where it was not measured."""
        document = documents.get(self.result)
        return [] if document is None else [float(value) for value in self.values(document["runs"])]


def counted(runs: Runs, **wanted: object) -> list[Run]:
    """Rounds that count (not those that warm up), with these facts."""
    return [
        run for run in runs if run.get("round", 1) > 0 and all(run.get(name) == value for name, value in wanted.items())
    ]


def each(runs: Runs, fact: str, **wanted: object) -> list[float]:
    """A fact of each counted round."""
    return [run[fact] for run in counted(runs, **wanted)]


def beside(runs: Runs, fact: str, ours: tuple[str, str], peer: tuple[str, str]) -> list[float]:
    """A fact of ours to the same of the peer, round by round; a side is named by a fact and its value."""
    (our_key, our_name), (peer_key, peer_name) = ours, peer
    theirs = {run["round"]: run[fact] for run in counted(runs, **{peer_key: peer_name})}
    mine = counted(runs, **{our_key: our_name})
    return [run[fact] / theirs[run["round"]] for run in mine if run["round"] in theirs]


def within(runs: Runs, above: str, below: str, **wanted: object) -> list[float]:
    """A fact to another one of the same round."""
    return [run[above] / run[below] for run in counted(runs, **wanted) if below in run]


def less(runs: Runs, above: str, below: str, **wanted: object) -> list[float]:
    """What a fact has more than another one of the same round."""
    return [run[above] - run[below] for run in counted(runs, **wanted)]


def rate(runs: Runs, seconds: str, amount: str, **wanted: object) -> list[float]:
    """An amount a second."""
    return [run[amount] / run[seconds] for run in counted(runs, **wanted)]


def peer_rates(runs: Runs, peer: str) -> list[float]:
    return beside(runs, "rate", ("peer", "cdc_lake"), ("peer", peer))


def quantile(values: Iterable[float], share: float) -> list[float]:
    ascending = sorted(values)
    return [ascending[min(len(ascending) - 1, int(len(ascending) * share))]] if ascending else []


def p95_of_commits(runs: Runs, kind: str) -> list[float]:
    return quantile(runs[0]["latency_ms"][kind], 0.95)


def opened(runs: Runs, fmt: str) -> list[float]:
    """Opening a table with many commits to opening it with ten."""
    grown = runs[0]["growth"].get(fmt)
    return [grown["late_ms"] / grown["early_ms"]] if grown else []


def late(runs: Runs, fmt: str, share: float | None = None, of: str = "one") -> list[float]:
    """Seconds until silver has a small transaction, `of` one table or of ten: all of them, or a quantile."""
    seconds = [one for run in counted(runs, format=fmt) for one in run[of]]
    return seconds if share is None else quantile(seconds, share)


def fleets(runs: Runs, fmt: str) -> list[float]:
    """A span in the largest pipeline to one in the smallest, round by round."""
    mine = counted(runs, format=fmt, touched=5)
    sizes = [run["tables"] for run in mine]
    by = {(run["tables"], run["round"]): run["seconds"] for run in mine}
    return [by[tables, n] / by[min(sizes), n] for tables, n in by if tables == max(sizes) and (min(sizes), n) in by]


def sized(runs: Runs) -> list[float]:
    """The most memory of all sizes of a transaction, with the process that hashes; without what belongs to a row."""
    of_row = ROWS * MEGA / 2**20
    mine = [run for run in runs if "megabytes" in run]
    return [max(run["rss_mib"] + run.get("beside_mib", 0.0) - of_row * run.get("row", 0) for run in mine)]


def growth(runs: Runs) -> list[float]:
    """The memory of the largest transaction to that of the smallest, of each kind."""
    peaks: dict[str, dict[int, float]] = {}
    for run in runs:
        if "megabytes" in run:
            peaks.setdefault(run["kind"], {})[run["megabytes"]] = run["rss_mib"]
    return [mine[max(mine)] / mine[min(mine)] for mine in peaks.values()]


def best_copy(runs: Runs, fact: str) -> list[float]:
    """Of the number of connections that copies best."""
    names = {run["peer"] for run in counted(runs) if run["peer"].startswith("cdc_lake")}
    best = max(names, key=lambda name: statistics.median(each(runs, "rate", peer=name)))
    if fact == "rate":
        return each(runs, "rate", peer=best)
    return beside(runs, "rate", ("peer", best), ("peer", "psql COPY"))


def compares(runs: Runs) -> list[float]:
    copy = each(runs, "seconds", role="copy")
    return [seconds / copy[0] for seconds in each(runs, "seconds", role="compare")]


def _of_formats(make: Callable[[str], Figure]) -> list[Figure]:
    return [make(fmt) for fmt in ("delta", "iceberg")]


def _shared(call: Callable[..., Iterable[float]], *given: Any, **named: Any) -> Callable[[Runs], Iterable[float]]:
    return partial(_called, call, given, named)


def _called(call: Callable[..., Iterable[float]], given: Any, named: Any, runs: Runs) -> Iterable[float]:
    return call(runs, *given, **named)


OURS = {"peer": "cdc_lake"}
BACKLOG, GAUSSDB = "receiving-a-backlog-into-bronze", "the-gaussdb-family-a-backlog-into-bronze"
BESIDE, LARGE, SMALL = "receiving-beside-peers", "applying-a-large-table", "applying-what-a-small-span-costs"
SOURCE, SNAPSHOT = "from-the-source-to-silver", "initial-copy-into-bronze"
ONE, TABLES, START = "a-large-transaction-into-bronze", "applying-many-tables", "from-a-cold-start"
COMMITS, DECODING = "bronze-commits-and-a-table-with-many-of-them", "decoding-style-b-of-the-gaussdb-family"
TEXT = "decoding-styles-t-and-j-of-the-gaussdb-family"

FIGURES: tuple[Figure, ...] = (
    Figure("P1 decode", "decode style b to Arrow, MB/s a core", "decode_mppdb",
           lambda runs: [one / MEGA for one in rate(runs, "columnar seconds", "bytes", per_transaction=1000)],
           400, DECODING),
    Figure("P1 plain", "the same beside the plain decoder", "decode_mppdb",
           _shared(each, "ratio", per_transaction=1000), 8, DECODING, peer="the plain decoder"),
    *(Figure(f"P1 style {style}", f"decode style {style} to Arrow, MB/s a core", "decode_mppdb_text",
             lambda runs, style=style: [one / MEGA for one in rate(runs, "columnar seconds", "bytes", style=style)],
             target, TEXT) for style, target in (("t", 150), ("j", 120))),
    Figure("P2 wire", "GaussDB's wire into bronze, MB/s", "gaussdb_backlog", _shared(each, "mb", peer="receive"),
           120, GAUSSDB),
    Figure("P2 drain", "the same beside reading it and throwing it away", "gaussdb_backlog",
           _shared(beside, "mb", ("peer", "receive"), ("peer", "drain")), None, GAUSSDB, peer="reading alone"),
    Figure("P2 memory", "the receiver's memory, a backlog of the family, MiB (400 MB are 381)", "gaussdb_backlog",
           _shared(each, "rss_mib", peer="receive"), RECEIVER_MIB, GAUSSDB, most=True),
    Figure("P2 long", "the receiver's memory, a backlog six times as long, MiB", "gaussdb_backlog",
           _shared(each, "rss_mib", peer="long"), RECEIVER_MIB, GAUSSDB, most=True),
    Figure("P3 iceberg", "pgoutput into bronze beside pydbzengine into Iceberg", "peers",
           _shared(peer_rates, "pydbzengine, Iceberg"), 10, BESIDE, peer="pydbzengine, Iceberg"),
    Figure("P3 debezium", "pgoutput into bronze beside Debezium's engine that only counts", "peers",
           _shared(peer_rates, "pydbzengine, count only"), 3, BESIDE, peer="Debezium, count only"),
    Figure("P3 flink", "pgoutput into bronze beside Flink CDC into Iceberg, by key", "peers",
           _shared(peer_rates, "Flink CDC, Iceberg"), None, BESIDE, peer="Flink CDC, Iceberg"),
    Figure("P3 dlt", "pgoutput into bronze beside dlt's pg_replication into Delta", "peers",
           _shared(peer_rates, "dlt, Delta"), None, BESIDE, peer="dlt, Delta"),
    Figure("P3 limit", "pgoutput into bronze beside pg_recvlogical", "pgoutput_backlog",
           _shared(peer_rates, "pg_recvlogical"), 0.9, BACKLOG, peer="pg_recvlogical"),
    Figure("P3 rate", "pgoutput into bronze, changes/s", "pgoutput_backlog", _shared(each, "rate", **OURS),
           120_000, BACKLOG),
    Figure("P4 rate", "test_decoding into bronze, changes/s", "test_decoding_backlog",
           _shared(each, "rate", **OURS), 90_000, BACKLOG),
    Figure("P4 limit", "test_decoding into bronze beside pg_recvlogical", "test_decoding_backlog",
           _shared(peer_rates, "pg_recvlogical"), None, BACKLOG, peer="pg_recvlogical, test_decoding"),
    Figure("P5 processor", "the receiver's processor time for a backlog of 1 M changes, s", "pgoutput_backlog",
           lambda runs: [run["cpu"] / run["changes"] * MEGA for run in counted(runs, **OURS)], 4, BACKLOG, most=True),
    Figure("P6 backlog", "the receiver's memory, a backlog, MiB (400 MB are 381)", "pgoutput_backlog",
           _shared(each, "rss_mib", **OURS), RECEIVER_MIB, BACKLOG, most=True),
    Figure("P6 transaction", "the receiver's memory, the largest transaction, MiB", "streamed", sized, RECEIVER_MIB,
           ONE, most=True),
    Figure("P6 growth", "the same beside a transaction of 10 MB", "streamed", growth, 1.2, ONE, most=True),
    Figure("P6 whole", "the receiver's memory, one that comes whole at its COMMIT, MiB", "large_memory", sized,
           RECEIVER_MIB, ONE, most=True),
    Figure("P6 whole, growth", "the same beside a transaction of 10 MB", "large_memory", growth, 1.2, ONE, most=True),
    Figure("P6 rows", f"the receiver's memory, large rows, MiB besides {ROWS} times a row", "large_rows", sized,
           RECEIVER_MIB, ONE, most=True),
    Figure("P6 copy", "the receiver's memory, the initial copy by two connections, MiB", "snapshot",
           _shared(each, "rss_mib", peer="cdc_lake, parallelism 2"), RECEIVER_MIB, SNAPSHOT, most=True),
    *_of_formats(lambda fmt: Figure(f"P7 {fmt}", f"a commit of 10,000 rows, {fmt}, p95 ms", "bronze_commit",
                                    _shared(p95_of_commits, f"{fmt}, fsync"), 60, COMMITS, most=True)),
    *_of_formats(lambda fmt: Figure(f"P7 {fmt}, opening", f"opening after 10,000 commits beside after ten, {fmt}",
                                    "bronze_commit", _shared(opened, fmt), 2, COMMITS, most=True)),
    Figure("P8 p99", "COMMIT to bronze, p99 ms", "latency", _shared(each, "p99_ms"), 250, "from-commit-to-bronze",
           most=True),
    *_of_formats(lambda fmt: Figure(f"P9 {fmt}, marks", f"a span into 5 M rows with row marks, {fmt}, beside delta-rs",
                                    "apply_span", _shared(within, "ours", "delta-rs", case=f"{fmt}, row marks"), 1.5,
                                    LARGE, most=True, peer="delta-rs")),
    *(Figure(f"P9 {fmt}, {keys} keys", f"the same of {keys} keys, {fmt}, beside delta-rs", "apply_span_keys",
             _shared(within, "ours", "delta-rs", case=f"{fmt}, row marks, {keys} keys"), 1.5, LARGE, most=True,
             peer="delta-rs") for fmt in ("delta", "iceberg") for keys in ("recent", "new")),
    *_of_formats(lambda fmt: Figure(f"P9 {fmt}, files", f"a span into 5 M rows, whole files, {fmt}, beside a MERGE",
                                    "apply_span", _shared(within, "ours", "plain", case=f"{fmt}, whole files"), 1.2,
                                    LARGE, most=True, peer="a plain MERGE")),
    *_of_formats(lambda fmt: Figure(f"P10 {fmt}", f"a small span, {fmt}, s above a plain MERGE", "small_spans",
                                    _shared(less, "ours", "plain", case=fmt), 0.4, SMALL, most=True)),
    *_of_formats(lambda fmt: Figure(f"P10 {fmt}, ratio", f"a small span, {fmt}, beside a plain MERGE", "small_spans",
                                    _shared(within, "ours", "plain", case=fmt), None, SMALL, most=True,
                                    peer="a plain MERGE")),
    *_of_formats(lambda fmt: Figure(f"P11 {fmt}, p50", f"COMMIT to silver, {fmt}, p50 s", "commit_to_silver",
                                    _shared(late, fmt), 2, SOURCE, most=True)),
    *_of_formats(lambda fmt: Figure(f"P11 {fmt}, p95", f"COMMIT to silver, {fmt}, p95 s", "commit_to_silver",
                                    _shared(late, fmt, 0.95), 6, SOURCE, most=True)),
    *_of_formats(lambda fmt: Figure(f"P11 {fmt}, ten", f"the same of ten tables, {fmt}, p50 s", "commit_to_silver",
                                    _shared(late, fmt, of="ten"), 6, SOURCE, most=True)),
    *_of_formats(lambda fmt: Figure(f"P12 {fmt}", f"source to silver, {fmt}, changes/s", "source_to_silver",
                                    _shared(each, "rate", format=fmt), 50_000, SOURCE)),
    *_of_formats(lambda fmt: Figure(f"P12 {fmt}, long", f"source to silver, {fmt}, 10 M changes, changes/s",
                                    "source_to_silver_backlog", _shared(each, "rate", format=fmt), 50_000, SOURCE)),
    Figure("P13 rate", "a transaction of 1 M rows, streamed, changes/s", "streamed",
           _shared(each, "rate", how="under way", kind="streamed"), 150_000, ONE),
    Figure("P13 whole", "the same beside protocol 1", "streamed",
           lambda runs: beside(counted(runs, how="under way"), "rate", ("kind", "streamed"), ("kind", "protocol 1")),
           2, ONE, peer="protocol 1"),
    Figure("P14 rate", "initial copy into bronze, rows/s", "snapshot", _shared(best_copy, "rate"), 400_000, SNAPSHOT),
    Figure("P14 limit", "initial copy into bronze beside psql's COPY", "snapshot", _shared(best_copy, "limit"), None,
           SNAPSHOT, peer="psql COPY"),
    *_of_formats(lambda fmt: Figure(f"P15 {fmt}", f"cold start to the first applied change, {fmt}, beside a bare "
                                    "session and a MERGE", "cold_start",
                                    _shared(within, "ours", "bare", format=fmt), 1.3, START, most=True,
                                    peer="a bare session and a MERGE")),
    Figure("P15 receiver", "the receiver's start to its first commit, s", "cold_start",
           _shared(each, "landed", what="receiver"), 1, START, most=True),
    Figure("P15 libraries", "the same beside importing its libraries", "cold_start",
           _shared(within, "landed", "bare", what="receiver"), None, START, most=True, peer="importing its libraries"),
    Figure("P15 idle", "`run --once` with nothing to do, s", "cold_start",
           _shared(each, "ended", what="idle"), 2, START, most=True),
    *_of_formats(lambda fmt: Figure(f"P16 {fmt}", f"five tables touched of 500, {fmt}, beside five of five",
                                    "many_tables", _shared(fleets, fmt), 1.5, TABLES, most=True,
                                    peer="a pipeline of five tables")),
    Figure("compare ratio", "compare beside the initial copy", "compare", compares, 1,
           "compare-one-changed-value-found", most=True, peer="the initial copy"),
    *_of_formats(lambda fmt: Figure(f"gate {fmt}", f"twenty rules, {fmt}, part that they add", "gate",
                                    _shared(each, "share", case=f"{fmt}, with rules"), 0.25,
                                    "applying-what-rules-cost", most=True)),
    *_of_formats(lambda fmt: Figure(f"rebuild {fmt}", f"rebuild from bronze, {fmt}, beside a plain write", "rebuild",
                                    _shared(within, "ours", "plain", format=fmt), None, "rebuilding-a-table",
                                    most=True, peer="a plain write")),
)  # fmt: skip


def named(name: str) -> Figure:
    """The figure of that name. Raises KeyError."""
    return {figure.name: figure for figure in FIGURES}[name]


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """The smallest, the median, the largest."""
    return min(values), statistics.median(values), max(values)


def printed(value: float) -> str:
    """A value as the page shows it."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


def judged(result: str, runs: Runs) -> list[tuple[str, str, str, str]]:
    """Of the figures of a result that have a target: words, median, target, verdict."""
    of = {figure: list(figure.values(runs)) for figure in FIGURES if figure.result == result and figure.bound}
    middles = {figure: statistics.median(values) for figure, values in of.items() if values}
    return [
        (figure.words, printed(middle), figure.bound, "reached" if figure.reached(middle) else "missed")
        for figure, middle in middles.items()
    ]
