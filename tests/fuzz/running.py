"""Running targets over inputs by chance, in processes of their own whose memory is bounded."""

from __future__ import annotations

import itertools
import multiprocessing
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cdc_lake_testing.memory import peak_mib
from tests.fuzz.mutation import mutants
from tests.fuzz.target import Finding, Form, Target
from tests.fuzz.targets import FORMS, TARGETS, samples

MEMORY = 512 << 20
"""Bytes that a process may take beyond what it has once everything is imported."""
TOGETHER = 256
"""Frames that two decoders get at once."""


@dataclass(frozen=True)
class Ran:
    """What came of some inputs. `vouched`: frames taken that the fast decoder did not leave to the plain one. `slowest`:
    processor seconds that no input took more of; of frames tried together those of all of them, while they are few.
    `wrong`: the first input that gave what none may, and how.
    """

    name: str
    inputs: int = 0
    taken: int = 0
    vouched: int = 0
    slowest: float = 0.0
    seconds: float = 0.0
    mib: float = 0.0
    wrong: tuple[bytes, str] | None = None

    def __str__(self) -> str:
        rate = self.inputs / max(self.seconds, 1e-9)
        vouched = f", {self.vouched:,} vouched for by the fast decoder" if self.vouched else ""
        return (
            f"{self.name}: {self.inputs:,} inputs ({rate:,.0f}/s), {self.taken:,} taken{vouched}; "
            f"slowest {self.slowest * 1000:.0f} ms, memory {self.mib:.0f} MiB"
        )


class Hang(Finding):
    """An input that keeps the processor busy for too long."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """An input that takes more of the processor is a finding; None: it may take as long as it likes."""
    if seconds is None:
        yield
        return

    def late(*_: object) -> None:
        raise Hang(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def hunt(target: Target, seed: object, count: int, *, form: Form | None = None, limit: float | None = None) -> Ran:
    """Every sample as it is, then so many mutants of them; ends at the first finding. `limit`: processor seconds of one
    input; frames that took more together are tried again each alone.
    """
    whole = samples(target)
    inputs = itertools.chain(whole if form is None else (), itertools.islice(mutants(seed, whole, target.words), count))
    began, taken, vouched, ran, slowest = time.process_time(), 0, 0, 0, 0.0
    wrong: tuple[bytes, str] | None = None
    while wrong is None and (some := list(itertools.islice(inputs, 1 if form is None else TOGETHER))):
        ran += len(some)
        at = time.process_time()
        try:
            with within(limit and limit * len(some)):
                if form is None:
                    taken += target.run(some[0])
                else:
                    judged = form.many(some)
                    taken, vouched = taken + judged.taken, vouched + judged.vouched
        except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
            wrong = _alone(target, some, limit), traceback.format_exc(limit=-6)
        took = time.process_time() - at
        if wrong is None and form is not None and limit is not None and took >= limit:
            took, wrong = _slow(form, some, limit)
        slowest = max(slowest, took)
    return Ran(target.name, ran, taken, vouched, slowest, time.process_time() - began, peak_mib(), wrong)


def _slow(form: Form, frames: Sequence[bytes], limit: float) -> tuple[float, tuple[bytes, str] | None]:
    """Processor seconds of the slowest of the frames by itself, and the one that takes too many of them."""
    slowest = 0.0
    for one in frames:
        at, how = time.process_time(), ""
        try:
            with within(limit):
                form.many([one])
        except Hang:
            how = traceback.format_exc(limit=-6)
        took = time.process_time() - at
        slowest = max(slowest, took)
        if how or took >= limit:  # calls of the system, which `within` does not count
            return slowest, (one, how or f"{Hang.__name__}: {took} seconds")
    return slowest, None


def _alone(target: Target, inputs: Sequence[bytes], limit: float | None) -> bytes:
    """The input of several that is wrong by itself; where only all of them together are, all of them."""
    if len(inputs) == 1:
        return inputs[0]
    for one in inputs:
        try:
            with within(limit):
                target.run(one)
        except Exception:  # noqa: BLE001 - see above
            return one
    return b"\n".join(one.hex().encode() for one in inputs)


def hunted(name: str, seed: object, count: int, limit: float | None = None) -> Ran:
    """The target of that name; the frames of a format by both decoders."""
    return hunt(TARGETS[name], seed, count, form=FORMS.get(name), limit=limit)


def bound_memory(beyond: int = MEMORY) -> None:
    """Let this process take so much more than it has, where the system says what that is."""
    if not sys.platform.startswith("linux"):
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])  # data, as the limit counts it
    has = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (has + beyond, has + beyond))


def processes(number: int) -> ProcessPoolExecutor:
    """Where targets run: a target that dies takes no test with it."""
    return ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), initializer=bound_memory)


def together(
    pool: ProcessPoolExecutor, name: str, seeds: Sequence[object], count: int, limit: float | None = None
) -> list[Ran]:
    """The same target from several seeds, so many inputs each, in the processes of a pool."""
    one: Callable[[object], Ran] = partial(_of_seed, name, count, limit)
    return list(pool.map(one, seeds))


def _of_seed(name: str, count: int, limit: float | None, seed: object) -> Ran:
    return hunted(name, seed, count, limit)
