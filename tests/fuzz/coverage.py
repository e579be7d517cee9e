"""One target under atheris: `python -m tests.fuzz.coverage TARGET SELF [options of libFuzzer] FOLDER`.

Not for itself: `python -m tests.fuzz grow` runs it. Needs the extra `fuzz`. SELF: a program that is this command, up to
there: libFuzzer starts itself again where it merges.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["cdc_lake"], enable_loader_override=False):
    from tests.fuzz.running import within
    from tests.fuzz.targets import TARGETS

LONGEST = 2.0
"""Processor seconds of an input; what is instrumented takes about twice as long."""


def main() -> None:
    target = TARGETS[sys.argv[1]]

    def one(data: bytes) -> None:
        with within(LONGEST):
            target.run(data)

    atheris.Setup(sys.argv[2:], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
