"""What `check` says of the language of a server's messages."""

from __future__ import annotations

import pytest

from cdc_lake.ops.check.postgres import language_lines


@pytest.mark.parametrize("messages", ["", "C", "C.UTF-8", "POSIX", "en_US.UTF-8", "English_United States.1252"])
def test_english_is_no_finding(messages: str) -> None:
    assert list(language_lines(messages)) == []


@pytest.mark.parametrize("messages", ["ru_RU.UTF-8", "zh_CN", "Russian_Russia.1251"])
def test_another_language_is_warned_of(messages: str) -> None:
    (line,) = language_lines(messages)
    assert line.ok is None
    assert messages in line.text
    assert "lc_messages = 'C'" in line.fix
