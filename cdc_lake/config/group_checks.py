"""What groups of tables say that cannot be: tables that are not captured or in two groups, what no group can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cdc_lake.config.node_values import at, fault, items_of, table_named, text_of, texts_of, uncaptured
from cdc_lake.config.problems import Problem
from cdc_lake.config.yaml_nodes import MappingNode, Node
from cdc_lake.model.diagnostic import Diagnostic
from cdc_lake.model.relation import TableName


def group_rules(
    root: MappingNode, patterns: Sequence[str] | None, entries: Mapping[TableName, MappingNode]
) -> Iterator[Diagnostic]:
    """Everything that is wrong with `silver.groups`; `entries`: what `silver.tables` says of tables."""
    defaults = at(root, "silver", "defaults")
    names: dict[str, int] = {}
    taken: dict[TableName, int] = {}
    for i, group in enumerate(items_of(at(root, "silver", "groups"))):
        name, path = at(group, "name"), f"silver.groups[{i}]"
        text = text_of(name)
        if name is not None and text in names:
            hint = f"choose another name; the first stands in line {names[text]}"
            yield fault(Problem.GROUP, f"two groups are called `{text}`", name.mark, f"{path}.name", hint)
        if name is not None and text is not None:
            names.setdefault(text, name.mark.line)
        for n, node, written in texts_of(at(group, "tables")):
            where = f"{path}.tables[{n}]"
            table = table_named(written, node.mark, where)
            if isinstance(table, Diagnostic):
                yield table
                continue
            if table in taken:
                hint = f"remove one of them; the first stands in line {taken[table]}"
                summary = f"`{table}` is in a group already, and one transaction cannot be held by two"
                yield fault(Problem.GROUP, summary, node.mark, where, hint)
            taken.setdefault(table, node.mark.line)
            yield from uncaptured(patterns, table, node.mark, where)
            for why, hint in _unfit(entries.get(table), defaults):
                yield fault(Problem.GROUP, f"`{table}` cannot be in a group: {why}", node.mark, where, hint)


def _unfit(own: Node | None, defaults: Node | None) -> Iterator[tuple[str, str]]:
    """Why a group cannot hold transactions of a table, and the remedy."""
    if _said(own, defaults, "kind") == "append":
        yield "a table of `kind: append` has no keys that could wait", "take it out, or write `kind: history`"
    if _said(own, defaults, "missing_row") == "reread":
        why = "`missing_row: reread` ends the hold of one key, and the others of its transaction would wait on"
        yield why, "take it out, or write `missing_row: hold`"
    if at(own, "where") is not None:
        yield "whether silver has a row that `where` decides on may depend on values that wait", "take it out"


def _said(own: Node | None, defaults: Node | None, key: str) -> str | None:
    return text_of(at(own, key)) or text_of(at(defaults, key))
