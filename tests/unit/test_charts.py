"""Charts: SVG that any reader of XML takes, to scale, with every text escaped and nothing fetched."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from notebooks.charts import Chart, bars, lines

SVG = "{http://www.w3.org/2000/svg}"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def of(chart: Chart, tag: str) -> list[dict[str, str]]:
    return [element.attrib for element in ET.fromstring(chart.svg).iter(SVG + tag)]


def test_bars_are_as_long_as_their_values_and_in_the_order_given() -> None:
    widths = [float(bar["width"]) for bar in of(bars("b", {"orders": 200, "carts": 50, "none": 0, "less": -3}), "rect")]
    assert widths[1] * 4 == pytest.approx(widths[0], abs=0.3)
    assert widths[2:] == [0, 0]


def test_lines_meet_the_top_at_the_largest_value_and_the_axis_at_zero() -> None:
    given = [(NOON, 0.0), (NOON + timedelta(seconds=30), 8.0), (NOON + timedelta(minutes=1), 4.0)]
    first, second = of(lines("lag", {"landed": given, "applied": given[1:]}, unit=" s"), "polyline")
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in first["points"].split())
    assert (y0, y1, y2) == (220, 44, 132)
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert len(second["points"].split()) == 2
    assert second["stroke"] != first["stroke"]


@pytest.mark.parametrize(
    "chart", [bars("t", {}), lines("t", {}), lines("t", {"one": [(NOON, 0)]}), bars("t", {"a": 0})]
)
def test_little_and_nothing_can_be_drawn(chart: Chart) -> None:
    assert of(chart, "svg")[0]["aria-label"] == "t"


def test_texts_are_escaped_and_nothing_is_fetched() -> None:
    odd = "<script>\"&'"
    for chart in (bars(odd, {odd: 1}, unit=odd), lines(odd, {odd: [(NOON, 1)]}, unit=odd)):
        assert odd in {element.text for element in ET.fromstring(chart.svg).iter(SVG + "text")}
        assert not of(chart, "script")
        assert re.findall(r"https?://[^\"]+", chart.svg) == ["http://www.w3.org/2000/svg"]
        assert chart._repr_svg_() == chart.svg
