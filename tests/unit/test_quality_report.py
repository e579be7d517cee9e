"""The report as a value becomes a page and a document: escaped, self-contained, complete."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from cdc_lake.observability import html as wording
from cdc_lake.observability.html import sparkline
from cdc_lake.quality.report import (
    Judged,
    Lag,
    QuarantineSummary,
    ReportData,
    RuleState,
    RunState,
    TableState,
    Verdict,
    headline,
    render_html,
    render_json,
)

NOW = dt.datetime(2026, 1, 31, 18, 5, tzinfo=dt.UTC)
HOSTILE = """"><script src="https://evil.example/x.js">alert('&amp;')</script><img src=http://evil.example/a.png>{{ 7 * 7 }}"""
DATA = ReportData(
    pipeline=HOSTILE,
    generated=NOW,
    source=HOSTILE,
    verdict=Verdict("different", NOW, "0/5F", 1, 0, (HOSTILE,)),
    lags=(Lag(HOSTILE, 0.5, 10, 3), Lag("applied")),
    tables=(TableState(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 3, HOSTILE, NOW, 1, HOSTILE),),
    rules=(
        RuleState(HOSTILE, HOSTILE, "regex", HOSTILE, "warn", (Judged(10, 1),), Judged(3, 1), "", HOSTILE, HOSTILE),
        RuleState("t", "r", "not_null", "c", "warn", (), None, HOSTILE),
    ),
    quarantined=(QuarantineSummary(HOSTILE, HOSTILE, HOSTILE, 1, 1, NOW),),
    runs=(RunState(NOW, 1.5, 1, 2, HOSTILE, HOSTILE), RunState(None, None, 0, 0, "")),
    suites={HOSTILE: f"gx/{HOSTILE}.json"},
    notes=(HOSTILE,),
)


class Page(HTMLParser):
    """Every tag with its attributes, and the order in which tags close."""

    VOID = frozenset({"meta", "link", "br", "circle", "path", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_hostile_names_stay_text_and_nothing_is_fetched() -> None:
    html = render_html(DATA)
    page = Page()
    page.feed(html)
    assert page.open == []
    assert not {"script", "img", "iframe", "a", "object"} & set(page.tags)
    fetching = {value for name, value in page.attributes if name in {"src", "href", "action", "xlink:href"}}
    assert fetching == {"data:,"}
    assert not re.search(r"url\(|@import", html)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "{{ 7 * 7 }}" in html
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html


def test_an_honest_report_names_no_address_at_all() -> None:
    html = render_html(ReportData("shop", NOW))
    assert "http://" not in html
    assert "https://" not in html


def test_an_empty_report_says_what_to_do_next() -> None:
    html = render_html(ReportData("shop", NOW))
    assert "Not compared with the source yet" in html
    assert "cdc-lake run --once" in html


def test_the_document_says_what_the_page_says() -> None:
    document = json.loads(render_json(DATA))
    assert document["schema"] == "cdc-lake/report/1"
    assert document["headline"]["state"] == "bad"
    assert document["rules"][0]["state"] == "bad"
    assert document["rules"][0]["history"] == [{"evaluated": 10, "failed": 1}]
    assert document["generated"] == "2026-01-31T18:05:00+00:00"
    assert document["quarantined_changes"] == 1


@pytest.mark.parametrize(
    ("found", "state", "text"),
    [
        (None, "unknown", "Not compared with the source yet"),
        (Verdict("equal", NOW, "0/5F", 5), "good", "Silver equals the source"),
        (
            Verdict("equal but for quarantined keys", NOW, "0/5F", 5, 1),
            "attention",
            "Silver equals the source, but for 1 quarantined key",
        ),
        (
            Verdict("inconclusive", NOW, "0/5F", 5, 0, (), ("silver.t: no key",)),
            "unknown",
            "The comparison could not decide for every table",
        ),
        (Verdict("different", NOW, "0/5F", 5, 0, ("silver.t",)), "bad", "Silver differs from the source"),
    ],
)
def test_the_first_sentence_is_the_verdict(found: Verdict | None, state: str, text: str) -> None:
    said = headline(ReportData("shop", NOW, verdict=found))
    assert (said.state, said.text) == (state, text)


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        (RuleState("t", "r", "not_null", "c", "warn"), "unknown"),
        (RuleState("t", "r", "not_null", "c", "warn", (Judged(5, 0),)), "good"),
        (RuleState("t", "r", "not_null", "c", "quarantine", (Judged(5, 1),)), "attention"),
        (RuleState("t", "r", "not_null", "c", "stop", (Judged(5, 1),)), "bad"),
        (RuleState("t", "r", "not_null", "c", "warn", broken="no column"), "bad"),
    ],
)
def test_a_broken_rule_is_not_a_failed_one(rule: RuleState, state: str) -> None:
    assert rule.state == state


def test_a_trend_is_scaled_to_its_largest_point() -> None:
    assert sparkline([0.0, 0.5, 0.25]) == "0.0,22.0 48.0,2.0 96.0,12.0"
    assert sparkline([0.0, 0.0]) == "0.0,22.0 96.0,22.0"
    assert sparkline([0.5]) == "", "one point is no trend"


def test_numbers_read_at_a_glance_and_never_round_a_failure_away() -> None:
    plain = [
        text.replace("\u202f", " ")
        for text in (
            wording.count(1234567),
            wording.percent(0),
            wording.percent(1e-9),
            wording.percent(0.9999999),
            wording.percent(1),
            wording.duration(0.12),
            wording.duration(184),
            wording.duration(7500),
            wording.size(1536),
        )
    ]
    assert plain == ["1 234 567", "0 %", "< 0.01 %", "> 99.9 %", "100 %", "120 ms", "3 min", "2 h 5 min", "1.5 KiB"]


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            "cdc_lake.quality.rules, cdc_lake.quality.great_expectations, cdc_lake.quality.report",
            "pyspark pandas great_expectations",
        ),
        # pyarrow.dataset imports pandas where it is installed, so a report may not promise more.
        ("cdc_lake.ops.html_pages", "pyspark great_expectations"),
    ],
)
def test_rules_and_reports_import_what_they_need_only_when_they_need_it(modules: str, absent: str) -> None:
    code = f"import sys, {modules}\nprint(sorted(set('{absent}'.split()) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
