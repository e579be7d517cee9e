"""Values as JSON: the one translation from frozen results to documents, the same for every verb."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any


def document(verb: str, value: object) -> dict[str, Any]:
    """A result as a JSON document: `schema` first, then its fields; what is not a record stands under `items`."""
    body = plain(value)
    return {"schema": f"cdc-lake/{verb}/1", **(body if isinstance(body, dict) else {"items": body})}


def dumps(value: object, *, indent: int | None = 2) -> str:
    """JSON text with text as it is, not escaped."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def line(value: object) -> str:
    """A value of plain JSON parts on one line, for output of one object a line."""
    return json.dumps(value, ensure_ascii=False)


def plain(value: object) -> Any:  # noqa: PLR0911  # one return a kind of value
    """A value made of what JSON has: times ISO 8601 with zone, durations in seconds, decimals and bytes as text."""
    match value:
        case None | bool() | str() if not isinstance(value, enum.Enum):
            return value
        case enum.Enum():
            return plain(value.value)
        case int() | float():
            return value
        case Mapping():
            return {str(plain(k)): plain(v) for k, v in value.items()}
        case list() | tuple():
            return [plain(v) for v in value]
        case set() | frozenset():
            return sorted(plain(v) for v in value)
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case Decimal() | PurePath():
            return str(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        case _:
            return str(value)
