"""The report as a value, and its two forms: one self-contained HTML file and JSON.

Guarantees: those of every page (`cdc_lake.observability.html`), row values are shown only on request, and the JSON
contains everything on the page (`"schema": "cdc-lake/report/1"`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from cdc_lake.config.rules import Thresholds
from cdc_lake.observability import html
from cdc_lake.observability.html import Headline, State, environment
from cdc_lake.quality.table_rules import Level, level, worst

SCHEMA = "cdc-lake/report/1"


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one stage: `received`, `landed` or `applied`. None: unknown."""

    stage: str
    seconds: float | None = None
    bytes: int | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class TableState:
    """The current state of a silver table. Positions are as commands accept them; `quarantined` counts changes in
    quarantine. `verified_*`: position and time up to which comparisons proved it equal to the source; `different_at`:
    it was found to differ since. `rows`: current rows of the source's table; `stored`: all rows, if silver also keeps
    deleted ones or earlier versions. `remedy`: the next command, if the table does not follow its source.
    """

    name: str
    source: str
    format: str
    state: str
    rows: int | None = None
    watermark: str = ""
    watermark_at: dt.datetime | None = None
    quarantined: int = 0
    reason: str = ""
    verified_through: str = ""
    verified_at: dt.datetime | None = None
    different_at: dt.datetime | None = None
    stored: int | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """A key in the last comparison: its differences, and the last changes in bronze that touched it, of `touched` in
    all. `key` and the values of `columns`, source's and silver's, are empty if they must not be shown.
    """

    table: str
    kind: str
    key: str
    columns: tuple[tuple[str, str, str], ...]
    changes: tuple[tuple[str, str, str], ...]
    """Position, operation, and time or origin."""
    touched: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last comparison with the source: `equal`, `equal but for quarantined keys`, `inconclusive`, `different`.

    `different` names tables, `open` tables that could not be compared, each with the reason. `differing`: details of
    some keys; `values`: with their rows.
    """

    verdict: str
    at: dt.datetime | None = None
    position: str = ""
    tables: int = 0
    quarantined_keys: int = 0
    discarded_keys: int = 0
    different: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    differing: tuple[DifferingKey, ...] = ()
    values: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """Number of failures and evaluations of a rule: changes during apply, or rows of a table."""

    evaluated: int
    failed: int

    @property
    def fraction(self) -> float:
        """Failed of evaluated, 0 to 1."""
        return self.failed / self.evaluated if self.evaluated else 0.0


@dataclass(frozen=True, slots=True)
class RuleState:
    """A rule: changes it evaluated in the last runs, oldest first, and rows of silver that violate it now.

    `suite` is None if silver was not evaluated (`suite_note` says why); `broken`: why a rule could not be evaluated.
    `past`: results on silver, oldest first, this report last; `observed`: the value observed for a table rule.
    `written`: its location, `pipelines/shop.yaml:14`; `keys`: of some violating rows, if they may be shown.
    """

    table: str
    rule: str
    kind: str
    column: str
    on_fail: str
    history: tuple[Judged, ...] = ()
    suite: Judged | None = None
    suite_note: str = ""
    broken: str = ""
    written: str = ""
    thresholds: Thresholds | None = None
    observed: str = ""
    past: tuple[Judged, ...] = ()
    keys: tuple[tuple[str | None, ...], ...] = ()

    @property
    def silver_level(self) -> Level:
        """The level of the violations in silver."""
        return level(self.thresholds, self.suite.evaluated, self.suite.failed) if self.suite else "none"

    @property
    def level(self) -> Level:
        """The worse level of the changes of the runs shown, and of the rows of silver."""
        return worst((level(self.thresholds, self.total.evaluated, self.total.failed), self.silver_level))

    @property
    def total(self) -> Judged:
        """All changes evaluated in the runs shown."""
        return Judged(sum(j.evaluated for j in self.history), sum(j.failed for j in self.history))

    @property
    def state(self) -> State:
        """Bad: cannot be evaluated, stops runs, or reached error; attention: warn; unknown: nothing was evaluated."""
        if self.broken or self.level in {"error", "critical"}:
            return "bad"
        if self.level == "warn":
            return "bad" if self.on_fail == "stop" else "attention"
        return "good" if self.history or self.suite else "unknown"


@dataclass(frozen=True, slots=True)
class QuarantineSummary:
    """Quarantined changes of a table with one reason: how many violate the rule, how many are queued, since when."""

    table: str
    rule: str
    reason: str
    changes: int
    keys: int
    since: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """One run of apply."""

    started: dt.datetime | None
    seconds: float | None
    transactions: int
    changes: int
    upto: str
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class ReportData:
    """The content of a report. Tables, rules and quarantined groups are sorted; runs newest first."""

    pipeline: str
    generated: dt.datetime
    source: str = ""
    verdict: Verdict | None = None
    lags: tuple[Lag, ...] = ()
    tables: tuple[TableState, ...] = ()
    rules: tuple[RuleState, ...] = ()
    quarantined: tuple[QuarantineSummary, ...] = ()
    runs: tuple[RunState, ...] = ()
    suites: Mapping[str, str] = field(default_factory=dict)
    """The file of Great Expectations' own result, by table."""
    notes: tuple[str, ...] = ()
    """Notes on how this report was made: samples, unreadable tables."""

    @property
    def quarantined_changes(self) -> int:
        """The number of quarantined changes of all tables."""
        return sum(group.changes for group in self.quarantined)


def headline(data: ReportData) -> Headline:
    """The summary in one sentence, from the last comparison with the source."""
    verdict = data.verdict
    if verdict is None:
        return Headline("unknown", "Not compared with the source yet", "cdc-lake compare proves silver row by row.")
    position_text = f" at {verdict.position}" if verdict.position else ""
    when = f", {html.moment(verdict.at)}" if verdict.at else ""
    proven = f"{html.plural(verdict.tables, 'table')} compared row by row{position_text}{when}."
    if verdict.verdict == "equal":
        return Headline("good", "Silver equals the source", proven)
    if verdict.verdict.startswith("equal"):
        many = [(verdict.quarantined_keys, "quarantined key"), (verdict.discarded_keys, "discarded key")]
        but = " and ".join(html.plural(number, word) for number, word in many if number)
        return Headline("attention", f"Silver equals the source, but for {but}", proven)
    if verdict.verdict == "inconclusive":
        return Headline(
            "unknown", "The comparison could not decide for every table", f"{proven} Open: {'; '.join(verdict.open)}."
        )
    names = ", ".join(verdict.different) or "see the comparison"
    return Headline("bad", "Silver differs from the source", f"{proven} Different: {names}.")


def render_html(data: ReportData) -> str:
    """The report as one HTML document without scripts or external addresses."""
    return environment("cdc_lake.quality").get_template("report.html.j2").render(data=data, headline=headline(data))


def render_json(data: ReportData) -> str:
    """The report as JSON: the dataclasses as objects, times in ISO 8601 with zone."""
    summary = headline(data)
    rules = [
        {
            **asdict(rule),
            "state": rule.state,
            "level": rule.level,
            "thresholds": None if rule.thresholds is None else rule.thresholds.model_dump(),
        }
        for rule in data.rules
    ]
    counts = {"quarantined_changes": data.quarantined_changes, "rules": rules}
    document = {"schema": SCHEMA, "headline": asdict(summary), **asdict(data), **counts}
    return json.dumps(document, indent=2, ensure_ascii=False, default=_iso, allow_nan=False) + "\n"


def _iso(value: object) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be part of a report")
