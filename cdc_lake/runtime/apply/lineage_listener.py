"""What apply tells a lineage server: that a run began, how far one without end is, and how it ended.

Events are sent from a thread of their own: only the end of a run waits for the server, and at most its timeout. A
failure is reported once until sending works again. `runtime.apply.openlineage` makes the events and needs the package
`openlineage-python`; this module does not.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeAlias

from cdc_lake.config.model import OpenLineage
from cdc_lake.config.project import Project
from cdc_lake.errors import LineageNotSent
from cdc_lake.errors.base import install
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.runtime.apply.merge import ApplyTotals

_WAITING: Final = 100
"""Events that may wait: a run has one in ten minutes, so a server was away for a day."""


EventTransport: TypeAlias = Callable[[str], None]
"""Sends one event, a JSON document. Raises OSError."""


class LineageSender:
    """Sends events one by one in a thread of its own. `failed` is called with the reason at the first of consecutive
    failures.
    """

    def __init__(self, send: EventTransport, timeout: float, failed: Callable[[str], None]) -> None:
        self._send = send
        self._timeout = timeout
        self._failed = failed
        self._failing = False
        self._events: queue.Queue[str | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._thread.start()

    def put(self, event: str) -> None:
        """Send an event some time; returns at once."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._fail("the receiving server accepts no events, and the buffer is full")

    def close(self) -> None:
        """Wait until everything is sent, at most the timeout."""
        try:
            self._events.put(None, timeout=self._timeout)
        except queue.Full:
            self._fail("the receiving server accepts no events")
            return
        self._thread.join(self._timeout)
        if self._thread.is_alive():
            self._fail(f"no answer within {self._timeout:g} s")

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._send(event)
                self._failing = False
            except OSError as failure:  # requests' errors are of this class too
                self._fail(_describe_failure(failure))

    def _fail(self, why: str) -> None:
        if not self._failing:
            self._failing = True
            self._failed(why)


def sends(to: OpenLineage, root: Path) -> EventTransport:
    """How events get where a pipeline wants them."""
    return _to_server(to) if to.to.startswith(("http://", "https://")) else _to_file(root / to.to)


def _to_file(file: Path) -> EventTransport:
    def send(event: str) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{event}\n")

    return send


def _to_server(to: OpenLineage) -> EventTransport:
    import requests  # noqa: PLC0415  # only where it is asked for

    headers = {"Content-Type": "application/json"}
    if to.api_key is not None:
        headers["Authorization"] = f"Bearer {to.api_key.get_secret_value()}"

    def no_credentials(request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request  # what a .netrc holds is not for this server

    def send(event: str) -> None:
        answer = requests.post(
            f"{to.to.rstrip('/')}/api/v1/lineage",
            data=event.encode(),
            headers=headers,
            auth=no_credentials,
            timeout=to.timeout / 1000,
            allow_redirects=False,
        )
        if not answer.ok or answer.is_redirect:
            raise OSError(f"it answers with status {answer.status_code}")

    return send


def _describe_failure(failure: OSError) -> str:
    """In words; what a server says in its answer is not repeated."""
    if failure.strerror:
        return failure.strerror
    kind = type(failure).__name__
    words = {"ConnectTimeout": "it cannot be reached", "ReadTimeout": "it does not answer in time"}
    if kind == "OSError":
        return str(failure)
    return words.get(kind, f"it cannot be reached ({kind})")


class LineageWatch:
    """Sends events (`runtime.apply.applier.RunListener`)."""

    def __init__(self, project: Project, to: OpenLineage, report: ProgressReporter, *, once: bool) -> None:
        self.on_progress = report
        self._project = project
        self._to = to
        self._once = once
        self._totals: ApplyTotals | None = None
        self._sent_at = time.monotonic()
        self._sender: LineageSender | None = None

    def __enter__(self) -> Self:
        self._sender = LineageSender(sends(self._to, self._project.root), self._to.timeout / 1000, self._report_failure)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        if self._sender is None:
            return
        state = "COMPLETE" if error is None else "FAIL" if isinstance(error, Exception) else "ABORT"
        self._say(state, error)
        self._sender.close()

    def follow(self, totals: ApplyTotals) -> None:
        """What the run counts in, from its start on."""
        self._totals = totals
        self._say("START")

    def on_pass_end(self) -> None:
        """A walk has ended, also one that was no step; `done` says where."""
        if time.monotonic() - self._sent_at >= self._to.every / 1000:
            self._say("RUNNING")

    def _say(self, state: str, error: BaseException | None = None) -> None:
        if self._sender is None or self._totals is None:
            return
        try:
            from cdc_lake.runtime.apply.openlineage import event  # noqa: PLC0415  # only where it is asked for
        except ModuleNotFoundError:
            self._report_failure(f"openlineage-python is not installed: {install('openlineage')}")
            self._sender.close()
            self._sender = None
            return
        self._sent_at = time.monotonic()
        totals = self._totals
        self._sender.put(
            event(self._project, self._to.namespace, totals.run, state, totals, once=self._once, error=error)
        )

    def _report_failure(self, why: str) -> None:
        error = LineageNotSent(f"lineage events are not sent to {self._to.to}: {why}")
        self.on_progress(ProgressEvent("warning", f"{error.message}; {error.remedy}", facts={"code": error.code}))
