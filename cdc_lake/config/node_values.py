"""What checks of a file ask of its nodes, and how they tell what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from cdc_lake.config.capture import captures
from cdc_lake.config.problems import Problem
from cdc_lake.config.yaml_nodes import MappingNode, Mark, Node, ScalarNode, SequenceNode
from cdc_lake.model.diagnostic import Diagnostic, Severity
from cdc_lake.model.relation import TableName


def at(node: Node | None, *path: str) -> Node | None:
    """The node below, None where there is none."""
    for part in path:
        if not isinstance(node, MappingNode):
            return None
        node = node.entries.get(part)
    return node


def items_of(node: Node | None) -> Sequence[Node]:
    """The items of a list; none of anything else."""
    return node.items if isinstance(node, SequenceNode) else ()


def text_of(node: Node | None) -> str | None:
    """A text, None where there is none."""
    return node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else None


def is_true(node: Node | None) -> TypeGuard[ScalarNode]:
    """Whether it says `true`."""
    return isinstance(node, ScalarNode) and node.value is True


def texts_of(node: Node | None) -> Iterator[tuple[int, ScalarNode, str]]:
    """The texts of a list, each with its number and its node."""
    for i, item in enumerate(items_of(node)):
        if isinstance(item, ScalarNode) and isinstance(item.value, str):
            yield i, item, item.value


def fault(problem: Problem, summary: str, mark: Mark, path: str, hint: str) -> Diagnostic:
    """An error at a place of the file."""
    return Diagnostic(Severity.ERROR, problem, summary, mark.location(path), hint)


def table_named(text: str, mark: Mark, path: str) -> TableName | Diagnostic:
    """The table that a text names, or the error that it names none."""
    try:
        return TableName.parse(text)
    except ValueError:
        hint = "write schema.table, for example public.orders"
        return fault(Problem.TABLE_NAME, f"`{text}` is not a table name", mark, path, hint)


def uncaptured(patterns: Sequence[str] | None, table: TableName, mark: Mark, path: str) -> Iterator[Diagnostic]:
    """An error where `source.tables` leaves a table out; `patterns`: None where these are wrong themselves."""
    if patterns and not captures(patterns, table):
        hint = f"add `{table}` to `source.tables`, or correct the name"
        yield fault(Problem.NOT_CAPTURED, f"`source.tables` does not take in `{table}`", mark, path, hint)
