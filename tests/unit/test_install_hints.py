"""Hints that install something name where this package came from: no index has it unless it came from one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc_lake.errors import base


class Given:
    def __init__(self, told: dict[str, Any] | None) -> None:
        self._told = told

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._told is None else json.dumps(self._told)


@pytest.mark.parametrize(
    ("told", "command"),
    [
        (None, "pip install 'cdc_lake[spark]'"),
        (
            {"url": "file:///srv/a%20b", "dir_info": {"editable": True}},
            "pip install -e '/srv/a b[spark]'",
        ),
        ({"url": "file:///srv/cdc", "dir_info": {}}, "pip install '/srv/cdc[spark]'"),
        (
            {"url": "file:///srv/cdc_lake-0.3.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'cdc_lake[spark] @ file:///srv/cdc_lake-0.3.0-py3-none-any.whl'",
        ),
        (
            {"url": "https://git.example/cdc.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'cdc_lake[spark] @ git+https://git.example/cdc.git@abc'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any] | None, command: str
) -> None:
    monkeypatch.setattr(base, "distribution", lambda _: Given(told))
    assert base.install("spark") == command
