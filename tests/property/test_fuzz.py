"""Bytes that nobody should send: every decoder, file reader and loader takes them or refuses them by an error of the house.

Here inputs are drawn by chance, in a process of its own whose memory is bounded; where two decoders read a format they
do the same. `python -m tests.fuzz` runs more of them, and guided by coverage.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from cdc_lake.decode.gaussdb import columnar
from cdc_lake.errors import MalformedMessage
from tests.fuzz import kept
from tests.fuzz.mutation import mutants
from tests.fuzz.running import Hang, hunt, processes, together
from tests.fuzz.target import Finding, Form, Judged, Target, refused
from tests.fuzz.targets import FORMS, TARGETS
from tests.seeds import one_seed
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
LONG = BUDGET > 1
SEED = one_seed()
FRAMES = {
    "pgoutput": 10_000_000, "mppdb_binary": 4_000_000, "mppdb_json": 3_000_000, "mppdb_serial": 3_000_000,
    "mppdb_text": 2_000_000, "test_decoding": 2_000_000,
}  # fmt: skip
"""Of each format at full budget: two to five minutes of two busy processors (measured: 3,500 to 25,000 frames a second)."""
FEW = 4_000
"""Of each format by default."""
INPUTS = 40_000 if LONG else 400
"""Of each other target; of payloads of the GaussDB family, which come in many forms, some times more."""
MORE = {"mppdb_stream": 2}
PROCESSES = 2 if LONG else 1
LIMIT = 1.0
"""Seconds of the processor for an input."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with processes(PROCESSES) as made:
        yield made


def of_chance(pool: ProcessPoolExecutor, name: str, count: int) -> int:
    """Run a target; how many inputs it had."""
    print(f"CDC_LAKE_SEED={SEED}")
    drawn = [f"{SEED} {nth}" for nth in range(PROCESSES)]
    found = together(pool, name, drawn, count // PROCESSES, LIMIT)
    for ran in found:
        print(ran)
        assert ran.wrong is None, f"{ran.wrong[1]}\nof the input {ran.wrong[0].hex()}"
        assert ran.slowest < LIMIT
        assert ran.taken
        assert ran.taken < ran.inputs
    return sum(ran.inputs for ran in found)


@pytest.mark.parametrize("name", FORMS)
def test_mutated_frames_are_the_same_to_both_decoders(pool: ProcessPoolExecutor, name: str) -> None:
    tally("R6", frames=of_chance(pool, name, FRAMES[name] if LONG else FEW))


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in FORMS])
def test_any_bytes_are_taken_or_refused_in_words(pool: ProcessPoolExecutor, name: str) -> None:
    tally("R6", inputs=of_chance(pool, name, INPUTS * MORE.get(name, 1)))


FOUND = {
    # readable as text and not by bytes: an error of no class of the house came of it
    "mppdb_text": bytes.fromhex(
        "7461626c65207075626c69632057696465206f6e65205550444154453a206f6c642d6b65793a202263222230225b74657874"
        "5d3a276b272727206e65772d7475706c653a202263222230225b746578745d3a277878787878787878787878787878787878"
        "7878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
        "787878787878787878787878787878787878787878787827202263222231225b746578745d3a274227273127272720226322"
        "2232225b746578745d3a276e756c6c27202263222233225b746578745d3a27615c6227202263222234225b746578745d3a6e"
        "756c6c20226322223561626c65207075626c696320c3bc2044454c4554453a2069645b696e74656765725d3a31"
    ),
    # a character with a backslash inside it is text only once that is taken out: the harness had not thought of it
    "copy_text": bytes.fromhex(
        "03095c5c4e09c3a95c4e0909e697a50a095c5c4e5c4e0909090a09c3a909e697a56109c3a95c78666609615c625c760a"
        "5c7866663078095c74e6975ca50930786109e697a55c786666090a5c5c5c4e0909c3a96109090a"
    ),
    # a key twice: the plain decoder read what stood behind it as the row's values
    "mppdb_json": (
        b'{"table_name":"public.\\"\xc3\xbc\\"","op_type":"UPDATE","columns_name":["id","\\"\xc3\xb6\\""],'
        b'"columns_type":["integer","text"],"columns_val":["-1234567890123456","\' new-tuple: id[bigint]:1\'"],'
        b'"old_keys_name":["id"],"":["NaN","\'\'"],"old_keys_name":[],"old_keys_type":[],"old_keys_val":[]}'
    ),
    # a year whose microseconds bronze has no room for: taken, and no column of times could hold it
    "text": b"1202024-01-01 00:00:00-03:30",
    # a mark of byte order within a file: the error had it in its text as it was, for a notebook to print
    "pipeline_file": "version: \ufeff3\npipeline: shop\n".encode(),
    # a file whose head is zeros, as a power loss may leave it: the checksum of nothing is zero
    "parked": b"\0CDC_LAKE PREPARED 1\n" + bytes(32),
}
"""What fuzzing found, as it was found."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name: str) -> None:
    assert TARGETS[name].run(FOUND[name]) in {True, False}


# ── what it would find ──


def target_of(run: Callable[[bytes], bool]) -> Target:
    return Target("planted", run, lambda: [b"abcd", b"xyz"], [b"!"])


def test_what_a_decoder_must_not_do_is_found() -> None:
    def reads_past_the_end(data: bytes) -> bool:
        return data[3] > 0

    def never_ends(data: bytes) -> bool:
        while b"!" in data:
            pass
        return True

    def says_nonsense(data: bytes) -> bool:
        return refused(MalformedMessage("too far", offset=len(data) + 1), data)

    for planted, kind in (
        (reads_past_the_end, "IndexError"),
        (never_ends, Hang.__name__),
        (says_nonsense, Finding.__name__),
    ):
        ran = hunt(target_of(planted), SEED, 300, limit=0.05)
        assert ran.wrong is not None, planted
        assert kind in ran.wrong[1]


@dataclass(frozen=True)
class Slow:
    """A format whose decoder takes so many seconds of the processor for each frame, and some for one with a mark."""

    each: float = 0.0
    marked: float = 0.0
    name: str = "planted"

    @property
    def target(self) -> Target:
        return target_of(lambda _data: True)

    def many(self, frames: Sequence[bytes]) -> Judged:
        until = time.process_time() + self.each * len(frames) + self.marked * any(b"!" in frame for frame in frames)
        while time.process_time() < until:
            pass
        return Judged(len(frames), 0)


def test_one_slow_frame_among_many_is_found() -> None:
    form: Form = Slow(marked=0.2)
    ran = hunt(form.target, SEED, 300, form=form, limit=0.1)
    assert ran.wrong is not None
    data, how = ran.wrong
    assert b"!" in data
    assert Hang.__name__ in how


def test_frames_that_are_slow_only_together_are_none() -> None:
    form: Form = Slow(each=0.001)
    ran = hunt(form.target, SEED, 300, form=form, limit=0.1)
    assert ran.wrong is None, ran.wrong
    assert 0.001 <= ran.slowest < 0.1


def takes_too_much() -> str:
    ran = hunt(target_of(lambda data: bool(bytearray(len(data) << 30))), 1, 5)
    return "" if ran.wrong is None else ran.wrong[1]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is not bounded")
def test_memory_that_an_input_asks_for_is_bounded(pool: ProcessPoolExecutor) -> None:
    assert "MemoryError" in pool.submit(takes_too_much).result()


@pytest.mark.parametrize("name", ["mppdb_binary", "mppdb_text", "mppdb_json", "test_decoding"])
def test_a_fast_decoder_that_reads_one_value_otherwise_is_found(name: str) -> None:
    good = columnar.new_tuples

    def faulty(*given: Any) -> pa.Array:
        found = good(*given)
        wrong = [row and [None if one == "7" else one for one in row] for row in found.to_pylist()]
        return pa.array(wrong, found.type)

    with mock.patch.object(columnar, "new_tuples", faulty):
        ran = hunt(FORMS[name].target, SEED, 2_000, form=FORMS[name])
    assert ran.wrong is not None
    assert "AssertionError" in ran.wrong[1]


def test_inputs_by_chance_are_the_same_for_the_same_seed() -> None:
    samples = [b"one", b"another"]
    first, again, other = (mutants(seed, samples, [b"word"]) for seed in (1, 1, 2))
    drawn = [next(first) for _ in range(500)]
    assert drawn == [next(again) for _ in range(500)]
    assert drawn != [next(other) for _ in range(500)]
    assert len(set(drawn)) > 200


def test_kept_inputs_are_of_targets_and_few() -> None:
    files = {file.stem for file in kept.FOLDER.glob("*.xz")}
    assert files == set(TARGETS)
    assert sum(file.stat().st_size for file in kept.FOLDER.glob("*.xz")) < 1 << 20
    for name in files:
        assert 0 < len(kept.read(name)) < 1_000


def test_a_kept_input_is_read_as_it_was_written(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    inputs = {dice.randbytes(dice.randrange(50)) for _ in range(30)}
    with mock.patch.object(kept, "FOLDER", tmp_path):
        kept.write("a", [*inputs, *inputs])
        assert set(kept.read("a")) == inputs
        assert kept.read("b") == []
