"""Text and JSON of the GaussDB family: the columnar decoder gives what the plain one gives, or the same error."""

from __future__ import annotations

import os
import random
import re
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from cdc_lake.decode import columnar_reader
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.gaussdb import columnar, literal_columnar, text_columnar
from cdc_lake.decode.gaussdb.batches import RecordTransaction, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.framing import Lsns, RecordRun, Rows
from cdc_lake.decode.gaussdb.literal_columnar import LARGE, Statements, are_plain
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style, Truncated
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.text import NUMBER
from cdc_lake.model.change import UNCHANGED, Boundaries
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import Print, statement
from tests.decoded_columns import assert_same_outcome, outcome
from tests.fuzz.mutation import mutants
from tests.seeds import one_seed

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEED = one_seed()


@pytest.fixture(autouse=True)
def _say_the_seed():
    print(f"CDC_LAKE_SEED={SEED}")  # pytest shows it where a test fails


PRINTS = {
    "text": Print(Style.TEXT),
    "json": Print(Style.JSON),
    "serial json": Print(Style.SERIAL),
    "serial text": Print(Style.SERIAL, plugin="test_decoding"),
}
TABLES = {
    TableName("public", "orders"): {
        "id": "bigint",
        "paid": "boolean",
        "flags": "bit varying",
        "n": "numeric",
        "note": "text",
    },
    TableName("public", "Wide one"): {f'c"{n}': "text" for n in range(7)},
    TableName("s", "t"): {"id": "integer"},
}
OIDS = {"bigint": 20, "boolean": 16, "bit varying": 1562, "numeric": 1700, "text": 25, "integer": 23}
NAMES = {
    "bigint": "int8",
    "boolean": "bool",
    "bit varying": "varbit",
    "numeric": "numeric",
    "text": "text",
    "integer": "int4",
}
TEXTS = (
    "",
    "x",
    "it's",
    "''",
    "a\\b",
    "\\",
    '"',
    "],",
    '","',
    " new-tuple: id[bigint]:1",
    "null",
    "true",
    "B'1'",
    "\n\t\x01",
)
TEXTS += ("中😀", "é" * 40, "x" * 300, " ", "unchanged-toast-datum", "B", "'", "\\x00ff")
NUMBERS = ("0", "7", "-1", ".5", "-.000001", "1e+100", "1.5E-7", "NaN", "Infinity", "-Infinity", "0.0")
NUMBERS += ("12345678", "123456789", "-1234567890123456", "123456789012345678901234.5", "9" * 60)


def facts(table: TableName) -> GaussDbTableMetadata | None:
    columns = TABLES.get(table)
    if columns is None:
        return None
    found = tuple(GaussDbColumn(name, NAMES[kind], OIDS[kind]) for name, kind in columns.items())
    return GaussDbTableMetadata(found, tuple(columns)[:1], identity_columns=tuple(columns)[:1])


def some_value(source: random.Random, kind: str, *, odd: bool):
    if source.random() < 0.1:
        return None
    match kind:
        case "boolean":
            return source.choice("tf")
        case "bit varying":
            return f"{source.randrange(9):b}" if source.random() < 0.9 else ""
        case "text":
            return UNCHANGED if odd and source.random() < 0.02 else source.choice(TEXTS) + str(source.randrange(9))
    return source.choice(NUMBERS) if source.random() < 0.5 else str(source.randrange(10**9))


def some_row(source: random.Random, *, odd: bool) -> Row:
    table = source.choice(tuple(TABLES))
    columns = TABLES[table]
    new = tuple(Field(name, some_value(source, kind, odd=odd), kind) for name, kind in columns.items())
    key = tuple(Field(f.name, "1" if f.type_name != "text" else "k'", f.type_name) for f in new[:1])
    draw = source.random()
    if draw < 0.6:
        return Row(Operation.INSERT, table, new)
    if draw < 0.8:
        return Row(Operation.UPDATE, table, new, key if draw < 0.75 else None)
    return Row(Operation.DELETE, table, None, key)


def batch(source: random.Random, how: Print, *, odd: bool) -> list[RecordTransaction]:
    out = []
    for nth in range(source.randrange(1, 4)):
        found = [statement(some_row(source, odd=odd), how) for _ in range(source.randrange(60))]
        bounds = Boundaries(nth + 1, nth + 1, commit_lsn=nth + 1)
        out.append(RecordTransaction(bounds, how.style, found, list(range(len(found))), sum(map(len, found))))
    return out


def decoded(make, raws):
    layouts = RelationResolver(facts, tables=frozenset(TABLES))
    return outcome(lambda: make(raws, layouts))


def in_runs(source: random.Random, raw: RecordTransaction) -> RecordTransaction:
    """The same rows, some of them where they stand in a payload, with anything for their heads."""
    parts: list[RecordRun | list[bytes]] = []
    at, count = 0, len(raw.records)
    while at < count:
        some = raw.records[at : at + source.randrange(1, 9)]
        at += len(some)
        if source.random() < 0.3:
            parts.append(list(some))
            continue
        payload, start = bytearray(), []
        for record in some:
            payload += bytes(source.choices(b"'\"\\ \0\xff,", k=12))
            start.append(len(payload))
            payload += record
        ends = np.array([first + len(record) for first, record in zip(start, some, strict=True)])
        parts.append(RecordRun(bytes(payload), np.array(start), ends, np.ones(len(some), np.int64)))
    numbers = [[1] * len(part) if isinstance(part, list) else part.lsn for part in parts]
    return replace(raw, records=Rows(parts), lsns=Lsns([np.array(some, np.int64) for some in numbers]))


@pytest.mark.parametrize("form", PRINTS)
def test_rows_are_the_same_where_they_stand_in_their_payload(form):
    source = random.Random(f"{SEED} {form} runs")
    with mock.patch.object(columnar, "CHUNK_BYTES", 5_000):
        for nth in range(20 * BUDGET):
            raws = [replace(raw, lsns=[1] * raw.count) for raw in batch(source, PRINTS[form], odd=nth % 10 == 0)]
            expected = decoded(columnar.tabulate, raws)
            assert isinstance(expected, ChangeColumns), f"CDC_LAKE_SEED={SEED}"
            assert_same_outcome(decoded(columnar.tabulate, [in_runs(source, raw) for raw in raws]), expected)


@contextmanager
def outlines():
    """Sets from which size on the shape of a statement is told from its outline; from nothing on, rows are read as
    large ones are, in pieces of a few bytes.
    """

    def outlined(size):
        literal_columnar.LARGE = size
        columnar_reader._LARGE = columnar_reader._EACH = size
        literal_columnar._PIECE = text_columnar._BLOCK = size or 7

    with (
        mock.patch.object(literal_columnar, "LARGE", LARGE),
        mock.patch.object(text_columnar, "_LONG", 0),
        mock.patch.multiple(columnar_reader, _LARGE=LARGE, _EACH=LARGE),
        mock.patch.object(literal_columnar, "_PIECE", 7),
        mock.patch.object(text_columnar, "_BLOCK", 7),
    ):
        yield outlined


@pytest.mark.parametrize("form", PRINTS)
def test_both_decoders_agree_on_what_is_printed(form):
    source = random.Random(f"{SEED} {form}")
    walked = mock.Mock(side_effect=columnar._tabulate)
    with (
        mock.patch.object(columnar, "_tabulate", walked),
        mock.patch.object(columnar, "CHUNK_BYTES", 5_000),
        outlines() as outlined,
    ):
        for nth in range(16 if BUDGET == 1 else 40 * BUDGET):
            outlined(source.choice([0, LARGE]))
            raws = batch(source, PRINTS[form], odd=nth % 10 == 0)
            fast = decoded(columnar.tabulate, raws)
            assert isinstance(fast, ChangeColumns), f"CDC_LAKE_SEED={SEED}"
            assert_same_outcome(fast, decoded(tabulate_plain, raws))
    assert walked.called


@pytest.mark.parametrize("form", PRINTS)
def test_outlines_hide_nothing_that_makes_another_shape(form):
    source, how = random.Random(f"{SEED} {form} outlines"), PRINTS[form]
    pool = [statement(some_row(source, odd=False), how) for _ in range(400)]
    altered = mutants(f"{SEED} {form}", pool, [b"'", b'"', b"\\", b"[", b"]:", b",", b" "])
    with mock.patch.object(columnar, "SMALL", 1), outlines() as outlined:
        outlined(0)
        for _ in range(40 if BUDGET == 1 else 100 * BUDGET):
            found = [*source.sample(pool, 11), next(altered)]
            source.shuffle(found)
            raw = RecordTransaction(Boundaries(1, 1, commit_lsn=1), how.style, found, [1] * 12, sum(map(len, found)))
            assert_same_outcome(decoded(columnar.tabulate, [raw]), decoded(tabulate_plain, [raw]))


@pytest.mark.parametrize("form", PRINTS)
def test_regular_batches_are_not_left_to_the_plain_decoder(form):
    source = random.Random(f"{SEED} {form} regular")
    with mock.patch.object(columnar, "tabulate_plain", side_effect=AssertionError(f"CDC_LAKE_SEED={SEED}")):
        for nth in range(20):
            raws = [raw for _ in range(3) for raw in batch(source, PRINTS[form], odd=nth % 2 == 0)]
            if sum(raw.count for raw in raws) >= columnar.SMALL * 3:
                decoded(columnar.tabulate, raws)


@pytest.mark.parametrize("form", ["serial json", "serial text"])
def test_a_truncate_leaves_the_other_transactions_of_its_batch_regular(form):
    source = random.Random(f"{SEED} {form} truncates")
    tables = [*TABLES, TableName("public", "not captured")]
    others = left = 0
    for _ in range(20 * BUDGET):
        raws = [raw for _ in range(4) for raw in batch(source, PRINTS[form], odd=True)]
        truncating = source.sample(raws, source.randrange(1, 4))
        for raw in truncating:
            at = source.randrange(raw.count + 1)
            some = Truncated(tuple(source.sample(tables, 2)), cascade=source.random() < 0.5)
            raw.records.insert(at, statement(some, PRINTS[form]))
            raw.lsns.insert(at, 7)
        plain = mock.Mock(side_effect=tabulate_plain)
        with mock.patch.object(columnar, "tabulate_plain", plain), mock.patch.object(columnar, "SMALL", 1):
            fast = decoded(columnar.tabulate, raws)
        assert isinstance(fast, ChangeColumns), f"CDC_LAKE_SEED={SEED}"
        assert_same_outcome(fast, decoded(tabulate_plain, raws))
        line_by_line = [raw for call in plain.call_args_list for raw in call.args[0]]
        others += sum(raw.count for raw in raws if raw not in truncating)
        left += sum(raw.count for raw in line_by_line if raw not in truncating)
    assert left < others // 4, f"CDC_LAKE_SEED={SEED}: but for runs of few rows in many shapes"


def test_numbers_judged_by_the_column_are_numbers():
    source = random.Random(f"{SEED} numbers")
    alphabet = "0123456789" * 4 + ".-+eE x/:"
    texts = ["".join(source.choices(alphabet, k=source.randrange(1, 28))) for _ in range(5000 * BUDGET)]
    texts += [*NUMBERS, ".", "-", "-.", "1.", "..1", "1-", "12345678.", "123456789012345678901234"]
    found = Statements([[text.encode() for text in texts]])
    judged = are_plain(found, found.start, found.end - found.start)
    for text, good in zip(texts, judged.tolist(), strict=True):
        assert not good or re.fullmatch(NUMBER, text), text
        plain = re.fullmatch(r"-?[0-9]+(\.[0-9]*)?", text) and len(text.lstrip("-")) <= 24
        assert good == bool(plain), text
