"""The report as a value, and its two forms: one self-contained HTML file and JSON.

Promises: those of every page (`cdc_lake.observability.html`), no row value is shown that nobody asked for, and the JSON
says all that the page says (`"schema": "cdc-lake/report/1"`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cdc_lake.config.rules import Thresholds
from cdc_lake.observability import html
from cdc_lake.observability.html import Headline, State, environment
from cdc_lake.quality.table_rules import Level, level, worst

SCHEMA = "cdc-lake/report/1"


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind one stage is: `received`, `landed` or `applied`. None: not known."""

    stage: str
    seconds: float | None = None
    bytes: int | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class TableState:
    """A silver table now. Positions are as people paste them; `held` counts held changes. `verified_*`: how far
    comparisons proved it equal to the source, and when; `different_at`: it was found to differ since. `rows`: that the
    source's table has now; `stored`: all rows, if silver also keeps deleted ones or earlier versions. `remedy`: the
    next command, if the table does not follow its source.
    """

    name: str
    source: str
    format: str
    state: str
    rows: int | None = None
    watermark: str = ""
    watermark_at: dt.datetime | None = None
    held: int = 0
    reason: str = ""
    verified_through: str = ""
    verified_at: dt.datetime | None = None
    different_at: dt.datetime | None = None
    stored: int | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """A key that the last comparison named: what differs of it, and the last changes in bronze that touched it, of
    `touched` in all. `key` and the values of `columns`, source's and silver's, are empty where they are not to be seen.
    """

    table: str
    kind: str
    key: str
    columns: tuple[tuple[str, str, str], ...]
    changes: tuple[tuple[str, str, str], ...]
    """Position, operation, and when or where from."""
    touched: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the last comparison with the source found: `equal`, `equal but for held keys`, `inconclusive`, `different`.

    `different` names tables, `open` tables that could not be judged, each with the reason. `differing`: what is known
    of some keys; `values`: with their rows.
    """

    verdict: str
    at: dt.datetime | None = None
    position: str = ""
    tables: int = 0
    held_keys: int = 0
    discarded_keys: int = 0
    different: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    differing: tuple[DifferingKey, ...] = ()
    values: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """Of how many a rule failed how many: changes at the gate, or rows of a table."""

    evaluated: int
    failed: int

    @property
    def fraction(self) -> float:
        """Failed of evaluated, 0 to 1."""
        return self.failed / self.evaluated if self.evaluated else 0.0


@dataclass(frozen=True, slots=True)
class RuleState:
    """A rule: changes it judged over the last runs, oldest first, and rows of silver that break it now.

    `suite` is None where silver was not judged (`suite_note` says why); `broken` says why a rule could not be judged.
    `past` is what silver came to, oldest first, this report last; `observed` what was seen of a table as a whole.
    `written` is where it stands, `pipelines/shop.yaml:14`; `keys`: of some rows that break it, where they may be shown.
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
        """How much the rows of silver that break it are of concern."""
        return level(self.thresholds, self.suite.evaluated, self.suite.failed) if self.suite else "none"

    @property
    def level(self) -> Level:
        """How much it is of concern: changes of the runs shown, or rows of silver, whichever is worse."""
        return worst((level(self.thresholds, self.total.evaluated, self.total.failed), self.silver_level))

    @property
    def total(self) -> Judged:
        """All changes judged in the runs shown."""
        return Judged(sum(j.evaluated for j in self.history), sum(j.failed for j in self.history))

    @property
    def state(self) -> State:
        """Bad: it cannot be judged, stops runs, or reached error; attention: warn; unknown: nothing was judged."""
        if self.broken or self.level in {"error", "critical"}:
            return "bad"
        if self.level == "warn":
            return "bad" if self.on_fail == "stop" else "attention"
        return "good" if self.history or self.suite else "unknown"


@dataclass(frozen=True, slots=True)
class QuarantinedGroup:
    """Held changes of a table with one reason: how many broke the rule, how many wait behind them, since when."""

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
    """All that a report says. Tables, rules and held groups come sorted; runs newest first."""

    pipeline: str
    generated: dt.datetime
    source: str = ""
    verdict: Verdict | None = None
    lags: tuple[Lag, ...] = ()
    tables: tuple[TableState, ...] = ()
    rules: tuple[RuleState, ...] = ()
    held: tuple[QuarantinedGroup, ...] = ()
    runs: tuple[RunState, ...] = ()
    suites: Mapping[str, str] = field(default_factory=dict)
    """File of Great Expectations' own result, by table."""
    notes: tuple[str, ...] = ()
    """What the reader must know of how this report came about: samples, tables that could not be read."""

    @property
    def held_changes(self) -> int:
        """Changes that wait, over all tables."""
        return sum(group.changes for group in self.held)


def headline(data: ReportData) -> Headline:
    """The one sentence that a reader in a hurry takes away, from the last comparison with the source."""
    verdict = data.verdict
    if verdict is None:
        return Headline("unknown", "Not compared with the source yet", "cdc-lake compare proves silver row by row.")
    position_text = f" at {verdict.position}" if verdict.position else ""
    when = f", {html.moment(verdict.at)}" if verdict.at else ""
    proven = f"{html.plural(verdict.tables, 'table')} compared row by row{position_text}{when}."
    if verdict.verdict == "equal":
        return Headline("good", "Silver equals the source", proven)
    if verdict.verdict.startswith("equal"):
        many = [(verdict.held_keys, "held key"), (verdict.discarded_keys, "discarded key")]
        but = " and ".join(html.plural(number, word) for number, word in many if number)
        return Headline("attention", f"Silver equals the source, but for {but}", proven)
    if verdict.verdict == "inconclusive":
        return Headline(
            "unknown", "The comparison could not decide for every table", f"{proven} Open: {'; '.join(verdict.open)}."
        )
    names = ", ".join(verdict.different) or "see the comparison"
    return Headline("bad", "Silver differs from the source", f"{proven} Different: {names}.")


def render_html(data: ReportData) -> str:
    """The report as one HTML document without scripts or addresses."""
    return environment("cdc_lake.quality").get_template("report.html.j2").render(data=data, headline=headline(data))


def render_json(data: ReportData) -> str:
    """The report as JSON: the dataclasses as objects, times in ISO 8601 with zone."""
    summary = headline(data)
    rules = [{**asdict(rule), **_rule_outcome(rule)} for rule in data.rules]
    document = {"schema": SCHEMA, "headline": asdict(summary), **_plain(data), "rules": rules}
    return json.dumps(document, indent=2, ensure_ascii=False, default=_iso, allow_nan=False) + "\n"


def _rule_outcome(rule: RuleState) -> dict[str, object]:
    """What follows from a rule's fields, and those that are no dataclasses."""
    thresholds = None if rule.thresholds is None else rule.thresholds.model_dump()
    return {"state": rule.state, "level": rule.level, "thresholds": thresholds}


def _plain(data: ReportData) -> dict[str, Any]:
    plain = asdict(data)
    plain["held_changes"] = data.held_changes
    return plain


def _iso(value: object) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be part of a report")
