"""The rules of what cannot be decoded: `bronze.undecodable`, `source.encoding_errors`, at their places in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc_lake.config.capture import captures, compile_columns, exact_column
from cdc_lake.config.problems import Problem
from cdc_lake.config.yaml_nodes import MappingNode, Node, ScalarNode, SequenceNode
from cdc_lake.model.diagnostic import Diagnostic, Severity


def undecodable_rules(root: MappingNode, tables: Sequence[str] | None) -> Iterator[Diagnostic]:
    """Everything wrong with them; `tables` are the patterns of `source.tables`, None where they are wrong."""
    bronze, source = _mapping(root.entries.get("bronze")), _mapping(root.entries.get("source"))
    policy, redact = bronze.get("undecodable"), bronze.get("redact")
    if isinstance(policy, ScalarNode) and policy.value == "land" and isinstance(redact, SequenceNode) and redact.items:
        summary = "`undecodable: land` would write bytes of columns that are redacted"
        hint = "set it to `stop`: what cannot be decoded cannot be redacted either"
        yield _error(Problem.UNDECODABLE_REDACTED, summary, policy, "bronze.undecodable", hint)
    columns = source.get("hex_columns")
    for i, node in enumerate(columns.items if isinstance(columns, SequenceNode) else ()):
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            continue
        path = f"source.hex_columns[{i}]"
        try:
            compile_columns(node.value)
        except ValueError:
            summary = f"`{node.value}` is not a column pattern"
            hint = 'write schema.table.column, for example "public.notes.*"; a dot inside a name is written `\\.`'
            yield _error(Problem.HEX_COLUMN, summary, node, path, hint)
            continue
        exact = exact_column(node.value)
        if exact is not None and tables and not captures(tables, exact[0]):
            hint = f"add `{exact[0]}` to `source.tables`, or correct the name"
            yield _error(Problem.NOT_CAPTURED, f"`source.tables` does not take in `{exact[0]}`", node, path, hint)
    errors = source.get("encoding_errors")
    if isinstance(errors, ScalarNode) and errors.value == "hex" and columns is not None:
        summary = "`encoding_errors: hex` means every column already"
        hint = "remove one of them: `hex_columns` names the columns where the others are to stop"
        yield _error(Problem.HEX_COLUMN, summary, columns, "source.hex_columns", hint)


def _mapping(node: Node | None) -> dict[str, Node]:
    return dict(node.entries) if isinstance(node, MappingNode) else {}


def _error(problem: Problem, summary: str, node: Node, path: str, hint: str) -> Diagnostic:
    return Diagnostic(Severity.ERROR, problem, summary, node.mark.location(path), hint)
