"""What is said of a broken pipeline file is done at once, word for word, and the file loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdc_lake.config.loader import load_project, validate
from cdc_lake.model.diagnostic import Diagnostic
from tests.unit.test_config_diagnostics import CASES, HEAD

QUOTED = re.compile(r"`([^`]+)`")
OBEYED: dict[str, tuple[str, str]] = {
    "empty file": ("", HEAD),  # as `init` writes one
    "a word at the top": ("hello\n", HEAD),  # it starts with `version: 1` and `pipeline: NAME`
    "tab indentation": (
        "\thost: a",
        '  {type: postgres, host: a, database: d, user: u, tables: ["public.*"]}\npipeline: shop',
    ),
    "unclosed bracket": ("{path: a", "{path: a}"),
    "an exclusion that is no tag": ("[!tmp_*]", '["public.*", "!public.tmp_*"]'),
    "a reference without quotes in braces": ("${env:X}", '"${env:X}"'),
    "unknown key in a table": ("catalgo: x", "format: delta"),
    "unknown key in a rule": (", colunm: b", ""),
    "an option of another rule": (", column: b", ""),
    "a key of another source": (", order: csn", ""),
    "duplicate key": (", path: b", ""),
    "duplicate section": ("lake: {path: b}\n", ""),
    "missing key": ("type: postgres, ", "type: postgres, {0}, "),
    "missing section": ("pipeline: shop\n", HEAD.partition("version: 1\n")[2]),
    "a rule without its kind": ("{column: a}", "{rule: not_null, column: a}"),
    "a number out of range": ("70000", "{limit}"),
    "a number where text belongs": ("database: 5", 'database: "5"'),
    "a key without value": ("silver:\n", ""),
    "a pipeline name with a dash": ("my-shop", "my_shop"),
    "a quantity without a known unit": ("32 MB", "{0}"),
    "a group of one table": ("[public.o]", "[public.o, public.l]"),
    "a length below nothing": ("min: -1", "min: {limit}"),
    "a threshold above all": ("warn: 5", "warn: {limit}"),
    "a type that text cannot be cast to": ("type: integer", "type: int"),
    "an exclusion without quotes": ("!public.tmp_a ", '"!public.tmp_a"'),
    "two documents": ("---\nversion: 1\n", ""),
    "not UTF-8": ("café\n", "shop\n" + HEAD.partition("shop\n")[2]),
    "a version of the future": ("version: 2", "{0}"),
    "a source that nobody knows": ("gausdb", "{0}"),
    "a missing variable": ("${env:NOT_SET_X}", "{reference}"),
    "a missing file": ("${file:no/such}", "${file:p.yaml}"),
    "a secret away from Databricks": ("${secret:a/b}", "${env:PATH}"),
    "a reference of an unknown kind": ("${vault:a}", "${env:PATH}"),
    "options that do not go together": ("parallel-decode-num: 1", "parallel-decode-num: 2"),
    "a value that an option does not take": ("{sending-batch: 2}", "{}"),
    "a host beside hosts": (", hosts: [a]", ""),
    "a publication beside test_decoding": ("plugin: test_decoding", "{2}"),
    "copies of a slot that SQL functions make": ("mode: polling", "{0}"),
    "two-phase by a protocol that is too old": ("proto_version: 2", "proto_version: 3"),
    "streaming that a version does not have": ("proto_version: 1", "proto_version: 2"),
    "parallel streaming that a version does not have": ("proto_version: 3", "proto_version: 4"),
    "options of another plugin": ("plugin: test_decoding", "{1}"),
    "authorities that nobody asks": ("tls: {", "tls: {{0}, "),
    "streams that a QHB does not have": ("streaming: parallel", "streaming: {0}"),
    "prepared transactions that a QHB does not send": ("host: h", "host: h, slot: {{0}}"),
    "the release of a QHB for a PostgreSQL": ("type: postgres", "{0}"),
    "a pattern without schema": ("orders", "public.*"),
    "a table that is not captured": ('["public.*"]', '["public.*", {0}]'),
    "a filter of rows of another table": ('["public.*"]', '["public.*", {0}]'),
    "one table twice": ("    - from: public.orders\n", ""),
    "two tables in one": ("to: orders", "{0} o2"),
    "two rules of one name": ("column: a}\n", "column: a, {0} b}\n"),
    "min above max": ("min: 5, max: 1", "max: 5, min: 1"),
    "between without bounds": ("column: a", "column: a, {0}: 1"),
    "a regular expression of Java alone": ("[a[b]]", r"[a\[b]"),
    "a regular expression of Python alone": ("{,3}", "{0,3}"),
    "a key column twice": ("[id, id]", "[id]"),
    "only exclusions": ('["!public.*"]', '["public.*", "!public.tmp_*"]'),
    "a namespace of the lake itself": ("namespace: bronze", "namespace: {0}"),
    "a folder for an Iceberg table": (", path: b", ""),
    "a REST catalog without address": ("type: rest", "type: rest, {0}"),
    "a lake on object storage": ("'s3://b/l'", "lake"),
    "a pattern of a table where columns are redacted": ("public.a]", '"public.*.email"]'),
    "a column with two rules of redaction": ('    - {columns: ["public.a.*"], strategy: null}\n', ""),
    "a digest without its key": ("bronze: {", 'bronze: {redact_key: "${env:A_LONG_KEY}", '),
    "a key that redaction loses": (
        "redact: [{columns: [public.a.b], strategy: drop}]",
        'redact_key: "${env:A_LONG_KEY}", redact: [{columns: [public.a.b], strategy: {0}}]',
    ),
    "an unknown rule": ("betwen", "{0}"),
    "a rule of a former name": ("matches", "{0}"),
    "a word that is no choice": ("inital", "{0}"),
    "an expectation that nobody knows": ("expectation: expect_colum_to_exist", "expectation: {0}, arguments: {column: a}"),
    "a misspelt option of decoding": ("sending_batch", "{0}"),
    "unknown key at the top": ("silvr", "{0}"),
    "bytes that cannot be decoded beside redaction": ("undecodable: land", "undecodable: {0}"),
    "a pattern of a table where a column belongs": ("[public.a]", '["public.notes.*"]'),
    "columns in hexadecimal digits beside all of them": ("encoding_errors: hex, ", ""),
    "tracked columns without history": ("track: [a]", "track: [a]\n      {0}"),
    "old rows of history": ("kind: history", "{0}"),
    "columns that are taken beside columns that are left out": ("      exclude: [b]\n", ""),
    "a partition that is none": ("      partition_by: [weeks(at)]", "      format: iceberg\n      partition_by: [days(at)]"),
    "a setting under both of its names": ("row_marks: never, ", ""),
    "rows that are read again": ("missing_row: reread", "{0}"),
    "a group with a table of changes": ("kind: append", "{0}"),
    "a table in two groups": ("    - {name: b, tables: [public.o, public.p], hold: transaction}\n", ""),
    "two groups of one name": ("{name: a, tables: [public.m", "{name: b, tables: [public.m"),
    "thresholds that say nothing": ("thresholds: {}", "thresholds: {warn: 0.01, critical: 0.1}"),
    "a foreign key to a column less": ("referenced: [a]", "referenced: [a, b]"),
    "a rule of a table that holds": ("on_fail: quarantine", "{1}"),
    "a rule of a table that stops": (", on_fail: stop", ""),
}  # fmt: skip
"""What is replaced by what; {n}: what the hint, or else the message, has in backquotes, and {limit} its bound."""


def obeyed(text: str, name: str, found: Diagnostic) -> str:
    old, new = OBEYED[name]
    said = found.hint or found.summary
    words = {f"{{{number}}}": word.replace("…", "db1") for number, word in enumerate(QUOTED.findall(said))}
    if (limit := re.search(r"at (?:least|most) ([\d.]+)", said)) is not None:
        words["{limit}"] = limit[1]
    if (reference := re.search(r"\$\{env:\w+:-\w+\}", said)) is not None:
        words["{reference}"] = reference[0]
    for placeholder, word in words.items():
        new = new.replace(placeholder, word)
    before, found_old, after = text.rpartition(old) if old else ("", "", text)
    assert found_old == old
    return before + new + after


@pytest.mark.parametrize("name", OBEYED)
def test_what_is_said_of_a_broken_file_is_done_and_it_loads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET_X", raising=False)
    monkeypatch.setenv("X", "h")
    monkeypatch.setenv("A_LONG_KEY", "0123456789abcdef" * 4)
    file = Path("p.yaml")
    broken = CASES[name][0]
    text = broken if isinstance(broken, str) else broken.decode("latin-1")
    file.write_text(text, encoding="latin-1")
    found = validate([file])
    file.write_text(obeyed(text, name, found[0]))
    assert validate([file]) == []
    load_project(file)


def test_of_every_code_that_a_file_raises_a_remedy_is_obeyed() -> None:
    raised = {str(places[0]).split()[0] for _, *places in CASES.values()}
    assert raised == {str(CASES[name][1]).split()[0] for name in OBEYED}
