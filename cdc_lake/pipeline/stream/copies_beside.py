"""Copies beside a stream that is being read: in a thread, and from connections of their own.

What hinders them does not hinder the stream: it is told, and they are begun again after a while, and with the next
connection. What is no hindrance but a mistake of this package ends the stream too, as one in the stream itself would.
A server that answers them nothing does not hold up the end of the stream: their connections are ended then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.control import ControlTables, control_tables
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.state.copies import CopiedTable
from cdc_lake.pipeline.stream.copying import Stopped
from cdc_lake.source.ending import Ending, Opened

AGAIN: Final = 30.0
"""Seconds until a copy that failed is begun again."""
_LOOK = 0.2  # seconds


class Recopy(Protocol):
    """Copies tables again: see `pipeline.receiving.recopy`."""

    def __call__(
        self,
        project: Project,
        state: BronzeState,
        tables: Sequence[TableName],
        control: ControlTables,
        stop: threading.Event,
        tell: Tell,
        opened: Opened,
    ) -> tuple[CopiedTable, ...]:
        """Copy tables of a stream, and put the copies in force. Raises CdcLakeError, Stopped."""
        ...


class CopiesBeside:
    """Copies tables, none or more, as long as it is entered. `lasting`: what fails is begun again."""

    def __init__(
        self,
        project: Project,
        state: BronzeState,
        tables: Sequence[TableName],
        recopy: Recopy,
        tell: Tell,
        *,
        lasting: bool,
    ) -> None:
        self._project = project
        self._state = state
        self._tables = tables
        self._recopy = recopy
        self._tell = tell
        self._lasting = lasting
        self._over = threading.Event()
        self._connections = Ending()
        self._copied: tuple[CopiedTable, ...] = ()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="cdc-lake-came", daemon=True)

    def __enter__(self) -> Self:
        if self._tables:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._connections.end()
        if self._tables:
            self._thread.join()

    def finished(self, meanwhile: Sequence[Callable[[], object]], stop: threading.Event) -> tuple[CopiedTable, ...]:
        """What was copied, once it is whole; what is done `meanwhile` is called now and then. Raises what failed or is
        raised there, Stopped.
        """
        while self._thread.is_alive():
            if stop.is_set():
                raise Stopped
            for one in meanwhile:
                one()
            self._thread.join(_LOOK)
        self.heed()
        return self._copied

    def heed(self) -> None:
        """Raise what the copies cannot go on from."""
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                control = control_tables(self._project, self._project.pipeline.bronze.durability)
                self._copied = self._recopy(
                    self._project, self._state, self._tables, control, self._over, self._tell, self._connections.add
                )
            except Stopped:
                return
            except CdcLakeError as error:
                if self._over.is_set():
                    return
                if not self._lasting:
                    self._failure = error
                    return
                text = f"tables that came are not copied yet: {error.message}; next attempt in {AGAIN:g} s"
                self._tell(Progress("retry", text, facts={"code": error.code}))
                self._over.wait(AGAIN)
            except Exception as failure:  # noqa: BLE001 - handed to the thread that reads the stream
                self._failure = failure
                return
            else:
                return
            finally:
                self._connections.forget()
