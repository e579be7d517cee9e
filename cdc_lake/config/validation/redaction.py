"""Rules across fields of `bronze.redact` and `bronze.redact_key`, and what redaction does to silver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cdc_lake.config.fields import compile_columns, exact_column, overlap
from cdc_lake.config.model import SilverTable
from cdc_lake.config.rules import Expression, Monotonic, named_columns
from cdc_lake.config.silver_tables import MIN_KEY
from cdc_lake.config.validation.checked_pipeline import CheckedPipeline, Finding, table_name
from cdc_lake.config.yaml_tree import ScalarNode
from cdc_lake.model.diagnostic import Problem


def _strategies(pipeline: CheckedPipeline) -> Iterator[Finding]:
    for number, rule in enumerate(pipeline.bronze.redact):
        path = f"bronze.redact[{number}].strategy"
        node = pipeline.node(path)
        if rule.strategy == "null" and isinstance(node, ScalarNode) and node.text != "null":  # empty, or `~`
            yield Finding(Problem.VALUE, path, "`strategy` has no value", "write drop, null or sha256")


def _patterns(pipeline: CheckedPipeline) -> Iterator[tuple[int, str, str]]:
    """Patterns of columns: number of the rule, text, path."""
    for number, rule in enumerate(pipeline.bronze.redact):
        for i, text in enumerate(rule.columns):
            yield number, text, f"bronze.redact[{number}].columns[{i}]"


def _is_pattern(text: str) -> bool:
    try:
        compile_columns(text)
    except ValueError:
        return False
    return not text.startswith("!")


def _columns(pipeline: CheckedPipeline) -> Iterator[Finding]:
    earlier: list[tuple[int, str, str]] = []
    for number, text, path in _patterns(pipeline):
        if not _is_pattern(text):
            hint = 'write schema.table.column, for example "public.*.email"; a dot inside a name is written `\\.`'
            yield Finding(Problem.REDACT_PATTERN, path, f"`{text}` is not a column pattern", hint)
            continue
        other = next((e for e in earlier if e[0] != number and overlap(text, e[1])), None)
        if other is not None:
            summary = f"`{text}` and `{other[1]}` may match the same column"
            hint = f"a column can have only one rule; the other one is on line {pipeline.line(other[2])}"
            yield Finding(Problem.REDACT_OVERLAP, path, summary, hint)
        earlier.append((number, text, path))
        if (exact := exact_column(text)) is not None:
            yield from pipeline.check_captured(exact[0], path)


def _key(pipeline: CheckedPipeline) -> Iterator[Finding]:
    path = "bronze.redact_key"
    hint = "set `redact_key: ${env:NAME}` in `bronze`; `openssl rand -hex 32` generates a good key"
    hashed = next((i for i, rule in enumerate(pipeline.bronze.redact) if rule.strategy == "sha256"), None)
    node = pipeline.node(path)
    if node is None and hashed is not None:
        summary, beside = "`strategy: sha256` requires `redact_key`", f"bronze.redact[{hashed}]"
        yield Finding(Problem.REDACT_KEY, path, summary, hint, beside=beside)
    elif isinstance(node, ScalarNode) and node.text and pipeline.bronze.redact:
        if not node.references:
            yield Finding(Problem.REDACT_KEY, path, "the redaction key is written in plain text", hint)
        elif len(node.text.encode()) < MIN_KEY:
            summary = f"the redaction key is shorter than {MIN_KEY} bytes"
            yield Finding(Problem.REDACT_KEY, path, summary, hint)


def _needed_columns(pipeline: CheckedPipeline) -> Iterator[Finding]:
    """Columns that a silver table needs and that would be lost."""
    rules = pipeline.bronze.redact
    patterns = [(rules[number].strategy, text, path) for number, text, path in _patterns(pipeline) if _is_pattern(text)]
    for i, entry in enumerate(pipeline.silver.tables):
        if (table := table_name(entry.from_)) is None:
            continue
        for use, column, path in _uses(entry, f"silver.tables[{i}]"):
            lost = {"drop", "null"} if use == "is a key" else {"drop"}
            for strategy, text, pattern_path in patterns:
                if strategy in lost and compile_columns(text).fullmatch(table.column(column)):
                    summary = f"column `{column}` {use} and is redacted by `{strategy}`"
                    line = pipeline.line(pattern_path)
                    hint = f"redact it with `sha256`, or not at all; the rule is on line {line}"
                    yield Finding(Problem.REDACT_NEEDED, path, summary, hint)
                    break


def _uses(entry: SilverTable, path: str) -> Iterator[tuple[str, str, str]]:
    """Columns that an entry of `silver.tables` names: what for, their name, and where."""
    for i, key in enumerate(entry.keys or ()):
        yield "is a key", key, f"{path}.keys[{i}]"
    for i, rule in enumerate(entry.rules):
        where = f"{path}.rules[{i}]"
        for n, column in enumerate(named_columns(rule)):
            place = f"{where}.column" if hasattr(rule, "column") else f"{where}.columns[{n}]"
            yield "is used by a rule", column, place
        if isinstance(rule, Monotonic):
            yield "is used by a rule", rule.by, f"{where}.by"
        if isinstance(rule, Expression):
            for word in dict.fromkeys(re.findall(r"\w+", re.sub(r"'[^']*'", "", rule.expression))):
                yield "is used by a rule", word, f"{where}.expression"


REDACTION_RULES = (_strategies, _columns, _key, _needed_columns)
