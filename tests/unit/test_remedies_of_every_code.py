"""Of every error of source, lake and state a test obeys the remedy, or a reason says why none can.

A test says so by the marker `obeys`, a table of cases by the code of each `Case`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from cdc_lake.errors import CdcLakeError
from cdc_lake.errors.base import kinds

TESTS = Path(__file__).parents[1]
CODE = re.compile(r"(?:SRC2|LAK4|STA6)\d\d")
CODES = {kind.code for kind in kinds(CdcLakeError) if CODE.fullmatch(kind.code)}
NOT_OBEYED: dict[str, str] = {
    "SRC200": "the root of its errors, which is never raised itself",
    "SRC253": "a server that fails in decoding its own log: none can be made to",
    "LAK400": "the root of its errors: what is raised as such is a bug, or a disk that failed",
    "LAK401": "another Java on the machine; every test of silver has one",
    "LAK402": "pyspark installed; every test of silver has it",
    "LAK403": "the way to Maven Central, or a mirror",
    "LAK406": "another process, as each command is one",
    "LAK407": "botocore installed; every test of roles has it, and one takes it away",
    "LAK453": "a log that is read with SQL, which no pipeline file selects yet",
    "STA600": "the root of its errors, which is never raised itself",
    "STA621": "a bug in the receiver",
}


def codes_in(file: Path) -> set[str]:
    """What a file of tests obeys."""
    found, text = set[str](), file.read_text(encoding="utf-8")
    if "obeys(" not in text and "Case(" not in text:
        return found
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="obeys") | ast.Name(id="Case"), args=args):
                texts = [one.value for one in args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                found |= {text for text in texts if CODE.fullmatch(text)}
    return found


OBEYED = set().union(*map(codes_in, TESTS.rglob("test_*.py")))


def test_the_remedy_of_every_code_is_obeyed_or_a_reason_says_why_not() -> None:
    assert OBEYED | NOT_OBEYED.keys() == CODES
    assert not OBEYED & NOT_OBEYED.keys(), "a reason that holds no more"


@pytest.mark.parametrize("text", ["@pytest.mark.obeys('SRC213')", "Case(f, 'SRC213')", "Case('SRC213')"])
def test_each_way_to_say_it_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_one.py").write_text(f"{text}\ndef test(): ...\n" if text.startswith("@") else text)
    assert codes_in(tmp_path / "test_one.py") == {"SRC213"}
