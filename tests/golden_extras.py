"""What stands beside the small lake: a pipeline before its first run, one that waits for what it cannot decode, one
with prepared transactions, the lake of an older version, a project for Databricks, a recording.
"""

from __future__ import annotations

import dataclasses
import struct
import tarfile
from pathlib import Path

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.cli.project_template import scaffold
from cdc_lake.config.loader import load_project
from cdc_lake.connectors.prepared_transactions import PreparedTransactions, prepared_files
from cdc_lake.connectors.spool import Spool
from cdc_lake.control.cuts import PinnedCut, WrittenCut, record
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.undecodable import PgoutputFormat, StoreUndecodable
from cdc_lake.devtools.recording import RecordingHeader, RecordingWriter
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.relation import TableName
from cdc_lake.tables.control_schema import PauseRow, StreamRow
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import boundaries, catalog_of, encode_transaction, insert, raw_transaction, relation
from cdc_lake_testing.two_phase import begin_prepare, prepare, rollback_prepared
from tests.golden_lake import ITEMS, ORDERS, STREAM, T0, YAML
from tests.tarballs import unpack
from tests.unit.test_quarantine_retry import refusing

OLD = Path(__file__).parent / "data" / "lake_0_2_0.tar.xz"
OLD_YAML = """\
version: 1
pipeline: old_delta
source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}
"""


def beside(root: Path) -> None:
    """Make all of it in the project of the golden lake."""
    (root / "early.yaml").write_text(YAML.replace("pipeline: shop", "pipeline: early"))
    _stuck(root / "stuck.yaml")
    _named(root / "named.yaml")
    _phased(root / "phased.yaml")
    scaffold("databricks", root / "jobs")
    _odd(root / "odd.yaml")
    _recording(root / "shop.rec")
    with tarfile.open(OLD) as archive:
        unpack(archive, root / "old")
    (root / "old" / "old.yaml").write_text(OLD_YAML)


def _named(file: Path) -> None:
    """A pipeline with a metastore, and a pinned cut."""
    file.write_text(
        YAML.replace("pipeline: shop", "pipeline: named") + "lake: {delta: {metastore: 'thrift://h:9083'}}\n"
    )
    control = ControlTables(load_project(file).control, durability="os")
    pinned = WrittenCut(1, STREAM, 2000, T0, T0, {})
    record(control, PinnedCut("month_end", scheduled=False, cut=pinned, until=None), T0)


def _stuck(file: Path) -> None:
    """One transaction that a decoder with a fault could not read, and one that nobody can: its bytes end too early."""
    file.write_text(YAML.replace("pipeline: shop", "pipeline: stuck") + "bronze: {undecodable: land}\n")
    bronze = DeltaBronze(load_project(file).bronze, durability="os")
    bronze.begin_stream(STREAM, 1000)
    for position, note in ((2000, "plain"), (3000, "MARK"), (4000, "torn")):
        raw = raw_transaction(Transaction(boundaries(position), (Insert(ORDERS, ("7", "1", note)),)))
        if note == "torn":
            raw = dataclasses.replace(raw, frames=[raw.frames[0][:-2]])
        bronze.append([raw], StoreUndecodable(PgoutputFormat(refusing(tabulate))))


def _odd(file: Path) -> None:
    """Tables whose names would tell a terminal to clear itself, to take a title, to write backwards; a long one."""
    file.write_text(YAML.replace("pipeline: shop", "pipeline: odd"))
    project = load_project(file)
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream(STREAM, 1000)
    names = ("clears\x1b[2J\x1b[H", "titled\x1b]0;yours\x07", "two\nlines\tof it", "\u202edrawkcab", "long" * 15)
    for nth, name in enumerate(names, start=2):
        odd = dataclasses.replace(ORDERS, table=TableName("public", name))
        bronze.append([raw_transaction(Transaction(boundaries(1000 * nth), (Insert(odd, ("1", "10", "new")),)))])
    control = ControlTables(project.control, durability="os")
    control.record(StreamRow(1, STREAM, 1000, "odd", "7300000000000000001", "shop", "lsn", T0))
    for name in names[::2]:
        control.record(PauseRow(str(TableName("public", name)), True, T0))


def _phased(file: Path) -> None:
    """Two prepared transactions, one without changes, and one that ended."""
    decoding = "  decoding: {two_phase: true}\n"
    file.write_text(
        YAML.replace("pipeline: shop", "pipeline: phased").replace(
            "  type: postgres\n", f"  type: postgres\n{decoding}"
        )
    )
    project = load_project(file)
    state = DeltaBronze(project.bronze, durability="os").begin_stream(STREAM, 1000)
    with Spool(project.spool, 1 << 20, 1 << 20) as spool:
        parked = PreparedTransactions(
            prepared_files(project), spool, state, highest=lambda: None, changed=lambda *_: True
        )
        assembler = Assembler(catalog_of(ORDERS), prepared_storage=parked)
        said = [
            begin_prepare(7, "order 17", 2000),
            relation(ORDERS),
            insert(ORDERS, ("7", "1", "new")),
            prepare(7, "order 17", 2000),
        ]
        for payload in [
            *said,
            prepare(8, "it's \n", 2500),
            prepare(9, "over", 3000),
            rollback_prepared(9, "over", 3000, 3500),
        ]:
            assembler.feed(payload, 0)


def _recording(file: Path) -> None:
    changes = (
        (Insert(ORDERS, ("1", "10", "new")), Insert(ORDERS, ("2", "20", "new"))),
        (Insert(ITEMS, ("1", "pen")),),
        (),
    )
    with RecordingWriter(file, RecordingHeader("postgres", "pgoutput")) as writer:
        for number, some in enumerate(changes):
            for lsn, payload in encode_transaction(Transaction(boundaries(1000 * (number + 1)), some)):
                writer.append(struct.pack(">cQQq", b"w", lsn, lsn, 0) + payload)
