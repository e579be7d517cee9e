"""Interrupts calls at a failpoint in this process: the effect of a kill, without starting Spark again.

The exception is not an `Exception`, so nothing handles it as a failure. A kill would end other threads too: those that
merge tables are awaited instead, as if they had ended just before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cdc_lake.observability.failpoints import arm
from cdc_lake.runtime.apply.spark_sessions import MERGING


class BrokenOff(BaseException):
    """A failpoint was reached."""


class Failed(Exception):
    """A failpoint was reached in what Spark calls, which hears of Exceptions only."""


@contextmanager
def broken_off(setting: str, how: type[BaseException] = BrokenOff) -> Iterator[list[bool]]:
    """Let what runs inside end at a failpoint, `name` or `name:n`; the list has an entry where it was reached."""
    reached: list[bool] = []

    def die() -> None:
        reached.append(True)
        raise how(setting)

    arm(setting, die)
    try:
        yield reached
    except (BrokenOff, Failed):
        pass
    finally:
        arm("")
        for thread in threading.enumerate():
            if thread.name.startswith(MERGING):
                thread.join()
