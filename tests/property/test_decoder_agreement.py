"""Rows of every format by both decoders: what the fast one makes of them is what the plain one does, and what was sent.

Each batch draws its rows again and again from some hundred that were encoded for it: fast decoders want many of a shape.
Style b has `test_gaussdb_binary_agreement` beside this.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.gaussdb import batches, columnar
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.records import Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.pgoutput import columnar as pgoutput_columnar
from cdc_lake.decode.pgoutput import columnar as pgoutput_plain
from cdc_lake.decode.pgoutput.parser import change_of
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import Boundaries, Insert, Message, Truncate, Update
from cdc_lake_testing.gaussdb.encode import Print, statement
from cdc_lake_testing.messages import encode_change
from tests.decoded_columns import assert_same
from tests.fuzz.family import TABLES, facts, some_row
from tests.fuzz.pgoutput import a_change
from tests.seeds import seeds
from tests.tally import tally

LONG = int(os.environ.get("CDC_LAKE_BUDGET", "1")) > 1
SEEDS = seeds(8 if LONG else 1)
ROWS = 190_000 if LONG else 6_000
"""Of each format and seed."""
POOL = 400
"""Rows that a batch is drawn from."""
PRINTS = {
    "text": Print(Style.TEXT),
    "json": Print(Style.JSON),
    "serial json": Print(Style.SERIAL),
    "test_decoding": Print(Style.SERIAL, plugin="test_decoding"),
}


def sizes(dice: random.Random) -> list[int]:
    """Changes of the transactions of a batch."""
    return [2_500, *(dice.choice((1, 3, 40, 700, 2_500)) for _ in range(dice.randrange(6)))]


def agree(
    dice: random.Random, batch_of: Callable[[list[int]], Sequence[Any]], fast: Any, slow: Any, module: Any
) -> int:
    """Batches until the fast decoder has made enough rows itself; few are left to the plain one, as of chunks where not
    many rows have one shape.
    """
    rows = left = 0
    while rows - left < ROWS:
        raws = batch_of(sizes(dice))
        expected = slow(raws)
        gave_up = mock.Mock(side_effect=module.tabulate_plain)
        with mock.patch.object(module, "tabulate_plain", gave_up):
            found = fast(raws)
        assert isinstance(found, ChangeColumns)
        assert_same(found, expected)
        rows += sum(raw.count for raw in raws)
        left += sum(raw.count for call in gave_up.call_args_list for raw in call.args[0])
    assert left < rows // 4, f"{left} of {rows}"
    return rows - left


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_pgoutput(seed: int) -> None:
    print(f"CDC_LAKE_SEED={seed}")
    dice = random.Random(seed)
    different: set[bytes] = set()

    def batch_of(counts: list[int]) -> list[BufferedTransaction]:
        made = [change for change in (a_change(dice) for _ in range(POOL)) if not isinstance(change, Truncate)]
        pool = [(encode_change(one), None if isinstance(one, Message) else one.relation) for one in made]
        for change, (frame, layout) in zip(made, pool, strict=True):
            assert change_of(frame, layout) == (change,)
        different.update(frame for frame, _ in pool)
        out = []
        for nth, count in enumerate(counts):
            some = dice.choices(pool, k=count)
            frames, layouts = [frame for frame, _ in some], [layout for _, layout in some]
            out.append(
                BufferedTransaction(
                    Boundaries(nth, nth), frames, list(range(count)), layouts, {}, sum(map(len, frames))
                )
            )
        return out

    rows = agree(dice, batch_of, pgoutput_columnar.tabulate, pgoutput_plain.tabulate_plain, pgoutput_columnar)
    tally("R7", **{"rows": rows, "different rows": len(different)})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", PRINTS)
def test_statements(form: str, seed: int) -> None:
    print(f"CDC_LAKE_SEED={seed}")
    dice, how = random.Random(f"{seed} {form}"), PRINTS[form]
    known = [RelationResolver(facts, tables=frozenset(TABLES)) for _ in range(3)]
    different: set[bytes] = set()

    def batch_of(counts: list[int]) -> list[RecordTransaction]:
        made = [some_row(dice) for _ in range(POOL)]
        pool = [statement(row, how) for row in made]
        for row, record in zip(made, pool, strict=True):
            read = batches.read_record(how.style, record, known[0])
            assert isinstance(read, Row)
            change = known[0].change(read)
            assert not isinstance(change, Insert | Update) or change.new == tuple(one.value for one in row.new or ())
        different.update(pool)
        out = []
        for nth, count in enumerate(counts):
            some = dice.choices(pool, k=count)
            out.append(
                RecordTransaction(Boundaries(nth, nth), how.style, some, list(range(count)), sum(map(len, some)))
            )
        return out

    def fast(raws: Sequence[RecordTransaction]) -> ChangeColumns:
        return columnar.tabulate(raws, known[1])

    def slow(raws: Sequence[RecordTransaction]) -> ChangeColumns:
        return batches.tabulate_plain(raws, known[2])

    rows = agree(dice, batch_of, fast, slow, columnar)
    tally("R7", **{"rows": rows, "different rows": len(different)})
