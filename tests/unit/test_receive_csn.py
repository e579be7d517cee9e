"""The receive loop in the csn domain, on a stream that openGauss 6.0.2 sent under 14 writers (`transfers`).

Bronze is then in CSN order, each transaction once, and at every CSN of a snapshot that was taken meanwhile exactly that
snapshot: the loop, the order, the assembler, the decoder and bronze are the real ones, only the wire is a file.
"""

from __future__ import annotations

import json
import lzma
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cdc_lake.bronze.contract import BronzeWriter
from cdc_lake.bronze.hash_chain import ChainVerdict
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering, recorded_gaps
from cdc_lake.control.streams import begin_stream
from cdc_lake.control.table_pauses import read_epoch_facts
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.devtools.recording import Data, RecordingReader
from cdc_lake.errors import CsnMissing, LateTransaction, ServerUnreachable
from cdc_lake.model.position import Csn, Lsn, OrderDomain, Span
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.runtime.receive import receiver as loop
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.runtime.receive.stream_setup import OpenStream
from cdc_lake.source.base import Kind, StreamIdentity
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.recordings import RecordingSource
from tests.pipeline_file import make_project

TRANSFERS = Path(__file__).resolve().parents[1] / "data" / "opengauss" / "6.0.2" / "transfers"
FIRST, LAST = 2681328, 2708050  # CSNs of the stream
TABLES = ("tr_a", "tr_b")
FACTS = GaussDbTableMetadata(
    (GaussDbColumn("id", "int4", 23), GaussDbColumn("balance", "int8", 20), GaussDbColumn("note", "text", 25)),
    primary_key=("id",),
    identity_columns=("id",),
)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("transfers") / "stream.bin"
    path.write_bytes(lzma.decompress((TRANSFERS / "stream.bin.xz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def beginning(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its first message up to the last COMMIT in it, some 3,000 transactions."""
    path: Path = tmp_path_factory.mktemp("transfers") / "beginning.bin"
    with RecordingReader.open(recording) as entries:
        payload = next(e.payload for e in entries if isinstance(e, Data))
    at = end = 0
    while at < len(payload):
        length = int.from_bytes(payload[at : at + 4], "big")
        commit = payload[at + 12 : at + 13] == b"C"  # behind the length and the LSN
        at += 4 + length + 1  # and the letter that ends it
        end = at if commit else end
    body = b"w" + bytes(24) + payload[: end - 1] + b"F"
    path.write_bytes(len(body).to_bytes(4, "big") + body)
    return path


def last_csn(recording: Path) -> int:
    assembler = GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN)
    with RecordingReader.open(recording) as entries:
        done = [t.bounds.position for e in entries if isinstance(e, Data) for t in assembler.feed(e.payload, e.lsn)]
    return max(done)


@cache
def snapshots() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lzma.decompress((TRANSFERS / "snapshots.json.xz").read_bytes()))[
        "snapshots"
    ]
    return found


class Family:
    """Opens the recording as a connection to the server would be opened, as often as the loop asks."""

    def __init__(self, recording: Path, monkeypatch: pytest.MonkeyPatch, *, policy: str = "stop") -> None:
        self.policy = policy
        self.cuts: list[int] = []  # messages until the connection breaks, a number a connection
        self.lost: set[int] = set()
        self.goal = last_csn(recording)
        self.opened = 0
        self._recording = recording
        self.confirmed: list[int] = []
        monkeypatch.setattr(loop, "open_stream", self.open)

    @contextmanager
    def open(
        self,
        project: Project,
        bronze: BronzeWriter,
        control: ControlTables,
        *_: object,
        patience: float,
        first: bool,
        **_named: object,
    ) -> Iterator[OpenStream]:
        del patience, first
        self.opened += 1
        state = bronze.state()
        if state is None:
            identity = StreamIdentity("1", "og_pg", "s", Lsn(1), Csn(FIRST - 1), Kind.GAUSS)
            state = begin_stream(identity, identity.point.value, bronze, control, dense=True)
        order = CsnOrdering(
            state.upto,
            state.confirm,
            bound=0.3,
            policy=self.policy,  # type: ignore[arg-type]
            clock=time.monotonic,
            empty=state.empty,
            recorded=recorded_gaps(control, BronzeReader(project.bronze), state),
        )
        source = Breaking(self._recording, self.cuts.pop(0) if self.cuts else None, self.confirmed)
        layouts = RelationResolver(lambda _: FACTS)
        assembler = Lossy(self.lost, Style.BINARY, batch=True, domain=OrderDomain.CSN)
        columns = partial(tabulate, layouts=layouts)
        with closing(source):
            yield OpenStream(source, assembler, order, columns, columns, OrderDomain.CSN, state, self.goal, 0)


class Breaking(RecordingSource):
    """A recording on a connection that breaks after so many messages."""

    def __init__(self, path: Path, cut: int | None, confirmed: list[int]) -> None:
        super().__init__(path)
        self._cut = cut
        self._seen = 0
        self._confirmed = confirmed

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        frames = super().poll(timeout)
        self._seen += len(frames)
        if self._cut is not None and self._seen > self._cut:
            raise ServerUnreachable("the connection broke off")
        return frames

    def confirm(self, position: int) -> None:
        super().confirm(position)
        self._confirmed.append(position)


class Lossy(GaussDbAssembler):
    """Forgets transactions, as a server does that loses them."""

    def __init__(self, lost: set[int], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lost = lost

    def feed(self, payload: bytes, header_lsn: int) -> list[RecordTransaction]:
        return [t for t in super().feed(payload, header_lsn) if t.bounds.csn not in self._lost]


def project_of(root: Path, **batch: Any) -> Project:
    return make_project(root, "transfers", bronze={"durability": "os", "batch": batch})


def receive(project: Project, tell: Any = silent) -> ReceiveSummary:
    bronze = DeltaBronze(project.bronze, "os")
    return loop.receive(project, bronze, once=True, stop=threading.Event(), report=tell, pauses=(0.01, 0.01))


def states(project: Project) -> Iterator[tuple[int, dict[str, list[list[str | None]]]]]:
    """The rows of both tables, as bronze has them, at each snapshot's CSN."""
    # what stood in the tables before the stream: 300 accounts of 1000 each
    rows: dict[str, dict[str, list[str | None]]] = {
        n: {str(k): [str(k), "1000", "n"] for k in range(1, 301)} for n in TABLES
    }
    wanted = sorted(s["csn"] for s in snapshots())
    for position, changes in BronzeReader(project.bronze).transactions(Span(1, -1, LAST)):
        while wanted and position >= wanted[0]:
            yield (
                wanted.pop(0),
                {name: sorted(rows[name].values(), key=lambda row: int(row[0] or 0)) for name in TABLES},
            )
        for one in changes:
            table = rows.get(one["relation"].removeprefix("public.")) if one["relation"] else None
            if table is None:
                continue
            if one["op"] == "D":
                del table[one["old"][0]]
            else:
                assert one["op"] == "I" or one["new"][0] == one["old"][0]
                table[one["new"][0]] = one["new"]


def check(project: Project, last: int, *, lost: int = 0) -> None:
    state = BronzeReader(project.bronze).state()
    assert state is not None
    commits = BronzeReader(project.bronze).commits(Span(1, -1, LAST))
    positions = [commit.position for commit in commits]
    assert positions == sorted(set(positions))
    infos = [
        rows[-1]["info"]
        for _, rows in BronzeReader(project.bronze).transactions(Span(1, -1, LAST), ["position", "info"])
    ]
    counted = sum(json.loads(info)["empty_before"] for info in infos)
    assert len(positions) + counted + state.empty + lost == last - FIRST + 1, "every CSN is accounted for"
    assert state.upto == last
    verdict = verified(project)
    assert verdict.holds, verdict.reason
    assert (verdict.transactions, verdict.empty, verdict.passed_over) == (len(positions), counted, lost)


def verified(project: Project) -> ChainVerdict:
    """The chain, and every CSN accounted for."""
    reader, control = BronzeReader(project.bronze), ControlTables(project.control)
    return verify(reader, load_epoch_facts=lambda: read_epoch_facts(project, reader, control))


def test_bronze_is_each_snapshot_at_its_csn(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family(recording, monkeypatch)
    project = project_of(tmp_path)
    summary = receive(project)
    check(project, LAST)
    expected = {s["csn"]: {name: s[name] for name in TABLES} for s in snapshots()}
    found = dict(states(project))
    assert found.keys() == expected.keys()
    for csn, tables in found.items():
        assert tables == expected[csn], csn
    assert summary.upto == LAST
    assert family.confirmed == sorted(family.confirmed)
    assert summary.confirm == family.confirmed[-1] == 1367110215


def test_connections_that_break_lose_and_repeat_nothing(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family(recording, monkeypatch)
    family.cuts = [1, 6]
    project = project_of(tmp_path, max_transactions=2000)
    summary = receive(project)
    assert family.opened == 3
    assert summary.reconnects == 2
    check(project, LAST)
    expected = {s["csn"]: {name: s[name] for name in TABLES} for s in snapshots()}
    assert dict(states(project)) == expected


def test_a_run_with_an_end_gives_a_source_up_that_drops_each_stream(
    beginning: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ONCE_PATIENCE", 0.5)
    family = Family(beginning, monkeypatch)
    family.cuts = [0] * 100
    with pytest.raises(ServerUnreachable, match="the connection broke off"):
        receive(project_of(tmp_path))
    assert 3 < family.opened < 20


def test_a_transaction_that_the_server_lost_is_named_and_nothing_above_it_is_landed(
    beginning: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family(beginning, monkeypatch)
    family.lost = {FIRST + 2000, FIRST + 2001}
    project = project_of(tmp_path)
    with pytest.raises(CsnMissing, match=f"CSNs {FIRST + 2000} to {FIRST + 2001} did not arrive"):
        receive(project)
    state = BronzeReader(project.bronze).state()
    assert state is not None
    assert state.upto <= FIRST + 1999
    family.lost.clear()
    receive(project)
    check(project, family.goal)


def test_a_recorded_gap_is_in_the_control_tables_and_its_late_transaction_in_a_file(
    beginning: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family(beginning, monkeypatch, policy="record")
    gone = FIRST + 2000
    family.lost = {gone, gone + 7}
    told: list[ProgressEvent] = []
    project = project_of(tmp_path)
    receive(project, told.append)
    check(project, family.goal, lost=2)
    control = ControlTables(project.control)
    kept_gaps = control.read("gaps")
    control.delete("gaps", pc.field("first") == gone)
    assert verified(project).reason.startswith("0 empty transactions and 0 recorded as missing do not account for")
    control.append("gaps", kept_gaps.filter(pc.field("first") == gone))
    assert [(row["first"], row["last"]) for row in control.read("gaps").sort_by("first").to_pylist()] == [
        (gone, gone),
        (gone + 7, gone + 7),
    ]
    assert any(f"missing CSN {gone} recorded as a gap" in progress.text for progress in told)
    family.lost.clear()  # now they come after all
    family.goal += 1
    with pytest.raises(LateTransaction, match=str(gone)) as late:
        receive(project)
    kept = Path(late.value.where)
    assert kept.name == f"1-{gone}.parquet"
    rows = pq.read_table(kept).to_pylist()
    assert {"B", "C"} < {row["op"] for row in rows}
    assert {row["position"] for row in rows} == {gone}
