"""Finding a cut against its definition: the last one of which every transaction is within what is asked for."""

from __future__ import annotations

import os
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdc_lake.control.cut_lookup import find_cut
from cdc_lake.errors import BeforeFirstCut, CutNotReached
from cdc_lake.model.change import Boundaries, Insert, Transaction
from cdc_lake.model.position import AsOf, Csn, Moment, Stored
from cdc_lake.tables.control_schema import CutRow
from cdc_lake_testing.messages import raw_transaction
from tests.cut_lake import GAUSS_LSN, CutLake, T, at
from tests.seeds import seeds

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
LAKES = 4 if BUDGET == 1 else 12 * BUDGET
START, SEEN = 100, 50


def test_what_is_found_is_the_last_cut_within_what_was_asked_for(tmp_path: Path) -> None:
    for n, seed in enumerate(seeds(LAKES)):
        print(f"seed {seed}")
        chance = random.Random(seed)
        lake, landed, cuts = _lake(tmp_path / str(n), chance)
        for _ in range(40):
            asked = _asked(chance, landed)
            try:
                found: Any = find_cut(lake.project, asked).position
            except (BeforeFirstCut, CutNotReached) as error:
                found = type(error)
            assert found == _expected(asked, landed, cuts), asked


def _lake(root: Path, chance: random.Random) -> tuple[CutLake, list[Boundaries], list[int]]:
    """Transactions whose CSNs and times are not quite in the order of the log, cuts at some of them."""
    lake = CutLake(root, stream=GAUSS_LSN)
    landed, position, csns = [], START, [SEEN + 1 + 2 * n for n in range(12)]
    for n in range(12):
        position += chance.randint(1, 9)
        near = csns.pop(min(chance.choice([0, 0, 0, 1, 2]), len(csns) - 1))
        time = int(at(n + chance.choice([0, 0, -3, 2])).timestamp()) * 1_000_000
        landed.append(Boundaries(position, position, position, csn=near, xid=n, commit_ts=time))
    lake.bronze.append([raw_transaction(Transaction(bounds, (Insert(T, ("1",)),))) for bounds in landed])
    cuts = [START, *sorted(chance.sample([bounds.position for bounds in landed], chance.randint(0, 12)))]
    rows = []
    for cut in cuts:
        times = [bounds.commit_ts or 0 for bounds in landed if bounds.position <= cut]
        latest = at(0).fromtimestamp(max(times) / 1_000_000, at(0).tzinfo) if times else None
        rows.append(CutRow(1, GAUSS_LSN, cut, latest, "{}", at(60)))
    if chance.random() < 0.5:
        lake.control.append("cuts", [asdict(row) for row in rows])
    else:
        for row in rows:
            lake.control.record(row)
    return lake, landed, cuts


def _asked(chance: random.Random, landed: list[Boundaries]) -> AsOf:
    match chance.randrange(3):
        case 0:
            return Stored(chance.randint(START - 3, landed[-1].position + 3))
        case 1:
            return Csn(chance.randint(SEEN - 3, SEEN + 30))
        case _:
            return Moment(at(chance.choice([chance.randint(-4, 16), 61])))


def _expected(asked: AsOf, landed: list[Boundaries], cuts: list[int]) -> Any:
    def within(bounds: Boundaries) -> bool:
        match asked:
            case Stored(value):
                return bounds.position <= value
            case Csn(value):
                return (bounds.csn or 0) <= value
            case Moment(time):
                return (bounds.commit_ts or 0) <= time.timestamp() * 1_000_000
        raise AssertionError(asked)

    early = {Stored: START, Csn: SEEN}
    number = getattr(asked, "value", 0)
    if type(asked) in early and number < early[type(asked)]:
        return BeforeFirstCut
    if type(asked) is Csn and number > max(bounds.csn or 0 for bounds in landed):
        return CutNotReached
    if type(asked) is Stored and number > landed[-1].position:
        return CutNotReached
    fits = [cut for cut in cuts if all(map(within, (b for b in landed if b.position <= cut)))]
    if isinstance(asked, Moment) and fits == [START] and asked.time < at(60):
        return BeforeFirstCut
    if fits[-1] == cuts[-1]:
        more = [bounds for bounds in landed if bounds.position > cuts[-1]]
        if any(map(within, more)) if isinstance(asked, Moment) else more and within(more[0]):
            return CutNotReached
    return fits[-1]
