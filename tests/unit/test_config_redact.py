"""`bronze.redact` in a pipeline file: what is refused, and where; the key is never shown."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from cdc_lake.config.effective import MASKED, effective
from cdc_lake.config.fields import compile_columns, compile_pattern, exact_column, overlap
from cdc_lake.config.loader import load_project, validate
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.receive.stream_setup import settings_of

HEAD = """\
version: 1
pipeline: shop
source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}
"""
KEY = "bronze:\n  redact_key: ${env:REDACT_KEY}\n"
SECRET = "0123456789abcdef-secret"

CASES = {
    "two parts": ("  redact: [{columns: [users.email], strategy: sha256}]", "CFG150 6:23"),
    "four parts": ("  redact: [{columns: [a.public.users.email], strategy: drop}]", "CFG150 6:23"),
    "taking out again": ('  redact: [{columns: ["!public.users.email"], strategy: drop}]', "CFG150 6:23"),
    "a word that is no strategy": ("  redact: [{columns: [public.a.b], strategy: sha-256}]", "CFG107 6:46"),
    "a strategy without value": ("  redact:\n    - columns: [public.a.b]\n      strategy:", "CFG107 8:16"),
    "no columns": ("  redact: [{columns: [], strategy: drop}]", "CFG107 6:22"),
    "two rules for one column": (
        '  redact:\n    - {columns: [public.a.b], strategy: drop}\n    - {columns: ["public.*.?"], strategy: sha256}',
        "CFG151 8:18",
    ),
    "a table that is not captured": ("  redact: [{columns: [other.a.b], strategy: drop}]", "CFG131 6:23"),
    "a key that would be lost": (
        "  redact: [{columns: [public.a.b], strategy: null}]\nsilver: {tables: [{from: public.a, keys: [id, b]}]}",
        "CFG153 7:47",
    ),
    "a rule about what is dropped": (
        (
            "  redact: [{columns: [public.a.b], strategy: drop}]\n"
            "silver: {tables: [{from: public.a, rules: [{rule: not_null, column: b}]}]}"
        ),
        "CFG153 7:69",
    ),
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACT_KEY", SECRET)


def found(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "shop.yaml"
    file.write_text(text)
    problems = validate([file])
    assert all(p.hint for p in problems)
    return [f"{p.code} {p.location.line}:{p.location.column}" for p in problems if p.location is not None]


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_is_told_with_its_place(tmp_path: Path, name: str):
    text, *wanted = CASES[name]
    assert found(tmp_path, f"{HEAD}{KEY}{text}\n") == wanted


def test_a_pipeline_that_redacts_is_valid(tmp_path: Path):
    rules = (
        "  redact:\n    - {columns: [public.users.email, 'public.*.phone'], strategy: sha256}\n"
        "    - {columns: [public.users.born], strategy: null}\n    - {columns: [public.users.ssn], strategy: 'null'}\n"
        "    - {columns: ['public.*.secret_?'], strategy: drop}\n"
        "silver: {tables: [{from: public.users, keys: [email], rules: [{rule: not_null, column: born}]}]}\n"
    )
    assert found(tmp_path, HEAD + KEY + rules) == []
    project = load_project(tmp_path / "shop.yaml")
    assert [rule.strategy for rule in project.pipeline.bronze.redact] == ["sha256", "null", "null", "drop"]
    shown = {setting.path: setting.text for setting in effective(project)}
    assert shown["bronze.redact_key"] == MASKED
    for text in (repr(project), settings_of(project), json.dumps(shown), project.pipeline.model_dump_json()):
        assert SECRET not in text


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("", "CFG152 5:12"),
        ("  redact_key: written in the file itself\n", "CFG152 5:15"),
        ("  redact_key: ${env:SHORT}\n", "CFG152 5:15"),
        ("  redact_key: ${env:MISSING}\n", "CFG120 5:15"),
        ("  redact_key: ${env:DIGITS}\n", None),
    ],
)
def test_hashes_need_a_key_that_stands_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, wanted: str | None
):
    monkeypatch.setenv("SHORT", "fifteen bytes..")
    monkeypatch.setenv("DIGITS", "1234567890123456")
    rules = "  redact: [{columns: [public.users.email], strategy: sha256}]\n"
    assert found(tmp_path, f"{HEAD}bronze:\n{key}{rules}") == ([wanted] if wanted else [])


def test_settings_tell_one_key_from_another_without_telling_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shop.yaml").write_text(f"{HEAD}{KEY}  redact: [{{columns: [public.a.b], strategy: sha256}}]\n")
    first = settings_of(load_project(tmp_path / "shop.yaml"))
    assert first == settings_of(load_project(tmp_path / "shop.yaml"))
    monkeypatch.setenv("REDACT_KEY", SECRET + "2")
    assert first != settings_of(load_project(tmp_path / "shop.yaml"))


def test_patterns_of_columns_keep_to_their_parts():
    users = TableName("public", "us.ers")
    assert compile_columns(r"public.us\.ers.e*").fullmatch(users.column("e.mail"))
    assert compile_columns("public.*.email").fullmatch(users.column("email"))
    assert not compile_columns("*.email.*").fullmatch(users.column("email"))
    assert exact_column(r"public.us\.ers.\*") == (users, "*")
    assert exact_column("public.*.email") is None


def test_patterns_overlap_where_some_name_matches_both():
    chance = random.Random(3)
    words = ["".join(w) for size in (1, 2, 3) for w in itertools.product("ab", repeat=size)]
    names = [".".join(two) for two in itertools.product(words, repeat=2)]
    for _ in range(400):
        one, other = (
            ".".join("".join(chance.choice("ab*?") for _ in range(chance.randint(1, 2))) for _ in range(2))
            for _ in range(2)
        )
        both = [compile_pattern(text) for text in (one, other)]
        met = any(both[0].fullmatch(name) and both[1].fullmatch(name) for name in names)
        assert overlap(one, other) == met, (one, other)
    assert overlap("a.b*", r"a.b\*")
    assert not overlap(r"a.\*", r"a.\?")
    assert overlap("a" * 2000 + ".*", "*.b")
