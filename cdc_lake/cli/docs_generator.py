"""The page of all errors: codes by family, from the tree of errors and the titles of their pages.

The page of the GaussDB family's decoding options, from the table of options and the rules themselves.

Every document that `--json` prints, as JSON Schema, from the types of the values that verbs return.

The names are those in `"schema": "cdc-lake/<name>/1"`. Keys may be added in a later version, so readers should leave
alone what they do not know; what is here does not change its meaning without another number.

The generated reference pages: `python -m cdc_lake.cli.docs_generator` writes them, a test compares them.

From the models: `pipeline.schema.json` and `pipeline.md`. From the table of options: `decoding-options.md`. From the
command line: `cli.md`. From the error tree and the pages of its codes: `errors.md`; from the table of exit codes:
`exit-codes.md`.

The reference page of types, `docs/reference/types.md`, made from the ledger that converts.

::

    python -m cdc_lake.cli.docs_generator docs/reference/types.md

The catalogue of rules: what a kind is for, what it says of NULL, and by what it is judged. The page of rules is made
from it; a test sets it beside the code.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Final, Literal, TypeAlias

from cdc_lake.bronze.hash_chain_verify import ChainVerdict
from cdc_lake.cli.project_template import NewProject
from cdc_lake.cli.text import titles
from cdc_lake.comparison.bronze_vs_source import SourceProof
from cdc_lake.config.effective import Setting
from cdc_lake.config.fields import format_bytes, format_milliseconds
from cdc_lake.config.gaussdb_options import GAUSSDB, OPTIONS, Form, Mode, Option
from cdc_lake.config.rules import (
    Between,
    Expectation,
    Expression,
    ForeignKey,
    Freshness,
    InSet,
    Length,
    Monotonic,
    NotNull,
    Regex,
    RowCount,
    RowRule,
    TableRule,
    TypeCastable,
    Unique,
)
from cdc_lake.config.schema import json_schema
from cdc_lake.config.silver_tables import MAX_PRECISION, Declared, TypePolicy
from cdc_lake.config.validation.gaussdb import Rule
from cdc_lake.connectors.base import SlotAdvanced, SlotDetails, SlotDropped, SlotList, SlotMade
from cdc_lake.control.table_pauses import PauseState
from cdc_lake.control.verdicts import TableComparison, Verdict
from cdc_lake.deploy.databricks_yaml import BundleFile
from cdc_lake.devtools.replay import Recorded, Replayed
from cdc_lake.errors.base import CdcLakeError, Retry, kinds
from cdc_lake.model.diagnostic import ConfigInvalid, Diagnostic, Problem
from cdc_lake.model.relation import Column
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.observability.failpoints import FailpointList
from cdc_lake.ops import inspect
from cdc_lake.ops import inspect as inspect_span
from cdc_lake.ops.check.findings import CheckLine
from cdc_lake.ops.html_pages import ReportFiles
from cdc_lake.ops.inspect import RowEverywhere
from cdc_lake.ops.plan import Plan, TableLedger
from cdc_lake.ops.status import Status
from cdc_lake.runtime.apply.rebuild import Rebuilt
from cdc_lake.runtime.cut_retention import CutList, CutView, Promised
from cdc_lake.runtime.maintain import Maintenance, Upgrade
from cdc_lake.runtime.quarantine import HeldDecision, HeldList
from cdc_lake.runtime.receive.lag import ParkedList
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.runtime.redecode import HeldRetry
from cdc_lake.runtime.restart import Restarted
from cdc_lake.runtime.resync import Resynced
from cdc_lake.runtime.run import RunSummary
from cdc_lake.tables.types import LEDGER, ColumnType, Loss, column_type

FAMILIES: Final = {
    "CFG": "Configuration: pipeline files, and what the command line names",
    "SRC": "Source: the server, its slot, its tables",
    "DEC": "Decoding: what the server sent",
    "LAK": "Lake: files, stores, catalogs, Spark, silver tables",
    "QUA": "Quality: rules",
    "STA": "State: bronze, cuts, control tables, what runs beside it",
    "DEP": "Deployment: bundles, jobs, monitoring, reports",
    "CDC": "The root of the tree; never said",
}

_ABOUT: Final = """\
`cdc-lake explain CODE` prints the page of a code: what happened, why, what to do, an example. [Exit
codes](exit-codes.md) are a promise, and so is *try again*: the same command, with nothing changed, may do.
"""

_DEFINED_IN: Final = ("cdc_lake.errors", "cdc_lake.cli.project_template", "cdc_lake.deploy.databricks_checks")


def errors_page() -> str:
    """Every code with its page, the exit code that a command ends with, and whether it may just be repeated."""
    facts = _facts()
    parts = [
        "\n# Errors\n",
        _ABOUT,
    ]
    for family, about in FAMILIES.items():
        rows = [
            f"| [{code}](../errors/{code}.md) | {title} | {_row(facts, code)} |"
            for code, title in titles()
            if code.startswith(family)
        ]
        parts += [f"## {about}\n", "| code | | exit | try again |\n|---|---|---|---|", "\n".join(rows), ""]
    return "\n".join(parts)


def _row(facts: dict[str, type[CdcLakeError]], code: str) -> str:
    kind = facts[code]
    return f"{kind.status()} | {'yes' if kind.retry is Retry.LATER else ''}"


def _facts() -> dict[str, type[CdcLakeError]]:
    """The class that each code ends a command with; problems of files end it together."""
    for module in _DEFINED_IN:
        import_module(module)
    own = {kind.code: kind for kind in kinds(CdcLakeError)}
    return {**dict.fromkeys((str(problem.value) for problem in Problem), ConfigInvalid), **own}


_PAGE = """
# Decoding options

Options of logical decoding that GaussDB, openGauss and MogDB know. They go into `source.decoding` under these names;
[the guide](../guides/gaussdb.md) says which to look at. *SQL* is `mode: polling`, *serial* a stream with
`parallel-decode-num: 1`, *parallel* one with 2 or more. Left out, an option is sent as under *ours*, or not at all.

| option | value | server's default | ours | products | SQL | serial | parallel | |
|---|---|---|---|---|---|---|---|---|
{options}

Booleans are `on` or `off`, `true` or `false`, `yes` or `no`, 1 or 0. `white-table-list` is made from `tables`: names
with a wildcard inside become `*`, and the receiver filters again.

## Where cdc_lake differs from the vendors' documents

| option | the documents say | cdc_lake | why |
|---|---|---|---|
{vendor}

## Rules

`cdc-lake validate` checks them without a connection; rules of releases where `source.version` says the release.

| rule | code | |
|---|---|---|
{rules}
"""


_VENDOR = (
    (
        "`parallel-decode-num`",
        "1 by default, and without it no other option of parallel decoding may be given",
        "sends 4; an explicit 1 is serial decoding and refuses those options",
        "parallel decoding alone shows every CSN, and is faster",
    ),
    (
        "`parallel-decode-num`, `output-order`, `logical-receiver-num`",
        "SQL functions check their range and ignore them",
        "refused with `mode: polling`, except `parallel-decode-num: 1`",
        "an option without effect is a mistake somebody has to find",
    ),
    (
        "`sending-batch`",
        "0 by default",
        "sends 1",
        "one message carries many rows",
    ),
    (
        "`include-timestamp`",
        "off by default",
        "sends `on`",
        "lag and `as of` need the time of a commit; with `off`, `commit_ts` is NULL",
    ),
    (
        "`force-binary`",
        "0 is allowed in all modes",
        "refused in parallel decoding",
        "the parsers of the open-source servers do not know it there",
    ),
    (
        "`max-txn-in-memory`, `max-reorderbuffer-in-memory`",
        "0 to 100; newer GaussDB, in parallel decoding: 0 to a quarter (MB), to a half (GB) of `max_process_memory`",
        (
            "0 to 100; with `type: gaussdb` without `version`, or from 505 on, in parallel decoding more is "
            "accepted, and `check` compares it with the server's memory"
        ),
        "only the server knows its memory",
    ),
    (
        "`sender-timeout`",
        "0 to 2147483647 ms",
        "1 to 999 ms is refused",
        "the server would end the stream before a reply can arrive",
    ),
    (
        "`standby-connection`",
        "with one host, a standby",
        "needs two `hosts`, or is refused; refused through a coordinator",
        "a standby decodes, but the slot is made and tables are copied on the primary",
    ),
    (
        "`standby-connection`",
        "one parallel decoding connection for each standby is advised",
        "not enforced; `check` says it",
        "a standby has 20 decoder threads for all streams together",
    ),
    (
        "`exclude-userids`, `skip-generated-columns`",
        '"only with SQL functions, not when a decoding task is started" (one document), an option of streams (another)',
        "sent in every mode; a server that refuses it ends with [SRC246](../errors/SRC246.md)",
        "the documents contradict each other",
    ),
    (
        "`skip-generated-columns`",
        "new rows come without generated columns, old rows always with them",
        "generated columns are none of the table: not copied, not compared, left out of old rows",
        "otherwise a table would have two layouts in turn",
    ),
    (
        "`dynamic-resolution`",
        "`false`: a user in `exclude-users` that does not exist ends decoding",
        "sent as given; the error names the option and the way out",
        "",
    ),
    (
        "`auto-advance`",
        "the server moves the slot by itself",
        "only `off`",
        "the slot would move past what bronze holds",
    ),
    (
        "`start-position`",
        "a CSN and an LSN, at data nodes only",
        "refused",
        "it hides the BEGIN of its CSN; a stream goes on from what bronze holds",
    ),
    (
        "start LSN of the client",
        "a client may say where a stream starts (`withStartPosition`)",
        "always what bronze holds, or the new slot's point",
        "any other would leave transactions out, or repeat them",
    ),
    (
        "`enable-heartbeat`",
        "reports the log read, the CSN sent and the time of the newest log decoded",
        "shown by `inspect payload`, and as the metric `cdc_lake_source_decoding_lag_seconds`",
        "never a position to confirm: it promises nothing about order",
    ),
    (
        "`batch-sending`",
        "the name in one text of a document",
        "unknown; `sending-batch` is suggested",
        "servers know `sending-batch`",
    ),
    (
        "styles t and j without batches",
        "the default of MogDB 3.0",
        "refused before 5.0",
        "no position is safe to confirm",
    ),
    (
        "slot name",
        "capital letters are folded to small ones",
        "refused, and the folded name is suggested",
        "two pipelines could mean one slot",
    ),
    (
        "SQL functions through a coordinator",
        "possible on a distributed GaussDB",
        "refused: `mode: polling` reads a data node or a single node",
        "they need slots in LSN order, which a coordinator does not have",
    ),
    (
        "`include-xids`, `include-timestamp` and `skip-empty-xacts` of `test_decoding`",
        "may be switched on and off",
        "always on (`skip-empty-xacts` off with `two_phase`); no other option of the plugin can be given",
        "a transaction without its number or time could not be compared or dated",
    ),
    (
        "`only-local` of `test_decoding`, `filter_by_origin`",
        "leave out changes that carry a replication origin",
        "not for `test_decoding`; for pgoutput `decoding: {origin: none}`, from PostgreSQL 16 and QHB 1.5.3",
        "its lines name no origin, so nobody could tell what was left out",
    ),
    (
        "`stream-changes` of `test_decoding`",
        "prints large transactions before they commit",
        "never asked for; such a line ends the stream with DEC319",
        "the lines carry no values",
    ),
    (
        "logical messages",
        "each plugin gives prefix, content, position, and whether they are transactional",
        "rows `M` with `decoding: {messages: true}` of pgoutput, unread by silver; left out with `test_decoding`",
        "`test_decoding` prints all messages of the database, whether asked for or not; `inspect payload` shows them",
    ),
    (
        "other output plugins",
        "can be written, and used by any client",
        "refused: `slot.plugin` is `pgoutput` or `test_decoding` (CFG107)",
        "what an unknown plugin leaves out, nobody can prove",
    ),
)
"""Per row: what it is about, what the documents say of it, what is done here, and why."""


def options_page() -> str:
    """Every option of logical decoding, and every rule."""
    options = "\n".join(map(_option_row, OPTIONS.values()))
    rules = "\n".join(
        f"| `{rule.label}` | [{rule.problem}](../errors/{rule.problem}.md) | {rule.sentence} |" for rule in Rule
    )
    vendor = "\n".join(f"| {' | '.join(row)} |" for row in _VENDOR)
    return _PAGE.format(options=options, rules=rules, vendor=vendor)


def _option_row(option: Option) -> str:
    products = (
        "GaussDB"
        if option.products == GAUSSDB
        else "openGauss, MogDB"
        if GAUSSDB.isdisjoint(option.products)
        else "all"
    )
    since = f" from {'.'.join(map(str, option.since))}" if option.since else ""
    value = f"{option.low} to {option.high}" if option.form is Form.NUMBER else option.form.value
    marks = ["yes" if mode in option.modes else "" for mode in Mode]
    cells = [f"`{option.name}`", value, option.default, option.sent_default, products + since, *marks, option.about]
    return "| " + " | ".join(cells) + " |"


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
                "held_keys": int,
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
    "cuts-promise": ("cuts promise", [Promised]),
    "list": ("held list", [HeldList]),
    "retry": ("held retry", [HeldRetry]),
    "held-release": ("held release", [HeldDecision]),
    "held-discard": ("held discard", [HeldDecision]),
    "slot-list": ("slot list", [SlotList]),
    "slot-inspect": ("slot inspect", [SlotDetails]),
    "slot-create": ("slot create", [SlotMade]),
    "slot-advance": ("slot advance", [SlotAdvanced]),
    "slot-drop": ("slot drop", [SlotDropped]),
    "span": ("inspect span", [inspect_span.SpanView]),
    "tx": ("inspect tx", [inspect.TransactionView]),
    "row": ("inspect row", [RowEverywhere]),
    "parked": ("inspect parked", [ParkedList]),
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
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


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


REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
_GENERATED = "<!-- generated by `python -m cdc_lake.cli.docs_generator`; do not edit -->\n"

_OUTPUT = """
# Output as JSON

With `--json` a command prints one document on standard output, narration stays on standard error. `run --json` prints
a line an event and a summary at its end, `status --watch --json` a line each time. Each document says in `schema` what
it is; [the JSON Schema](output.schema.json) has a definition for each, under its name. Keys may be added: leave alone
what you do not know. Times are ISO 8601 with their zone, lengths of time seconds, sizes bytes, positions as they can be
pasted.

| `schema` | printed by |
|---|---|
"""

_VERBS = """\
What `--help` shows, for every verb. `cdc-lake --install-completion` teaches your shell (bash, zsh, fish, PowerShell)
to complete verbs and options; open a new one afterwards. `--show-completion` prints what that would write.
"""

EXIT_CODES = (
    (0, "done", "A continuous run that was asked to stop by SIGTERM ends with it too: that is how it ends."),
    (
        1,
        "failed",
        "The message says why. Also: `check` or `status --exit-code` found something to fix, `compare` a difference.",
    ),
    (2, "wrong command line", "An unknown verb or option, or no pipeline chosen."),
    (3, "configuration invalid", "Every problem is listed with its place; `cdc-lake validate` lists them again."),
    (4, "source or lake not reachable or busy", "Nothing is lost; the same command may be tried again."),
    (
        5,
        "a quality rule stopped the run",
        "A rule with `on_fail: stop`; everything before that transaction is applied. Also: rules kept back a promise.",
    ),
    (6, "changes pending", "Only `plan --exit-code`."),
    (70, "a bug", "The message says how to report it; `--debug` shows the traceback."),
    (130, "interrupted", "By Ctrl-C, or a run with `--once` by SIGTERM; state is as the last commit left it."),
)


def pages() -> dict[str, str]:
    """Every generated page by file name."""
    return {
        "pipeline.schema.json": json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n",
        "pipeline.md": pipeline_page(),
        "decoding-options.md": f"{_GENERATED}{options_page()}",
        "cli.md": cli_page(),
        "exit-codes.md": exit_page(),
        "errors.md": f"{_GENERATED}{errors_page()}",
        "output.md": output_page(),
        "output.schema.json": json.dumps(output_schema(), indent=2, ensure_ascii=False) + "\n",
    }


def exit_page() -> str:
    """The promise about exit codes."""
    rows = "".join(f"| {code} | {name} | {text} |\n" for code, name, text in EXIT_CODES)
    return f"{_GENERATED}\n# Exit codes\n\nA promise: they do not change.\n\n| code | means | |\n|---|---|---|\n{rows}"


def output_page() -> str:
    """The documents of `--json`."""
    rows = "".join(f"| `cdc-lake/{name}/1` | `{command}` |\n" for name, (command, _) in DOCUMENTS.items())
    return f"{_GENERATED}{_OUTPUT}{rows}"


def pipeline_page() -> str:
    """Every key of a pipeline file."""
    schema = json_schema()
    parts = [
        f"{_GENERATED}\n# Pipeline files\n",
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


def cli_page() -> str:
    """Every verb with its options, as `--help` shows them."""
    from typer.main import get_command

    from cdc_lake.cli.app import app

    os.environ["COLUMNS"] = "100"
    parts = [
        f"{_GENERATED}\n# Command line\n",
        _VERBS,
    ]
    parts += [f"## {path}\n\n```\n{text}\n```\n" for path, text in _helps(get_command(app), "cdc-lake", None)]
    return "\n".join(parts)


def _helps(command: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=100)
    yield path, command.get_help(context).rstrip()
    inner = getattr(command, "commands", {})
    for name in command.list_commands(context) if inner else ():  # in the order of its help
        yield from _helps(inner[name], f"{path} {name}", context)


def main() -> None:
    """Write the pages."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()


_HEAD = """<!-- made by `python -m cdc_lake.cli.docs_generator docs/reference/types.md` -->
# Types

Which type a column of the source has in silver. `cdc-lake check` and `cdc-lake plan` print this for every captured
column of your own tables before the first row is read, also with `--json`. `lossless`: every value is the same value
there, but for the ones named in the last column, which are **held**: the change goes to quarantine with its text under
the rule `type_<column>`, and later changes of its key wait behind it. A value is never clipped, rounded or replaced by
NULL. `converted`: silver has another form of the value, mostly the text that the server prints, so nothing is lost.
`refused`: the pipeline declares a type that the column cannot have; its table waits
([LAK479](../errors/LAK479.md)). With [transforms](../concepts/transforms.md), `check` and `plan` also show the silver
names, `left out` for columns that silver does not have, and `computed` with the expression; of which type that is,
`plan` says once the table is there.

| at the source | also called | silver | | note | held |
|---|---|---|---|---|---|
"""

_TAIL = """
Everything that is not listed (enums, domains, composites, arrays of any dimension, ranges, geometric types, hstore,
extensions' types) is `string`, converted: the text the server prints. A domain is text even over a type that is listed,
because the stream names the domain only; declare its type.

## Declared types

Where the source's type leaves a choice, the pipeline makes it, for numerics of all tables or of one, and by column:

```yaml
silver:
  defaults:
    types: {{numeric: "decimal(38,9)"}}   # of numerics that no decimal holds whole; string by default
  tables:
    - from: public.orders
      types:
        numeric: string
        misfit: stop                    # quarantine by default
        columns:
          amount: both(38,4)            # two columns: amount, and amount_decimal beside it
          quantity: int                 # a domain over integer
          tags: array<string>
          valid_until: string           # infinity and years before Christ are text here, and not held
```

| declared | for columns | silver | held |
|---|---|---|---|
{declared}

A `numeric` that no decimal holds whole has no precision, more than {digits} digits, or a scale outside of 0 to its
precision. With `decimal(p,s)` its values are filled up with zeros behind the point, which are no digits of the value;
what needs more digits is held, as are NaN and the infinities. With `both(p,s)` nothing is held: the column is text with
every digit, and the one beside it, with `_decimal` behind its name, is NULL exactly where the number is none of the
decimal's; `compare` recomputes it. A text is read as a declared type by the same rules as a column that has it at the
source (below): `007` is no `int`. An array becomes one where it has one dimension that begins at 1 and each element
fits; its elements may be NULL.

**`misfit: stop`** beside `numeric` or `columns` ends the run before a value that does not fit
([QUA501](../errors/QUA501.md)), instead of holding its change.

Rules, `compare`, the initial copy and all kinds of tables go by the declared type; a rule may name the decimal of
`both`. To declare another type for a table that is there is a change of its type, and
[asked for](../concepts/evolution.md), or a reason to [rebuild](../concepts/rebuild.md) it from bronze. A table that has
the decimal of a `both` that is not declared any more waits until it is rebuilt ([LAK457](../errors/LAK457.md)).

## How values are read

The server prints values with `DateStyle` ISO, `TimeZone` UTC, `IntervalStyle` iso_8601, `bytea_output` hex and the
shortest exact floats, in the initial copy and in the stream alike; servers of the GaussDB family with `IntervalStyle`
postgres, and in parallel decoding with the database's own `TimeZone`. A text fits where the typed value prints as
exactly that text again; floats, which have many texts, must be a number or `NaN`, `Infinity`, `-Infinity`. With
`decoding.binary` the receiver makes the same text of the value's bytes, or refuses the type
([DEC325](../errors/DEC325.md)).

A `character(n)` keeps its padding. An instant (`timestamptz`) is the same instant in silver; the zone it was written
with is not kept, because PostgreSQL does not keep it either. A numeric with a precision of at most {digits} and a scale
between 0 and the precision is a `decimal`; others stay text with all their digits unless the pipeline declares more.
JSON stays text, because a `variant` would not be the same document ([why](../decisions/{variant}.md)).

## The GaussDB family

Seen on openGauss 6.0.2, in databases of compatibility A and PG:

* In a database of compatibility A, the default, an **empty text is NULL**: in `char`, `varchar2`, `nvarchar2`, `text`,
  `clob` and `bytea`, not in `blob`. The server stores it so, silver has what the server has. `check` says which
  compatibility the database has.
* There a column declared **`date` is a `timestamp(0)`**, in the catalog and in the stream, so silver has
  `timestamp_ntz`; arrays of dates likewise.
* `number` is `numeric`, `binary_double` is `float8`, `binary_integer` is `int4`: the catalog knows no other names.
  Numbers come without a leading zero (`.05`), which silver adds; floats with 9 or 17 digits.
* `clob` is printed as `text` in the formats t and j, and as `clob` in b.
* `blob` and `raw` come as hexadecimal digits in capitals, without `\\x`. `money` comes with the sign and the commas of
  its `lc_monetary`.
* `abstime`, `reltime` and `tinterval` are text.

## Names

A column keeps its name unless Delta, Iceberg or Spark cannot have it: one with a blank or one of `,;{{}}()=.` or a
backtick, one that differs from an earlier column only by case, and the names that the formats keep for their own
metadata columns (`_file`, `_pos`, `_deleted`, …). Such a name has these characters replaced by `_` and six hexadecimal
digits appended that depend only on the name. Adding a column at the source renames none that were there.
"""

_VARIANT = "0020-types-that-are-declared"

_EXAMPLES = (
    ("`string`", "all", Column("c", "timestamp", 1114), "string"),
    ("`decimal(p,s)`", "`numeric`, and what is text", Column("c", "numeric", 1700), "decimal(38,9)"),
    ("`both(p,s)`", "`numeric`", Column("c", "numeric", 1700), "both(38,9)"),
    ("`int`, `bigint`", "narrower integers", Column("c", "int2", 21), "bigint"),
    ("`smallint`, `int`, `bigint`", "what is text", Column("c", "text", 25), "int"),
    ("`float`, `double`", "what is text", Column("c", "text", 25), "double"),
    ("`boolean`", "what is text", Column("c", "text", 25), "boolean"),
    ("`binary`", "what is text", Column("c", "text", 25), "binary"),
    ("`date`, `timestamp_ntz`, `timestamp`", "what is text", Column("c", "text", 25), "date"),
    (
        "`array<…>` of one of them, but for `smallint`",
        "what is text",
        Column("c", "_text", 1009),
        "array<string>",
    ),
)


def _declared_rows() -> str:
    """The table of declared types, from the code that reads them."""
    rows = []
    for written, columns, column, example in _EXAMPLES:
        declared = Declared.parse(example)
        kind = column_type(column, TypePolicy(columns=(("c", declared),)))
        silver = f"`{kind.sql}` and `decimal(p,s)`" if declared.both else written
        rows.append(f"| {written} | {columns} | {silver} | {kind.held} |")
    return "\n".join(rows)


_BOUNDED = Column("n", "numeric", 1700, ((10 << 16) | 2) + 4)  # numeric(10,2)


def page() -> str:
    """The whole page."""
    rows = []
    for row in LEDGER:
        if row.name == "numeric":
            bounded = column_type(_BOUNDED)
            sql = ColumnType("decimal(p,s)", bounded.family, bounded.loss, bounded.note, bounded.held)
            rows.append(_type_row("numeric(p,s)", "decimal(p,s)", sql, f"p ≤ {MAX_PRECISION} and 0 ≤ s ≤ p"))
        rows.append(_type_row(row.name, ", ".join(f"`{name}`" for name in row.aliases), row.type))
    return (
        _HEAD + "\n".join(rows) + "\n" + _TAIL.format(digits=MAX_PRECISION, declared=_declared_rows(), variant=_VARIANT)
    )


def _type_row(name: str, also: str, kind: ColumnType, note: str = "") -> str:
    loss = kind.loss.value if kind.loss is Loss.LOSSLESS else f"**{kind.loss.value}**"
    return f"| `{name}` | {also} | `{kind.sql}` | {loss} | {note or kind.note} | {kind.held} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of rule. `judges`: which columns; `null`: what becomes of NULL; `counts`: what a failure is, in SQL;
    `expectation`: Great Expectations' name of it, empty where it has none; `notes`: what a user has to know besides.
    """

    rule: type[RowRule | TableRule]
    example: str
    judges: str
    null: str
    counts: str
    expectation: str = ""
    notes: str = ""


_TIMES = "A number is compared in the type of the column, exactly; text without a zone is UTC for a column with one."
_SPARK = "A report is made without Spark and shows what the gate counted; over a Spark DataFrame `run_suite` judges it."

CATALOGUE: Final = (
    Kind(
        NotNull,
        "{rule: not_null, column: customer_id, on_fail: stop}",
        "any column",
        "fails",
        "customer_id IS NULL",
        "expect_column_values_to_not_be_null",
    ),
    Kind(
        InSet,
        "{rule: in_set, column: status, values: [new, paid, shipped]}",
        "text, numbers, dates, timestamps, booleans",
        "passes",
        "status NOT IN ('new', 'paid', 'shipped')",
        "expect_column_values_to_be_in_set",
        "Each value has to be one that the column can hold.",
    ),
    Kind(
        Between,
        "{rule: between, column: amount, min: 0, max: 1000000, on_fail: quarantine}",
        "numbers, dates, timestamps",
        "passes",
        "amount < 0 OR amount > 1000000",
        "expect_column_values_to_be_between",
        f"{_TIMES} NaN is above every number, as in PostgreSQL.",
    ),
    Kind(
        Regex,
        "{rule: regex, column: email, pattern: '^[^@ ]+@[^@ ]+$'}",
        "text",
        "passes",
        "NOT email RLIKE '^[^@ ]+@[^@ ]+$'",
        "expect_column_values_to_match_regex",
        "The pattern is looked for anywhere in the text. What does not mean the same in Java and in Python is refused, "
        "[with what to write instead](../errors/CFG136.md).",
    ),
    Kind(
        Length,
        "{rule: length, column: body, min: 1, max: 4000}",
        "text",
        "passes",
        "char_length(body) < 1 OR char_length(body) > 4000",
        "expect_column_value_lengths_to_be_between",
        "Characters are code points: an emoji is one or more.",
    ),
    Kind(
        TypeCastable,
        "{rule: type_castable, column: code, type: 'decimal(10,2)'}",
        "text",
        "passes",
        "code IS NOT NULL AND try_cast(code AS decimal(10,2)) IS NULL",
        "expect_column_values_to_be_in_set",
        "As Spark reads text: blanks around it do not count, digits behind the scale of a decimal are rounded. The "
        f"expectation wants `true` of a column that Spark works out. {_SPARK}",
    ),
    Kind(
        Expression,
        '{rule: expression, name: ships_later, expression: "shipped_at >= ordered_at"}',
        "the row: Spark SQL over the source's columns, under the names that silver gives them before `rename`",
        "an expression that is NULL passes, as a CHECK of SQL does",
        "NOT (shipped_at >= ordered_at)",
        "expect_column_values_to_be_in_set",
        "It gives the same value whenever it is worked out, from its own row alone: clocks, random numbers, "
        "aggregates, windows and subqueries are refused before the table's first row "
        "([QUA502](../errors/QUA502.md)). Columns that a change did not send have the value they have in the row. "
        "It is worked out in ANSI mode: a division by zero stops the table, `try_divide` gives NULL. "
        "The expectation wants `true` of a column that Spark works out. "
        f"{_SPARK}",
    ),
    Kind(
        Unique,
        "{rule: unique, columns: [email]}",
        "all but arrays",
        "a row with a NULL among the values passes, as in a UNIQUE of SQL",
        "SELECT sum(n) FROM (SELECT count(*) n FROM silver WHERE email IS NOT NULL GROUP BY email) WHERE n > 1",
        "expect_column_values_to_be_unique",
        "Every row that shares its values counts. Of several columns the expectation is "
        "`expect_compound_columns_to_be_unique`.",
    ),
    Kind(
        ForeignKey,
        "{rule: foreign_key, columns: [customer_id], references: public.customers, referenced: [id]}",
        "all but arrays, of the same type on both sides",
        "a row with a NULL among the values passes, as in a FOREIGN KEY of SQL",
        "SELECT count(*) FROM silver WHERE customer_id NOT IN (SELECT id FROM customers)",
        "",
        "Both tables are read at the last cut. A row whose customer is held is counted: silver does not have the "
        "customer. Great Expectations has no such expectation.",
    ),
    Kind(
        RowCount,
        "{rule: row_count, min: 1}",
        "the table",
        "does not matter",
        "SELECT count(*) < 1 FROM silver",
        "expect_table_row_count_to_be_between",
    ),
    Kind(
        Freshness,
        "{rule: freshness, column: updated_at, max_age: 2 h}",
        "dates, timestamps; those without a zone are read as UTC, a day begins at midnight",
        "left out; without any value it fails",
        "SELECT max(updated_at) < now() - INTERVAL 2 HOURS FROM silver",
        "expect_column_max_to_be_between",
        "Reckoned to the time of the report or the cut. The page shows the age, not the value.",
    ),
    Kind(
        Monotonic,
        "{rule: monotonic, column: created_at, by: id}",
        "numbers, dates, timestamps; by text too",
        "rows where the value or its place is NULL are left out",
        "SELECT count_if(v < was) FROM (SELECT created_at v, lag(created_at) OVER (ORDER BY id, created_at) was …)",
        "expect_column_values_to_be_increasing",
        "Rows of one place are taken from the smallest value on. With `strict: true` an equal value fails too.",
    ),
    Kind(
        Expectation,
        "{rule: expectation, name: usual_amount, expectation: expect_column_mean_to_be_between, "
        "arguments: {column: amount, min_value: 20, max_value: 80}}",
        "what the expectation does; numbers as doubles, points in time as UTC",
        "as Great Expectations says",
        "",
        "its own",
        "It is met or not, also with `mostly`: one failure of one. `check` tells arguments that it does not take.",
    ),
)
