"""The mistakes that must be perfect: those of this machine and of the lake, and that each is kept and listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdc_lake.cli.text import error_text
from cdc_lake.control.cuts import TableState
from cdc_lake.errors import CdcLakeError, JavaMissing, OtherWriter
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.table_integrity import find_violation
from cdc_lake.tables.silver_table import Marker
from cdc_lake.tables.spark_session import require_java
from tests.cut_lake import CutLake, ids
from tests.mistakes import GOLDEN, kept

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mistakes.md"


def test_without_java_the_path_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing) as caught:
        require_java()
    kept("java-missing", caught.value)


def test_another_writer_is_named_with_what_it_did(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    version = lake.write("orders", ids(1))
    target = lake.project.target(TableName("public", "orders"))
    state: TableState = lake.state("orders", version, 200)
    now = Marker(200, lake.write("orders", ids(2)))
    found = find_violation(lake.project, target, lake.stream, state, now)
    assert isinstance(found, OtherWriter)
    kept("another-writer", found)


def test_a_name_tells_a_terminal_nothing() -> None:
    name = TableName("public", "a\x1b[2J\x07\u202eb\x9bé日\xa0c")
    text = error_text(CdcLakeError(f"no key: {name}", where=f"{name}", hint=f"two\nlines of {name}"))
    assert r"no key: public.a\x1b[2J\x07\u202eb\x9bé日" in text
    assert not any(one in text for one in "\x1b\x07\u202e\x9b")
    assert "é日\xa0c" in text
    assert "two\nlines" in text


def test_the_page_lists_each_as_it_is_printed() -> None:
    listed = dict(re.findall(r"^## (.+?)\n\n.*?```\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    names = {file.stem: file.read_text() for file in GOLDEN.glob("*.txt")}
    assert {text.strip() for text in listed.values()} == {text.strip() for text in names.values()}
    assert len(names) == 20
