"""What a silver table says of its rows that its kind does not have.

The rules of what silver takes of its source, and of how its files are divided, at their places in the file.

What needs the source's columns (whether one is there, what an expression is) is told before a table's first row.

What groups of tables say that cannot be: tables that are not captured or in two groups, what no group can hold.

Rules of silver tables, judged in the file: names, bounds, patterns, thresholds, and options that do not go together.

What needs the source's columns (whether one is there, what an expression means) is told before a table's first row.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from cdc_lake.config.rules import EXPECTATIONS, NotPortable, check_pattern
from cdc_lake.config.silver_tables import Partition
from cdc_lake.config.yaml_tree import (
    MappingNode,
    Mark,
    Node,
    ScalarNode,
    SequenceNode,
    check_captured,
    fault,
    items_of,
    join,
    node_at,
    table_named,
    text_of,
    texts_of,
)
from cdc_lake.model.diagnostic import Diagnostic, Problem, Severity
from cdc_lake.model.relation import TableName

_OF_KIND = {"track": "history", "old_values": "append"}


def kind_rules(root: MappingNode) -> Iterator[Diagnostic]:
    """Every option of a table that belongs to another kind than the table's."""
    silver = root.entries.get("silver")
    if not isinstance(silver, MappingNode):
        return
    usual = _kind(silver.entries.get("defaults")) or "current"
    tables = silver.entries.get("tables")
    for i, table in enumerate(tables.items if isinstance(tables, SequenceNode) else ()):
        if not isinstance(table, MappingNode):
            continue
        kind = _kind(table) or usual
        for option, wanted in _OF_KIND.items():
            node = table.entries.get(option)
            off = node is None or (isinstance(node, ScalarNode) and not node.value)
            if node is not None and not off and kind != wanted:
                where = node.mark.location(join(f"silver.tables[{i}]", option))
                summary = f"a table of `kind: {kind}` has no `{option}`"
                hint = f"remove it, or write `kind: {wanted}`"
                yield Diagnostic(Severity.ERROR, Problem.NOT_OF_KIND, summary, where, hint)


def _kind(node: Node | None) -> str | None:
    kind = node.entries.get("kind") if isinstance(node, MappingNode) else None
    return kind.value if isinstance(kind, ScalarNode) and isinstance(kind.value, str) else None


_OURS = "_cdc"  # working columns begin so


def transform_rules(root: MappingNode) -> Iterator[Diagnostic]:
    """Everything wrong with them, table by table."""
    silver = root.entries.get("silver")
    tables = silver.entries.get("tables") if isinstance(silver, MappingNode) else None
    defaults = silver.entries.get("defaults") if isinstance(silver, MappingNode) else None
    usual = text_of(defaults.entries.get("format")) if isinstance(defaults, MappingNode) else None
    for i, item in enumerate(tables.items if isinstance(tables, SequenceNode) else ()):
        if isinstance(item, MappingNode):
            path = f"silver.tables[{i}]"
            yield from _columns(item, path)
            yield from _names(item, path)
            yield from _layout(item, path, text_of(item.entries.get("format")) or usual or "delta")


def _columns(item: MappingNode, path: str) -> Iterator[Diagnostic]:
    """What is taken and what is left out."""
    columns, exclude = item.entries.get("columns"), item.entries.get("exclude")
    if columns is not None and exclude is not None:
        hint = "keep one of them: what `columns` does not name is left out"
        yield fault(Problem.TRANSFORM, "`columns` and `exclude` are both given", exclude.mark, f"{path}.exclude", hint)
        return
    for key in ("columns", "exclude"):
        yield from _texts_named_twice(item, path, key)
    for i, node, name in texts_of(item.entries.get("keys")):
        if not _is_selected(item, name):
            hint = "a key has to be in silver: take the column in, or remove it from `keys`"
            where = f"{path}.keys[{i}]"
            yield fault(Problem.TRANSFORM, f"column `{name}` is a key and is left out", node.mark, where, hint)
    rename = item.entries.get("rename")
    for name, mark in rename.keys.items() if isinstance(rename, MappingNode) else ():
        if not _is_selected(item, name):
            summary = f"column `{name}` gets another name and is left out"
            yield fault(Problem.TRANSFORM, summary, mark, join(f"{path}.rename", name), "remove one of the two")


def _names(item: MappingNode, path: str) -> Iterator[Diagnostic]:
    """The names that silver's columns get: each one once, whatever the case."""
    rename, compute = item.entries.get("rename"), item.entries.get("compute")
    renamed = rename.entries if isinstance(rename, MappingNode) else {}
    new_names: list[tuple[str, Mark, str]] = []
    for source, node in renamed.items():
        if (name := text_of(node)) is not None:
            new_names.append((name, node.mark, join(f"{path}.rename", source)))
    if isinstance(compute, MappingNode):
        new_names += [(name, mark, join(f"{path}.compute", name)) for name, mark in compute.keys.items()]
    used_names = {name.casefold() for _, _, name in texts_of(item.entries.get("columns")) if name not in renamed}
    for name, mark, where in new_names:
        if name.casefold() in used_names:
            yield fault(Problem.TRANSFORM, f"two columns would be called `{name}`", mark, where, "choose another name")
        if name.casefold().startswith(_OURS):
            summary = f"names that begin with `{_OURS}` are cdc_lake's own"
            yield fault(Problem.TRANSFORM, summary, mark, where, "choose another name")
        used_names.add(name.casefold())


def _layout(item: MappingNode, path: str, format_: str) -> Iterator[Diagnostic]:
    """How files are divided and rows kept together."""
    partition, cluster = item.entries.get("partition_by"), item.entries.get("cluster_by")
    if format_ == "delta" and _has_items(partition) and cluster is not None and _has_items(cluster):
        hint = "keep one of them; `cluster_by` can be changed later"
        where = f"{path}.cluster_by"
        yield fault(Problem.DIVISION, "a Delta table is partitioned or clustered, not both", cluster.mark, where, hint)
    for key in ("partition_by", "cluster_by"):
        yield from _texts_named_twice(item, path, key)
    for i, node, text in texts_of(partition):
        where = f"{path}.partition_by[{i}]"
        try:
            division = Partition.parse(text)
        except ValueError:
            hint = "write a column, days(column), bucket(16, column) or truncate(4, column)"
            yield fault(Problem.DIVISION, f"`{text}` is no partition", node.mark, where, hint)
            continue
        if division.transform and format_ == "delta":
            hint = (
                f'for Delta compute the column and name it: compute: {{part: "…"}}; or use '
                f"`cluster_by: [{division.column}]`"
            )
            yield fault(Problem.DIVISION, f"Delta has no partition `{text}`", node.mark, where, hint)


def _texts_named_twice(item: MappingNode, path: str, key: str) -> Iterator[Diagnostic]:
    texts: set[str] = set()
    for i, node, text in texts_of(item.entries.get(key)):
        if text in texts:
            summary, where = f"`{text}` stands twice in `{key}`", f"{path}.{key}[{i}]"
            yield fault(Problem.COLUMN_TWICE, summary, node.mark, where, "remove one")
        texts.add(text)


def _is_selected(item: MappingNode, column: str) -> bool:
    columns, exclude = item.entries.get("columns"), item.entries.get("exclude")
    if isinstance(columns, SequenceNode):
        return column in [text for _, _, text in texts_of(columns)]
    return column not in [text for _, _, text in texts_of(exclude)]


def _has_items(node: Node | None) -> bool:
    return isinstance(node, SequenceNode) and bool(node.items)


def group_rules(
    root: MappingNode, patterns: Sequence[str] | None, entries: Mapping[TableName, MappingNode]
) -> Iterator[Diagnostic]:
    """Everything that is wrong with `silver.groups`; `entries`: what `silver.tables` says of tables."""
    defaults = node_at(root, "silver", "defaults")
    names: dict[str, int] = {}
    first_lines: dict[TableName, int] = {}
    for i, group in enumerate(items_of(node_at(root, "silver", "groups"))):
        name, path = node_at(group, "name"), f"silver.groups[{i}]"
        text = text_of(name)
        if name is not None and text in names:
            hint = f"choose another name; the first stands in line {names[text]}"
            yield fault(Problem.GROUP, f"two groups are called `{text}`", name.mark, f"{path}.name", hint)
        if name is not None and text is not None:
            names.setdefault(text, name.mark.line)
        for n, node, written in texts_of(node_at(group, "tables")):
            where = f"{path}.tables[{n}]"
            table = table_named(written, node.mark, where)
            if isinstance(table, Diagnostic):
                yield table
                continue
            if table in first_lines:
                hint = f"remove one of them; the first stands in line {first_lines[table]}"
                summary = f"`{table}` is in a group already, and one transaction cannot be held by two"
                yield fault(Problem.GROUP, summary, node.mark, where, hint)
            first_lines.setdefault(table, node.mark.line)
            yield from check_captured(patterns, table, node.mark, where)
            for why, hint in _unfit(entries.get(table), defaults):
                yield fault(Problem.GROUP, f"`{table}` cannot be in a group: {why}", node.mark, where, hint)


def _unfit(own: Node | None, defaults: Node | None) -> Iterator[tuple[str, str]]:
    """Why a group cannot hold transactions of a table, and the remedy."""
    if _effective_text(own, defaults, "kind") == "append":
        yield "a table of `kind: append` has no keys that could wait", "take it out, or write `kind: history`"
    if node_at(own, "where") is not None:
        yield "whether silver has a row that `where` decides on may depend on values that wait", "take it out"


def _effective_text(own: Node | None, defaults: Node | None, key: str) -> str | None:
    return text_of(node_at(own, key)) or text_of(node_at(defaults, key))


_BOUNDED: Final = frozenset({"between", "length", "row_count"})
_LEVELS: Final = ("warn", "error", "critical")


def quality_rules(root: MappingNode, patterns: Sequence[str] | None) -> Iterator[Diagnostic]:
    """Everything wrong with them, table by table. `patterns`: `source.tables`, None where these are wrong."""
    silver = root.entries.get("silver")
    tables = silver.entries.get("tables") if isinstance(silver, MappingNode) else None
    for number, table in enumerate(items_of(tables)):
        rules = table.entries.get("rules") if isinstance(table, MappingNode) else None
        names: dict[str, Mark] = {}
        for i, rule in enumerate(items_of(rules)):
            if isinstance(rule, MappingNode):
                path = f"silver.tables[{number}].rules[{i}]"
                yield from _check_rule_name(rule, path, names)
                yield from _options(rule, path, patterns)


def _options(rule: MappingNode, path: str, patterns: Sequence[str] | None) -> Iterator[Diagnostic]:
    kind = text_of(rule.entries.get("rule"))
    yield from _thresholds(rule, path)
    if kind in _BOUNDED:
        yield from _bounds(rule, path, kind)
    if kind == "regex":
        yield from _regex(rule, path)
    if kind in {"unique", "foreign_key"}:
        yield from _columns_named_twice(rule, path)
    if kind == "foreign_key":
        yield from _reference(rule, path, patterns)
    if kind == "expectation":
        yield from _expectation(rule, path)


def _check_rule_name(rule: MappingNode, path: str, marks: dict[str, Mark]) -> Iterator[Diagnostic]:
    kind, column, columns = (rule.entries.get(key) for key in ("rule", "column", "columns"))
    own = [text for text in (text_of(column), *(text_of(item) for item in items_of(columns))) if text]
    name = text_of(rule.entries.get("name")) or ("_".join([text_of(kind) or "", *own]) if text_of(kind) else None)
    if name is None:
        return
    if name in marks:
        hint = f"give it a name of its own with `name:`; the first stands in line {marks[name].line}"
        yield fault(Problem.RULE_TWICE, f"two rules of one table are called `{name}`", rule.mark, path, hint)
    marks.setdefault(name, rule.mark)


def _bounds(rule: MappingNode, path: str, kind: str) -> Iterator[Diagnostic]:
    low, high = rule.entries.get("min"), rule.entries.get("max")
    limits = [n for n in (low, high) if isinstance(n, ScalarNode) and (n.value is not None or n.broken)]
    if not limits and not any(isinstance(n, MappingNode | SequenceNode) for n in (low, high)):
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
    levels = [(name, node.entries[name]) for name in _LEVELS if name in node.entries]
    if not levels:
        hint = "name one: thresholds: {warn: 0.01, critical: 0.1}"
        yield fault(Problem.RULE_OPTIONS, "`thresholds` names none", node.mark, where, hint)
    for (lower, below), (upper, above) in pairwise(levels):
        a, b = _number(below), _number(above)
        if a is not None and b is not None and a > b:
            summary = f"the threshold of `{lower}` is above that of `{upper}`"
            hint = "`warn` is the lowest, `critical` the highest"
            yield fault(Problem.RULE_OPTIONS, summary, below.mark, join(where, lower), hint)


def _columns_named_twice(rule: MappingNode, path: str) -> Iterator[Diagnostic]:
    for key in ("columns", "referenced"):
        names: set[str] = set()
        for i, node in enumerate(items_of(rule.entries.get(key))):
            text = text_of(node)
            if text in names:
                summary, where = f"column `{text}` stands twice in `{key}`", f"{path}.{key}[{i}]"
                yield fault(Problem.COLUMN_TWICE, summary, node.mark, where, "remove one")
            names.add(text or "")


def _reference(rule: MappingNode, path: str, patterns: Sequence[str] | None) -> Iterator[Diagnostic]:
    columns, referenced = rule.entries.get("columns"), rule.entries.get("referenced")
    if isinstance(columns, SequenceNode) and isinstance(referenced, SequenceNode):
        here, referenced_count = len(columns.items), len(referenced.items)
        if here != referenced_count:
            summary = f"`columns` has {here}, `referenced` {referenced_count}"
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
        yield from check_captured(patterns, table, node.mark, where)


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
