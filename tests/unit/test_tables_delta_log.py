"""Lines of JSON end at a line feed, whatever texts have in them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from cdc_lake.tables.delta_log import changed_by, json_lines, mend, note_in
from cdc_lake_testing.histories import LINE_BREAKS

PACKAGE = Path(__file__).parents[2] / "cdc_lake"
TEXTS = "".join(LINE_BREAKS)
ADDED = {"add": {"path": "a.parquet", "dataChange": True, "stats": json.dumps({"maxValues": {"b": TEXTS}})}}
OF_LINES = frozenset({
    ("cli/output.py", "_printable"),
    ("cli/text.py", "fix"),
    ("config/yaml_tree.py", "text"),
    ("devtools/replay.py", "payload"),
    ("quality/great_expectations.py", "strip"),
    ("silver/transforms.py", "strip"),
    ("source/refusals.py", "strip"),
})  # fmt: skip
"""Where a text is cut at every line break: what a person reads, in the first line of a message or line by line, a file
of YAML, whose lines are such, and a bytes payload, which is cut at line feed and carriage return.
"""


def test_every_line_break_of_unicode_may_stand_in_a_string_of_a_line() -> None:
    entry = "\n".join(json.dumps(one, ensure_ascii=False) for one in ({"commitInfo": {"operation": "MERGE"}}, ADDED))
    assert json_lines(entry) == json_lines(entry.encode()) == [{"commitInfo": {"operation": "MERGE"}}, ADDED]
    assert json_lines(f"{entry}\n") == json_lines(entry)
    assert json_lines("") == []


def test_a_log_entry_with_line_breaks_in_its_statistics_is_read_like_any_other(tmp_path: Path) -> None:
    written = json.dumps({"commitInfo": {"operation": "WRITE", "cdc_lake": {"commit": "1", "lines": 2}}})
    entry = f"{json.dumps(ADDED, ensure_ascii=False)}\n{written}"
    assert note_in(entry) == {"commit": "1", "lines": 2}
    assert changed_by([(3, entry)]) is not None
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text(entry, encoding="utf-8")
    assert mend(tmp_path) == []


def test_nothing_else_cuts_a_text_at_every_line_break() -> None:
    assert set(_splitting()) == OF_LINES


def _splitting() -> Iterator[tuple[str, str]]:
    """Modules that call `splitlines`, with the name of what they call it of."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "splitlines":
                of = node.value.value if isinstance(node.value, ast.Subscript) else node.value
                of = of.func if isinstance(of, ast.Call) else of
                yield str(file.relative_to(PACKAGE)), of.attr if isinstance(of, ast.Attribute) else ast.unparse(of)
