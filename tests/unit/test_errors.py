"""What every error knows: its code, its page, and a hint that fits how this package was installed."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from cdc_lake import errors
from cdc_lake.cli import project_template
from cdc_lake.cli import text as pages
from cdc_lake.config.project import Target
from cdc_lake.errors import CdcLakeError, Unconvertible, base
from cdc_lake.errors.base import kinds, without_table_copies
from cdc_lake.model import diagnostic
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.schema_changes import copied_again


def test_a_remedy_names_the_table_as_a_shell_takes_it():
    assert "`cdc-lake resync 'public.My Orders'` copies" in Unconvertible("m").for_table("public.My Orders").remedy


@pytest.mark.parametrize(
    "kind", [kind for kind in kinds(CdcLakeError) if "cdc-lake resync TABLE`" in (kind.hint or "")]
)
def test_no_remedy_copies_one_table_where_its_stream_takes_no_copy_of_one(kind: type[CdcLakeError]) -> None:
    remedy = without_table_copies(kind("it waits").for_table("public.loans").remedy)
    assert "cdc-lake resync" not in remedy
    assert "`cdc-lake restart` copies every table again" in remedy


def test_of_a_table_that_keeps_no_past_the_new_copy_is_one_of_every_table_in_such_a_stream() -> None:
    target = Target(TableName("public", "loans"), "silver", "loans", "delta", (), ())
    again = without_table_copies(copied_again(target))
    assert again == (
        "`cdc-lake restart` copies every table again (this stream takes no copy of one table); until then the table waits"
    )


SECTIONS = ["## What happened", "## Why", "## What to do", "## Example"]


def tree(kind: type[CdcLakeError] = CdcLakeError) -> list[type[CdcLakeError]]:
    return [kind, *(k for child in kind.__subclasses__() for k in tree(child))]


def all_codes() -> list[str]:
    assert all((errors, diagnostic, project_template))  # the modules that define errors
    own = [k for k in tree() if "code" in vars(k) and k.__module__.startswith("cdc_lake.")]
    return [k.code for k in own] + [str(p.value) for p in diagnostic.Problem]


def test_every_code_has_a_page():
    assert sorted(set(all_codes()) - set(pages.codes())) == []


def test_every_page_has_a_code():
    assert sorted(set(pages.codes()) - set(all_codes())) == []


def test_no_code_is_used_twice():
    assert [code for code, n in Counter(all_codes()).items() if n > 1] == []


def test_every_class_has_a_code_of_its_own_and_its_family():
    for kind in tree():
        if kind.__module__.startswith("cdc_lake."):
            assert "code" in vars(kind), kind
            assert re.fullmatch(r"(CDC|CFG|SRC|DEC|LAK|QUA|STA|DEP)[0-9]{3}", kind.code)


def test_every_page_has_its_form():
    for code in pages.codes():
        text = pages.page(code)
        assert re.match(rf"# {code}: \S", text)
        at = [text.find(section) for section in SECTIONS]
        assert -1 not in at, code
        assert at == sorted(at), code


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
