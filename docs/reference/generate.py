"""The pages of bronze and of the control tables, from the tables' own definitions.

    python docs/reference/generate.py

The example on the page of bronze is a transaction run through the code that makes bronze rows. A test compares.
"""  # noqa: INP001 - a script

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc_lake.bronze.contract import COLUMNS, CONTRACT_VERSION
from cdc_lake.bronze.rows import build, snapshot_rows
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.digest import GENESIS
from cdc_lake.lake.control import TABLES
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Truncate, Update
from cdc_lake.model.transaction import Transaction
from cdc_lake.testing.messages import boundaries, raw_transaction, table

REFERENCE = Path(__file__).resolve().parent
STREAM = "pg:7300000000000000001:library:library:0/3E8"
_MADE = "<!-- made by `python docs/reference/generate.py`; do not edit -->\n"
_INGESTED = 1_767_225_601_000_000  # 2026-01-01 00:00:01 UTC
_BOOKS = table("public.books", id="int4", title="text", blurb="text")

_BRONZE = """# Bronze

One append-only table a pipeline, contract version {version}: a Delta table in `<lake>/bronze/<pipeline>`, or, with
`bronze.format: iceberg`, the table `bronze.<pipeline>` of the catalog of `lake.iceberg`. Every change of every
transaction is in it, as the server sent it. A transaction is there as a whole or not at all: `B`, its changes, `C`, all
in one commit of the table. [What it is for](../concepts/bronze.md).

## Columns

| column | type | meaning |
|---|---|---|
{columns}

Rows are ordered by `(epoch, position, ordinal)`. Layout rows (`R`) stand first in their file and have no ordinal; each
commit repeats the layouts it uses.

## An example

One row of the initial copy at position 1000, then one transaction with every kind of change, committed at position
{position}. The layout has the columns {layout}, so `new` and `old` have three places.

| ordinal | op | | new | old | old_kind | unchanged |
|---|---|---|---|---|---|---|
{rows}

In the update at ordinal 2 the large text did not change, so the server did not send it: `unchanged` names its place,
and NULL in that place of `new` means nothing. In the update at ordinal 3 the key moved, so the old key came along. A
delete sends the key only; with REPLICA IDENTITY FULL it would send the whole row, and `old_kind` would be `full`.

The layout row's `info`:

```json
{relation}
```

A column that is [redacted](../guides/redaction.md) has `"redacted": "sha256"`, and then type text, or `"null"`; one that
is dropped is not in the layout. Digests are those of the redacted values.

The COMMIT row's `info`: how many changes of which kind each table has, the bytes received, the digest of the changes,
the hash that chains this transaction to the one before it, and the number of the pipeline's configuration (control
table [`configurations`](control.md)).

```json
{commit}
```

`inspect tx 0/7D0` shows such a transaction by column name; `inspect chain` verifies every digest and hash.

Undecodable rows (`X`) are part of the contract and are not written by this version: it stops with an error instead.

## Markers

Each commit of a **Delta** table carries application transactions (Delta's `txn`):

| application id | version |
|---|---|
| `cdc_lake:<stream>` | every transaction up to this position is in bronze; by CSN: every CSN up to it arrived |
| `cdc_lake:<stream>:confirm` | what the server may be told to forget up to; on an ordinary slot always an LSN |
| `cdc_lake:<stream>:snapshot:<id>` | chunks of the initial copy that are in bronze |

Each version of an **Iceberg** table carries the same, and the rest of the state, as properties of its summary. A
version without them is passed over to the one before:

| property | value |
|---|---|
| `cdc-lake.upto` | every transaction up to this position is in bronze; by CSN: every CSN up to it arrived |
| `cdc-lake.confirm` | what the server may be told to forget up to; on an ordinary slot always an LSN |
| `cdc-lake.chunk:cdc_lake:<stream>:snapshot:<id>` | last chunk of a copy of the newest stream |
| `cdc-lake.stream`, `cdc-lake.epoch` | the newest stream |
| `cdc-lake.head`, `cdc-lake.empty` | hash of its last transaction; empty transactions counted behind it |
| `cdc-lake.contract`, `cdc-lake.commit` | the contract's version; an id by which a commit is found again |

The newest 50 versions stay in the table's metadata; the data files of all stay. Bounds of every scalar column but
`info` and `raw` are in Delta's log and in Iceberg's manifests, never cut.
"""

_CONTROL = """# Control tables

Small Delta tables in `<lake>/control/<pipeline>`: what the two loops tell each other, and you. They follow from
bronze and silver. Read them with anything that reads Delta.

{tables}"""

_ABOUT = {
    "streams": "One row a stream: which slot of which server bronze is fed from, and where the stream starts.",
    "snapshots": "The steps of each initial copy.",
    "cuts": "One row a span: the position that the silver tables have reached together, with the version of each.",
    "held": "Changes that were kept back, in full, each with its position and reason.",
    "gaps": "CSNs that a stream passed over because they did not arrive in time, where it is told to go on.",
    "timelines": "The server's timelines that a stream was read on, one row from the moment it was read on it.",
    "decoded": "Transactions that landed as bytes and were decoded later by `held retry`.",
    "configurations": "What each number of a configuration in COMMIT rows stands for: tables, redaction, encoding.",
    "runs": "One row a run.",
}
_WORDS = {
    "R": "layout",
    "S": "snapshot row",
    "B": "begin",
    "I": "insert",
    "U": "update",
    "D": "delete",
    "T": "truncate",
    "M": "logical message",
    "C": "commit",
}


def pages() -> dict[str, str]:
    """Every generated page by file name."""
    return {"bronze.md": bronze_page(), "control.md": control_page()}


def bronze_page() -> str:
    """Columns, and an example that the code itself made."""
    copied, landed = example()
    rows = [*copied.to_pylist()[1:], *landed.to_pylist()]
    by_op = {row["op"]: row for row in rows}
    return _MADE + _BRONZE.format(
        version=CONTRACT_VERSION,
        columns=_columns(COLUMNS),
        position=by_op["C"]["position"],
        layout=", ".join(f"`{name}`" for name in _BOOKS.names),
        rows="\n".join(map(_row, rows)),
        relation=_indented(by_op["R"]["info"]),
        commit=_indented(by_op["C"]["info"]),
    )


def example() -> tuple[pa.Table, pa.Table]:
    """A chunk of the initial copy, and a transaction with every kind of change, as bronze has them."""
    copied = snapshot_rows(
        _BOOKS, pa.array([["1", "Dune", None]]), stream=STREAM, epoch=1, position=1000, first_ordinal=0,
        ingest_ts=_INGESTED,
    )  # fmt: skip
    changes = (
        Insert(_BOOKS, ("2", "Solaris", "a long text")),
        Update(_BOOKS, ("2", "Solaris, 2nd ed.", UNCHANGED)),
        Update(_BOOKS, ("3", "Solaris, 2nd ed.", UNCHANGED), ("2", None, None), OldKind.KEY),
        Delete(_BOOKS, ("1", None, None), OldKind.KEY),
        Truncate(_BOOKS, restart_identity=True),
        Message("library", b"stock-taking"),
    )
    raw = [raw_transaction(Transaction(boundaries(2000), changes))]
    landed, _ = build(raw, tabulate(raw), stream=STREAM, epoch=1, previous=GENESIS, ingest_ts=_INGESTED)
    return copied, landed


def control_page() -> str:
    """Every control table."""
    parts = [
        f"## `{name}`\n\n{_ABOUT[name]}\n\n| column | type | meaning |\n|---|---|---|\n{_columns(columns)}\n"
        for name, columns in TABLES.items()
    ]
    return _MADE + _CONTROL.format(tables="\n".join(parts))


def _columns(columns: tuple[tuple[str, pa.DataType, str], ...]) -> str:
    return "\n".join(f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in columns)


def _row(row: dict[str, Any]) -> str:
    cells = [row["ordinal"], row["op"], _WORDS[row["op"]], *(row[n] for n in ("new", "old", "old_kind", "unchanged"))]
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "`" + json.dumps(value).replace("null", "NULL") + "`"
    return str(value)


def _indented(document: str) -> str:
    return json.dumps(json.loads(document), indent=2)


if __name__ == "__main__":
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
