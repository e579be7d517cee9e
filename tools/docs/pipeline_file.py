"""The page of pipeline files: every key with its type, default and meaning, from the JSON Schema of the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from cdc_lake.config.fields import format_bytes, format_milliseconds
from cdc_lake.config.schema import json_schema
from tools.docs import GENERATED


def pipeline_page() -> str:
    """Every key of a pipeline file."""
    schema = json_schema()
    parts = [
        f"{GENERATED}\n# Pipeline files\n",
        (
            "Every key with its type, default and meaning. Values may hold references: `${env:NAME}`, "
            "`${env:NAME:-default}`, `${file:path}`, `${secret:scope/key}`. `conf/NAME.yaml` is laid over the file by "
            "`--env NAME`, key by key. Booleans are only `true` and `false`; unknown and duplicate keys are errors.\n"
        ),
    ]
    parts += [_section(schema, "pipeline file", "")]
    parts += [_section(*each) for each in dict(_sections(schema, schema, "", "")).values()]
    return "\n".join(parts)


_OF_EVERY_SOURCE: Final = frozenset({"Polling", "Tls", "WalBudget"})
"""Sections that sources of several types have alike."""
_Shown: TypeAlias = tuple[dict[str, Any], str, str, str]
"""A section: its definition, name, path, and `type` of the source it is of, where several have one at its path."""


def _sections(schema: dict[str, Any], node: dict[str, Any], path: str, of: str) -> Iterator[tuple[str, _Shown]]:
    """Sections below one, each by path and name: one that several have is shown once."""
    for key, value in node.get("properties", {}).items():
        for reference, suffix in _references(value):
            name = reference.rpartition("/")[2]
            definition = schema["$defs"][name]
            location = f"{path}.{key}{suffix}" if path else f"{key}{suffix}"
            kind = _choice(definition, "type") or of
            yield f"{location} {name}", (definition, name, location, "" if name in _OF_EVERY_SOURCE else kind)
            yield from _sections(schema, definition, location, kind)


def _choice(node: dict[str, Any], tag: str) -> str:
    """What the key says that tells the members of a union apart; empty where there is none."""
    if tag not in node.get("required", ()):
        return ""  # it has a default: a setting like others
    value = node["properties"][tag]
    words = (
        [value["const"]]
        if "const" in value
        else [w for o in [value, *value.get("anyOf", ())] for w in o.get("enum", ())]
    )
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _references(value: dict[str, Any], suffix: str = "") -> Iterator[tuple[str, str]]:
    if "$ref" in value:
        yield value["$ref"], suffix
    for option in [*value.get("anyOf", ()), *value.get("oneOf", ())]:
        yield from _references(option, suffix)
    if isinstance(value.get("items"), dict):
        yield from _references(value["items"], suffix + "[]")


def _section(node: dict[str, Any], name: str, path: str, of: str = "") -> str:
    rule = _choice(node, "rule")
    tagged = f" with `rule: {rule}`" if rule else f" with `type: {of}`" if of else ""
    title = f"`{path}`{tagged}" if path else name.capitalize()
    purpose = node.get("description", "").replace("\n", " ")
    rows = []
    required = set(node.get("required", ()))
    for key, value in node.get("properties", {}).items():
        default = "required" if key in required else _default(value)
        about = value.get("description") or _definition(value).get("description", "")
        text = about.replace("\n", " ").replace("|", "\\|")
        rows.append(f"| `{key}` | {_kind(value)} | {default} | {text} |")
    return "\n".join([f"## {title}\n", f"{purpose}\n", "| key | type | default | |", "|---|---|---|---|", *rows, ""])


def _definition(value: dict[str, Any]) -> dict[str, Any]:
    """The section a key refers to; its description is left out at the key where it is the same."""
    definition = json_schema()["$defs"].get(str(value.get("$ref", "")).rpartition("/")[2], {})
    return dict(definition)


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if isinstance(default, int) and (example := _example(value)):
        return f"`{format_bytes(default) if example.endswith('B') else format_milliseconds(default)}`"
    if isinstance(default, dict):
        return ""
    return "" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"


def _kind(value: dict[str, Any]) -> str:  # noqa: PLR0911  # one return a kind of type
    if "const" in value:
        return f"`{value['const']}`"
    if example := _example(value):
        return f"quantity, for example `{example}`"
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if options := [o for o in [*value.get("anyOf", ()), *value.get("oneOf", ())] if not _is_noise(o)]:
        return " or ".join(dict.fromkeys(_kind(o) for o in options))
    if "$ref" in value:
        return "section"
    if value.get("type") == "array":
        return f"list of {_kind(value['items'])}"
    if value.get("type") == "object":
        return "mapping"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return names.get(str(value.get("type")), "any")


def _example(value: dict[str, Any]) -> str:
    return str(next(iter(value.get("examples", ())), ""))


def _is_noise(option: dict[str, Any]) -> bool:
    return option.get("type") == "null" or option.get("description") == "A reference."
