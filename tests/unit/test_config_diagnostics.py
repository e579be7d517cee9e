"""Broken pipeline files: each with its code, at its line and column, and a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.cli import text as pages
from cdc_lake.config.loader import display, load_project, validate
from cdc_lake.config.rules import ROW_RULES, TABLE_RULES
from cdc_lake.model.diagnostic import ConfigInvalid, Problem, Severity

SOURCE = 'source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}\n'
HEAD = "version: 1\npipeline: shop\n" + SOURCE
TABLE = HEAD + "silver:\n  tables:\n    - from: public.orders\n"
RULES = TABLE + "      rules:\n"
GAUSSDB = HEAD.replace("postgres, host: h", "gaussdb, port: 8000, host: h")
QHB = HEAD.replace("postgres", "qhb").replace("host: h", 'host: h, version: "1.5.1"')
GROUPS = (
    HEAD
    + """silver:
  tables:
    - from: public.o
      deletes: soft
  groups:
    - {name: a, tables: [public.o, public.l], hold: transaction}
"""
)
GROUPS_AGAIN = "    - {name: a, tables: [public.m, public.n], hold: transaction}\n"

EVERY = (
    "{rule: not_null, column: a, thresholds: {warn: 0.01, critical: 1}}",
    "{rule: in_set, column: a, values: [x, y], on_fail: quarantine}",
    "{rule: between, column: b, min: 0, on_fail: stop}",
    "{rule: regex, column: a, pattern: '^[A-Z]'}",
    "{rule: length, column: a, max: 5}",
    "{rule: type_castable, column: a, type: 'decimal(10,2)'}",
    '{rule: expression, expression: "a <> b OR c IS NULL"}',
    "{rule: unique, columns: [a, b]}",
    "{rule: foreign_key, columns: [a], references: public.c, referenced: [id]}",
    "{rule: row_count, min: 1}",
    "{rule: freshness, column: at, max_age: 2 h}",
    "{rule: monotonic, column: at, by: id, strict: true}",
    "{rule: expectation, expectation: expect_column_mean_to_be_between, arguments: {column: b, min_value: 1}}",
)
CASES = {
    "empty file": ("", "CFG109 1:1"),
    "only comments": ("# nothing\n", "CFG109 1:1"),
    "a list at the top": ("- version: 1\n", "CFG109 1:1"),
    "a word at the top": ("hello\n", "CFG109 1:1"),
    "tab indentation": ("version: 1\nsource:\n\thost: a\n", "CFG103 3:1"),
    "unclosed bracket": (HEAD + "lake: {path: a\n", "CFG103 5:1"),
    "unclosed quote": (HEAD + 'lake: {path: "a}\n', "CFG103 5:1"),
    "missing colon": ("version: 1\npipeline shop\nlake: {}\n", "CFG103 2:1"),
    "two colons in a line": ("version: 1\npipeline: a: b\n", "CFG103 2:12"),
    "not UTF-8": (b"version: 1\npipeline: caf\xe9\n", "CFG110 2:14"),
    "a control character": (b"version: 1\npipeline: a\x00b\n", "CFG110 2:12"),
    "two documents": (HEAD + "---\nversion: 1\n", "CFG108 4:1"),
    "an anchor and its alias": (HEAD + "lake: &l {path: a}\nbronze: *l\n", "CFG108 4:7", "CFG108 5:9"),
    "a merge key": (HEAD + "lake:\n  <<: {path: a}\n", "CFG108 5:3"),
    "a tag": (HEAD + "lake: !!python/object:os.system {path: a}\n", "CFG108 4:7"),
    "an exclusion without quotes": (HEAD.replace('["public.*"]', '["public.*", !public.tmp_a ]'), "CFG108 3:78"),
    "an exclusion that is no tag": (HEAD.replace('["public.*"]', "[!tmp_*]"), "CFG103 3:66"),
    "nested too deep": (HEAD + "lake: " + "[" * 40 + "]" * 40 + "\n", "CFG108 4:39"),
    "unknown key at the top": (HEAD + "silvr: {}\n", "CFG104 4:1"),
    "unknown key in a table": (TABLE + "      catalgo: x\n", "CFG104 7:7"),
    "unknown key in a rule": (RULES + "        - {rule: not_null, column: a, colunm: b}\n", "CFG104 8:39"),
    "duplicate key": (HEAD + "lake: {path: a, path: b}\n", "CFG105 4:17"),
    "duplicate section": (HEAD + "lake: {path: a}\nlake: {path: b}\n", "CFG105 5:1"),
    "missing key": (HEAD.replace("host: h, ", ""), "CFG106 3:9"),
    "a host beside hosts": (HEAD.replace("host: h", "host: h, hosts: [a]"), "CFG129 3:35"),
    "two-phase by a protocol that is too old": (
        HEAD.replace("host: h", "host: h, decoding: {proto_version: 2, two_phase: true}"),
        "CFG129 3:75",
    ),
    "two-phase beside redaction": (
        HEAD.replace("host: h", "host: h, decoding: {two_phase: true}")
        + "bronze: {redact: [{columns: [public.a.b], strategy: null}]}\n",
        "CFG129 3:57",
    ),
    "a publication beside test_decoding": (
        HEAD.replace("host: h", "host: h, publication: p, slot: {plugin: test_decoding}"),
        "CFG129 3:48",
    ),
    "filters of rows beside test_decoding": (
        HEAD.replace("host: h", 'host: h, row_filters: {public.a: "b = 1"}, slot: {plugin: test_decoding}'),
        "CFG129 3:48",
    ),
    "a filter of rows of nothing": (HEAD.replace("host: h", "host: h, row_filters: {orders: b}"), "CFG130 3:49"),
    "a filter of rows of another table": (HEAD.replace("host: h", "host: h, row_filters: {other.a: b}"), "CFG131 3:49"),
    "a filter of rows that is empty": (HEAD.replace("host: h", 'host: h, row_filters: {public.a: ""}'), "CFG107 3:59"),
    "copies of a slot that SQL functions make": (
        HEAD.replace("host: h", "host: h, mode: polling, slot: {failover: true}"),
        "CFG129 3:67",
    ),
    "transactions under way, read by SQL functions": (
        HEAD.replace("host: h", "host: h, mode: polling, decoding: {streaming: on}"),
        "CFG129 3:72",
    ),
    "streaming that a version does not have": (
        HEAD.replace("host: h", "host: h, decoding: {proto_version: 1, streaming: on}"),
        "CFG129 3:75",
    ),
    "parallel streaming that a version does not have": (
        HEAD.replace("host: h", "host: h, decoding: {proto_version: 3, streaming: parallel}"),
        "CFG129 3:75",
    ),
    "options of another plugin": (
        HEAD.replace("host: h", "host: h, slot: {plugin: test_decoding}, decoding: {streaming: off}"),
        "CFG129 3:76",
    ),
    "two-phase and more of another plugin": (
        HEAD.replace("host: h", "host: h, slot: {plugin: test_decoding}, decoding: {two_phase: true, binary: true}"),
        "CFG129 3:76",
    ),
    "two-phase by lines beside redaction": (
        HEAD.replace("host: h", "host: h, slot: {plugin: test_decoding}, decoding: {two_phase: true}")
        + "bronze: {redact: [{columns: [public.a.b], strategy: null}]}\n",
        "CFG129 3:88",
    ),
    "authorities that nobody asks": (HEAD.replace("host: h", "host: h, tls: {root_cert: ca.pem}"), "CFG129 3:52"),
    "hosts with a port that is none": (HEAD.replace("host: h", "hosts: [a, b:x]"), "CFG129 3:37"),
    "missing section": ("version: 1\npipeline: shop\n", "CFG106 1:1"),
    "a rule without its kind": (RULES + "        - {column: a}\n", "CFG106 8:11"),
    "text where a number belongs": (HEAD.replace("host: h", "host: h, port: http"), "CFG107 3:41"),
    "an octal-looking number": (HEAD.replace("host: h", "host: h, port: 05432"), "CFG107 3:41"),
    "a number out of range": (HEAD.replace("host: h", "host: h, port: 70000"), "CFG107 3:41"),
    "true where a number belongs": (HEAD.replace("host: h", "host: h, port: true"), "CFG107 3:41"),
    "a number where text belongs": (HEAD.replace("database: d", "database: 5"), "CFG107 3:45"),
    "a key without value": (HEAD + "silver:\n", "CFG107 4:8"),
    "a list where a section belongs": (HEAD + "silver: []\n", "CFG107 4:9"),
    "a word that is no choice": (HEAD + "snapshot: {mode: inital}\n", "CFG107 4:18"),
    "a quantity without a known unit": (HEAD + "bronze: {batch: {max_bytes: 32 MB}}\n", "CFG107 4:29"),
    "a pipeline name with a dash": (HEAD.replace("pipeline: shop", "pipeline: my-shop"), "CFG107 2:11"),
    "an empty list": (HEAD.replace('["public.*"]', "[]"), "CFG107 3:65"),
    "an unknown rule": (RULES + "        - {rule: betwen, column: a, min: 1}\n", "CFG107 8:11"),
    "a table in two groups": (
        GROUPS + "    - {name: b, tables: [public.o, public.p], hold: transaction}\n",
        "CFG162 10:26",
    ),
    "two groups of one name": (GROUPS + GROUPS_AGAIN, "CFG162 10:14"),
    "a group of one table": (GROUPS.replace(", public.l", ""), "CFG107 9:25"),
    "a setting under both of its names": (
        HEAD + "apply: {row_marks: never, merge_on_read: auto}\n",
        "CFG113 4:9",
    ),
    "rows that are read again": (HEAD + "silver:\n  defaults: {missing_row: reread}\n", "CFG107 5:27"),
    "a group with a table of changes": (GROUPS.replace("deletes: soft", "kind: append"), "CFG162 9:26"),
    "a group with a filter": (GROUPS.replace("deletes: soft", 'where: "a > 1"'), "CFG162 9:26"),
    "a group with a table that is not captured": (GROUPS.replace("public.l", "other.l"), "CFG131 9:36"),
    "a group with a table without its schema": (GROUPS.replace("public.l", "l"), "CFG130 9:36"),
    "a group that holds something else": (GROUPS.replace("transaction", "row"), "CFG107 9:53"),
    "bytes that cannot be decoded beside redaction": (
        HEAD + "bronze:\n  undecodable: land\n  redact: [{columns: [public.a.b], strategy: drop}]\n",
        "CFG156 5:16",
    ),
    "a pattern of a table where a column belongs": (
        HEAD.replace("host: h", "host: h, hex_columns: [public.a]"),
        "CFG157 3:49",
    ),
    "a column in hexadecimal digits of a table that is not taken": (
        HEAD.replace("host: h", "host: h, hex_columns: [elsewhere.a.b]"),
        "CFG131 3:49",
    ),
    "columns in hexadecimal digits beside all of them": (
        HEAD.replace("host: h", "host: h, encoding_errors: hex, hex_columns: [public.a.b]"),
        "CFG157 3:70",
    ),
    "tracked columns without history": (TABLE + "      track: [a]\n", "CFG158 7:14"),
    "old rows of history": (TABLE + "      kind: history\n      old_values: true\n", "CFG158 8:19"),
    "a version of the future": (HEAD.replace("version: 1", "version: 2"), "CFG111 1:10"),
    "a source of a later version": (HEAD.replace("postgres", "recording"), "CFG112 3:16"),
    "a source that nobody knows": (HEAD.replace("postgres", "gausdb"), "CFG112 3:16"),
    "the release of a QHB for a PostgreSQL": (QHB.replace("qhb", "postgres"), "CFG129 3:44"),
    "a QHB that is too old": (QHB.replace("1.5.1", "1.4.0"), "CFG129 3:39"),
    "a protocol that a QHB does not speak": (
        QHB.replace("host: h", "host: h, decoding: {proto_version: 3}"),
        "CFG129 3:56",
    ),
    "streams that a QHB does not have": (QHB.replace("host: h", "host: h, decoding: {streaming: parallel}"), "CFG129 3:52"),
    "origins that a QHB does not tell apart": (
        QHB.replace("host: h", "host: h, decoding: {origin: none}"),
        "CFG129 3:49",
    ),
    "prepared transactions that a QHB does not send": (
        QHB.replace("host: h", "host: h, decoding: {two_phase: true}"),
        "CFG129 3:52",
    ),
    "copies of a slot that standbys of a QHB do not keep": (
        QHB.replace("host: h", "host: h, slot: {failover: true}"),
        "CFG129 3:47",
    ),
    "a source without its type": (HEAD.replace("type: postgres, ", ""), "CFG106 3:9"),
    "a key of another source": (HEAD.replace("host: h", "host: h, order: csn"), "CFG104 3:35"),
    "a missing variable": (HEAD.replace("host: h", "host: '${env:NOT_SET_X}'"), "CFG120 3:32"),
    "a reference without quotes in braces": (HEAD.replace("host: h", "host: ${env:X}"), "CFG103 3:32"),
    "a missing variable in a line of its own": (HEAD + "lake:\n  path: a/${env:NOT_SET_X}\n", "CFG120 5:11"),
    "a missing file": (HEAD.replace("user: u", "user: '${file:no/such}'"), "CFG121 3:54"),
    "a secret away from Databricks": (HEAD.replace("user: u", "user: '${secret:a/b}'"), "CFG122 3:54"),
    "a reference of an unknown kind": (HEAD.replace("user: u", "user: '${vault:a}'"), "CFG123 3:54"),
    "a reference without its end": (HEAD.replace("host: h", "host: 'a${env:X'"), "CFG123 3:32"),
    "a pattern without schema": (HEAD.replace("public.*", "orders"), "CFG130 3:66"),
    "a table without schema": (HEAD + "silver: {tables: [{from: orders}]}\n", "CFG130 4:26"),
    "a table that is not captured": (HEAD + "silver: {tables: [{from: other.t}]}\n", "CFG131 4:26"),
    "one table twice": (TABLE + "    - from: public.orders\n", "CFG132 7:13"),
    "two tables in one": (TABLE + "    - {from: public.o2, to: orders}\n", "CFG133 7:29"),
    "two rules of one name": (RULES + "        - {rule: not_null, column: a}\n" * 2, "CFG134 9:11"),
    "between without bounds": (RULES + "        - {rule: between, column: a}\n", "CFG135 8:11"),
    "min above max": (RULES + "        - {rule: between, column: a, min: 5, max: 1}\n", "CFG135 8:43"),
    "a date above another": (RULES + "        - {rule: between, column: a, min: 2025-01-01, max: 2024-01-01}\n", "CFG135 8:43"),
    "bounds of two types": (RULES + "        - {rule: between, column: a, min: 5, max: 2024-01-01}\n", "CFG135 8:43"),
    "a wrong regular expression": (RULES + "        - {rule: regex, column: a, pattern: '(a'}\n", "CFG136 8:45"),
    "a regular expression of Java alone": (RULES + "        - {rule: regex, column: a, pattern: '[a[b]]'}\n", "CFG136 8:45"),
    "a regular expression of Python alone": (RULES + "        - {rule: regex, column: a, pattern: 'a{,3}'}\n", "CFG136 8:45"),
    "a rule of a former name": (RULES + "        - {rule: matches, column: a, pattern: 'a'}\n", "CFG107 8:11"),
    "an option of another rule": (RULES + "        - {rule: unique, columns: [a], column: b}\n", "CFG104 8:40"),
    "a length that is no number": (RULES + "        - {rule: length, column: a, min: '3'}\n", "CFG107 8:42"),
    "a length below nothing": (RULES + "        - {rule: length, column: a, min: -1}\n", "CFG107 8:42"),
    "rows without bounds": (RULES + "        - {rule: row_count}\n", "CFG135 8:11"),
    "fewer rows at most than at least": (RULES + "        - {rule: row_count, min: 9, max: 8}\n", "CFG135 8:34"),
    "a type that text cannot be cast to": (RULES + "        - {rule: type_castable, column: a, type: integer}\n", "CFG107 8:50"),
    "an age without unit": (RULES + "        - {rule: freshness, column: a, max_age: soon}\n", "CFG107 8:49"),
    "a rule of a table that holds": (RULES + "        - {rule: unique, columns: [a], on_fail: quarantine}\n", "CFG171 8:49"),
    "a rule of a table that stops": (RULES + "        - {rule: row_count, min: 1, on_fail: stop}\n", "CFG171 8:46"),
    "thresholds that say nothing": (RULES + "        - {rule: not_null, column: a, thresholds: {}}\n", "CFG170 8:51"),
    "thresholds out of order": (RULES + "        - {rule: not_null, column: a, thresholds: {warn: 0.5, error: 0.1}}\n", "CFG170 8:58"),
    "a threshold above all": (RULES + "        - {rule: not_null, column: a, thresholds: {warn: 5}}\n", "CFG107 8:58"),
    "a unique column twice": (RULES + "        - {rule: unique, columns: [a, a]}\n", "CFG137 8:39"),
    "a foreign key to a column less": (RULES + "        - {rule: foreign_key, columns: [a, b], references: public.c, referenced: [a]}\n", "CFG170 8:82"),
    "a foreign key to no table": (RULES + "        - {rule: foreign_key, columns: [a], references: c, referenced: [a]}\n", "CFG130 8:57"),
    "a foreign key to a table that is not captured": (RULES + "        - {rule: foreign_key, columns: [a], references: other.c, referenced: [a]}\n", "CFG131 8:57"),
    "an expectation that nobody knows": (RULES + "        - {rule: expectation, expectation: expect_colum_to_exist}\n", "CFG170 8:44"),
    "a key column twice": (TABLE + "      keys: [id, id]\n", "CFG137 7:18"),
    "only exclusions": (HEAD.replace("public.*", "!public.*"), "CFG138 3:65"),
    "a namespace of the lake itself": (HEAD + "silver: {defaults: {namespace: bronze}}\n", "CFG139 4:32"),
    "a lake on object storage": (HEAD + "lake: {path: 's3://b/l'}\n", "CFG139 4:14"),
    "a folder for an Iceberg table": (HEAD + "bronze: {format: iceberg, path: b}\n", "CFG139 4:33"),
    "a REST catalog without address": (HEAD + "lake: {iceberg: {type: rest}}\n", "CFG139 4:17"),
    "a REST catalog in a file": (HEAD + "lake: {iceberg: {type: rest, uri: 'sqlite:///c.db'}}\n", "CFG139 4:35"),
    "a catalog of an unknown database": (HEAD + "lake: {iceberg: {uri: 'mysql://u@h/d'}}\n", "CFG139 4:23"),
    "a misspelt option of decoding": (GAUSSDB.replace("host: h", "host: h, decoding: {sending_batch: 1}"), "CFG126 3:57"),
    "a value that an option does not take": (
        GAUSSDB.replace("host: h", "host: h, decoding: {sending-batch: 2}"),
        "CFG127 3:72",
    ),
    "options that do not go together": (
        GAUSSDB.replace("host: h", "host: h, decoding: {parallel-decode-num: 1, decode-style: b}"),
        "CFG128 3:81",
    ),
    "a pattern of a table where columns are redacted": (
        HEAD + "bronze: {redact: [{columns: [public.a], strategy: drop}]}\n",
        "CFG150 4:30",
    ),
    "a column with two rules of redaction": (
        HEAD + "bronze:\n  redact:\n    - {columns: [public.a.b], strategy: drop}\n"
        '    - {columns: ["public.a.*"], strategy: null}\n',
        "CFG151 7:18",
    ),
    "a digest without its key": (HEAD + "bronze: {redact: [{columns: [public.a.b], strategy: sha256}]}\n", "CFG152 4:19"),
    "a key that redaction loses": (
        HEAD + "bronze: {redact: [{columns: [public.a.b], strategy: drop}]}\n"
        "silver: {tables: [{from: public.a, keys: [b]}]}\n",
        "CFG153 5:43",
    ),
    "columns that are taken beside columns that are left out": (TABLE + "      columns: [a]\n      exclude: [b]\n", "CFG160 8:16"),
    "a partition that is none": (TABLE + "      partition_by: [weeks(at)]\n", "CFG161 7:22"),
}  # fmt: skip
WARNED = {
    "a setting with the name of 0.3": (HEAD + "apply: {row_marks: never}\n", "CFG113 4:9"),
    "a password in the file": (HEAD.replace("user: u", "user: u, password: open sesame"), "CFG125 3:67"),
    "an order that keeps WAL back": (
        GAUSSDB.replace("host: h", "host: h, decoding: {skip-empty-xacts: on}"),
        "CFG128 3:75",
    ),
}
ELSEWHERE = {
    "CFG100": "the root of the tree: what is raised has a code of its own",
    "CFG101": "carries the problems of a file: each file here raises it",
    "CFG102": "the file cannot be read: `test_a_file_that_cannot_be_read_is_told`",
    "CFG124": "needs `--env`: `test_an_environment_without_file_names_those_there_are`",
    "CFG140": "which file is meant: tests/unit/test_cli_commands.py",
    "CFG141": "`init` finds the folder full: tests/unit/test_cli_commands.py",
    "CFG142": "`init` has no such template: tests/unit/test_cli_commands.py",
    "CFG143": "`explain` has no such page: tests/unit/test_cli_commands.py",
    "CFG144": "`init` cannot write: tests/unit/test_cli_commands.py",
    "CFG145": "a command that does not read from such a source: tests/unit/test_config_gaussdb.py",
    "CFG146": "the mode of a file with secrets: tests/unit/test_config_secrets.py",
    "CFG154": "redaction beside the tables of the server: tests/unit/test_redaction.py",
    "CFG155": "`record` without `--redact` or `--raw`: tests/live/test_record.py",
}
"""Codes that no content of a pipeline file raises, and why."""


@pytest.mark.parametrize("name", CASES)
def test_a_broken_file_is_told_by_code_and_place(name, tmp_path, monkeypatch):
    monkeypatch.delenv("NOT_SET_X", raising=False)
    monkeypatch.chdir(tmp_path)
    text, *expected = CASES[name]
    file = Path("p.yaml")
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = validate([file])
    assert [f"{d.code} {d.location.line}:{d.location.column}" for d in found if d.location] == expected
    assert all(d.location and d.location.file == "p.yaml" for d in found)
    with pytest.raises(ConfigInvalid) as caught:
        load_project(file)
    assert list(caught.value.diagnostics) == found


@pytest.mark.parametrize("name", WARNED)
def test_a_warning_is_told_by_code_and_place_and_the_file_loads(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, expected = WARNED[name]
    file = Path("p.yaml")
    file.write_text(text)
    (found,) = validate([file])
    assert f"{found.code} {found.location.line}:{found.location.column}" == expected
    assert found.severity is Severity.WARNING
    assert found.hint
    load_project(file)


def test_every_code_that_a_file_alone_can_raise_has_a_broken_file():
    shown = {place.split()[0] for _, *places in [*CASES.values(), *WARNED.values()] for place in places}
    codes = {code for code in pages.codes() if code.startswith("CFG")}
    assert set(map(str, Problem)) <= codes
    assert shown.isdisjoint(ELSEWHERE)
    assert shown | ELSEWHERE.keys() == codes


def test_all_problems_are_told_at_once_in_reading_order(tmp_path):
    file = tmp_path / "p.yaml"
    rule = "        - {rule: between, column: true, mn: 4}\n"
    file.write_text(RULES.replace("host: h", "hots: h") + rule + "lake: {path: 5}\n")
    found = validate([file])
    assert [d.code for d in found] == ["CFG104", "CFG107", "CFG104", "CFG107"]


def test_rules_across_fields_are_judged_in_sections_whose_own_fields_fit(tmp_path):
    file = tmp_path / "p.yaml"
    bounds = "        - {rule: between, column: a}\n"
    file.write_text(RULES.replace("host: h, ", "") + bounds + "bronze: {format: parquet, durability: os}\n")
    assert [d.code for d in validate([file])] == ["CFG106", "CFG135", "CFG107"]


def test_a_reference_that_is_not_resolved_keeps_no_rule_of_its_section_back(tmp_path, monkeypatch):
    monkeypatch.delenv("NOT_SET_X", raising=False)
    file = tmp_path / "p.yaml"
    file.write_text(
        HEAD.replace("host: h", "host: h, hosts: [a], port: '${env:NOT_SET_X}'").replace(
            "user: u", "user: '${env:NOT_SET_X}'"
        )
    )
    assert [d.code for d in validate([file])] == ["CFG129", "CFG120", "CFG120"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("{rule: matches, column: a, pattern: a}", "it is now called `regex`"),
        ("{rule: length_between, column: a, min: 1}", "it is now called `length`"),
        ("{rule: betwen, column: a, min: 1}", "did you mean `between`?"),
        ("{rule: unique, columns: [a], on_fail: quarantine}", "remove `on_fail`"),
        ("{rule: expectation, expectation: expect_colum_to_exist}", "did you mean `expect_column_to_exist`?"),
        ("{rule: regex, column: a, pattern: '\\bx'}", "single quotes keep backslashes"),
    ],
)
def test_a_wrong_rule_comes_with_its_remedy(rule, words, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(f"{RULES}        - {rule}\n")
    (found,) = validate([file])
    assert words in found.hint


def test_every_kind_of_rule_can_be_written(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(RULES + "".join(f"        - {rule}\n" for rule in EVERY))
    assert validate([file]) == []
    rules = load_project(file).pipeline.silver.tables[0].rules
    assert {type(rule) for rule in rules} == {*ROW_RULES, *TABLE_RULES}


def test_the_message_of_the_error_counts_what_else_is_wrong(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(HEAD + "a: 1\nb: 2\nc: 3\n")
    with pytest.raises(ConfigInvalid, match=r"unknown key `a` \(and 2 more\)"):
        load_project(file)


@pytest.mark.parametrize(("make", "words"), [(lambda f: f.mkdir(), "is a folder"), (lambda f: None, "does not exist")])
def test_a_file_that_cannot_be_read_is_told(make, words, tmp_path):
    file = tmp_path / "p.yaml"
    make(file)
    (found,) = validate([file])
    assert found.code == "CFG102"
    assert words in found.summary


def test_an_environment_without_file_names_those_there_are(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "dev.yaml").write_text("{}\n")
    file = tmp_path / "p.yaml"
    file.write_text(HEAD)
    (found,) = validate([file], environment="prod")
    assert found.code == "CFG124"
    assert found.hint.startswith(f"create {display(tmp_path / 'conf' / 'prod.yaml')} with the settings that differ")
    assert found.hint.endswith("this project has dev")
    (found,) = validate([file], environment="../conf/dev")
    assert found.code == "CFG124"


def test_a_variable_that_is_not_set_may_have_a_default_but_not_where_a_secret_is_meant(tmp_path, monkeypatch):
    for name in ("NO_HOST", "NO_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "p.yaml"
    text = HEAD.replace("host: h", 'host: "${env:NO_HOST}", password: "${env:NO_PASSWORD}"')
    file.write_text(text)
    host, password = (one.hint for one in validate([file]))
    assert host == "`export NO_HOST=…`, or give a default: ${env:NO_HOST:-default}"
    assert password == "`export NO_PASSWORD=…`, or keep it in a file: ${file:secrets/NAME}"
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "db").write_text("hunter2\n")
    file.write_text(text.replace("${env:NO_HOST}", "${env:NO_HOST:-db}").replace("env:NO_PASSWORD", "file:secrets/db"))
    assert validate([file]) == []
    assert load_project(file).postgres.password.get_secret_value() == "hunter2"


def test_no_value_of_the_file_is_in_an_error_about_a_secret(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(HEAD.replace("user: u", "user: u, password: [hunter2]"))
    assert "hunter2" not in repr(validate([file]))
