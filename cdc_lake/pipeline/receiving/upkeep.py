"""Upkeep beside the receiver: the number of bronze's files stays bounded however fast it commits.

Now and then, counted in commits, a thread of its own looks whether small files are to be put together, and removes what
nobody needs any more. The receiver goes on meanwhile. What fails here is told and tried again later: it never stops the
receiver, which would fail by itself at what matters.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import pyarrow as pa

from cdc_lake.bronze import upkeep
from cdc_lake.bronze.open import bronze_table
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.counting import counted
from cdc_lake.observe.progress import Progress, Tell

FILES_EVERY = 600.0
"""Seconds between two looks for data files that nobody needs: they lie in one folder, which takes time to list."""


class Upkeep:
    """Keeps up the bronze table of a pipeline while it is received; leaving waits for what is under way."""

    def __init__(self, project: Project, tell: Tell) -> None:
        self._project = project
        self._tell = tell
        self._after = project.pipeline.bronze.maintenance.compact_after_files
        self._commits = self._after  # the first commit of a run looks: runs may be short and many
        self._listed = -FILES_EVERY
        self._thread: ThreadPoolExecutor | None = None
        self._work: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def heard(self, progress: Progress) -> None:
        """Pass on what the receiver tells, and count its commits."""
        self._tell(progress)
        if progress.stage == "landed":
            self._landed()

    def _landed(self) -> None:
        self._commits += 1
        if self._after == 0 or self._commits < self._after or (self._work is not None and not self._work.done()):
            return
        self._commits = 0
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="cdc-lake-upkeep")
        self._work = self._thread.submit(self._run)

    def _run(self) -> None:
        try:
            self._keep_up()
        except CdcLakeError as error:
            self._failed(error.message, error.code)
        except Exception as error:  # noqa: BLE001 - see above: told, and tried again after as many commits
            self._failed(f"upkeep of bronze failed ({type(error).__name__})", None)
        # what files and many commits left in pieces between others: 20 MiB in 200 s (measured), and more would come
        pa.default_memory_pool().release_unused()

    def _keep_up(self) -> None:
        table = bronze_table(self._project)
        if not upkeep.prepare(table):
            return
        groups = upkeep.compact(table, self._after)
        now = time.monotonic()
        if now - self._listed >= FILES_EVERY:
            self._listed = now
            upkeep.tidy(table, self._project.pipeline.bronze.maintenance.keep_replaced / 1000)
        else:
            upkeep.tidy(table, None)
        if groups:
            files = sum(len(group.paths) for group in groups)
            text = f"{counted(files, 'file')} of bronze became {len(groups)}"
            self._tell(Progress("maintain", text, facts={"files": files, "into": len(groups)}))

    def _failed(self, text: str, code: str | None) -> None:
        self._tell(Progress("maintain", f"{text}; it is tried again later", facts={"code": code}))
