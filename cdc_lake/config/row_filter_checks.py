"""The rules of `source.row_filters`, told at their places in the file; what the server says of one is asked later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc_lake.config.node_values import at, fault, table_named, text_of, uncaptured
from cdc_lake.config.problems import Problem
from cdc_lake.config.yaml_nodes import MappingNode
from cdc_lake.model.diagnostic import Diagnostic


def row_filter_rules(root: MappingNode, patterns: Sequence[str] | None) -> Iterator[Diagnostic]:
    """Everything wrong with filters of rows; `patterns` are those of `source.tables`, None where they are wrong."""
    filters = at(root, "source", "row_filters")
    if not isinstance(filters, MappingNode):
        return
    where = "source.row_filters"
    if filters.entries and text_of(at(root, "source", "slot", "plugin")) == "test_decoding":
        hint = "use `plugin: pgoutput`, or leave rows out of silver by `where` of its table"
        summary = "the plugin test_decoding takes no publication, so it filters no rows"
        yield fault(Problem.SOURCE_COMBINATION, summary, filters.mark, where, hint)
    for name, mark in filters.keys.items():
        table = table_named(name, mark, where)
        if isinstance(table, Diagnostic):
            yield table
        else:
            yield from uncaptured(patterns, table, mark, where)
