"""Text and JSON by the column: recorded streams, and what is left to the plain decoder."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.columnar_reader import FallBackToRowDecoder
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import columnar, literal_columnar
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.literal_columnar import Statements
from cdc_lake.decode.gaussdb.records import Operation, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.text_columnar import text_groups
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import Print, statement
from tests.decoded_columns import assert_same_outcome, outcome

DATA = Path(__file__).parents[1] / "data" / "opengauss"
TABLES = frozenset({TableName("My Schema", 'Tab.le "x"')})
FACTS = GaussDbTableMetadata(())


def streams() -> Iterator[tuple[str, str, Style, bool]]:
    for version in ("6.0.2", "5.0.3", "3.0.0"):
        with tarfile.open(DATA / version / "streams.tar.xz") as tar:
            for name in sorted(tar.getnames()):
                parts = name.removesuffix(".bin").split("_")
                if "og" not in parts:
                    continue
                if "ser" in parts or "decoding" in parts:
                    yield version, name, Style.SERIAL, False
                elif "b" not in parts:
                    yield version, name, Style.TEXT if "t" in parts else Style.JSON, "batch1" in parts


def recorded(version: str, name: str, style: Style, batch: bool) -> list[RecordTransaction]:
    with tarfile.open(DATA / version / "streams.tar.xz") as tar:
        stream = tar.extractfile(name).read()
    assembler = GaussDbAssembler(style, batch=batch, domain=OrderDomain.LSN)
    at, found = 0, []
    while at < len(stream):
        (size,) = struct.unpack_from(">I", stream, at)
        body, at = stream[at + 4 : at + 4 + size], at + 4 + size
        if body[:1] == b"w":
            found += assembler.feed(body[25:], struct.unpack_from(">Q", body, 1)[0])
    return found


def decoded(make, batch, layouts):
    return outcome(lambda: make(batch, layouts))


@pytest.mark.parametrize(("version", "name", "style", "batch"), list(streams()))
def test_recorded_streams_are_the_same_plain_and_by_the_column(version, name, style, batch, monkeypatch):
    monkeypatch.setattr(columnar, "SMALL", 1)
    monkeypatch.setattr(literal_columnar, "_SOME", 1 << 30)
    walked = []
    monkeypatch.setattr(columnar, "text_groups", lambda *given: walked.append(1) or text_groups(*given))
    transactions = recorded(version, name, style, batch)
    plain, fast = (RelationResolver(lambda _: FACTS, tables=TABLES) for _ in range(2))
    for at in range(0, len(transactions), 100):
        part = transactions[at : at + 100]
        assert_same_outcome(decoded(tabulate, part, fast), decoded(tabulate_plain, part, plain))
    assert walked


REGULAR = [b"table public t INSERT: a[integer]:1 b[text]:'x'", b"table public t INSERT: a[integer]:-2.50 b[text]:null"]


@pytest.mark.parametrize(
    "statement",
    [
        b"table public t INSERT: a[integer]:1 b[text]:unchanged-toast-datux",
        b"table public t INSERT: a[integer]:1 b[text]:'x",
        b"table public t INSERT: a[integer]:1 b[text]:''x'",
        b"table public t INSERT: a[integer]:1 b[text]:",
        b"table public t INSERT: a[integer]:one b[text]:'x'",
        b"table public t INSERT: a[integer]:1 b[text]:B'2'",
        b"table public t INSERT: a[integer]:1",
        b"table public t INSERT: a[integer]:1 \"b'\"[text]:'x'",
        b"BEGIN 5",
        b"",
    ],
)
def test_statements_that_are_not_regular_are_left_to_the_plain_decoder(statement, monkeypatch):
    chunk, groups = text_groups(Statements([REGULAR]), Style.TEXT, Codec())
    assert [bytes(chunk.bytes[at:end]) for at, end in groups[0].new.slots.reshape(-1, 2)] == [b"1", b"x", b"-2.50", b""]
    assert groups[0].new.null.tolist() == [[False, False], [False, True]]
    monkeypatch.setattr(literal_columnar, "_SOME", 0)
    monkeypatch.setattr(literal_columnar, "_FEW", 3)
    for statements in ([*REGULAR, statement], [statement, *REGULAR]):
        with pytest.raises(FallBackToRowDecoder):
            text_groups(Statements([statements]), Style.TEXT, Codec())


@pytest.mark.parametrize(
    "how", [Print(Style.TEXT), Print(Style.JSON), Print(Style.SERIAL), Print(Style.SERIAL, plugin="test_decoding")]
)
def test_deletes_that_bring_no_values_are_rows_too(how):
    """Of a table without replica identity: nothing but these may stand in a chunk."""
    gone = Row(Operation.DELETE, TableName("public", "a 'table'"))
    records = [statement(gone, how)] * 2 * columnar.SMALL
    raw = RecordTransaction(Boundaries(1, 1), how.style, records, [1] * len(records), sum(map(len, records)))
    tables = frozenset({gone.table})
    plain, fast = (
        decoded(make, [raw], RelationResolver(lambda _: FACTS, tables=tables)) for make in (tabulate_plain, tabulate)
    )
    assert isinstance(plain, ChangeColumns)
    assert_same_outcome(fast, plain)


def test_other_encodings_and_styles_are_left_to_the_plain_decoder():
    for style, codec in ((Style.TEXT, Codec("GBK")), (Style.JSON, Codec())):
        with pytest.raises(FallBackToRowDecoder):
            text_groups(Statements([REGULAR]), style, codec)
