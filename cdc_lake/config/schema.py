"""Validates the tree against the models; reports pydantic's errors in the user's terms, at the location of the value.

The JSON Schema of pipeline files, with which editors complete and check them, is generated from the same models.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from cdc_lake.config.model import Pipeline
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.config.yaml_tree import MappingNode, Node, ScalarNode, SequenceNode, fault, join
from cdc_lake.model.diagnostic import Diagnostic, Problem

VERSIONS = (1,)
SOURCE_TYPES = ("postgres", "qhb", "gaussdb", "opengauss", "mogdb")
_PLANNED_SOURCES = frozenset({"recording"})
_TAGS = ("rule", "type")
"""Keys that determine the model of a mapping in a union."""
_RENAMED_RULES = {"matches": "regex", "length_between": "length"}


def check(root: MappingNode) -> tuple[Pipeline | None, list[Diagnostic]]:
    """The pipeline, or all problems that the models report."""
    if (refused := _version(root)) is not None:
        return None, [refused]
    try:
        return Pipeline.model_validate(plain(root)), []
    except ValidationError as bad:
        errors = bad.errors(include_url=False, include_input=False)
    return check(root) if _references_as_text(root, errors) else (None, _diagnostics(root, errors))


def plain(node: Node, unresolved: Mapping[int, str | None] = MappingProxyType({})) -> Any:
    """Convert the tree to dictionaries, lists and values.

    `unresolved`: replacements for some scalars, by `id()`; those with None are omitted.
    """
    if isinstance(node, ScalarNode):
        return unresolved.get(id(node), node.value)
    if isinstance(node, SequenceNode):
        return [plain(item, unresolved) for item in node.items]
    entries = {key: value for key, value in node.entries.items() if unresolved.get(id(value), "") is not None}
    return {key: plain(value, unresolved) for key, value in entries.items()}


def _version(root: MappingNode) -> Diagnostic | None:
    node = root.entries.get("version")
    if node is None or (isinstance(node, ScalarNode) and node.value in VERSIONS and not isinstance(node.value, bool)):
        return None
    summary = f"version{f' {node.text}' if isinstance(node, ScalarNode) else ''} of the file format is not supported"
    hint = "this cdc-lake reads `version: 1`; a newer file needs a newer cdc-lake"
    return fault(Problem.VERSION, summary, node.mark, "version", hint)


def _references_as_text(root: MappingNode, errors: list[ErrorDetails]) -> bool:
    """Use the text of references that were read as a number or boolean if text is expected. True if there were any."""
    changed = False
    for error in errors:
        node = walk(root, error["loc"])[0]
        if isinstance(node, ScalarNode) and node.references and not node.broken and node.value != node.text:
            node.value = node.text
            changed = True
    return changed


def walk(root: Node, loc: tuple[int | str, ...]) -> tuple[Node, str, tuple[int | str, ...]]:
    """Follow a location to the deepest existing node: the node, its path, the rest. Tags of unions are not nodes."""
    node, path = root, ""
    for i, part in enumerate(loc):
        if isinstance(node, MappingNode) and isinstance(part, str) and part in node.entries:
            node, path = node.entries[part], join(path, part)
        elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.items):
            node, path = node.items[part], join(path, part)
        elif isinstance(node, MappingNode) and any(_text_of(node.entries.get(tag)) == part for tag in _TAGS):
            continue
        else:
            return node, path, loc[i:]
    return node, path, ()


def _text_of(node: Node | None) -> object:
    return node.value if isinstance(node, ScalarNode) else None


def _diagnostics(root: MappingNode, errors: list[ErrorDetails]) -> list[Diagnostic]:
    grouped: dict[tuple[str, str], tuple[Node, str, list[ErrorDetails]]] = {}
    for error in errors:
        node, path, rest = walk(root, error["loc"])
        key = (path, str(rest[-1]) if error["type"] == "missing" and rest else "")
        grouped.setdefault(key, (node, path, []))[2].append(error)
    return [d for node, path, same in grouped.values() if (d := _diagnose(root, node, path, same)) is not None]


def _diagnose(  # noqa: PLR0911  # one return a kind of problem
    root: MappingNode, node: Node, path: str, errors: list[ErrorDetails]
) -> Diagnostic | None:
    error = errors[0]
    kind, loc = error["type"], error["loc"]
    if isinstance(node, ScalarNode) and node.broken:
        return None
    if kind == "extra_forbidden":
        return _unknown_key(root, loc)
    if kind == "missing" or (kind == "union_tag_not_found" and isinstance(node, MappingNode)):
        tag, choices = ("type", ", ".join(SOURCE_TYPES)) if path == "source" else ("rule", "the kind of rule")
        name, hint = (str(loc[-1]), _describe(loc)) if kind == "missing" else (tag, f"add `{tag}: …`: {choices}")
        place = f" in `{path}`" if path else ""
        return fault(Problem.MISSING_KEY, f"`{name}` is missing{place}", node.mark, join(path, name), hint)
    if kind == "union_tag_invalid" and path == "source" and isinstance(node, MappingNode):
        return _source_type(node.entries["type"], join(path, "type"))
    if isinstance(node, ScalarNode) and node.value is None:
        name = path.rpartition(".")[2]
        return fault(Problem.VALUE, f"`{name}` has no value", node.mark, path, "give it a value or remove the key")
    if kind == "literal_error" and path.endswith(".on_fail") and error.get("ctx", {}).get("expected") == "'warn'":
        summary = "a table rule cannot quarantine or stop: it checks the table as a whole, not a change"
        return fault(Problem.RULE_OF_TABLE, summary, node.mark, path, "remove `on_fail`, or write `on_fail: warn`")
    summary, hint = _value(errors, node)
    return fault(Problem.VALUE, summary, node.mark, path, hint)


def _source_type(node: Node, path: str) -> Diagnostic:
    written = f"source type `{node.text}`" if isinstance(node, ScalarNode) else f"{_node_kind(node)} as source type"
    later = "is planned for a later version" if _text_of(node) in _PLANNED_SOURCES else "is unknown"
    supported = ", ".join(f"`{t}`" for t in SOURCE_TYPES)
    return fault(Problem.SOURCE_TYPE, f"{written} {later}", node.mark, path, f"this version supports {supported}")


def _unknown_key(root: MappingNode, loc: tuple[int | str, ...]) -> Diagnostic:
    parent, parent_path, _ = walk(root, loc[:-1])
    name = str(loc[-1])
    mark = parent.keys[name] if isinstance(parent, MappingNode) and name in parent.keys else parent.mark
    model = _model_at(loc[:-1])
    known_keys = list(_fields(model)) if model is not None else []
    present_keys = parent.keys if isinstance(parent, MappingNode) else {}
    close = difflib.get_close_matches(name, known_keys, n=1, cutoff=0.6)
    sources = [m for m in (PostgresSource, FamilySource) if parent_path == "source" and name in _fields(m)]
    if types := [str(tag) for source in sources for tag in _tags(source)]:
        elsewhere = " or ".join(filter(None, [", ".join(types[:-1]), types[-1]]))
        hint = f"`{name}` is a key of `type: {elsewhere}`"
    elif close and close[0] in present_keys:
        hint = f"`{close[0]}` is on line {present_keys[close[0]].line}: did you mean that one?"
    elif close:
        hint = f"did you mean `{close[0]}`?"
    else:
        hint = f"known keys: {', '.join(known_keys)}"
    place = f" in `{parent_path}`" if parent_path else ""
    first_word = re.split(r"[^\w-]", name, maxsplit=1)[0]  # `password:secret` without a blank is a key too
    word = name if first_word == name else f"{first_word}…"
    return fault(Problem.UNKNOWN_KEY, f"unknown key `{word}`{place}", mark, join(parent_path, word), hint)


_PLAIN_TYPES = {
    "string_type": "text",
    "string_sub_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "path_type": "a path",
    "list_type": "a list",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
}


def _value(errors: list[ErrorDetails], node: Node) -> tuple[str, str]:  # noqa: PLR0911  # one return a kind of error
    error = errors[0]
    kind, context = error["type"], error.get("ctx", {})
    wanted = dict.fromkeys(_PLAIN_TYPES[e["type"]] for e in errors if e["type"] in _PLAIN_TYPES)
    if wanted:
        names = " or ".join(wanted)
        hint = "quote it to make it text" if "text" in wanted and isinstance(node, ScalarNode) else ""
        return f"expected {names}, found {_node_kind(node)}", hint
    match kind:
        case "literal_error" if _scalar_text(node, "") == "reread":
            return "`missing_row: reread` is gone", (
                "write `missing_row: hold`: the change waits in quarantine, and `cdc-lake resync TABLE` copies the "
                "table again, which ends that"
            )
        case "literal_error" | "enum":
            hint = _closest(node, str(context.get("expected", "")))
            return f"expected {context.get('expected', 'another word')}", hint
        case "union_tag_invalid":
            rule, expected = _scalar_text(node, "rule"), str(context.get("expected_tags", ""))
            hint = f"it is now called `{_RENAMED_RULES[rule]}`" if rule in _RENAMED_RULES else _closest(node, expected)
            return f"`{rule}` is not a kind of rule", hint or f"known rules: {expected.replace(chr(39), '`')}"
        case "greater_than_equal":
            return f"expected at least {context['ge']}", ""
        case "less_than_equal":
            return f"expected at most {context['le']}", ""
        case "too_short" if context["actual_length"]:
            return f"expected at least {context['min_length']} entries", ""
        case "too_short":
            return "the list is empty", "add an entry or remove the key"
        case "string_too_short":
            return "the text is empty", "give it a value or remove the key"
        case "string_pattern_mismatch":
            pattern = str(context["pattern"])
            letters = "letters" if "A-Z" in pattern else "lowercase letters"
            also = "digits, underscores and ? . -" if "?.-" in pattern else "digits and underscores"
            folded = str(getattr(node, "value", "")).lower()
            meant = f"; did you mean `{folded}`?" if re.fullmatch(pattern, folded) else ""
            return f"does not match the pattern {pattern}", f"{letters}, {also}{meant}"
        case "value_error":
            return str(context.get("error", error["msg"])), ""
        case _:
            return error["msg"][:1].lower() + error["msg"][1:], ""


def _node_kind(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    match node.value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case None:
            return "nothing"
        case _:
            return "text"


def _scalar_text(node: Node, key: str) -> str:
    inner = node.entries.get(key) if isinstance(node, MappingNode) else node
    return inner.text if isinstance(inner, ScalarNode) else ""


def _closest(node: Node, expected: str) -> str:
    words = [w.strip(" '") for w in expected.replace(" or ", ",").split(",")]
    close = difflib.get_close_matches(_scalar_text(node, "rule"), [w for w in words if w], n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


def _describe(loc: tuple[int | str, ...]) -> str:
    model = _model_at(loc[:-1])
    info = None if model is None else _fields(model).get(str(loc[-1]))
    about = f": {' '.join(info.description.split()).rstrip('.')}" if info is not None and info.description else ""
    return f"add `{loc[-1]}: …`{about}"


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _model_at(loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model of the section at a location."""
    model: type[BaseModel] | None = Pipeline
    candidates: list[type[BaseModel]] = []
    for part in loc:
        if isinstance(part, int):
            continue
        tagged = [m for m in candidates if part in _tags(m)]
        if tagged:
            model, candidates = tagged[0], []
            continue
        if model is None:
            return None
        info = _fields(model).get(part)
        candidates = [] if info is None else list(models_in(info.annotation))
        model = candidates[0] if len(candidates) == 1 else None
    return model


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def _tags(model: type[BaseModel]) -> tuple[object, ...]:
    for tag in _TAGS:
        info = model.model_fields.get(tag)
        if info is not None and get_origin(info.annotation) is Literal:
            return get_args(info.annotation)
    return ()


RENAMED: Final = {
    "apply.row_marks": "merge_on_read",
    "quality.promise_below": "pin_below",
    "silver.cuts.promise_every": "pin_every",
}
"""Path of a setting in version 0.3 → its current name. To be removed after 0.5."""
_REFERENCE = {"type": "string", "pattern": r"^\$\{(env|file|secret):[^{}]+\}$", "description": "A reference."}


def json_schema() -> dict[str, Any]:
    """The JSON Schema. Wherever a number, a choice or a pattern is required, a reference is also allowed."""
    opened = _open_to_references(Pipeline.model_json_schema(by_alias=True, mode="validation"))
    for path, name in RENAMED.items():
        *sections, former = path.split(".")
        properties = opened["properties"]
        for section in sections:
            schema = properties[section]
            schema = opened["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
            properties = schema["properties"]
        same = {key: value for key, value in properties[name].items() if key != "default"}
        properties[former] = {**same, "deprecated": True, "description": f"Renamed to `{name}`."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **opened}


def _open_to_references(node: Any) -> Any:
    if isinstance(node, list):
        return [_open_to_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _open_to_references(value) for key, value in node.items()}
    kind = inner.get("type")
    numeric = kind in ("integer", "number")  # a property may be called `type`: a dictionary
    if "const" not in inner and (numeric or (kind == "string" and not inner.keys().isdisjoint({"enum", "pattern"}))):
        outer = {k: inner.pop(k) for k in ("title", "description", "default", "examples") if k in inner}
        return {**outer, "anyOf": [inner, _REFERENCE]}
    if inner.get("format") == "password":
        del inner["format"]
        inner.pop("writeOnly", None)
    return inner
