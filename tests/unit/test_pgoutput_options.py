"""What pgoutput is asked for: the highest version a server has, streaming, unless the pipeline says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_lake.config.source import Pgoutput
from cdc_lake.errors import OptionRefused
from cdc_lake.source.postgres.plugins import chosen


@pytest.mark.parametrize(
    ("major", "given", "asked"),
    [
        (14, {}, {"proto_version": "2", "streaming": "on"}),
        (15, {}, {"proto_version": "3", "streaming": "on"}),
        (16, {}, {"proto_version": "4", "streaming": "on"}),
        (18, {}, {"proto_version": "4", "streaming": "on"}),
        (18, {"proto_version": 1}, {"proto_version": "1"}),
        (18, {"proto_version": 3}, {"proto_version": "3", "streaming": "on"}),
        (15, {"two_phase": True}, {"proto_version": "3", "streaming": "on", "two_phase": "true"}),
        (18, {"streaming": "off"}, {"proto_version": "4"}),
        (18, {"streaming": "parallel"}, {"proto_version": "4", "streaming": "parallel"}),
        (15, {"streaming": "off", "messages": True, "origin": "any"}, {"proto_version": "3", "messages": "true"}),
        (16, {"proto_version": 1, "origin": "none"}, {"proto_version": "1", "origin": "none"}),
        (14, {"proto_version": 1, "binary": True}, {"proto_version": "1", "binary": "true"}),
    ],
)
def test_the_highest_version_streams(major: int, given: dict[str, Any], asked: dict[str, str]) -> None:
    assert chosen(major, Pgoutput.model_validate(given)) == asked


@pytest.mark.parametrize(
    ("major", "given", "asked"),
    [
        (14, {}, {"proto_version": "2"}),
        (18, {"streaming": "off", "binary": True}, {"proto_version": "4", "binary": "true"}),
        (18, {"two_phase": True}, {"proto_version": "4", "two_phase": "true"}),
        (16, {"proto_version": 1, "origin": "none"}, {"proto_version": "1", "origin": "none"}),
    ],
)
def test_functions_are_asked_for_the_same_but_for_what_is_under_way(
    major: int, given: dict[str, Any], asked: dict[str, str]
) -> None:
    assert chosen(major, Pgoutput.model_validate(given), streams=False) == asked


@pytest.mark.parametrize(
    ("major", "given", "hint"),
    [
        (14, {"proto_version": 3}, "proto_version"),
        (15, {"streaming": "parallel"}, "streaming: on"),
        (15, {"origin": "none"}, "remove `origin`"),
        (14, {"two_phase": True}, "two_phase"),
        (18, {"two_phase": True, "proto_version": 2}, "two_phase"),
    ],
)
def test_what_a_server_does_not_have_is_refused_with_the_remedy(major: int, given: dict[str, Any], hint: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        chosen(major, Pgoutput.model_validate(given))
    assert hint in refused.value.remedy
