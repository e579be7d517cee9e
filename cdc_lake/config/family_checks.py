"""The rules of a source of the GaussDB family, told at their places in the file.

Fields that do not fit the model are told elsewhere (`schema.py`); the rest is judged without them, so that everything
wrong is told together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import ValidationError

from cdc_lake.config.gaussdb_options import Mode, as_boolean
from cdc_lake.config.gaussdb_refusal import Refusal
from cdc_lake.config.gaussdb_rules import judge
from cdc_lake.config.problems import Problem
from cdc_lake.config.source import FamilySource
from cdc_lake.config.yaml_nodes import MappingNode, Mark, Node, ScalarNode, SequenceNode, join
from cdc_lake.model.diagnostic import Diagnostic, Severity
from cdc_lake.model.relation import TableName

TYPES: tuple[str, ...] = get_args(FamilySource.model_fields["type"].annotation)
_STANDS_FOR: dict[str, Any] = {"database": "-", "user": "-", "tables": ["*.*"]}
"""Required keys, where they are missing."""


def family_rules(source: Node | None) -> Iterator[Diagnostic]:
    """Every broken rule of the section `source`, where it is of the family."""
    if not isinstance(source, MappingNode) or _scalar(source, "type") not in TYPES:
        return
    section = _lenient(_values(source))
    if section is None:
        return
    for refusal in judge(section):
        mark, path = _place(source, refusal)
        hint = f"{refusal.remedy} (rule {refusal.rule.label})"
        yield Diagnostic(Severity.ERROR, refusal.rule.problem, refusal.summary, mark.location(path), hint)
    yield from _warnings(source, section)


def _scalar(node: MappingNode, key: str) -> object:
    found = node.entries.get(key)
    return found.value if isinstance(found, ScalarNode) else None


def _lenient(values: dict[str, Any]) -> FamilySource | None:
    """The section without what does not fit."""
    values = {**_STANDS_FOR, **values}
    for _ in range(3):  # a value that is taken out may be a required one
        try:
            return FamilySource.model_validate(values)
        except ValidationError as bad:
            for error in bad.errors(include_url=False, include_input=False, include_context=False):
                _take_out(values, error["loc"])
    return None


def _take_out(values: dict[str, Any], loc: tuple[int | str, ...]) -> None:
    top, inner = loc[0], values.get(str(loc[0]))
    if len(loc) > 1 and isinstance(inner, dict):
        inner.pop(str(loc[1]), None)
    else:
        values.pop(str(top), None)
    if top in _STANDS_FOR:
        values.setdefault(str(top), _STANDS_FOR[str(top)])


def _values(node: Node) -> Any:
    """The tree as values, without tables that are none: those are told by `checks.py`."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [_values(item) for item in node.items]
    values = {key: _values(value) for key, value in node.entries.items()}
    if isinstance(values.get("tables"), list):
        values["tables"] = [t for t in values["tables"] if not isinstance(t, str) or _is_table(t.removeprefix("!"))]
    return values


def _is_table(text: str) -> bool:
    try:
        TableName.parse(text)
    except ValueError:
        return False
    return True


def _place(source: MappingNode, refusal: Refusal) -> tuple[Mark, str]:
    """Where the value stands that a rule is about, or its key; what is missing stands where its section does."""
    node: Node = source
    mark, path = source.mark, "source"
    for part in refusal.at:
        if isinstance(node, MappingNode) and part in node.entries:
            mark, node = (node.keys[part] if refusal.key else node.entries[part].mark), node.entries[part]
            path = join(path, part)
        elif isinstance(node, SequenceNode):
            node = node.items[int(part)]
            mark, path = node.mark, join(path, int(part))
    return mark, path


def _warnings(source: MappingNode, section: FamilySource) -> Iterator[Diagnostic]:
    """What works, but not as people expect."""
    skips = as_boolean(section.decoding.get("skip-empty-xacts", False))
    if skips and section.order == "auto" and section.slot_order == "lsn" and section.decoding_mode is Mode.PARALLEL:
        decoding = source.entries["decoding"]
        assert isinstance(decoding, MappingNode)
        place = decoding.entries["skip-empty-xacts"].mark.location("source.decoding.skip-empty-xacts")
        summary = "with `skip-empty-xacts` the stream is in LSN order, and a quiet database keeps WAL back"
        hint = "remove it for CSN order, or say `order: lsn`"
        yield Diagnostic(Severity.WARNING, Problem.OPTION_COMBINATION, summary, place, hint)
    if section.node == "data_node":
        place = source.entries["node"].mark.location("source.node")
        summary = "a data node's stream has the rows of its shard only, and a part of every transaction across shards"
        hint = "read through a coordinator, `node: coordinator`; otherwise one pipeline a data node"
        yield Diagnostic(Severity.WARNING, Problem.SOURCE_COMBINATION, summary, place, hint)
        if section.slot_order == "csn" and "slice-id" not in section.decoding:
            summary = "without `slice-id` a change of a replicated table ends the stream"
            hint = "add the number of this node's shard, from 0: `decoding: {slice-id: 0}`"
            yield Diagnostic(Severity.WARNING, Problem.OPTION_COMBINATION, summary, place, hint)
