"""Judging silver every so often, at its last cut: `quality.every`.

What was found stands in the control table `quality`, where reports and metrics see it. A report, or a cut that was
judged before it was promised, counts, a comparison does not: silver is judged again when the newest judgement is old
enough. What fails is told, and tried again after the same time: the tables go on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc

from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.control import ControlTables
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.judging.cut_verdict import judge_cut
from cdc_lake.pipeline.state.cuts import written
from cdc_lake.pipeline.state.verified import RULE


class JudgingClock:
    """Looks at the time whenever apply has walked to the top of bronze."""

    def __init__(self, project: Project, control: ControlTables, tell: Tell) -> None:
        every = project.pipeline.quality.every
        self._every = None if every is None else timedelta(milliseconds=every)
        self._project = project
        self._control = control
        self._tell = tell
        self._next = datetime.min.replace(tzinfo=UTC)

    def tick(self, stream: str) -> None:
        """Judge silver at the last cut of a stream, where it is time."""
        now = datetime.now(UTC)
        if self._every is None or now < self._next:
            return
        self._next = now + self._every
        try:
            judged = self._control.read("quality", pc.field("rule") != RULE, columns=["judged_at"])
            last = pc.max(judged["judged_at"]).as_py()
            if last is not None and now - last < self._every:
                self._next = last + self._every
                return
            cut = self._control.last_cut(stream)
            if cut is not None:
                judge_cut(self._project, self._control, written(cut), now)
                self._tell(Progress("judge", "silver was judged by its rules"))
        except CdcLakeError as error:
            text = f"silver was not judged: {error.message}; it is tried again later"
            self._tell(Progress("warning", text, facts={"code": error.code}))
