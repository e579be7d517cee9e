"""Sending events of lineage beside the work: only the end of a run waits for a server, and that not long."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from cdc_lake.config.observe import OpenLineage

_WAITING: Final = 100
"""Events that may wait: a run has one in ten minutes, so a server was away for a day."""


class Sends(Protocol):
    """Takes one event, a JSON document; raises what prevents it."""

    def __call__(self, event: str) -> None:
        """Send it."""
        ...


class LineageSender:
    """Sends events in turn from a thread of its own. `failed` is told why one could not be sent, once until it can."""

    def __init__(self, send: Sends, timeout: float, failed: Callable[[str], None]) -> None:
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
            self._fail("nothing takes the events, and no more are kept")

    def close(self) -> None:
        """Wait until everything is sent, at most the timeout."""
        try:
            self._events.put(None, timeout=self._timeout)
        except queue.Full:
            self._fail("nothing takes the events")
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
                self._fail(_why(failure))

    def _fail(self, why: str) -> None:
        if not self._failing:
            self._failing = True
            self._failed(why)


def sends(to: OpenLineage, root: Path) -> Sends:
    """How events get where a pipeline wants them."""
    if not to.to.startswith(("http://", "https://")):
        return _to_file(root / to.to)
    return _to_server(to)


def _to_file(file: Path) -> Sends:
    def send(event: str) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{event}\n")

    return send


def _to_server(to: OpenLineage) -> Sends:
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


def _why(failure: OSError) -> str:
    """In words; what a server says in its answer is not repeated."""
    if failure.strerror:
        return failure.strerror
    kind = type(failure).__name__
    words = {"ConnectTimeout": "it cannot be reached", "ReadTimeout": "it does not answer in time"}
    if kind == "OSError":
        return str(failure)
    return words.get(kind, f"it cannot be reached ({kind})")
