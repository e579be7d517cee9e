"""The JSON Schema of pipeline files, made from the models: what editors complete and check with."""

from __future__ import annotations

from typing import Any

from cdc_lake.config.model import Pipeline

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = {"type": "string", "pattern": r"^\$\{(env|file|secret):[^{}]+\}$", "description": "A reference."}


def json_schema() -> dict[str, Any]:
    """The schema. Where a number, a choice or a form is wanted a reference is allowed too."""
    schema = Pipeline.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": SCHEMA_DIALECT, **_open_to_references(schema)}


def _open_to_references(node: Any) -> Any:
    if isinstance(node, list):
        return [_open_to_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _open_to_references(value) for key, value in node.items()}
    kind = inner.get("type")
    numeric = kind in ("integer", "number")  # a property may be called `type`: a dictionary
    if "const" not in inner and (numeric or (kind == "string" and not inner.keys().isdisjoint({"enum", "pattern"}))):
        kept = {k: inner.pop(k) for k in ("title", "description", "default", "examples") if k in inner}
        return {**kept, "anyOf": [inner, _REFERENCE]}
    if inner.get("format") == "password":
        del inner["format"]
        inner.pop("writeOnly", None)
    return inner
