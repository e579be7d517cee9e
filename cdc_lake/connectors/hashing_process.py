"""The helper process of the receiver that hashes rows of a fast stream (`decode.hashing`).

It starts with the first chunk that is large enough and stays until the connection is closed; a quiet receiver has none.
It runs in its own session, so Ctrl-C reaches only the receiver, and ends with its input, so it cannot outlive the
receiver. If it dies, that is an error of the stream, and the next connection starts a new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, Self

from cdc_lake.decode.hashing import Canonical, ask, hashed_here, read_answer
from cdc_lake.errors import HashingDied

WORTH: Final = 256 << 10
"""Bytes to hash in a chunk (of at most two mebibytes) from which on the request costs an eighth of what it saves."""

MOST: Final = 4 << 20
"""Bytes of a chunk that is one large row: Python releases its lock while hashing it, and sending it would copy it."""

_PACKAGES: Final = str(Path(__file__).parents[2])
_RUN: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from cdc_lake.decode.hashing import serve;"
    " serve(sys.stdin.buffer, sys.stdout.buffer)"
)
_PIPE: Final = 1 << 20  # bytes: what any user may set
_GRACE: Final = 5.0  # seconds to end by itself


class HashingProcess:
    """Hashes (`decode.hashing.Hashing`) while it is entered. One thread uses it at a time; others hash themselves."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: Sequence[Canonical] | None = None  # a request whose answer nobody has read yet
        self._user: int | None = None  # the thread of that request
        self._lock = threading.Lock()  # of `_user`
        self._alone = os.cpu_count() == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process id, None without a process."""
        return None if self._process is None else self._process.pid

    def __call__(self, parts: Sequence[Canonical]) -> Callable[[], list[bytes]]:
        """Begin to hash. Raises HashingDied, as does the returned function."""
        size = sum(memoryview(part.data).nbytes for part in parts)
        if self._alone or not WORTH <= size <= MOST:
            return hashed_here(parts)
        me = threading.get_ident()
        with self._lock:
            if self._user not in (None, me):
                return hashed_here(parts)
            self._user = me
        if self._process is None:
            self._process = _start_process()
        if self._asked is not None:  # the chunk turned out to be irregular
            self._read(self._process, self._asked)
        process, self._asked = self._process, parts
        try:
            ask(_end(process.stdin), parts)
        except OSError as broken:
            raise _died(process) from broken
        return lambda: self._answer(process, parts)

    def _answer(self, process: subprocess.Popen[bytes], parts: Sequence[Canonical]) -> list[bytes]:
        assert self._asked is parts
        self._asked = None
        try:
            return self._read(process, parts)
        finally:
            self._user = None

    def _read(self, process: subprocess.Popen[bytes], parts: Sequence[Canonical]) -> list[bytes]:
        try:
            return read_answer(_end(process.stdout), parts)
        except (OSError, EOFError) as broken:
            raise _died(process) from broken

    def close(self) -> None:
        """End the process; the next chunk starts a new one."""
        process, self._process, self._asked, self._user = self._process, None, None, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):  # it died, and the caller has seen the error
            _end(process.stdin).close()
        _end(process.stdout).close()  # an unread answer must not block it
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start_process() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", "-c", _RUN, _PACKAGES]
    process = subprocess.Popen(  # noqa: S603  # our own interpreter and code
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    for pipe in (process.stdin, process.stdout):
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux: a chunk fits in the pipe, so nobody waits
            with contextlib.suppress(OSError):  # the limit of this user's pipes is reached: slower, but correct
                fcntl.fcntl(_end(pipe), fcntl.F_SETPIPE_SZ, _PIPE)
    return process


def _end(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _died(process: subprocess.Popen[bytes]) -> HashingDied:
    try:
        code: int | None = process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        code = None
    how = "it does not respond" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
    return HashingDied(f"the process that hashes rows ended unexpectedly ({how})")
