"""Streamed transactions come to what the same ones come to unstreamed: any blocks, any rolled back subtransactions."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.transaction import BufferedTransaction, FrameStoreFactory
from cdc_lake.model.change import Change, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import Relation
from cdc_lake_testing.messages import boundaries, catalog_of, raw_transaction, table
from cdc_lake_testing.streaming import StreamingServer
from tests.seeds import seeds

ROUNDS = 150 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))
LAYOUTS = [  # several of one table, so that a relation changes in mid transaction: also to one of the same width
    table("public.a", id="int8", note="text"),
    table("public.a", id="int8", note="text", more="text"),
    table("public.a", id="int8", other="text"),
    table("public.b", id="int8", note="text"),
]


def a_change(dice: random.Random, layout: Relation) -> Change:
    row = tuple(dice.choice([None, "x" * dice.choice([0, 5, 200])]) for _ in layout.columns)
    match dice.randrange(8):
        case 0:
            return Delete(layout, row, dice.choice([OldKind.KEY, OldKind.FULL]))
        case 1:
            return Truncate(layout, dice.random() < 0.5)
        case 2:
            return Update(layout, row, row, OldKind.KEY)
        case 3:
            return Message("p", b"content")
    return Insert(layout, row)


def runs(dice: random.Random, layouts: Sequence[Relation], count: int) -> Iterator[Relation]:
    """So many layouts, mostly the one before."""
    layout = dice.choice(layouts)
    for _ in range(count):
        layout = dice.choice(layouts) if dice.random() < 0.2 else layout
        yield layout


def some_transactions(dice: random.Random) -> list[Transaction]:
    out = []
    for nth in range(dice.randint(1, 6)):
        layouts = dice.sample(LAYOUTS, dice.randint(1, len(LAYOUTS)))
        changes = tuple(a_change(dice, layout) for layout in runs(dice, layouts, dice.randint(0, 40)))
        out.append(Transaction(boundaries((nth + 1) * 1000, origin=dice.choice([None, "far"])), changes))
    return out


def assembled(messages: list[tuple[int, bytes]], new_frames: FrameStoreFactory | None) -> Iterator[BufferedTransaction]:
    assembler = Assembler(catalog_of(*LAYOUTS), frames=new_frames)
    for lsn, payload in messages:
        for raw in assembler.feed(payload, lsn):
            yield raw if isinstance(raw, BufferedTransaction) else joined(raw)
    assert assembler.open_bytes == 0
    assert not assembler.in_transaction


def joined(large: SpooledTransaction) -> BufferedTransaction:
    """Its parts as one."""
    out = BufferedTransaction(large.bounds, [], [], [], {}, large.size)
    for part in large.parts():
        assert part.part
        out.truncated.update({len(out.frames) + at: tables for at, tables in part.truncated.items()})
        out.frames.extend(part.frames)
        out.lsns.extend(part.lsns)
        out.layouts.extend(part.layouts)
    assert len(out.frames) == large.count
    large.release()
    return out


@pytest.mark.parametrize("seed", seeds(1))
def test_streamed_they_are_the_same_in_memory_and_on_disk(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    streamed = large = 0
    for _ in range(ROUNDS):
        server = StreamingServer(some_transactions(dice), dice.getrandbits(32))
        wanted = [raw_transaction(one) for one in server.committed]
        assert list(assembled(server.messages, None)) == wanted
        streamed += any(payload[:1] == b"c" for _, payload in server.messages)
        with Spool(tmp_path, 1 << 30, dice.choice([1, 90, 700])) as spool:
            came = [replace(raw, part=False) for raw in assembled(server.messages, spool)]
            assert spool.used == 0
            large += spool.written > 0
        assert came == wanted
    assert min(streamed, large) > ROUNDS // 4
    assert list(tmp_path.iterdir()) == []
