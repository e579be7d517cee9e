"""A server of the GaussDB family takes over: it has to send again what bronze holds before anything new is landed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.config.project import Project
from cdc_lake.connectors.gaussdb import failover
from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering
from cdc_lake.connectors.gaussdb.failover import AGAIN, FailoverFrames, FailoverOrdering, FailoverReplay
from cdc_lake.decode.gaussdb.records import Operation, Row, Style
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import (
    BronzeAhead,
    DuplicateMismatch,
    HistoryDiffers,
    NoPrimary,
    OtherSource,
    OtherTimeline,
    SeveralPrimaries,
    StandbyNeeded,
)
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import Csn, Lsn, OrderDomain, Span
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.check.gaussdb import failover_lines
from cdc_lake.source.base import Kind, StreamIdentity
from cdc_lake.source.gaussdb.server import target_of
from cdc_lake.source.gaussdb.slot import GaussDbSlotFacts
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.gaussdb.dialect import Product
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.ports import free_port
from tests.bronze_replay import bronze_rows
from tests.live.test_receive_loop import once as run_once
from tests.unit.test_gaussdb_capture import BUDGET, NAME, TABLE, Way, fields, once, project_of, row

POLLING, BY_CSN = Way(Style.SERIAL, polling=True), Way(Style.BINARY, 1, by_csn=True)
WAYS = [Way(Style.BINARY, 1), Way(Style.JSON, 0), Way(Style.SERIAL), POLLING, BY_CSN]
if BUDGET > 1:
    WAYS += [Way(Style.BINARY, 0), Way(Style.TEXT, 0), Way(Style.TEXT, 1), Way(Style.BINARY, 1, "5.0.3")]
    WAYS += [Way(Style.BINARY, 1, csn_export=False)]


def insert(ledger: Ledger, number: int) -> LedgerTransaction:
    return ledger.commit([Row(Operation.INSERT, NAME, fields(row(number, None, "1")))])


def elsewhere(ledger: Ledger) -> LedgerTransaction:
    return ledger.commit([], database="elsewhere")


def inserted(project: Project) -> list[int]:
    return [int(one["new"][0]) for one in bronze_rows(project) if one["op"] == "I"]


def state_of(project: Project) -> StreamCheckpoint:
    state = bronze_reader(project).state()
    assert state is not None
    return state


class Cluster:
    """A primary that was read once, and standbys of it."""

    def __init__(self, root: Path, way: Way) -> None:
        self.root, self.way = root, way
        answers = ScriptedAnswers(tables=[TABLE])
        product: Product = "GaussDB" if way.by_csn else "openGauss"
        users = {"cdc": "x"}
        self.primary = GaussServer(Ledger(), version=way.version, product=product, answers=answers, users=users)
        self._servers = [self.primary]
        self._start(self.primary)
        once(self.project(self.primary))

    def standby(self) -> GaussServer:
        """A standby that received everything up to now, and no more."""
        standby = self.primary.standby()
        self._servers.append(standby)
        self._place(standby)
        return standby

    def take_over(self, standby: GaussServer, *, timeline: int | None = None) -> GaussServer:
        self.primary.stop()
        standby.promote(timeline=timeline)
        return self._start(standby)

    def project(self, *servers: GaussServer, **changes: Any) -> Project:
        project = project_of(servers[0], self.root, self.way)
        several: dict[str, Any] = {"host": None, "hosts": [f"{server.host}:{server.port}" for server in servers]}
        several["replication_port"] = None
        if len(servers) == 1 and not changes:
            return project
        source = project.pipeline.source.model_copy(update=several | changes)
        return Project(project.pipeline.model_copy(update={"source": source}), project.file, project.root)

    def _place(self, server: GaussServer) -> None:
        """Give a server two ports, the second behind the first: one setting is for all hosts."""
        if not server.port:
            port = free_port(server.host, 2)
            server._ports = [port, port + 1]

    def _start(self, server: GaussServer) -> GaussServer:
        self._place(server)
        server.state.batch_bytes, server.state.batch_seconds, server.state.keepalive_every = 3000, 0.05, 0.1
        server.state.csn_export = self.way.csn_export
        return server.start()

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    clusters: list[Cluster] = []

    def make(way: Way = WAYS[0]) -> Cluster:
        clusters.append(Cluster(tmp_path, way))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.stop()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_standby_whose_slot_is_behind_sends_again_what_bronze_has_and_the_stream_goes_on(made: Any, way: Way) -> None:
    cluster = made(way)
    ledger = cluster.primary.ledger
    for number in range(100, 105):
        insert(ledger, number)
    before = cluster.primary.state.slots.all()
    once(cluster.project(cluster.primary))
    elsewhere(ledger)
    standby = cluster.standby()  # it has everything, but its slot is where it was
    for slot, _ in before:
        standby.state.slots.drop(slot.name)
        standby.state.slots.create(slot)
    taken = cluster.take_over(standby)
    insert(taken.ledger, 200)
    summary = once(cluster.project(taken))
    assert inserted(cluster.project(taken)) == [100, 101, 102, 103, 104, 200]
    assert summary.repeats >= 5
    (slot, _), *_ = taken.state.slots.all()
    assert slot.confirmed > before[0][0].confirmed


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_transactions_that_the_new_primary_never_had_stop_the_run_and_are_listed(made: Any, way: Way) -> None:
    cluster = made(way)
    ledger = cluster.primary.ledger
    had = [insert(ledger, number) for number in (100, 101)]
    standby = cluster.standby()
    lost = [insert(ledger, number) for number in (102, 103)]
    project = cluster.project(cluster.primary)
    once(project)
    taken = cluster.take_over(standby)
    slot = taken.state.slots.all()[0][0]
    for number in range(200, 230):  # its log and its CSNs have grown past the lost ones
        insert(taken.ledger, number)
    for _ in range(2):  # nothing was confirmed by the first attempt
        with pytest.raises(BronzeAhead) as caught:
            once(cluster.project(taken))
        assert "the server does not have 2 transactions of bronze" in caught.value.message
        assert all(f"xid {one.xid}," in caught.value.message for one in lost)
        assert not any(f"xid {one.xid}," in caught.value.message for one in had)
    assert inserted(project) == [100, 101, 102, 103]
    assert taken.state.slots.all()[0][0] == slot


def test_a_new_primary_that_has_given_out_fewer_csns_than_bronze_is_noticed_on_a_quiet_server(made: Any) -> None:
    cluster = made()
    standby = cluster.standby()
    lost = insert(cluster.primary.ledger, 100)
    once(cluster.project(cluster.primary))
    taken = cluster.take_over(standby)
    taken.ledger.reach(cluster.primary.ledger.end_lsn)  # its log has grown, without a commit
    with pytest.raises(BronzeAhead, match=rf"next CSN is {lost.csn}: .* 1 transaction of bronze: {lost.csn} "):
        once(cluster.project(taken))


def test_a_log_that_ends_before_bronze_is_noticed_at_once(made: Any) -> None:
    cluster = made()
    standby = cluster.standby()
    insert(cluster.primary.ledger, 100)
    once(cluster.project(cluster.primary))
    with pytest.raises(BronzeAhead, match=r"bytes were lost there; the server does not have 1 transaction"):
        once(cluster.project(cluster.take_over(standby)))


def test_a_transaction_in_the_place_of_a_lost_empty_one_is_not_taken_for_a_repeat(made: Any) -> None:
    cluster = made()
    insert(cluster.primary.ledger, 100)
    once(cluster.project(cluster.primary))
    standby = cluster.standby()
    for _ in range(3):
        elsewhere(cluster.primary.ledger)  # bronze counts them and holds nothing of them
    once(cluster.project(cluster.primary))
    taken = cluster.take_over(standby)
    for number in range(200, 205):
        insert(taken.ledger, number)
    with pytest.raises(HistoryDiffers, match="that bronze does not contain"):
        once(cluster.project(taken))


@pytest.mark.parametrize("way", [WAYS[0], POLLING, BY_CSN], ids=str)
def test_a_repeat_with_other_content_stops_the_run(made: Any, way: Way) -> None:
    cluster = made(way)
    before = cluster.primary.state.slots.all()[0][0]
    insert(cluster.primary.ledger, 100)
    once(cluster.project(cluster.primary))
    standby = cluster.standby()
    standby.state.slots.drop(before.name)
    standby.state.slots.create(before)
    taken = cluster.take_over(standby)
    (at,) = [n for n in range(len(taken.ledger)) if taken.ledger[n].changes]
    other = replace(taken.ledger[at], changes=(Row(Operation.INSERT, NAME, fields(row(100, "another", "1"))),))
    taken.ledger._transactions[at] = other
    insert(taken.ledger, 200)
    with pytest.raises(DuplicateMismatch, match="with other content"):
        once(cluster.project(taken))


@pytest.mark.parametrize("way", [WAYS[0], POLLING], ids=str)
def test_what_is_asked_for_again_is_bounded(made: Any, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "AGAIN", 3)
    cluster = made(way)
    before = cluster.primary.state.slots.all()[0][0]
    for number in range(100, 120):
        insert(cluster.primary.ledger, number)
    once(cluster.project(cluster.primary))
    standby = cluster.standby()
    standby.state.slots.drop(before.name)
    standby.state.slots.create(before)
    taken = cluster.take_over(standby)
    insert(taken.ledger, 200)
    assert once(cluster.project(taken)).repeats == 3
    assert inserted(cluster.project(taken)) == [*range(100, 120), 200]


def test_polling_looks_at_more_than_one_answer_holds_before_it_confirms(made: Any) -> None:
    cluster = made(POLLING)
    before = cluster.primary.state.slots.all()[0][0]
    for number in range(100, 160):  # three lines each, and 50 changes an answer
        insert(cluster.primary.ledger, number)
    once(cluster.project(cluster.primary))
    lacking = cluster.primary.standby()
    cluster._servers.append(lacking)
    lacking.state.slots.drop(before.name)
    lacking.state.slots.create(before)
    taken = cluster.take_over(lacking)
    elsewhere(taken.ledger)  # nothing of ours follows: that all was sent is known by the log's end
    summary = once(cluster.project(taken))
    assert summary.repeats == 60
    assert taken.state.slots.all()[0][0].confirmed > before.confirmed
    insert(taken.ledger, 200)
    assert once(cluster.project(taken)).transactions == 1
    assert inserted(cluster.project(taken)) == [*range(100, 160), 200]


def test_in_csn_order_one_of_several_logs_may_have_lost_what_others_did_not() -> None:
    stream = str(StreamIdentity("s", "d", "slot", Lsn(1), csn=Csn(10), kind=Kind.GAUSS))
    state = StreamCheckpoint(stream, 1, 200, 200, b"")
    held = [CommitRow(1, csn, None, 7000 + csn, {}, 0, b"", b"", commit_lsn=5000 - csn) for csn in range(11, 201)]
    shown = FailoverReplay(state, held, confirmed=10, exact=True, by_csn=True)
    for csn in range(11, 201):
        if csn not in (20, 21):  # long before the last ones
            shown.compare(Boundaries(csn, csn, 5000 - csn, csn=csn, xid=7000 + csn), 1)
    assert shown.is_beyond(Boundaries(201, 201, 1, csn=201))
    with pytest.raises(
        BronzeAhead, match=r"does not have 2 transactions of bronze: 20 \(xid 7020, .*\), 21 \(xid 7021, "
    ):
        shown.finish()
    assert not shown.agreed


def test_the_primary_is_found_among_several_and_an_older_timeline_is_refused(made: Any) -> None:
    cluster = made()
    insert(cluster.primary.ledger, 100)
    once(cluster.project(cluster.primary))
    standby, other = cluster.standby(), cluster.standby()
    cluster._start(other)  # another standby, which answers
    old = cluster.primary
    taken = cluster.take_over(standby, timeline=2)  # some product's servers may count
    insert(taken.ledger, 200)
    told: list[ProgressEvent] = []
    project = cluster.project(old, other, taken)
    run_once(project, told.append)
    assert inserted(project) == [100, 200]
    assert any("now on timeline 2, before that on 1" in progress.text for progress in told)
    assert {row["timeline"] for row in ControlTables(project.control).read("timelines").to_pylist()} == {1, 2}
    cluster._start(old)
    with pytest.raises(OtherTimeline, match="on timeline 1, but bronze was already read on timeline 2"):
        once(cluster.project(old))
    with pytest.raises(NoPrimary, match="the server is a standby"):
        once(cluster.project(other))
    assert len(bronze_reader(project).commits(Span(1, 0, state_of(project).upto))) == 2


def test_of_two_primaries_none_is_read_and_both_are_named(made: Any) -> None:
    cluster = made()
    standby = cluster.standby()
    standby.promote()
    cluster._start(standby)
    old, new = cluster.primary, standby
    for hosts in ((old, new), (new, old)):
        with pytest.raises(
            SeveralPrimaries, match=f":{hosts[0].port}/postgres and .*:{hosts[1].port}/postgres are all primaries"
        ):
            once(cluster.project(*hosts))
    old.stop()
    insert(new.ledger, 100)
    once(cluster.project(old, new))
    assert inserted(cluster.project(new)) == [100]


def test_two_names_of_one_server_are_one_primary_and_coordinators_are_alike(made: Any) -> None:
    cluster = made()
    insert(cluster.primary.ledger, 100)
    port = cluster.primary.port
    project = cluster.project(cluster.primary, hosts=[f"127.0.0.1:{port}", f"localhost:{port}"])
    once(project)
    assert inserted(project) == [100]
    another = cluster.primary.standby()
    cluster._servers.append(another)
    another.promote()
    cluster._start(another)
    target = target_of(cluster.project(cluster.primary, another).family, cluster.root)
    connect(replace(target, alike=True)).close()


def test_a_standby_decodes_where_that_is_asked_for_and_everything_else_is_the_primarys(made: Any) -> None:
    cluster = made()
    standby = cluster.primary.standby(following=True)
    cluster._servers.append(standby)
    decoding = {**cluster.way.decoding, "standby-connection": True}
    cluster._place(standby)
    project = cluster.project(cluster.primary, standby, decoding=decoding)
    insert(cluster.primary.ledger, 100)
    with pytest.raises(StandbyNeeded, match="no standby found among 2 hosts"):
        once(project)
    cluster._start(standby)
    once(project)
    assert inserted(project) == [100]


def test_a_stream_in_csn_order_is_not_gone_on_with_by_what_leaves_csns_out(made: Any) -> None:
    cluster = made()
    for changes in ({"decoding": {"parallel-decode-num": 1}}, {"mode": "polling", "decoding": {}}):
        with pytest.raises(OtherSource, match="started in order csn"):
            once(cluster.project(cluster.primary, **changes))


def failover_said(project: Project, slot: GaussDbSlotFacts | None = None, *, logged: bool = True) -> list[str]:
    settings: Any = SimpleNamespace(slots_logged=logged)
    return [line.text for line in failover_lines(project, settings, slot) if line.ok is None]


def test_check_says_what_a_failover_would_leave_in_doubt(made: Any) -> None:
    cluster = made(BY_CSN)
    servers = [cluster.primary, cluster.standby()]
    (text,) = failover_said(cluster.project(*servers))
    assert "relies on a standby never having it ahead of its WAL" in text
    assert failover_said(cluster.project(cluster.primary), logged=False) == []  # one server, no failover
    cluster.way = WAYS[0]
    assert failover_said(cluster.project(*servers)) == []
    assert len(failover_said(cluster.project(*servers), logged=False)) == 1


@pytest.mark.parametrize(("way", "said"), [(POLLING, "lost changes are not"), (WAYS[0], "only differing changes are")])
def test_check_says_so_too_of_a_release_that_hides_what_a_slot_confirmed(made: Any, way: Way, said: str) -> None:
    cluster = made(way)
    slot = GaussDbSlotFacts("s", "logical", "p", "d", False, Lsn(1), 1, OrderDomain.LSN, exact=False)
    (text,) = failover_said(cluster.project(cluster.primary, cluster.standby()), slot)
    assert said in text


STREAM = StreamIdentity("7", "db", "slot", Lsn(10), Csn(2021), Kind.GAUSS)
STATE = StreamCheckpoint(str(STREAM), 1, upto=2027, confirm=100, head=b"")
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def transaction(csn: int, lsn: int) -> BufferedTransaction:
    bounds = Boundaries(position=csn, confirm=lsn, commit_lsn=lsn, csn=csn, xid=csn)
    return BufferedTransaction(bounds, [b"x"], [lsn], [None], {}, 1)


def landed(csn: int, lsn: int) -> CommitRow:
    return CommitRow(1, csn, TIME, csn, {"public.t": {"I": 1}}, 1, b"", b"", commit_lsn=lsn)


class Quiet:
    """Frames of a server that has sent all and says so."""

    reply_requested = False
    keepalive_end = 1000

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        del timeout
        return []

    def confirm(self, position: int) -> None: ...

    def tick(self, *, ping: bool = False) -> None: ...

    def close(self) -> None: ...


def test_what_came_between_goes_on_where_a_keepalive_says_that_all_was_sent_again():
    rejoin = FailoverReplay(STATE, [landed(2026, 110), landed(2027, 140)], confirmed=100, exact=False)
    order = FailoverOrdering(CsnOrdering(2027, 100, bound=60.0, policy="stop", clock=lambda: 0.0), rejoin, STATE)
    frames = FailoverFrames(Quiet(), rejoin)
    for again, lsn in ((2026, 110), (2028, 120), (2029, 130), (2027, 140)):
        assert order.add(transaction(again, lsn)) == ()
    assert order.waiting == 2
    assert frames.poll(0.1) == []
    assert rejoin.agreed
    closed = [*order.expire_gaps(), *order.add(transaction(2030, 150))]
    assert [one.transaction.bounds.csn for one in closed if one.transaction is not None] == [2028, 2029, 2030]
    assert order.waiting == 0


@pytest.mark.parametrize("by_csn", [False, True])
def test_only_what_was_asked_for_again_is_held_against_bronze(by_csn: bool):
    before, last = 2021 + 72, 2021 + 72 + 2 * AGAIN
    missing = last - 5
    state = replace(STATE, upto=last, confirm=10 * last)
    held = [landed(csn, 10 * csn) for csn in range(before + 1, last + 1) if csn != missing]
    confirmed = before if by_csn else 10 * 2021
    rejoin = FailoverReplay(state, held, confirmed=confirmed, exact=False, by_csn=by_csn)
    order = FailoverOrdering(CsnOrdering(last, 10 * last, bound=60.0, policy="stop", clock=lambda: 0.0), rejoin, state)
    for again in range(2022, missing):
        assert order.add(transaction(again, 10 * again)) == ()
    assert order.repeats == missing - 2022
    with pytest.raises(HistoryDiffers, match="that bronze does not contain"):
        order.add(transaction(missing, 10 * missing))
