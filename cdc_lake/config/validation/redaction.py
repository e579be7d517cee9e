"""The rules of `bronze.redact`, told at their places in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc_lake.config.fields import captures, compile_columns, exact_column, overlap
from cdc_lake.config.silver_tables import MIN_KEY
from cdc_lake.config.yaml_tree import MappingNode, Mark, Node, ScalarNode, SequenceNode, fault, items_of, join
from cdc_lake.model.diagnostic import Diagnostic, Problem
from cdc_lake.model.relation import TableName

_LOST = ("drop", "null")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A good pattern of the section, with its place and the rule it is of."""

    text: str
    rule: int
    strategy: str | None
    mark: Mark
    path: str


def redact_rules(root: MappingNode, tables: Sequence[str] | None) -> Iterator[Diagnostic]:
    """Everything wrong with redaction; `tables` are the patterns of `source.tables`, None where they are wrong."""
    bronze = root.entries.get("bronze")
    rules = bronze.entries.get("redact") if isinstance(bronze, MappingNode) else None
    if not isinstance(bronze, MappingNode) or not isinstance(rules, SequenceNode):
        return
    good: list[_Pattern] = []
    for number, rule in enumerate(rules.items):
        if isinstance(rule, MappingNode):
            yield from _rule(rule, number, good)
    yield from _overlaps(good)
    yield from _check_captured(good, tables or ())
    yield from _key(bronze, rules)
    yield from _check_needed_columns(root, good)


def _rule(rule: MappingNode, number: int, good: list[_Pattern]) -> Iterator[Diagnostic]:
    path = f"bronze.redact[{number}]"
    strategy_node, columns = rule.entries.get("strategy"), rule.entries.get("columns")
    strategy = _strategy(strategy_node)
    if (
        isinstance(strategy_node, ScalarNode)
        and strategy_node.value is None
        and strategy_node.text != "null"
        and not strategy_node.broken
    ):
        hint = "write drop, null or sha256"
        yield fault(Problem.VALUE, "`strategy` has no value", strategy_node.mark, join(path, "strategy"), hint)
    for i, node in enumerate(columns.items if isinstance(columns, SequenceNode) else ()):
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            continue
        where = f"{path}.columns[{i}]"
        try:
            if node.value.startswith("!"):
                raise ValueError  # noqa: TRY301  # as good as any other text that is none
            compile_columns(node.value)
        except ValueError:
            hint = 'write schema.table.column, for example "public.*.email"; a dot inside a name is written `\\.`'
            yield fault(Problem.REDACT_PATTERN, f"`{node.value}` is not a column pattern", node.mark, where, hint)
        else:
            good.append(_Pattern(node.value, number, strategy, node.mark, where))


def _strategy(node: Node | None) -> str | None:
    if not isinstance(node, ScalarNode):
        return None
    return "null" if node.value is None and node.text == "null" else node.value if isinstance(node.value, str) else None


def _overlaps(good: Sequence[_Pattern]) -> Iterator[Diagnostic]:
    for index, pattern in enumerate(good):
        for other in good[:index]:
            if pattern.rule != other.rule and overlap(pattern.text, other.text):
                summary = f"`{pattern.text}` may mean a column that `{other.text}` means too"
                hint = f"a column has one rule; the other one stands in line {other.mark.line}"
                yield fault(Problem.REDACT_OVERLAP, summary, pattern.mark, pattern.path, hint)
                break


def _check_captured(good: Sequence[_Pattern], tables: Sequence[str]) -> Iterator[Diagnostic]:
    for pattern in good:
        exact = exact_column(pattern.text)
        if exact is not None and tables and not captures(tables, exact[0]):
            hint = f"add `{exact[0]}` to `source.tables`, or correct the name"
            yield fault(
                Problem.NOT_CAPTURED, f"`source.tables` does not take in `{exact[0]}`", pattern.mark, pattern.path, hint
            )


def _key(bronze: MappingNode, rules: SequenceNode) -> Iterator[Diagnostic]:
    node, path = bronze.entries.get("redact_key"), "bronze.redact_key"
    hint = "`redact_key: ${env:NAME}` in `bronze`; `openssl rand -hex 32` makes a good one"
    if node is None:
        marks = [rule.mark for rule in rules.items if isinstance(rule, MappingNode) and _hashes(rule)]
        if marks:
            yield fault(Problem.REDACT_KEY, "`strategy: sha256` needs a key", marks[0], path, hint)
    elif isinstance(node, ScalarNode) and not node.broken and node.text:
        if not node.references:
            yield fault(Problem.REDACT_KEY, "the key of redaction is written in the file", node.mark, path, hint)
        elif len(node.text.encode()) < MIN_KEY:
            summary = f"the key of redaction is shorter than {MIN_KEY} bytes"
            yield fault(Problem.REDACT_KEY, summary, node.mark, path, hint)


def _hashes(rule: MappingNode) -> bool:
    return _strategy(rule.entries.get("strategy")) == "sha256"


def _check_needed_columns(root: MappingNode, good: Sequence[_Pattern]) -> Iterator[Diagnostic]:
    """Columns that a silver table needs and that would be lost."""
    silver = root.entries.get("silver")
    tables = silver.entries.get("tables") if isinstance(silver, MappingNode) else None
    for i, item in enumerate(tables.items if isinstance(tables, SequenceNode) else ()):
        source = item.entries.get("from") if isinstance(item, MappingNode) else None
        if not isinstance(item, MappingNode) or not isinstance(source, ScalarNode):
            continue
        try:
            table = TableName.parse(str(source.value))
        except ValueError:
            continue  # told elsewhere
        for use, column, node, path in _uses(item, f"silver.tables[{i}]"):
            lost = _LOST if use == "is a key" else ("drop",)
            by = next((p for p in good if p.strategy in lost and _means(p, table, column)), None)
            if by is not None:
                summary = f"column `{column}` {use} and is redacted by `{by.strategy}`"
                hint = f"redact it by `sha256`, or not at all; the rule stands in line {by.mark.line}"
                yield fault(Problem.REDACT_NEEDED, summary, node.mark, path, hint)


def _means(pattern: _Pattern, table: TableName, column: str) -> bool:
    return compile_columns(pattern.text).fullmatch(table.column(column)) is not None


def _uses(item: MappingNode, path: str) -> Iterator[tuple[str, str, ScalarNode, str]]:
    """Columns that an entry of `silver.tables` names: what for, their name, and where."""
    for i, node in enumerate(items_of(item.entries.get("keys"))):
        if isinstance(node, ScalarNode):
            yield "is a key", str(node.value), node, f"{path}.keys[{i}]"
    for i, rule in enumerate(items_of(item.entries.get("rules"))):
        if not isinstance(rule, MappingNode):
            continue
        listed = enumerate(items_of(rule.entries.get("columns")))
        named = [(key, rule.entries.get(key)) for key in ("column", "by")]
        named += [(f"columns[{n}]", node) for n, node in listed]
        for key, column_node in named:
            if isinstance(column_node, ScalarNode):
                yield "is judged by a rule", str(column_node.value), column_node, f"{path}.rules[{i}].{key}"
        sql = rule.entries.get("expression")
        if isinstance(sql, ScalarNode):
            for word in dict.fromkeys(re.findall(r"\w+", re.sub(r"'[^']*'", "", str(sql.value)))):
                yield "is judged by a rule", word, sql, f"{path}.rules[{i}].expression"
