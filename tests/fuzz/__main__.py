"""Fuzzing by hand.

python -m tests.fuzz run [TARGET …] [--inputs N] [--seed S]    inputs by chance, two processes a target
python -m tests.fuzz grow [TARGET …] [--seconds N]             guided by coverage (extra `fuzz`); keeps what it finds
python -m tests.fuzz gather                                    inputs from recordings into tests/data/fuzz
python -m tests.fuzz one TARGET FILE                           a single input

A finding is written to fuzz-TARGET.bin, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import gathered, kept
from tests.fuzz.running import processes, together
from tests.fuzz.targets import TARGETS, samples

SECOND = 1.0
KEPT = 200
"""Inputs of a target that are kept at most, the shortest of those that go ways of their own."""


def run(names: Sequence[str], inputs: int, seed: int) -> int:
    """Each target from two seeds."""
    failed = False
    for name in names:
        with processes(2) as pool:
            for ran in together(pool, name, [seed, seed + 1], inputs // 2, SECOND):
                print(ran, flush=True)
                if ran.wrong is not None:
                    failed = True
                    data, how = ran.wrong
                    Path(f"fuzz-{name}.bin").write_bytes(data)
                    print(f"{how}\nin fuzz-{name}.bin: {data[:200]!r}", flush=True)
    return int(failed)


def grow(names: Sequence[str], seconds: int) -> int:
    """Let atheris look for ways through each target that no input goes; keep a smallest set that goes all of them."""
    failed = False
    for name in names:
        with tempfile.TemporaryDirectory() as base:
            first, found, least = (Path(base, one) for one in ("first", "found", "least"))
            for folder in (first, found, least):
                folder.mkdir()
            for one in samples(TARGETS[name]):
                (first / hashlib.sha256(one).hexdigest()[:16]).write_bytes(one)
            words, program = Path(base, "words"), Path(base, "program")
            words.write_text("".join(f'"{_escaped(one)}"\n' for one in TARGETS[name].words), encoding="ascii")
            options = [f"-max_total_time={seconds}", f"-dict={words}", "-max_len=4096", "-rss_limit_mb=1500"]
            options += [f"-artifact_prefix=fuzz-{name}-", "-print_final_stats=1", "-verbosity=0"]
            ended = _coverage(name, program, *options, found, first)
            failed = failed or ended != 0
            _coverage(name, program, "-merge=1", "-verbosity=0", least, first, found)
            ways = [file.read_bytes() for file in least.iterdir()]
            known = set(TARGETS[name].seeds())
            new = sorted((one for one in ways if one not in known), key=len)[:KEPT]
            kept.write(name, [*kept.read(name), *new] if len(ways) < len(known) // 2 else new)
            print(f"{name}: {len(ways)} ways, {len(new)} inputs kept, exit code {ended}", flush=True)
    return int(failed)


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _coverage(name: str, program: Path, *options: object) -> int:
    if not program.exists():
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz.coverage {name} {program} "$@"\n')
        program.chmod(0o700)
    return subprocess.run([program, *map(str, options)], check=False).returncode


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("targets", nargs="*")
    running.add_argument("--inputs", type=int, default=20_000)
    running.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    growing = verbs.add_parser("grow")
    growing.add_argument("targets", nargs="*")
    growing.add_argument("--seconds", type=int, default=120)
    verbs.add_parser("gather")
    single = verbs.add_parser("one")
    single.add_argument("targets", nargs=1)
    single.add_argument("file", type=Path)
    asked = parser.parse_args(words)
    match asked.verb:
        case "run":
            print("seed", asked.seed, flush=True)
            return run(asked.targets or list(TARGETS), asked.inputs, asked.seed)
        case "grow":
            return grow(asked.targets or list(TARGETS), asked.seconds)
        case "gather":
            gathered.write()
            return 0
    print(TARGETS[asked.targets[0]].run(asked.file.read_bytes()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
