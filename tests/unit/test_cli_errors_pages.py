"""Error codes and their pages: none without the other, none twice, each found by `explain`."""

from __future__ import annotations

import re
from collections import Counter

from cdc_lake import errors
from cdc_lake.cli import project_template
from cdc_lake.cli import text as pages
from cdc_lake.errors import CdcLakeError
from cdc_lake.model import diagnostic

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
