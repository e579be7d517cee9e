"""Rules across fields of the section `silver`: tables, what they take of their source, groups and quality rules.

What depends on the source's columns (whether one exists, what an expression means) is checked before the table's first
row.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from cdc_lake.config import rules
from cdc_lake.config.model import SilverTable
from cdc_lake.config.project import default_name
from cdc_lake.config.silver_tables import Partition
from cdc_lake.config.validation.checked_pipeline import CheckedPipeline, Finding, table_name
from cdc_lake.config.yaml_tree import join
from cdc_lake.model.diagnostic import Problem
from cdc_lake.model.relation import TableName

_OF_KIND = {"track": "history", "old_values": "append"}
_RESERVED_PREFIX = "_cdc"
"""Prefix of working columns."""


def _tables(pipeline: CheckedPipeline) -> Iterator[Finding]:
    lines: dict[TableName, int] = {}
    targets: dict[str, tuple[str, int]] = {}
    for i, entry in enumerate(pipeline.silver.tables):
        path, own = f"silver.tables[{i}]", table_name(entry.from_)
        where = f"{path}.from"
        yield from pipeline.check_table(entry.from_, where)
        if own is not None and own in lines:
            hint = f"merge the entries; the first is on line {lines[own]}"
            yield Finding(Problem.TABLE_TWICE, where, f"duplicate table `{own}` in `silver.tables`", hint)
        if own is not None:
            lines.setdefault(own, pipeline.line(where))
        if (name := entry.to or (default_name(own) if own is not None else None)) is None:
            continue
        where = f"{path}.to" if entry.to else path
        if name in targets and targets[name][0] != entry.from_:
            hint = f"rename one of them with `to:`; the first is on line {targets[name][1]}"
            yield Finding(Problem.TARGET_TWICE, where, f"two source tables map to the silver table `{name}`", hint)
        targets.setdefault(name, (entry.from_, pipeline.line(where)))


def _each_table(
    check: Callable[[CheckedPipeline, SilverTable, str], Iterator[Finding]],
) -> Callable[[CheckedPipeline], Iterator[Finding]]:
    """Make a rule of the pipeline from a rule of an entry of `silver.tables` and its path."""

    def check_all(pipeline: CheckedPipeline) -> Iterator[Finding]:
        for i, entry in enumerate(pipeline.silver.tables):
            yield from check(pipeline, entry, f"silver.tables[{i}]")

    return check_all


def _kind(pipeline: CheckedPipeline, entry: SilverTable, path: str) -> Iterator[Finding]:
    """Options that belong to another kind of table."""
    kind = entry.kind or pipeline.silver.defaults.kind
    for option, wanted in _OF_KIND.items():
        if getattr(entry, option) and kind != wanted:
            summary = f"`{option}` does not apply to a table of `kind: {kind}`"
            yield Finding(Problem.NOT_OF_KIND, join(path, option), summary, f"remove it, or write `kind: {wanted}`")


def _columns(pipeline: CheckedPipeline, entry: SilverTable, path: str) -> Iterator[Finding]:
    """The columns that are included and excluded."""
    yield from _named_twice(entry.keys, f"{path}.keys", "column ")
    if entry.columns is not None and pipeline.is_set(f"{path}.exclude"):
        hint = "keep one of them: `columns` excludes what it does not list"
        yield Finding(Problem.TRANSFORM, f"{path}.exclude", "`columns` and `exclude` are both set", hint)
        return
    yield from _named_twice(entry.columns, f"{path}.columns")
    yield from _named_twice(entry.exclude, f"{path}.exclude")

    def is_selected(column: str) -> bool:
        return column not in entry.exclude if entry.columns is None else column in entry.columns

    for i, name in enumerate(entry.keys or ()):
        if not is_selected(name):
            hint = "a key must be in silver: include the column, or remove it from `keys`"
            yield Finding(Problem.TRANSFORM, f"{path}.keys[{i}]", f"column `{name}` is a key but is excluded", hint)
    for name in entry.rename:
        if not is_selected(name):
            summary, where = f"column `{name}` is renamed but excluded", join(f"{path}.rename", name)
            yield Finding(Problem.TRANSFORM, where, summary, "remove one of the two", key=True)


def _names(_: CheckedPipeline, entry: SilverTable, path: str) -> Iterator[Finding]:
    """The names of silver's columns, which are unique regardless of case."""
    used_names = {name.casefold() for name in entry.columns or () if name not in entry.rename}
    new_names = [(name, join(f"{path}.rename", source), False) for source, name in entry.rename.items()]
    new_names += [(name, join(f"{path}.compute", name), True) for name in entry.compute]
    for name, where, is_key in new_names:
        if name.casefold() in used_names:
            summary = f"two columns would be named `{name}`"
            yield Finding(Problem.TRANSFORM, where, summary, "choose another name", is_key)
        if name.casefold().startswith(_RESERVED_PREFIX):
            summary = f"names that begin with `{_RESERVED_PREFIX}` are reserved"
            yield Finding(Problem.TRANSFORM, where, summary, "choose another name", is_key)
        used_names.add(name.casefold())


def _layout(pipeline: CheckedPipeline, entry: SilverTable, path: str) -> Iterator[Finding]:
    """Partitions and clustering."""
    is_delta = (entry.format or pipeline.silver.defaults.format) == "delta"
    if is_delta and entry.partition_by and entry.cluster_by:
        summary, hint = "a Delta table is partitioned or clustered, not both", "`cluster_by` can be changed later"
        yield Finding(Problem.DIVISION, f"{path}.cluster_by", summary, f"keep one of them; {hint}")
    yield from _named_twice(entry.partition_by, f"{path}.partition_by")
    yield from _named_twice(entry.cluster_by, f"{path}.cluster_by")
    for i, text in enumerate(entry.partition_by):
        where = f"{path}.partition_by[{i}]"
        try:
            division = Partition.parse(text)
        except ValueError:
            hint = "write a column, days(column), bucket(16, column) or truncate(4, column)"
            yield Finding(Problem.DIVISION, where, f"`{text}` is not a valid partition", hint)
            continue
        if division.transform and is_delta:
            hint = 'for Delta, compute the column and partition by it: compute: {part: "…"}; or use '
            hint += f"`cluster_by: [{division.column}]`"
            yield Finding(Problem.DIVISION, where, f"Delta does not support the partition `{text}`", hint)


def _named_twice(texts: Sequence[str] | None, path: str, noun: str = "") -> Iterator[Finding]:
    key = path.rpartition(".")[2]
    for i, text in enumerate(texts or ()):
        if text in (texts or ())[:i]:
            summary = f"duplicate {noun}`{text}` in `{key}`"
            yield Finding(Problem.COLUMN_TWICE, f"{path}[{i}]", summary, "remove one")


def _groups(pipeline: CheckedPipeline) -> Iterator[Finding]:
    """Tables that are not captured or in two groups, and tables that no group can hold."""
    entries = {table_name(entry.from_): entry for entry in reversed(pipeline.silver.tables)}  # the first of a table
    names: dict[str, int] = {}
    first_lines: dict[TableName, int] = {}
    for i, group in enumerate(pipeline.silver.groups):
        path = f"silver.groups[{i}].name"
        if group.name in names:
            hint = f"choose another name; the first is on line {names[group.name]}"
            yield Finding(Problem.GROUP, path, f"two groups are named `{group.name}`", hint)
        names.setdefault(group.name, pipeline.line(path))
        for n, text in enumerate(group.tables):
            where = f"silver.groups[{i}].tables[{n}]"
            yield from pipeline.check_table(text, where)
            if (table := table_name(text)) is None:
                continue
            if table in first_lines:
                hint = f"remove one of them; the first is on line {first_lines[table]}"
                summary = f"`{table}` is already in a group, and two groups cannot hold one transaction"
                yield Finding(Problem.GROUP, where, summary, hint)
            first_lines.setdefault(table, pipeline.line(where))
            entry = entries.get(table)
            if ((entry and entry.kind) or pipeline.silver.defaults.kind) == "append":
                summary = f"`{table}` cannot be in a group: a table of `kind: append` has no keys to hold"
                yield Finding(Problem.GROUP, where, summary, "remove it, or write `kind: history`")
            if entry is not None and entry.where is not None:
                why = "whether `where` includes a row may depend on values that are held"
                yield Finding(Problem.GROUP, where, f"`{table}` cannot be in a group: {why}", "remove it")


def _quality_rules(pipeline: CheckedPipeline, entry: SilverTable, path: str) -> Iterator[Finding]:
    lines: dict[str, int] = {}
    for i, rule in enumerate(entry.rules):
        where, name = f"{path}.rules[{i}]", rules.rule_name(rule)
        if name in lines:
            hint = f"name one of them with `name:`; the first is on line {lines[name]}"
            yield Finding(Problem.RULE_TWICE, where, f"two rules of one table are named `{name}`", hint)
        lines.setdefault(name, pipeline.line(where))
        yield from _thresholds(rule, f"{where}.thresholds")
        match rule:
            case rules.Between() | rules.Length() | rules.RowCount():
                yield from _bounds(pipeline, rule, where)
            case rules.Regex():
                try:
                    rules.check_pattern(rule.pattern)
                except rules.NotPortable as bad:
                    hint = r"single quotes keep backslashes: pattern: '^\d+$'"
                    yield Finding(Problem.REGEX, f"{where}.pattern", f"the pattern cannot be used: {bad}", hint)
            case rules.Unique():
                yield from _named_twice(rule.columns, f"{where}.columns", "column ")
            case rules.ForeignKey():
                yield from _foreign_key(pipeline, rule, where)
            case rules.Expectation(expectation=name) if name not in rules.EXPECTATIONS:
                close = difflib.get_close_matches(name, rules.EXPECTATIONS, n=1, cutoff=0.6)
                hint = f"did you mean `{close[0]}`?" if close else "docs/reference/rules.md lists them"
                yield Finding(Problem.RULE_OPTIONS, f"{where}.expectation", f"unknown expectation `{name}`", hint)
            case _:
                pass


def _bounds(
    pipeline: CheckedPipeline, rule: rules.Between | rules.Length | rules.RowCount, path: str
) -> Iterator[Finding]:
    low, high = rule.min, rule.max
    if not pipeline.is_set(f"{path}.min") and not pipeline.is_set(f"{path}.max"):
        yield Finding(Problem.BOUNDS, path, f"`{rule.rule}` without bounds", "set `min`, `max` or both")
    if low is None or high is None:
        return
    summary, hint = "`min` is greater than `max`", "swap `min` and `max`"
    if isinstance(low, str) and isinstance(high, str):
        wrong = _is_date(low) and _is_date(high) and low > high  # other texts are ordered by the column's type
    elif isinstance(low, str) or isinstance(high, str):
        wrong, summary = True, "`min` and `max` are of different types"
        hint = "write both as numbers, or both as text"
    else:
        wrong = low > high
    if wrong:
        yield Finding(Problem.BOUNDS, f"{path}.min", summary, hint)


def _is_date(text: str) -> bool:
    return re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T].*)?", text) is not None


def _thresholds(rule: rules.RowRule | rules.TableRule, path: str) -> Iterator[Finding]:
    if rule.thresholds is None:
        return
    levels = [(name, share) for name, share in rule.thresholds if share is not None]
    if not levels:
        hint = "set one, for example `thresholds: {warn: 0.01, critical: 0.1}`"
        yield Finding(Problem.RULE_OPTIONS, path, "`thresholds` is empty", hint)
    for (lower, below), (upper, above) in pairwise(levels):
        if below > above:
            summary = f"the threshold of `{lower}` is above that of `{upper}`"
            hint = "`warn` is the lowest, `critical` the highest"
            yield Finding(Problem.RULE_OPTIONS, join(path, lower), summary, hint)


def _foreign_key(pipeline: CheckedPipeline, rule: rules.ForeignKey, path: str) -> Iterator[Finding]:
    yield from _named_twice(rule.columns, f"{path}.columns", "column ")
    yield from _named_twice(rule.referenced, f"{path}.referenced", "column ")
    if len(rule.columns) != len(rule.referenced):
        summary = f"`columns` has {len(rule.columns)} entries, `referenced` {len(rule.referenced)}"
        hint = "each column refers to one: list as many"
        yield Finding(Problem.RULE_OPTIONS, f"{path}.referenced", summary, hint)
    yield from pipeline.check_table(rule.references, f"{path}.references")


SILVER_RULES = (_tables, _groups, *(_each_table(check) for check in (_kind, _columns, _names, _layout, _quality_rules)))
