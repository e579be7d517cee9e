"""Inputs from what running servers sent, recorded in tests/data: some of each kind, none long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator

from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.position import OrderDomain
from tests.both_plugins import read, recorded
from tests.fuzz import kept
from tests.fuzz.target import of_records
from tests.unit.samples.recorded import Stream, stream

LONGEST = 900
OF_A_KIND = 2
RECORDS = {
    "mppdb_binary": ("og_a_par2_b_batch1", "spec_par_b"),
    "mppdb_text": ("og_a_par2_t_batch1", "toastvac_par_t"),
    "mppdb_json": ("og_a_par2_j_batch1", "ddlpub_par_j"),
    "mppdb_serial": ("og_a_ser_default", "toastvac_ser"),
}
PAYLOADS = {
    "ddlpub_par_b": 4,
    "ddlpub_par_tb1": 1 | 4,
    "og_a_par2_j_batch0": 2,
    "ddlpub_ser": 3,
    "og_a_par2_b_batch1_whitelist": 4,
}
"""Recorded streams, and the byte that says how they are read (`family.how_read`)."""


def some(found: Iterable[tuple[Hashable, bytes]]) -> list[bytes]:
    """A few of each kind."""
    by_kind: defaultdict[Hashable, list[bytes]] = defaultdict(list)
    for kind, data in found:
        if len(by_kind[kind]) < OF_A_KIND and len(data) <= LONGEST:
            by_kind[kind].append(data)
    return [one for several in by_kind.values() for one in several]


def rows_of(sent: Stream) -> Iterator[tuple[Hashable, bytes]]:
    one = GaussDbAssembler(sent.style, batch=sent.batch, domain=OrderDomain.LSN)
    for lsn, payload in sent.messages():
        for raw in one.feed(payload, lsn):
            for record in raw.records:
                yield kind_of(record, sent.style), bytes(record)


def kind_of(record: bytes, style: Style) -> Hashable:
    """Table and operation, as far as a few bytes tell."""
    if style is not Style.BINARY:
        return record.partition(b"[")[0][:70]
    schema = int.from_bytes(record[1:3], "big")
    table = int.from_bytes(record[3 + schema : 5 + schema], "big")
    return record[: 6 + schema + table]


def pieces(messages: list[tuple[int, bytes]], told: int, size: int = 12) -> Iterator[tuple[Hashable, bytes]]:
    """Consecutive messages as one input each."""
    for at in range(0, min(len(messages), 40 * size), size):
        yield at, bytes([told]) + of_records([payload for _, payload in messages[at : at + size]])


def write() -> None:
    """Add them to what is kept."""
    for name, streams in RECORDS.items():
        found = [one for known in streams for one in some(rows_of(stream("6.0.2", known)))]
        print(name, len(kept.write(name, [*kept.read(name), *found])))
    payloads = [
        one for name, told in PAYLOADS.items() for one in some(pieces(stream("6.0.2", name).messages(), told, 6))
    ]
    print("mppdb_stream", len(kept.write("mppdb_stream", [*kept.read("mppdb_stream"), *payloads[:40]])))
    lines, messages = [], []
    for file in recorded():
        sent = read(file)
        lines += some(pieces(sent.lines, 0))
        messages += some(pieces(sent.messages, 0))
        kept.write(
            "test_decoding",
            [
                *kept.read("test_decoding"),
                *some((d.partition(b"[")[0][:60], d) for _, d in sent.lines if d[:6] == b"table "),
            ],
        )
    print("line_stream", len(kept.write("line_stream", [*kept.read("line_stream"), *lines[:40]])))
    print("pgoutput_stream", len(kept.write("pgoutput_stream", [*kept.read("pgoutput_stream"), *messages[:40]])))
