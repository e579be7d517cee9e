"""The page and the JSON Schema of what `--json` prints, from the types of the values that commands return.

The names are those in `"schema": "cdc-lake/<name>/1"`. Keys may be added in a later version, so readers should ignore
keys that they do not know; the meaning of a key does not change without another number.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Literal

from cdc_lake.bronze.hash_chain import ChainVerdict
from cdc_lake.cli.project_template import NewProject
from cdc_lake.comparison.bronze_vs_source import SourceProof
from cdc_lake.config.effective import Setting
from cdc_lake.connectors.base import SlotAdvanced, SlotDetails, SlotDropped, SlotList, SlotMade
from cdc_lake.control.table_pauses import PauseState
from cdc_lake.control.verdicts import TableComparison, Verdict
from cdc_lake.deploy.databricks_bundle import BundleFile
from cdc_lake.devtools.replay import Recorded, Replayed
from cdc_lake.model.diagnostic import Diagnostic
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.observability.failpoints import FailpointList
from cdc_lake.ops import inspect
from cdc_lake.ops.findings import CheckLine
from cdc_lake.ops.html_pages import ReportFiles
from cdc_lake.ops.plan import Plan, TableLedger
from cdc_lake.ops.status import Status
from cdc_lake.runtime.apply.rebuild import Rebuilt
from cdc_lake.runtime.cut_retention import CutList, CutView, CutViews, PinResult
from cdc_lake.runtime.maintain import Maintenance, Upgrade
from cdc_lake.runtime.quarantine import QuarantineDecision, QuarantineList
from cdc_lake.runtime.receive.lag import PreparedList
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.runtime.redecode import QuarantineRetry
from cdc_lake.runtime.restart import Restarted
from cdc_lake.runtime.resync import Resynced
from cdc_lake.runtime.run import RunSummary
from tools.docs import GENERATED

_OUTPUT = """
# Output as JSON

With `--json`, a command prints one document on standard output; progress and messages stay on standard error. `run
--json` prints one line for each event and a summary at the end, `status --watch --json` one line each time. The key
`schema` names the kind of a document; [the JSON Schema](output.schema.json) has a definition for each. Keys may be
added in later versions: ignore those that you do not know. Times are ISO 8601 with a time zone, durations are
in seconds, sizes in bytes, and positions have the form that commands accept.

| `schema` | printed by |
|---|---|
"""


Fields = Mapping[str, Any]
"""Keys of a document with the types of their values, where no one type has them."""

_PLACES = {"ReceiveSummary": ReceiveSummary}  # named in annotations, imported only for the type checker


@dataclasses.dataclass(frozen=True)
class _Compared(TableComparison):
    """A table as `Comparison.document` writes it: with its verdict in words, and names as keys."""

    text: str = ""
    columns: Mapping[str, int] = dataclasses.field(default_factory=dict)  # type: ignore[assignment]  # another form
    samples: Mapping[str, Sequence[Sequence[str | None]]] = dataclasses.field(  # type: ignore[assignment]  # another form
        default_factory=dict
    )


DOCUMENTS: Mapping[str, tuple[str, Sequence[type | Fields]]] = {
    "init": ("init", [NewProject]),
    "validate": ("validate", [{"valid": bool, "files": list[str], "diagnostics": list[Diagnostic]}]),
    "check": ("check", [{"ok": bool, "lines": list[CheckLine], "types": list[TableLedger]}]),
    "plan": ("plan", [Plan, {"settings": list[Setting]}]),
    "run": ("run", [{"at": datetime, "=": ProgressEvent}, {"stage": Literal["summary"], "=": RunSummary}]),
    "status": ("status", [Status]),
    "compare": (
        "compare",
        [
            {
                "pipeline": str,
                "at": datetime,
                "position": str,
                "verdict": Verdict,
                "text": str,
                "quarantined_keys": int,
                "discarded_keys": int,
                "values": bool,
                "different": list[str],
                "tables": list[_Compared],
                "seconds": float,
            }
        ],
    ),
    "report": ("report", [ReportFiles]),
    "resync": ("resync", [Resynced]),
    "restart": ("restart", [Restarted]),
    "rebuild": ("rebuild", [Rebuilt]),
    "maintain": ("maintain", [Maintenance]),
    "pause": ("pause", [PauseState]),
    "resume": ("resume", [PauseState]),
    "upgrade": ("upgrade", [Upgrade]),
    "cuts-list": ("cuts list", [CutList]),
    "cuts-show": ("cuts show", [CutView]),
    "cuts-pin": ("cuts pin", [PinResult]),
    "cuts-views": ("cuts views", [CutViews]),
    "list": ("quarantine list", [QuarantineList]),
    "retry": ("quarantine retry", [QuarantineRetry]),
    "held-release": ("quarantine release", [QuarantineDecision]),
    "held-discard": ("quarantine discard", [QuarantineDecision]),
    "slot-list": ("slot list", [SlotList]),
    "slot-inspect": ("slot inspect", [SlotDetails]),
    "slot-create": ("slot create", [SlotMade]),
    "slot-advance": ("slot advance", [SlotAdvanced]),
    "slot-drop": ("slot drop", [SlotDropped]),
    "span": ("inspect span", [inspect.SpanView]),
    "tx": ("inspect tx", [inspect.TransactionView]),
    "row": ("inspect row", [inspect.RowEverywhere]),
    "parked": ("inspect prepared", [PreparedList]),
    "failpoints": ("inspect failpoints", [FailpointList]),
    "chain": ("inspect chain", [{"holds": bool, "=": ChainVerdict}, {"holds": bool, "=": SourceProof}]),
    "record": ("record", [Recorded]),
    "replay": ("replay", [{"recordings": list[Replayed]}]),
    "bundle": ("bundle", [BundleFile]),
    "explain": ("explain", [{"code": str, "page": str}, {"codes": list[dict[str, str]]}]),
    "error": (
        "every command that ends with an error",
        [
            {
                "code": str | None,
                "message": str,
                "where": str,
                "hint": str,
                "retry": Literal["never", "later"],
                "exit_code": int,
                "diagnostics": list[Diagnostic],
            },
            {"code": type(None), "message": str, "exit_code": Literal[70]},
        ],
    ),
}
"""Name → the command that prints it, and the forms it has; `=` stands for the fields of a type."""


def output_schema() -> dict[str, Any]:
    """One JSON Schema: a document of any name is valid against the whole, of one name against its definition."""
    definitions = {name: _document(name, forms) for name, (_, forms) in DOCUMENTS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What cdc-lake prints with --json",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in definitions],
        "$defs": definitions,
    }


def _document(name: str, forms: Sequence[type | Fields]) -> dict[str, Any]:
    named = {"schema": {"const": f"cdc-lake/{name}/1"}}
    schemas = [_object({**named, **_fields(form)}) for form in forms]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _fields(form: type | Fields) -> dict[str, Any]:
    if not isinstance(form, Mapping):
        hints = typing.get_type_hints(form, localns=_PLACES)
        return {field.name: schema_of(hints[field.name]) for field in dataclasses.fields(form)}
    fields: dict[str, Any] = {}
    for key, kind in form.items():
        fields.update(_fields(kind) if key == "=" else {key: schema_of(kind)})
    return fields


_PLAIN: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    timedelta: {"type": "number", "description": "seconds"},
    Decimal: {"type": "string"},
    bytes: {"type": "string", "description": "hexadecimal digits"},
    object: {},
    Any: {},
}


def schema_of(kind: Any) -> dict[str, Any]:  # noqa: PLR0911  # one return a kind of type
    """The JSON Schema of what `cli.output.plain` makes of a value of a type."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in {typing.Union, types.UnionType}:
        return {"anyOf": [schema_of(argument) for argument in arguments]}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if origin is not None:  # tuples, lists and sets; a tuple of fixed length has its types in order
        items = [schema_of(argument) for argument in arguments if argument is not Ellipsis]
        if origin is tuple and Ellipsis not in arguments:
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "items": items[0]}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return {"type": "string"}
    return _object(_fields(kind))


def output_page() -> str:
    """The documents of `--json`."""
    rows = "".join(f"| `cdc-lake/{name}/1` | `{command}` |\n" for name, (command, _) in DOCUMENTS.items())
    return f"{GENERATED}{_OUTPUT}{rows}"
