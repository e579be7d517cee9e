"""What a silver table says of its rows that its kind does not have."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.problems import Problem
from cdc_lake.config.yaml_nodes import MappingNode, Node, ScalarNode, SequenceNode, join
from cdc_lake.model.diagnostic import Diagnostic, Severity

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
