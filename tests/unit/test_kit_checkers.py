"""The kit's checkers and oracles: each violation is found, and what nobody looked at is not held.

Bugs of the product that it has to find are planted in tests/property/test_negative_controls.py and in
tests/spark/test_silver_negative_controls.py.

Beside the truth: what does not wait is as the source has it, so nothing wrong is shown, and not all waits.
"""

from __future__ import annotations

import gzip
import os
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake import Transaction as Marked

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, Cut, TableState, write_cut
from cdc_lake.errors import SlotMissing
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Transaction, Update
from cdc_lake.observability.events import silent
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.silver_table import FIRST, app_id
from cdc_lake_testing import histories
from cdc_lake_testing.beside import until
from cdc_lake_testing.committed import Committed
from cdc_lake_testing.faulty_relay import FaultyRelay
from cdc_lake_testing.histories import History
from cdc_lake_testing.invariants import Bound, Known, Standing, invariants
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.oracle import Oracle, Row
from cdc_lake_testing.partly_told import NOT_SENT, WAITS, PartlyTold
from cdc_lake_testing.secrets import leaks
from cdc_lake_testing.server import HOST
from cdc_lake_testing.verdict import INVARIANTS
from cdc_lake_testing.watermarks import Watch
from cdc_lake_testing.whole import assert_whole_transactions
from tests.pipeline_file import make_project
from tests.seeds import one_seed

ORDERS = table("public.orders", id="int8", note="text")


def transaction(position: int, *changes: Change) -> Transaction:
    return Transaction(boundaries(position), changes or (Insert(ORDERS, (str(position), "note")),))


MADE = [transaction(20), transaction(30), transaction(40, Update(ORDERS, ("20", "another note")))]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


@pytest.fixture
def bronze(project: Project) -> DeltaBronze:
    bronze = DeltaBronze(project.bronze, "os")
    bronze.begin_stream("test", 10)
    bronze.append([raw_transaction(one) for one in MADE])
    return bronze


KNOWN = Known(silver=False, committed=Committed(MADE, confirmed=40))


@pytest.mark.usefixtures("bronze")
def test_what_is_in_order_is_held_and_the_rest_was_not_looked_at(project: Project) -> None:
    verdict = invariants(project, KNOWN)
    verdict.assert_held("I1", "I2", "I3", "I4", "I5", "I6")
    assert {one for one in INVARIANTS if verdict[one] is Standing.NOT_LOOKED_AT} == {"I7", "I8"}
    with pytest.raises(AssertionError, match="nobody looked at I8"):
        verdict.assert_held("I8")


@pytest.mark.usefixtures("bronze")
@pytest.mark.parametrize(
    ("invariant", "known"),
    [
        ("I1", replace(KNOWN, committed=Committed([*MADE, transaction(35)]))),
        ("I1", replace(KNOWN, committed=Committed([*MADE[:2], transaction(40)]))),
        ("I2", replace(KNOWN, committed=Committed(MADE[:2]))),
        ("I4", replace(KNOWN, committed=Committed([*MADE[:2], transaction(40)]))),
        ("I4", Known(committed=Committed(MADE[:1]), silver=False)),
        ("I5", replace(KNOWN, committed=Committed(MADE, confirmed=41))),
        ("I6", replace(KNOWN, committed=Committed([*MADE, transaction(50)]))),
        ("I6", replace(KNOWN, ended=KeyError("something"))),
        ("I7", replace(KNOWN, bounds=[Bound("open files", 3, 4), Bound("MiB", 401, 400)])),
        ("I8", replace(KNOWN, secrets=["another note"])),
        ("I8", replace(KNOWN, secrets=["hunter2"], said=["the password is hunter2"])),
    ],
)
def test_what_is_not_so_is_broken(project: Project, invariant: str, known: Known) -> None:
    verdict = invariants(project, known)
    print(verdict)
    assert invariant in verdict.broken
    with pytest.raises(AssertionError, match=f"{invariant} broken"):
        verdict.assert_held()


def test_a_watermark_that_goes_back_is_seen(project: Project, bronze: DeltaBronze) -> None:
    watch = Watch(project)
    watch.look()
    assert not watch.wrong
    bronze.turn_back(30)
    watch.look()
    assert "I5" in invariants(project, replace(KNOWN, watch=watch)).broken


def test_a_stream_that_is_gone_is_seen(project: Project, bronze: DeltaBronze) -> None:
    watch = Watch(project)
    watch.look()
    project.bronze.rename(project.bronze.with_name("away"))
    watch.look()
    broken = invariants(project, replace(KNOWN, watch=watch)).broken
    assert {"I5", "I6"} <= broken.keys()
    del bronze


@pytest.mark.usefixtures("bronze")
def test_any_row_that_a_reader_does_not_see_or_sees_twice_is_missed(project: Project) -> None:
    (file,) = project.bronze.glob("*.parquet")
    rows = pq.read_table(file)
    for at, op in enumerate(rows["op"].to_pylist()):
        one, before, behind = rows.slice(at, 1), rows.slice(0, at), rows.slice(at + 1)
        for damaged in (pa.concat_tables([before, behind]), pa.concat_tables([before, one, one, behind])):
            pq.write_table(damaged, file)
            with nullcontext() if op == "R" else pytest.raises(AssertionError, match="a part of"):
                assert_whole_transactions(bronze_reader(project))


@pytest.mark.usefixtures("bronze")
def test_readers_that_see_a_part_of_a_transaction_break_what_they_are_promised(project: Project) -> None:
    """A file whose rows are fewer than those that were landed."""
    (file,) = project.bronze.glob("*.parquet")
    pq.write_table(pq.read_table(file).slice(0, 5), file)
    assert {"I1", "I3"} <= invariants(project, KNOWN).broken.keys()


def test_an_error_that_says_what_it_is_ends_a_run_well(project: Project) -> None:
    verdict = invariants(project, Known(ended=SlotMissing("the slot is gone")))
    verdict.assert_held("I6")
    assert "I6" in invariants(project, Known()).broken, "nothing was received, and nothing said why"


def merged(project: Project, upto: int, notes: dict[int, str], *, cut: bool = True, version: int | None = None) -> None:
    """Silver with these rows at a position, and a cut that says so, or names another version."""
    target, control = project.target(ORDERS.table), ControlTables(project.control, durability="os")
    place = str(project.silver_path(target))
    rows = pa.table({"id": pa.array(notes.keys(), pa.int64()), "note": pa.array(notes.values(), pa.string())})
    marker = CommitProperties(app_transactions=[Marked(app_id("test", target, FIRST), upto)])
    write_deltalake(place, rows, mode="overwrite", commit_properties=marker)
    if cut:
        version, state = version or DeltaTable(place).version(), bronze_reader(project).state()
        assert state is not None
        there = TableState(target.label, "delta", version, upto, ACTIVE, 0, FIRST, ORDERS.layout)
        write_cut(control, state, Cut(upto, {str(ORDERS.table): there}), None, silent)


@pytest.mark.usefixtures("bronze")
def test_silver_is_judged_where_it_stands_and_in_the_last_cut_and_may_have_to_be_at_the_end(project: Project) -> None:
    known = Known(committed=Committed(MADE))
    merged(project, 30, {20: "note", 30: "note"})
    invariants(project, known).assert_held("I1", "I2", "I3", "I4", "I5", "I6")
    (behind,) = invariants(project, replace(known, applied=True)).broken["I6"]
    assert behind == "the run ended well, and the last cut is not at 0/28: it is at 0/1E"
    merged(project, 40, {20: "another note", 30: "note"})
    invariants(project, replace(known, applied=True)).assert_held("I1", "I2", "I3", "I4", "I5", "I6")


@pytest.mark.usefixtures("bronze")
def test_a_version_that_readers_of_the_last_cut_have_is_judged_also_where_the_table_went_on(project: Project) -> None:
    merged(project, 30, {20: "note"})
    assert "I4" in invariants(project, Known(committed=Committed(MADE))).broken
    merged(project, 40, {20: "another note", 30: "note"}, cut=False)
    found = invariants(project, Known(committed=Committed(MADE))).broken
    assert found == {"I4": ["silver.orders in the cut 30: 1 rows are missing, 0 are not the source's"]}


@pytest.mark.usefixtures("bronze")
def test_a_version_of_an_older_cut_may_be_gone_where_silver_was_kept_up_and_of_the_newest_never(
    project: Project,
) -> None:
    known = Known(committed=Committed(MADE))
    merged(project, 30, {20: "note", 30: "note"}, version=7)
    merged(project, 40, {20: "another note", 30: "note"})
    (how,) = invariants(project, known).broken["I3"]
    assert "SilverMissing" in how
    invariants(project, replace(known, upkept=True)).assert_held("I1", "I3", "I4", "I5")
    merged(project, 40, {20: "another note", 30: "note"}, version=7)
    assert "I3" in invariants(project, replace(known, upkept=True)).broken


T = table("public.t", id="int4", amount="int4", body="text")
SEEDS = 200 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))


def matches(row: Row) -> bool:
    return row["amount"] is not None and int(row["amount"]) < 60 and row["body"] is not None


def table_of(*changes: Change) -> PartlyTold:
    made = PartlyTold({"amount", "body"}, T.names, T.names, matches)
    made.run(Transaction(boundaries(10 * n), (change,), (n,)) for n, change in enumerate(changes, start=1))
    return made


def update(at: str, amount: str, body: str | None = None, *, was: str | None = None) -> Update:
    """Of a row at key `at`, that it had at `was` before."""
    old = None if was is None else (was, None, None)
    return Update(T, (at, amount, body or UNCHANGED), old, None if was is None else OldKind.KEY)


def test_a_row_that_left_takes_its_values_along():
    done = table_of(Insert(T, ("1", "5", "x")), update("1", "70"), update("1", "6"), update("1", "7", "y"))
    assert done.quarantined == [(30, 1, NOT_SENT), (40, 1, WAITS)]
    assert (done.rows, done.waiting) == ({}, {("1",)})


def test_a_row_that_leaves_while_its_key_waits_makes_the_key_wait_that_it_goes_to():
    """Silver's row is not the one that moves, so its value cannot tell that the one at the other key does not match."""
    left = [Insert(T, ("1", "5", "x")), update("1", "70"), update("1", "6")]
    done = table_of(*left, update("2", "80", was="1"), update("2", "5", "y"))
    assert done.quarantined == [(30, 1, NOT_SENT), (40, 1, WAITS), (50, 1, WAITS)]
    told = table_of(*left, update("2", "80", "z", was="1"), update("2", "5", "y"))
    assert told.quarantined == [(30, 1, NOT_SENT), (40, 1, WAITS)]
    assert told.rows == {("2",): {"id": "2", "amount": "5", "body": "y"}}


def test_a_row_in_silver_tells_what_was_not_sent_also_of_one_that_leaves():
    done = table_of(Insert(T, ("1", "5", "x")), update("1", "6"), update("2", "7", was="1"), update("3", "70", was="2"))
    assert (done.quarantined, done.rows) == ([], {})
    done = table_of(Insert(T, ("1", "5", "x")), Delete(T, ("1", None, None), OldKind.KEY), Insert(T, ("1", "80", "x")))
    assert (done.quarantined, done.rows) == ([], {})


def test_what_does_not_wait_is_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without swaps: a key that the server logs alone is one that it checks at once."""
    monkeypatch.setattr(histories, "KINDS", {k: n for k, n in histories.KINDS.items() if k not in histories.DEFERRED})
    seed = one_seed()
    print(f"seed {seed}")
    shown = wanted = quarantined = 0
    for n in range(SEEDS):
        history, truth, told = History(seed + n, [T]), Oracle(), table_of()
        transactions = [history.transaction(10 * at) for at in range(1, 13)]
        truth.run(transactions)
        told.run(transactions)
        rows = {key: row for key, row in truth.tables.get(T.table, {}).items() if matches(row)}
        free = {key: row for key, row in rows.items() if key not in told.waiting}
        assert {key: row for key, row in told.rows.items() if key not in told.waiting} == free
        shown, wanted, quarantined = shown + len(free), wanted + len(rows), quarantined + len(told.quarantined)
    assert shown > wanted / 4
    assert quarantined


SECRET = "correct horse"


def test_a_row_that_is_packed_is_found_in_whichever_row_group_it_is(tmp_path: Path):
    rows = pa.table({"note": ["x" * 10_000] * 50 + [SECRET]})
    pq.write_table(rows, tmp_path / "a.parquet", compression="zstd", row_group_size=10)
    (tmp_path / "log.gz").write_bytes(gzip.compress(f"... {SECRET}".encode()))
    assert leaks(tmp_path, [SECRET, "nowhere"]) == [f"a.parquet: {SECRET}", f"log.gz: {SECRET}"]


def test_a_file_that_was_torn_as_its_writer_was_killed_is_looked_at_as_it_is(tmp_path: Path):
    for name, text in {"with": SECRET, "without": "nothing"}.items():
        pq.write_table(pa.table({"note": [text]}), tmp_path / name, compression="none")
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) - 8])
    assert leaks(tmp_path, [SECRET]) == [f"with: {SECRET}"]


def test_a_connection_that_was_over_before_is_cut_as_any_other() -> None:
    with socket.create_server((HOST, 0)) as server, FaultyRelay(HOST, server.getsockname()[1]) as relay:
        with socket.create_connection((HOST, relay.port)):
            server.accept()[0].close()
        until(lambda: relay._open and all(one.client.fileno() == -1 for one in relay._open), "it is closed")
        relay.cut(reset=True)
