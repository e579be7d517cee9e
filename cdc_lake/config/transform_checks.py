"""The rules of what silver takes of its source, and of how its files are divided, at their places in the file.

What needs the source's columns (whether one is there, what an expression is) is told before a table's first row.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.node_values import fault, text_of, texts_of
from cdc_lake.config.partitioning import Partition
from cdc_lake.config.problems import Problem
from cdc_lake.config.yaml_nodes import MappingNode, Mark, Node, SequenceNode, join
from cdc_lake.model.diagnostic import Diagnostic

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
        yield from _twice(item, path, key)
    for i, node, name in texts_of(item.entries.get("keys")):
        if not _taken(item, name):
            hint = "a key has to be in silver: take the column in, or remove it from `keys`"
            where = f"{path}.keys[{i}]"
            yield fault(Problem.TRANSFORM, f"column `{name}` is a key and is left out", node.mark, where, hint)
    rename = item.entries.get("rename")
    for name, mark in rename.keys.items() if isinstance(rename, MappingNode) else ():
        if not _taken(item, name):
            summary = f"column `{name}` gets another name and is left out"
            yield fault(Problem.TRANSFORM, summary, mark, join(f"{path}.rename", name), "remove one of the two")


def _names(item: MappingNode, path: str) -> Iterator[Diagnostic]:
    """The names that silver's columns get: each one once, whatever the case."""
    rename, compute = item.entries.get("rename"), item.entries.get("compute")
    renamed = rename.entries if isinstance(rename, MappingNode) else {}
    given: list[tuple[str, Mark, str]] = []
    for source, node in renamed.items():
        if (name := text_of(node)) is not None:
            given.append((name, node.mark, join(f"{path}.rename", source)))
    if isinstance(compute, MappingNode):
        given += [(name, mark, join(f"{path}.compute", name)) for name, mark in compute.keys.items()]
    kept = {name.casefold() for _, _, name in texts_of(item.entries.get("columns")) if name not in renamed}
    for name, mark, where in given:
        if name.casefold() in kept:
            yield fault(Problem.TRANSFORM, f"two columns would be called `{name}`", mark, where, "choose another name")
        if name.casefold().startswith(_OURS):
            summary = f"names that begin with `{_OURS}` are cdc_lake's own"
            yield fault(Problem.TRANSFORM, summary, mark, where, "choose another name")
        kept.add(name.casefold())


def _layout(item: MappingNode, path: str, format_: str) -> Iterator[Diagnostic]:
    """How files are divided and rows kept together."""
    partition, cluster = item.entries.get("partition_by"), item.entries.get("cluster_by")
    if format_ == "delta" and _filled(partition) and cluster is not None and _filled(cluster):
        hint = "keep one of them; `cluster_by` can be changed later"
        where = f"{path}.cluster_by"
        yield fault(Problem.DIVISION, "a Delta table is partitioned or clustered, not both", cluster.mark, where, hint)
    for key in ("partition_by", "cluster_by"):
        yield from _twice(item, path, key)
    for i, node, text in texts_of(partition):
        where = f"{path}.partition_by[{i}]"
        try:
            one = Partition.parse(text)
        except ValueError:
            hint = "write a column, days(column), bucket(16, column) or truncate(4, column)"
            yield fault(Problem.DIVISION, f"`{text}` is no partition", node.mark, where, hint)
            continue
        if one.transform and format_ == "delta":
            hint = (
                f'for Delta compute the column and name it: compute: {{part: "…"}}; or use `cluster_by: [{one.column}]`'
            )
            yield fault(Problem.DIVISION, f"Delta has no partition `{text}`", node.mark, where, hint)


def _twice(item: MappingNode, path: str, key: str) -> Iterator[Diagnostic]:
    seen: set[str] = set()
    for i, node, text in texts_of(item.entries.get(key)):
        if text in seen:
            summary, where = f"`{text}` stands twice in `{key}`", f"{path}.{key}[{i}]"
            yield fault(Problem.COLUMN_TWICE, summary, node.mark, where, "remove one")
        seen.add(text)


def _taken(item: MappingNode, column: str) -> bool:
    columns, exclude = item.entries.get("columns"), item.entries.get("exclude")
    if isinstance(columns, SequenceNode):
        return column in [text for _, _, text in texts_of(columns)]
    return column not in [text for _, _, text in texts_of(exclude)]


def _filled(node: Node | None) -> bool:
    return isinstance(node, SequenceNode) and bool(node.items)
