"""Large rows: while one is landed there are no more copies of it than the memory that belongs to it has room for."""

from __future__ import annotations

import base64
import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from cdc_lake.bronze.contract import InParts, Tabulate, TransactionBatch
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import columnar as rows_columnar
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.test_decoding import LineAssembler
from cdc_lake.model.change import Insert
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake_testing import messages
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, encode_payload
from cdc_lake_testing.memory import peak_mib
from tests.unit.test_receive_large_transactions import bronze

ROW = 40 << 20
"""Bytes of a row. The system gets back at once what it has given for more than 32 MiB (glibc, mallopt(3))."""
ROWS = 2
MOST = 4.5
"""Copies: its bytes as they came and its value, or the value and what makes a page of Parquet of it."""
TABLE = messages.table("public.a", id="int8", note="text")


Notes: TypeAlias = Callable[[], Iterator[str]]


def notes() -> Iterator[str]:
    """Texts that do not compress, each with a letter for which Python takes four bytes a letter."""
    for _ in range(ROWS):
        yield base64.b64encode(os.urandom(ROW * 3 // 4)).decode() + "😀"


def documents() -> Iterator[str]:
    """JSON, of which text doubles some letters and JSON escapes a third."""
    some = json.dumps([{"id": 1, "name": "it's", "tags": ["a", "b"], "note": '"quoted"\n'}] * 1000, ensure_ascii=False)
    for _ in range(ROWS):
        yield "".join(["😀", some * (ROW // len(some))])


def by_pgoutput(spool: Spool, notes: Notes) -> tuple[InParts, Tabulate]:
    assembler = Assembler(messages.catalog_of(TABLE), frames=spool)
    assembler.feed(messages.begin(900), 1)
    assembler.feed(messages.relation(TABLE), 1)
    for nth, note in enumerate(notes()):
        assembler.feed(messages.encode_change(Insert(TABLE, (str(nth), note))), 10 + nth)
    (done,) = assembler.feed(messages.commit(900, 1000), 1000)
    assert isinstance(done, InParts)
    return done, tabulate


def in_records(style: Style, assembler: GaussDbAssembler | LineAssembler, how: Print, notes: Notes) -> InParts:
    framing = Framing(batch=style is not Style.SERIAL, ending=Ending.SIZE)

    def feed(record: Begin | Row | Commit) -> tuple[object, ...]:
        return tuple(assembler.feed(encode_payload([record], how, framing), 900))

    feed(Begin(lsn=1, csn=51, first_lsn=100, xid=1))
    for nth, note in enumerate(notes()):
        new = (Field("id", str(nth), "bigint", 20), Field("note", note, "text", 25))
        feed(Row(Operation.INSERT, TableName("public", "a"), new, lsn=10 + nth))
    (done,) = feed(Commit(lsn=900, xid=1, csn=None if style is Style.SERIAL else 51))
    assert isinstance(done, InParts)
    return done


def facts(_: TableName) -> GaussDbTableMetadata:
    columns = GaussDbColumn("id", "int8", 20, -1, "bigint"), GaussDbColumn("note", "text", 25, -1, "text")
    return GaussDbTableMetadata(columns, ("id",), identity_columns=("id",))


def by_style_b(spool: Spool, notes: Notes) -> tuple[InParts, Tabulate]:
    return of_the_family(spool, Style.BINARY, notes)


def by_style_t(spool: Spool, notes: Notes) -> tuple[InParts, Tabulate]:
    return of_the_family(spool, Style.TEXT, notes)


def by_style_j(spool: Spool, notes: Notes) -> tuple[InParts, Tabulate]:
    return of_the_family(spool, Style.JSON, notes)


def of_the_family(spool: Spool, style: Style, notes: Notes) -> tuple[InParts, Tabulate]:
    assembler = GaussDbAssembler(style, batch=True, domain=OrderDomain.CSN, frames=spool)
    return in_records(style, assembler, Print(style), notes), in_layouts()


def by_test_decoding(spool: Spool, notes: Notes) -> tuple[InParts, Tabulate]:
    assembler = LineAssembler(Codec(), lambda _: True, frames=spool)
    return in_records(Style.SERIAL, assembler, Print(Style.SERIAL, plugin="test_decoding"), notes), in_layouts()


def in_layouts() -> Tabulate:
    layouts = RelationResolver(facts)
    return lambda batch: rows_columnar.tabulate(batch, layouts)


WAYS = [(by_pgoutput, notes), (by_style_b, notes), (by_test_decoding, notes), (by_style_j, documents)]
if int(os.environ.get("CDC_LAKE_BUDGET", "1")) > 1:
    WAYS += [(by_style_j, notes), (by_style_t, notes), (by_style_t, documents), (by_test_decoding, documents)]


@pytest.mark.parametrize(("received", "given"), WAYS)
def test_a_large_row_is_landed_in_few_copies(
    tmp_path: Path, received: Callable[..., tuple[InParts, Tabulate]], given: Notes
) -> None:
    with Spool(tmp_path / "spool", 1 << 30, 8 << 20) as spool:
        large, columns = received(spool, given)
        writer = bronze(tmp_path, "b")
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the most so far is what there is now: proc(5)
        before = peak_mib()
        landed = writer.append(TransactionBatch([large], large.bounds.position, large.bounds.confirm), columns)
        copies = (peak_mib() - before) * (1 << 20) * ROWS / max(large.size, ROWS * ROW)
    print(f"{copies:.1f} times the row")
    assert landed.changes == ROWS
    if given is notes:
        assert landed.bytes_written > ROWS * ROW / 2
    assert copies < MOST
