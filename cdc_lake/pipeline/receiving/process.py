"""The receiver as a child process: started, listened to, restarted where that helps, stopped cleanly.

It speaks `run --json`: one event a line, its last error as a document. It ends by itself when our end of its standard
input closes, so it never outlives us and keeps the slot. What it says on standard error is in
`<lake>/logs/receive.log`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import IO, Any, Self

from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, ReceiverDied, Retry, kinds
from cdc_lake.observe.progress import Progress, Tell

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_STEADY = 60.0  # seconds after which a receiver counts as having run
_ATTEMPTS = 8  # in a row without having run
_GRACE = 30.0  # seconds to finish the batch in flight


class ReceiverProcess:
    """Runs while it is entered; `over` is set when the run is over: asked to stop, or the receiver cannot go on.

    Leaving raises the receiver's error where that is why.
    """

    def __init__(self, project: Project, stop: threading.Event, tell: Tell) -> None:
        self.over = threading.Event()
        self._project = project
        self._stop = stop
        self._tell = tell
        self._failure: CdcLakeError | None = None
        self._thread = threading.Thread(target=self._supervise, name="receiver", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _supervise(self) -> None:
        pause, short = _FIRST_PAUSE, 0
        try:
            while not self._ending():
                began = time.monotonic()
                failure = self._one_life()
                if failure is None or self._ending():
                    return
                steady = time.monotonic() - began >= _STEADY
                pause, short = (_FIRST_PAUSE, 0) if steady else (pause, short + 1)
                if failure.retry is Retry.NEVER or short >= _ATTEMPTS:
                    self._failure = failure
                    return
                text = f"{failure.message}; the receiver starts again in {pause:g} s"
                self._tell(Progress("retry", text, facts={"code": failure.code}))
                self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self.over.set()

    def _ending(self) -> bool:
        return self._stop.is_set() or self.over.is_set()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._ending() and time.monotonic() < until:
            self._stop.wait(0.1)

    def _one_life(self) -> CdcLakeError | None:
        """Run the receiver until it ends; why it did, None where it was to."""
        log = self._project.lake / "logs" / "receive.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as said:
            # Of a session of its own: a Ctrl-C at the terminal is for us, we tell it in our turn.
            child = subprocess.Popen(  # noqa: S603  # our own command
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True
            )
        listener = _Listener(child.stdout, self._tell)
        while child.poll() is None and not self._ending():
            self._stop.wait(0.1)
        _end(child)
        listener.join()
        if child.returncode == 0 or (self._ending() and listener.failure is None):
            return None
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        return listener.failure or ReceiverDied(f"the receiver died ({how})", where=str(log))

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "cdc_lake.cli.app", "run", "--only", "receive", "--json", "--until-input-ends"]
        command += ["--pipeline", str(self._project.file)]
        return command if self._project.environment is None else [*command, "--env", self._project.environment]


class _Listener(threading.Thread):
    """Passes a receiver's events on, and keeps its error."""

    def __init__(self, stream: IO[bytes] | None, tell: Tell) -> None:
        super().__init__(name="receiver-events", daemon=True)
        assert stream is not None
        self._stream = stream
        self._tell = tell
        self.failure: CdcLakeError | None = None
        self.start()

    def run(self) -> None:
        """Read to the end of the stream."""
        with self._stream:
            self._listen()

    def _listen(self) -> None:
        for line in self._stream:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a line cut off by the end of the process
            if event.get("schema") == "cdc-lake/error/1":
                self.failure = error_of(event)
            elif "text" in event:
                facts = event.get("facts") or {}
                told = Progress(
                    event["stage"], event["text"], event["done"], event["total"], event["unit"], facts=facts
                )
                self._tell(told)


def error_of(document: dict[str, Any]) -> CdcLakeError:
    """The error a document of `--json` stands for, as the class that has its code."""
    kind = next((k for k in kinds(CdcLakeError) if k.code == document["code"]), ReceiverDied)
    error = kind.__new__(kind)
    CdcLakeError.__init__(
        error, str(document["message"]), where=str(document.get("where", "")), hint=document.get("hint")
    )
    return error


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, wait for the batch in flight, then insist: bronze moves by whole commits."""
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()
