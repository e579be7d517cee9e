"""What rules across fields are evaluated on: the sections that are valid, and the location of each value in the file.

A rule is a function from a `CheckedPipeline` to findings, or a `Rule`, a row of a table. It reads sections as
attributes; a section whose own fields are wrong raises `NotApplicable`, and the rule has no findings until they are
corrected. Values whose reference could not be resolved are None, and no finding is reported at their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from cdc_lake.config.fields import captures, compile_pattern
from cdc_lake.config.model import Bronze, Lake, Pipeline, Silver, Spark
from cdc_lake.config.schema import plain, walk
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.config.yaml_tree import MappingNode, Mark, Node, ScalarNode, nodes
from cdc_lake.model.diagnostic import Diagnostic, Problem, Severity
from cdc_lake.model.relation import TableName

_REQUIRED: dict[str, Any] = {
    "version": 1,
    "pipeline": "pipeline",
    "source": {"type": "postgres", "database": "-", "user": "-", "tables": ["*.*"]},
}
"""Replacements for required sections that are missing or invalid."""
_PARENT = re.compile(r"(\.[^.\[]+|\[\d+\]|^[^.\[]+)$")


class NotApplicable(Exception):  # never leaves this package
    """The rule is about a section that is itself invalid, or about another type of source."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated rule. `path`: the value that it concerns; if that is missing, the location is the enclosing section's.

    `key`: the location is that of the key; `beside`: it is that of this other path.
    """

    problem: Problem
    path: str
    summary: str
    hint: str
    key: bool = False
    beside: str = ""
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with one message. `{}` in the summary is what `broken` returned."""

    problem: Problem
    path: str
    broken: Callable[[CheckedPipeline], object]
    summary: str
    hint: str
    key: bool = False

    def __call__(self, pipeline: CheckedPipeline) -> Iterator[Finding]:
        """The finding, if the rule is broken."""
        if value := self.broken(pipeline):
            yield Finding(self.problem, self.path, self.summary.format(value), self.hint, self.key)


class CheckedPipeline:
    """The valid sections of a pipeline file. Reading one that is not valid raises NotApplicable."""

    def __init__(self, root: MappingNode) -> None:
        self._nodes = {path: (node, key) for path, node, key in nodes(root)}
        self._pipeline, self._wrong = _valid_sections(root)

    def diagnose(self, rules: Iterable[Callable[[CheckedPipeline], Iterable[Finding]]]) -> Iterator[Diagnostic]:
        """The findings of the rules, each with its location."""
        for rule in rules:
            try:
                for finding in rule(self):
                    node, mark = self._place(finding)
                    if not (isinstance(node, ScalarNode) and node.broken):
                        place = mark.location(finding.path)
                        yield Diagnostic(finding.severity, finding.problem, finding.summary, place, finding.hint)
            except NotApplicable:
                continue

    def _place(self, finding: Finding) -> tuple[Node, Mark]:
        path = finding.beside or finding.path
        while path not in self._nodes:
            path = _PARENT.sub("", path)
        node, key = self._nodes[path]
        return node, key if finding.key and path == finding.path else node.mark

    def _valid(self, section: str) -> Pipeline:
        if section in self._wrong:
            raise NotApplicable
        return self._pipeline

    @property
    def source(self) -> PostgresSource | FamilySource:
        """The source, of whatever type."""
        return self._valid("source").source

    @property
    def postgres(self) -> PostgresSource:
        """The source, if it is a PostgreSQL or a QHB."""
        if not isinstance(source := self.source, PostgresSource):
            raise NotApplicable
        return source

    @property
    def family(self) -> FamilySource:
        """The source, if it is a server of the GaussDB family."""
        if not isinstance(source := self.source, FamilySource):
            raise NotApplicable
        return source

    @property
    def bronze(self) -> Bronze:
        """The section `bronze`."""
        return self._valid("bronze").bronze

    @property
    def lake(self) -> Lake:
        """The section `lake`."""
        return self._valid("lake").lake

    @property
    def silver(self) -> Silver:
        """The section `silver`."""
        return self._valid("silver").silver

    @property
    def spark(self) -> Spark:
        """The section `spark`."""
        return self._valid("spark").spark

    def node(self, path: str) -> Node | None:
        """The node of a path, None if nothing is written there."""
        return self._nodes[path][0] if path in self._nodes else None

    def is_set(self, path: str) -> bool:
        """Whether a path has a value, or a reference that could not be resolved."""
        node = self.node(path)
        return node is not None and not (isinstance(node, ScalarNode) and node.value is None and not node.broken)

    def line(self, path: str) -> int:
        """The line in which the value of a path is written."""
        return self._nodes[path][0].mark.line

    @cached_property
    def patterns(self) -> list[str]:
        """The patterns of `source.tables`; none if one of them, or the section, is wrong."""
        try:
            patterns = self.source.tables
            for pattern in patterns:
                compile_pattern(pattern.removeprefix("!"))
        except (NotApplicable, ValueError):
            return []
        return [] if all(pattern.startswith("!") for pattern in patterns) else patterns

    def check_captured(self, table: TableName, path: str, *, key: bool = False) -> Iterator[Finding]:
        """A finding if `source.tables` leaves a table out."""
        if self.patterns and not captures(self.patterns, table):
            hint = f"add `{table}` to `source.tables`, or correct the name"
            yield Finding(Problem.NOT_CAPTURED, path, f"`source.tables` does not capture `{table}`", hint, key)

    def check_table(self, text: str, path: str, *, key: bool = False) -> Iterator[Finding]:
        """A finding if a text is not the name of a table that is captured."""
        if (table := table_name(text)) is None:
            hint = "write schema.table, for example public.orders"
            yield Finding(Problem.TABLE_NAME, path, f"`{text}` is not a table name", hint, key)
        else:
            yield from self.check_captured(table, path, key=key)


def table_name(text: str) -> TableName | None:
    """The table that a text names, None if it does not name one."""
    try:
        return TableName.parse(text)
    except ValueError:
        return None


def _valid_sections(root: MappingNode) -> tuple[Pipeline, set[str]]:
    """The pipeline without the sections that do not fit their models, and the names of these.

    An unresolved reference does not make its section wrong: the value is left out, or `-` if text is required.
    """
    wrong: set[str] = set()
    unresolved: dict[int, str | None] = {}
    while True:
        sections = {name: value for name, value in plain(root, unresolved).items() if name not in wrong}
        stand_ins = {name: value for name, value in _REQUIRED.items() if name in wrong}
        try:
            return Pipeline.model_validate(sections | stand_ins), wrong
        except ValidationError as bad:
            for error in bad.errors(include_url=False, include_input=False):
                node, _, rest = walk(root, error["loc"])
                if isinstance(node, ScalarNode) and node.broken and not rest and id(node) not in unresolved:
                    unresolved[id(node)] = "-" if error["type"] == "string_type" else None
                else:
                    wrong.add(str(error["loc"][0]))
