"""Rules of silver tables, judged in the file: names, bounds, patterns, thresholds, and options that do not go together.

What needs the source's columns (whether one is there, what an expression means) is told before a table's first row.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from cdc_lake.config.expectations import EXPECTATIONS
from cdc_lake.config.node_values import fault, items_of, table_named, text_of, uncaptured
from cdc_lake.config.patterns import NotPortable, check_pattern
from cdc_lake.config.problems import Problem
from cdc_lake.config.yaml_nodes import MappingNode, Mark, Node, ScalarNode, SequenceNode, join
from cdc_lake.model.diagnostic import Diagnostic

_BOUNDED: Final = frozenset({"between", "length", "row_count"})
_LEVELS: Final = ("warn", "error", "critical")


def quality_rules(root: MappingNode, patterns: Sequence[str] | None) -> Iterator[Diagnostic]:
    """Everything wrong with them, table by table. `patterns`: `source.tables`, None where these are wrong."""
    silver = root.entries.get("silver")
    tables = silver.entries.get("tables") if isinstance(silver, MappingNode) else None
    for at, table in enumerate(items_of(tables)):
        rules = table.entries.get("rules") if isinstance(table, MappingNode) else None
        names: dict[str, Mark] = {}
        for i, rule in enumerate(items_of(rules)):
            if isinstance(rule, MappingNode):
                path = f"silver.tables[{at}].rules[{i}]"
                yield from _named(rule, path, names)
                yield from _options(rule, path, patterns)


def _options(rule: MappingNode, path: str, patterns: Sequence[str] | None) -> Iterator[Diagnostic]:
    kind = text_of(rule.entries.get("rule"))
    yield from _thresholds(rule, path)
    if kind in _BOUNDED:
        yield from _bounds(rule, path, kind)
    if kind == "regex":
        yield from _regex(rule, path)
    if kind in {"unique", "foreign_key"}:
        yield from _twice(rule, path)
    if kind == "foreign_key":
        yield from _reference(rule, path, patterns)
    if kind == "expectation":
        yield from _expectation(rule, path)


def _named(rule: MappingNode, path: str, seen: dict[str, Mark]) -> Iterator[Diagnostic]:
    kind, column, columns = (rule.entries.get(key) for key in ("rule", "column", "columns"))
    own = [text for text in (text_of(column), *(text_of(item) for item in items_of(columns))) if text]
    name = text_of(rule.entries.get("name")) or ("_".join([text_of(kind) or "", *own]) if text_of(kind) else None)
    if name is None:
        return
    if name in seen:
        hint = f"give it a name of its own with `name:`; the first stands in line {seen[name].line}"
        yield fault(Problem.RULE_TWICE, f"two rules of one table are called `{name}`", rule.mark, path, hint)
    seen.setdefault(name, rule.mark)


def _bounds(rule: MappingNode, path: str, kind: str) -> Iterator[Diagnostic]:
    low, high = rule.entries.get("min"), rule.entries.get("max")
    given = [n for n in (low, high) if isinstance(n, ScalarNode) and (n.value is not None or n.broken)]
    if not given and not any(isinstance(n, MappingNode | SequenceNode) for n in (low, high)):
        yield fault(Problem.BOUNDS, f"`{kind}` without bounds", rule.mark, path, "give `min`, `max` or both")
        return
    if not (isinstance(low, ScalarNode) and isinstance(high, ScalarNode)):
        return
    a, b = low.value, high.value
    hint = "swap `min` and `max`"
    if a is None or b is None:
        return
    summary = "`min` is greater than `max`"
    if isinstance(a, int | float) and isinstance(b, int | float):
        wrong = a > b
    elif isinstance(a, str) and isinstance(b, str):
        wrong = _is_date(a) and _is_date(b) and a > b  # other texts are ordered by the column's type
    else:
        wrong, summary = True, "`min` and `max` are of different types"
        hint = "write both as numbers, or both as text"
    if wrong:
        yield fault(Problem.BOUNDS, summary, low.mark, join(path, "min"), hint)


def _is_date(text: str) -> bool:
    return re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T].*)?", text) is not None


def _regex(rule: MappingNode, path: str) -> Iterator[Diagnostic]:
    node, text = rule.entries.get("pattern"), text_of(rule.entries.get("pattern"))
    if node is None or text is None:
        return
    try:
        check_pattern(text)
    except NotPortable as bad:
        hint = r"single quotes keep backslashes: pattern: '^\d+$'"
        yield fault(Problem.REGEX, f"the pattern cannot be used: {bad}", node.mark, join(path, "pattern"), hint)


def _thresholds(rule: MappingNode, path: str) -> Iterator[Diagnostic]:
    node = rule.entries.get("thresholds")
    if not isinstance(node, MappingNode):
        return
    where = join(path, "thresholds")
    given = [(name, node.entries[name]) for name in _LEVELS if name in node.entries]
    if not given:
        hint = "name one: thresholds: {warn: 0.01, critical: 0.1}"
        yield fault(Problem.RULE_OPTIONS, "`thresholds` names none", node.mark, where, hint)
    for (lower, below), (upper, above) in pairwise(given):
        a, b = _number(below), _number(above)
        if a is not None and b is not None and a > b:
            summary = f"the threshold of `{lower}` is above that of `{upper}`"
            hint = "`warn` is the lowest, `critical` the highest"
            yield fault(Problem.RULE_OPTIONS, summary, below.mark, join(where, lower), hint)


def _twice(rule: MappingNode, path: str) -> Iterator[Diagnostic]:
    for key in ("columns", "referenced"):
        seen: set[str] = set()
        for i, node in enumerate(items_of(rule.entries.get(key))):
            text = text_of(node)
            if text in seen:
                summary, where = f"column `{text}` stands twice in `{key}`", f"{path}.{key}[{i}]"
                yield fault(Problem.COLUMN_TWICE, summary, node.mark, where, "remove one")
            seen.add(text or "")


def _reference(rule: MappingNode, path: str, patterns: Sequence[str] | None) -> Iterator[Diagnostic]:
    columns, referenced = rule.entries.get("columns"), rule.entries.get("referenced")
    if isinstance(columns, SequenceNode) and isinstance(referenced, SequenceNode):
        here, there = len(columns.items), len(referenced.items)
        if here != there:
            summary = f"`columns` has {here}, `referenced` {there}"
            hint = "each column refers to one: name as many"
            yield fault(Problem.RULE_OPTIONS, summary, referenced.mark, join(path, "referenced"), hint)
    node, text = rule.entries.get("references"), text_of(rule.entries.get("references"))
    if node is None or text is None:
        return
    where = join(path, "references")
    table = table_named(text, node.mark, where)
    if isinstance(table, Diagnostic):
        yield table
    else:
        yield from uncaptured(patterns, table, node.mark, where)


def _expectation(rule: MappingNode, path: str) -> Iterator[Diagnostic]:
    node, text = rule.entries.get("expectation"), text_of(rule.entries.get("expectation"))
    if node is None or text is None or text in EXPECTATIONS:
        return
    close = difflib.get_close_matches(text, EXPECTATIONS, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`?" if close else "docs/reference/rules.md lists them"
    summary = f"there is no expectation `{text}` that a rule can name"
    yield fault(Problem.RULE_OPTIONS, summary, node.mark, join(path, "expectation"), hint)


def _number(node: Node) -> float | None:
    value = node.value if isinstance(node, ScalarNode) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
