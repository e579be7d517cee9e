"""The random environment of a receiver: time that jumps, workers that finish at any moment."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Died(Exception):
    """The process is gone, between two steps or in one."""


@dataclass
class World:
    """The dice of a history, its time, and what happened in it. `stormy`: how often something goes wrong, 0 to 1."""

    dice: random.Random
    stormy: float
    now: float = 1_000.0
    wall: int = 1_700_000_000_000_000
    met: Counter[str] = field(default_factory=Counter)

    def chance(self, what: str, share: float = 1.0) -> bool:
        """Whether this happens now; `share` of what goes wrong."""
        if self.dice.random() >= self.stormy * share:
            return False
        self.met[what] += 1
        return True

    def clock(self) -> float:
        """Seconds that only go on, now and then by far: a machine that slept."""
        self.now += self.dice.random() * 0.01
        if self.chance("clock jumped", 0.02):
            self.now += self.dice.choice((60.0, 86_400.0))
        return self.now

    def wall_clock(self) -> int:
        """Microseconds since 1970, which somebody sets forth and back."""
        self.wall += 1_000
        if self.chance("clock set", 0.2):
            self.wall += self.dice.choice((-1, 1)) * self.dice.choice((1, 3_600, 86_400)) * 1_000_000
        return self.wall

    def worker(self, _name: str) -> Executor:
        """See `runtime.receive.commit_pipeline.BronzeCommitPipeline`."""
        return Worker(self)


class Later(Future[T]):
    """Work that is done when it is asked for, at the latest by the second look."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work: Callable[[], T] | None = work
        self._looks = 0

    def run(self) -> None:
        """Do it, once."""
        work, self._work = self._work, None
        if work is None:
            return
        try:
            self.set_result(work())
        except Exception as failed:  # noqa: BLE001 - it is raised where the result is asked for
            self.set_exception(failed)

    def done(self) -> bool:
        """Whether it is done; a second look finds it so."""
        self._looks += 1
        if self._looks > 1:
            self.run()
        return super().done()

    def result(self, timeout: float | None = None) -> T:
        """What came of it, which is done now."""
        self.run()
        return super().result(timeout)


class Worker(Executor):
    """Does things at once or later, by chance; what is left when its process ends is done or not."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: list[Later[Any]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See Executor."""
        later: Later[T] = Later(lambda: fn(*args, **kwargs))
        if self._world.dice.random() < 0.5:
            later.run()
        self._left.append(later)
        return later

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - of the port
        """See Executor."""
        for one in self._left:
            if self._world.dice.random() < 0.5:
                one.run()
        self._left = []
