"""Alert rules and the dashboard ask only for what there is, and each alert says what to do and where more is said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from cdc_lake.observability.metrics import METRICS, Loop, Metric
from tests.unit.test_docs import anchors, problem

ROOT = Path(__file__).parents[2]
RULES = [rule for group in yaml.safe_load((ROOT / "conf/alerts.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "conf/grafana/cdc_lake.json").read_text())
SERIES: dict[str, Metric] = {series: metric for metric in METRICS for series in metric.series}

_VARIABLES = {"$__rate_interval": "5m"}
"""Grafana's own variables, as the parser can read them; `$pipeline` stands within a string."""


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert asked, variable["name"]
            yield variable["name"], f"sum by ({asked[2]}) ({asked[1]})"


def parsed(expression: str) -> list[promql_parser.Expr]:
    """The parts of an expression, as the language's own rules have them. Raises ValueError where it is none."""
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    parts: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expression), parts.append)
    return parts


def unknown(expression: str) -> list[str]:
    """What an expression mentions and nothing gives: series, labels of theirs."""
    parts = parsed(expression)
    selectors = [one for one in parts if isinstance(one, promql_parser.VectorSelector)]
    names = [one.name or "" for one in selectors]
    there = {"pipeline", *(label for name in names if name in SERIES for label in SERIES[name].labels)}
    there |= {"le"} if any(name.endswith("_bucket") for name in names) else set()
    used = [matcher.name for one in selectors for matcher in one.matchers.matchers]
    for one in parts:
        if isinstance(one, promql_parser.AggregateExpr) and one.modifier is not None:
            used += one.modifier.labels
    return [name for name in names if name not in SERIES] + [label for label in used if label not in there]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_only_names_that_exist_are_asked_for(where: str, expression: str) -> None:
    assert unknown(expression) == [], where


def test_a_dashboard_and_alerts_of_the_version_before_keep_working() -> None:
    """The expressions of 0.4.0, which a user may have copied."""
    kept = (ROOT / "tests/data/expressions_0_4_0.txt").read_text().splitlines()
    assert {expression: wrong for expression in kept if (wrong := unknown(expression))} == {}


def test_the_check_finds_what_is_no_expression_and_names_and_labels_that_do_not_exist() -> None:
    assert unknown("cdc_lake_helthy == 0") == ["cdc_lake_helthy"]
    assert unknown('cdc_lake_errors_total{cod="x"} > 0') == ["cod"]
    assert unknown("sum by (table) (rate(cdc_lake_errors_total[5m]))") == ["table"]
    for wrong in ("rte(cdc_lake_errors_total[5m])", "rate(cdc_lake_healthy)", "sum by (pipeline) (cdc_lake_healthy"):
        with pytest.raises(ValueError, match=r"unknown function|expected type matrix|unclosed"):
            unknown(wrong)
    assert unknown("rate(cdc_lake_merge_duration_seconds[5m])") == ["cdc_lake_merge_duration_seconds"], "a histogram"
    assert unknown('histogram_quantile(0.9, sum by (le) (rate(cdc_lake_batch_rows_bucket{pipeline=~".*"}[5m])))') == []


def test_every_metric_is_in_the_dashboard_or_in_an_alert() -> None:
    asked = " ".join(expression for _, expression in expressions())
    assert [one.name for one in METRICS if not any(re.search(rf"\b{s}\b", asked) for s in one.series)] == []


def test_legends_and_texts_name_labels_that_the_series_have() -> None:
    shown = [(t["expr"], t["legendFormat"]) for panel in DASHBOARD["panels"] for t in panel["targets"]]
    shown += [(rule["expr"], " ".join(map(str, rule["annotations"].values()))) for rule in RULES]
    for expression, text in shown:
        kept = {"pipeline", *(label for s, m in SERIES.items() if s in expression for label in m.labels)}
        for part in parsed(expression):
            if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
                kept &= set(part.modifier.labels)
        assert {a or b for a, b in re.findall(r"\{\{\s*(?:\$labels\.(\w+)|([a-z]+))\s*\}\}", text)} <= kept, text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_to_do_and_where_more_is_said(rule: dict[str, Any]) -> None:
    said = rule["annotations"]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert said["description"].endswith((".", "`."))
    page, _, anchor = said["runbook"].partition("#")
    assert anchor in anchors(ROOT / page)
    assert [why for s in re.findall(r"`(cdc-lake [^`{]+)`", said["description"]) if (why := problem(s))] == []


def test_alerts_have_names_of_their_own_and_loops_are_those_there_are() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    text = " ".join(expression for _, expression in expressions())
    assert set(re.findall(r'loop="(\w+)"', text)) <= {str(loop) for loop in Loop}


def test_panels_lie_beside_each_other_and_each_has_words() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= mine
        assert panel["description"].endswith("."), panel["title"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
