"""What rules came to over silver, and whether they keep a cut back, as metrics: from the control tables."""

from __future__ import annotations

from cdc_lake.config.project import Project
from cdc_lake.config.rules import rule_name
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_columns import ControlName
from cdc_lake.model.relation import TableName
from cdc_lake.observe.exposition import Sample
from cdc_lake.observe.metric_names import CUT_WITHHELD, RULE_FAILED_ROWS
from cdc_lake.pipeline.judging.cut_verdict import still_withheld


class RuleSamples:
    """Reads the control tables again only where they have changed: reports and other commands write there too."""

    def __init__(self, project: Project, control: ControlTables) -> None:
        self._project = project
        self._control = control
        targets = [project.target(TableName.parse(one.from_)) for one in project.pipeline.silver.tables]
        self._rules = {(target.label, rule_name(rule)) for target in targets for rule in target.rules}
        self._files: list[str] | None = None
        self._found: list[Sample] = []

    def samples(self) -> list[Sample]:
        """The newest judgement of each rule of the file. Raises LakeError."""
        promising = self._project.pipeline.quality.promise_below is not None
        if not self._rules:
            return []
        names: list[ControlName] = ["quality", "withheld", "promises"] if promising else ["quality"]
        files = [path for name in names for path in sorted(self._control.files(name)["path"].to_pylist())]
        if files != self._files:
            self._found = self._judged()
            if promising:
                kept_back = still_withheld(self._project, self._control) is not None
                self._found.append(Sample(CUT_WITHHELD, kept_back))
            self._files = files
        return self._found

    def _judged(self) -> list[Sample]:
        rows = self._control.read("quality").sort_by("judged_at").to_pylist()
        newest = {(row["table"], row["rule"]): row for row in rows}
        return [
            Sample(RULE_FAILED_ROWS, row["failed"], (*key, "broken" if row["broken"] else row["level"]))
            for key, row in sorted(newest.items())
            if key in self._rules
        ]
