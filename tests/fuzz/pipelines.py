"""Target of the YAML loader: any bytes are a pipeline, or problems that each stand somewhere in the file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from cdc_lake.config.loader import load_project, validate
from cdc_lake.model.diagnostic import ConfigInvalid, Diagnostic, Problem, Severity
from tests.fuzz.files import folder
from tests.fuzz.target import Finding, Target

ROOT = Path(__file__).parents[2]
CODES = {problem.value for problem in Problem}
HEAD = 'version: 1\npipeline: shop\nsource: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}\n'
RULES = HEAD + "silver:\n  tables:\n    - from: public.orders\n      rules:\n        - "
SOME_RULES = (
    "{rule: between, column: b, min: 0, on_fail: stop}",
    "{rule: regex, column: a, pattern: '^[A-Z]{1,3}(a|b)*$'}",
    "{rule: type_castable, column: a, type: 'decimal(10,2)'}",
    '{rule: expression, expression: "a <> b OR c IS NULL"}',
    "{rule: foreign_key, columns: [a], references: public.c, referenced: [id]}",
    "{rule: freshness, column: at, max_age: 2 h}",
)
WORDS = tuple(
    word.encode()
    for word in (
        "version: ", "pipeline: ", "source: ", "silver:\n  ", "bronze: ", "snapshot: ", "lake: ", "tables: ", "rules: ", "null",
        "true", "~", "${env:X:-a}", "${file:x}", "${secret:a/b}", "${", "$${", "- ", "{", "}", "[", "]", ", ", ": ", '"', "'", "|\n",
        ">-\n", "&a ", "*a", "!!", "<<: ", "---\n", "\t", "\n  ", "1e999", "0x1", "-0", "9" * 18, "32 MiB", "2 h", "public.*",
        "!public.a", "gaussdb", "opengauss", "qhb", "hosts: ", "password: ", "redact: ", "kind: history", "groups: ", "%", "?",
        "\u2028", "\x85", "\ufeff",
    )
)  # fmt: skip


def some_files() -> list[bytes]:
    files = [*ROOT.glob("pipelines/*.yaml"), *ROOT.glob("cdc_lake/cli/templates/*/pipelines/*.yaml")]
    found = [file.read_bytes() for file in sorted(files)]
    found += [(RULES + rule + "\n").encode() for rule in SOME_RULES]
    for kind in ("gaussdb, port: 8000", "opengauss", 'qhb, version: "1.5.1"'):
        found.append(HEAD.replace("postgres", kind).encode())
    return found


def a_file(data: bytes) -> bool:
    file = folder() / "p.yaml"
    file.write_bytes(data)
    lines = data.replace(b"\r", b"\n").count(b"\n") + data.count(b"\xe2\x80") + data.count(b"\xc2\x85") + 1
    problems = validate([file])
    for problem in problems:
        _said(problem, lines)
    wrong = any(problem.severity is Severity.ERROR for problem in problems)
    try:
        project = load_project(file)
    except ConfigInvalid as invalid:
        if not wrong or not str(invalid).isprintable():
            raise Finding(f"refused, and `validate` told {problems!r}") from invalid
        return False
    if wrong:
        raise Finding(f"taken, and `validate` told {problems!r}")
    project.pipeline.model_dump_json()
    return True


def _said(problem: Diagnostic, lines: int) -> None:
    place = problem.location
    if problem.code not in CODES or place is None or not 1 <= place.line <= lines + 1 or place.column < 1:
        raise Finding(f"a problem that stands nowhere in {lines} lines: {problem!r}")
    f"{problem.summary}{problem.hint}".encode()


@cache
def pipeline_file() -> Target:
    return Target("pipeline_file", a_file, some_files, WORDS)
