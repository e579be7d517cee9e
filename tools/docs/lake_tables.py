"""The pages of bronze and of the control tables, from their definitions.

The example on the page of bronze is read from a bronze table that is made for it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc_lake.bronze.contract import COLUMNS, CONTRACT_VERSION
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.decode import hashing
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.undecodable import PgoutputFormat, StoreUndecodable
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.tables.control_schema import TABLES
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tools.docs import GENERATED

STREAM = "pg:7300000000000000001:library:library:0/3E8"
_INGESTED = 1_767_225_601_000_000  # 2026-01-01 00:00:01 UTC
_BOOKS = table("public.books", id="int4", title="text", blurb="text")


_BRONZE = """# Bronze

One append-only table per pipeline, contract version {version}: a Delta table in `<lake>/bronze/<pipeline>`, or, with
`bronze.format: iceberg`, the table `bronze.<pipeline>` of the catalog of `lake.iceberg`. It contains every
change of every transaction, as the server sent it. A transaction is contained completely or not at all: `B`, its
changes and `C` are in one commit of the table. [Its purpose](../concepts/bronze.md).

## Columns

| column | type | meaning |
|---|---|---|
{columns}

Rows are ordered by `(epoch, position, ordinal)`. Layout rows (`R`) precede the changes that use them and have
no ordinal; each commit repeats the layouts that it uses, and files that maintenance compacted contain a layout only
where it changed.

## An example of every row

A bronze table with one row of the initial copy, one transaction with every kind of change, and one that could not be
decoded. The table `public.books` has the columns {layout}, so `new` and `old` have three elements.

| position | ordinal | op | | new | old | old_kind | unchanged |
|---|---|---|---|---|---|---|---|
{rows}

In the update at ordinal 2 the large text did not change, so the server did not send it: `unchanged` names its position,
and the NULL at that position of `new` has no meaning. The update at ordinal 3 changes the key, so it includes the old
key. A delete contains only the key; with REPLICA IDENTITY FULL it would send the whole row, and `old_kind` would be
`full`.

The first row of each kind, without the columns that are NULL. `info`, which is text in the table, is shown as a JSON
document, and `raw` as hexadecimal digits.

{examples}

`info` of a layout row describes the layout: names, types as the server names them with OID and modifier, the columns of
the replica identity (`key`), the primary key, and what the server logs of old rows (`identity`: d, n, f, i). If known
from the catalog, it also contains the table's OID (`oid`), each column's number (`number`), and the value of an added
column in rows from before (`missing`: text, or null if unknown; omitted: NULL). `info` of a COMMIT row contains the
number of changes of each kind and table, the bytes received, the digest of the changes, the hash that chains this
transaction to the previous one, the number of transactions without rows between the two (if the stream contains them),
and the configuration of the pipeline under which it landed; for an undecodable transaction also the reason.

## The chain

```
{digests}
```

BLAKE2b-256 is BLAKE2b with a digest of 32 bytes, without key or salt; every length except that of a tuple has 4 bytes.
A tuple has a value for every column of its layout: in an old key the other columns are `n`. Relation and tuples are as
in the row's `relation`, `new`, `old`, with `u` at the positions that `unchanged` names. A message has no relation, and
its `content` in `info` is encoded in base64. `reading` of an undecodable row is that of its own `info`: only the first
row of a transaction has one; for the others it is empty. Each level of the tree is divided into groups of 1024 from the
left, even if there is only one digest, until one node remains. Layout rows are not changes.

The first transaction of a stream uses BLAKE2b-256 of the text `cdc_lake` as the previous hash. The hash of the last
transaction is in the table's latest commit (`head`) and, from the start of the next stream on, in the control table
`streams`.

`cdc-lake inspect chain` recomputes all hashes from the rows, compares them, and reports the first mismatch. It detects:
a row or transaction that was edited, removed, duplicated, moved or exchanged; wrong counts; a layout whose description
does not match its number; a missing end, including that of a former epoch; rows of another stream; and, in a stream
that contains every CSN, a CSN that belongs to no transaction, is not counted as empty, and is not in the control table
`gaps`. Values that every row of a transaction repeats (`csn`, LSNs, `xid`, `commit_ts`) must agree; if all of them are
changed in the same way, this is not detected, except for `csn` if it is the position. Not covered, because a repeated
transaction may have them in another form: `lsn`, `ingest_ts`, `user`, `origin`, `bytes`, the number of the
configuration, and which of two layouts with the same number of columns a row uses. `empty_before` is not covered in a
stream that does not contain every CSN. Snapshot rows (`S`) are not part of the chain.

The chain does not use a secret. It detects damage and edits; but anyone who can write to the lake can recompute all
hashes from the edited row to the head, and can restore the whole table to an older version, including its markers.
Nothing in the table reveals that: `inspect chain --against source` does, or a hash that was recorded elsewhere.

## Reading

From Python, without Spark and without the source:

```python
from cdc_lake import Pipeline

bronze = Pipeline.load("pipelines/shop.yaml").bronze()
span = bronze.span("0/7D0", "0/BB8")  # after the first position, up to and including the second

changes = bronze.changes("public.orders", span)  # a pyarrow table
print(changes.select(["_position", "_op", "id", "status"]).to_pandas())

print(bronze.transactions(span).select(["position", "xid", "commit_ts", "counts"]).to_pylist())

for batch in bronze.change_batches("public.orders", snapshot=True):  # all of bronze, a part at a time
    print(batch.num_rows)
```

`changes(table, span)` returns the changes of a table in order. Without a span it reads every epoch; with
`snapshot=True` also the rows of initial copies. `bronze.span()` without arguments is the complete latest epoch;
`epoch=` names another. Only files and row groups whose positions overlap the span are read.

| column | |
|---|---|
| `_epoch`, `_position`, `_ordinal` | the position of the change; they determine the order |
| `_csn`, `_lsn`, `_xid`, `_commit_ts` | as in bronze; `_lsn` is the change's own |
| `_op` | I, U, D, T, or S |
| the table's columns | the new tuple, with [the types](types.md) and names of silver |
| `_old` | a struct of the same columns: the old tuple, NULL if none was sent |
| `_old_kind` | `key`: `_old` contains only the columns of the replica identity; or `full` |
| `_unchanged` | names of the columns that were not sent because they did not change |
| `_absent` | names of the columns that the table did not have when the change was made |

The columns are those of the latest layout that the span's changes use, then those that only older layouts have, each
with the type of the latest layout that has it. NULL in a column is SQL NULL, unless `_unchanged` or `_absent` names the
column; a delete has its values in `_old`. A text that is not a value of the type (`infinity` in a date, an old text in
a column that became a number) raises an error ([STA660](../errors/STA660.md)); with `misfits="keep"` the column is NULL
instead, and the map `_misfit` contains the text (`_old.<column>` for the old tuple). `typed=False` returns all values
as text. A span that contains an undecodable transaction is refused ([STA655](../errors/STA655.md)).

`transactions(span)` returns one row per transaction: `epoch`, `position`, `csn`, `first_lsn`, `commit_lsn`, `xid`,
`commit_ts`, `ingest_ts` (when the receiver built its last row), `user`, `origin`, `counts` (table → operation →
number), `bytes`, `empty_before`, `configuration`, `content`, `hash`, and `undecodable` (the code of the
decoding error, even if it was decoded later).
`change_batches` and `transaction_batches` return the same as a `pyarrow.RecordBatchReader`, for spans that do not fit
into memory.

### From Spark

```python
bronze.spark_changes(spark, "public.orders", span)  # a DataFrame with the same columns
bronze.spark_transactions(spark, span)

bronze.register_views(spark)  # temporary views public_orders, …, transactions: the files as they are now
bronze.register_views(spark, database="bronze_shop")  # permanent views, for bronze in Delta
```

```sql
SELECT _position, _op, id, status FROM public_orders WHERE _position > 2000 ORDER BY _position, _ordinal;
SELECT position, commit_ts, counts['public.orders']['I'] AS inserted FROM transactions;
```

A view is named `<schema>_<table>`, has the columns of `changes` with `_misfit`, includes the rows of initial copies,
and is not ordered. If bronze is in an object store, its files are first copied to this machine completely, and kept as
long as `bronze` exists: name a span. Permanent views read the current table, so it must be on this machine. They know
only the layouts that existed when they were created: a query that encounters another layout fails with an error instead
of returning NULL; register the views again.

## Markers

Each commit of a **Delta** table contains application transactions (Delta's `txn`), and its `commitInfo` contains the
document `cdc_lake` with the rest of the state: `contract`, `stream`, `epoch`, `head`, `empty`, and `commit`, an id by
which the commit can be identified.

| application id | version |
|---|---|
| `cdc_lake:<stream>` | every transaction up to this position is in bronze; by CSN: every CSN up to it arrived |
| `cdc_lake:<stream>:confirm` | the position to which the receiver may acknowledge; for an ordinary slot always an LSN |
| `cdc_lake:<stream>:snapshot:<id>` | chunks of the initial copy that are in bronze |

Each version of an **Iceberg** table contains the same, and the rest of the state, as properties of its summary. A
version without them is skipped in favour of the previous one:

| property | value |
|---|---|
| `cdc-lake.upto` | every transaction up to this position is in bronze; by CSN: every CSN up to it arrived |
| `cdc-lake.confirm` | the position to which the receiver may acknowledge; for an ordinary slot always an LSN |
| `cdc-lake.chunk:cdc_lake:<stream>:snapshot:<id>` | last chunk of a copy of the latest stream |
| `cdc-lake.stream`, `cdc-lake.epoch` | the latest stream |
| `cdc-lake.head`, `cdc-lake.empty` | hash of its last transaction; number of empty transactions after it |
| `cdc-lake.contract`, `cdc-lake.commit` | the contract's version; an id by which the commit can be identified |

If retention has removed transactions, the property `cdc_lake.trimmed` of either table contains the last removed
transaction of each epoch and its hash: `{{"3": [26739528, "9f…"]}}`. The chain of that epoch starts after it.

An Iceberg table's metadata keeps the latest 50 versions, Delta's log those of the last ten minutes; data files are kept
until maintenance has replaced them. Delta's log and Iceberg's manifests contain exact bounds of every scalar column
except `info` and `raw`, never truncated.
"""

_CONTROL = """# Control tables

Small Delta tables in `<lake>/control/<pipeline>`, in which the receiver and apply record their state, for each other
and for you. They can be derived from bronze and silver. Read them with `cdc_lake.history` or any reader of Delta
([how](../guides/history.md)).

{tables}"""


_ABOUT = {
    "streams": "One row per stream: the server and the slot from which bronze is fed, and the start of the stream.",
    "snapshots": "The steps of each initial copy.",
    "cuts": "One row per span: the position that the silver tables have reached together, with the version of each.",
    "pins": "Cuts that stay readable, by name or by schedule, each with the versions it needs.",
    "withheld": "Cuts that were not pinned because of the results of the rules at them, each with the rules.",
    "pauses": "Tables that were paused or resumed.",
    "quarantine": "Quarantined changes, complete, each with its position and reason.",
    "decisions": "Quarantined changes that were "
    "[released or discarded](../concepts/quarantine.md#release-and-discard), each complete. A decision has no effect "
    "if its change is not in quarantine.",
    "gaps": "CSNs that a stream passed over because they did not arrive in time, if it is configured to continue.",
    "timelines": "The server's timelines on which a stream was read, one row from the time when reading on it began.",
    "memberships": "Which table each name of the stream was read from (its entry in the publication, its OID), one row "
    "per change of it: [tables that were renamed or swapped]"
    "(../guides/postgres.md#tables-that-are-renamed-swapped-or-dropped) and "
    "[a publication that somebody altered](../guides/postgres.md#a-publication-that-somebody-alters) show here.",
    "decoded": "Transactions that landed as bytes and were decoded later by `quarantine retry`.",
    "configurations": "The configurations to which the numbers in COMMIT rows refer: tables, redaction, encoding.",
    "quality": "Results of the rules over silver, one row per rule and evaluation; results of comparisons "
    "as the rule `equal_to_source`.",
    "verified": "Verdicts of comparisons with the source: one row per table and comparison.",
    "runs": "One row per run.",
}
_WORDS = {
    "B": "begin",
    "R": "layout",
    "I": "insert",
    "U": "update",
    "D": "delete",
    "T": "truncate",
    "M": "logical message",
    "C": "commit",
    "S": "snapshot row",
    "X": "undecodable",
}


def bronze_page() -> str:
    """Columns, and an example that the code itself made."""
    rows = example()
    by_op: dict[str, dict[str, Any]] = {}
    for row in rows:
        by_op.setdefault(row["op"], row)
    return GENERATED + _BRONZE.format(
        version=CONTRACT_VERSION,
        columns=_columns(COLUMNS),
        layout=", ".join(f"`{name}`" for name in _BOOKS.names),
        rows="\n".join(map(_row, rows)),
        examples="\n\n".join(f"{_WORDS[op].capitalize()}:\n\n```json\n{_document(by_op[op])}\n```" for op in _WORDS),
        digests=_block(hashing.__doc__ or ""),
    )


def example() -> list[dict[str, Any]]:
    """The rows of a real bronze table, in order, layout rows first: each kind of row is among them."""
    changes = (
        Insert(_BOOKS, ("2", "Solaris", "a long text")),
        Update(_BOOKS, ("2", "Solaris, 2nd ed.", UNCHANGED)),
        Update(_BOOKS, ("3", "Solaris, 2nd ed.", UNCHANGED), ("2", None, None), OldKind.KEY),
        Delete(_BOOKS, ("1", None, None), OldKind.KEY),
        Truncate(_BOOKS, restart_identity=True),
        Message("library", b"stock-taking"),
    )
    odd = raw_transaction(Transaction(boundaries(3000), (Insert(_BOOKS, ("4", "BAD", None)),)))
    odd.frames[0] = odd.frames[0].replace(b"BAD", b"\xff\xfe!")
    with tempfile.TemporaryDirectory() as folder:
        bronze = DeltaBronze(Path(folder) / "bronze", durability="os", clock=lambda: _INGESTED)
        bronze.begin_stream(STREAM, 1000)
        bronze.append_snapshot("initial-1", 0, _BOOKS, pa.array([["1", "Dune", None]]), 0, 1000)
        bronze.append([raw_transaction(Transaction(boundaries(2000, origin="branch"), changes))])
        bronze.append([odd], StoreUndecodable(PgoutputFormat(tabulate)))
        reader = BronzeReader(Path(folder) / "bronze")
        return [row for position in (1000, 2000, 3000) for row in reader.rows(position).to_pylist()]


def control_page() -> str:
    """Every control table."""
    parts = [
        f"## `{name}`\n\n{_ABOUT[name]}\n\n| column | type | meaning |\n|---|---|---|\n{_columns(columns)}\n"
        for name, columns in TABLES.items()
    ]
    return GENERATED + _CONTROL.format(tables="\n".join(parts))


def _columns(columns: tuple[tuple[str, pa.DataType, str], ...]) -> str:
    return "\n".join(f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in columns)


def _row(row: dict[str, Any]) -> str:
    names = ("new", "old", "old_kind", "unchanged")
    cells = [row["position"], row["ordinal"], row["op"], _WORDS[row["op"]], *(row[name] for name in names)]
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _document(row: dict[str, Any]) -> str:
    """A row as JSON, each column a line, without those that are NULL; `info` as the document it is."""
    given = {name: value for name, value in row.items() if value is not None}
    lines = [f"  {json.dumps(name)}: {_value(name, value)}" for name, value in given.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _value(name: str, value: object) -> str:
    if name == "info":
        return json.dumps(json.loads(str(value)), indent=2, ensure_ascii=False).replace("\n", "\n  ")
    if isinstance(value, bytes):
        value = value.hex()
    return json.dumps(value, default=lambda time: time.isoformat(), ensure_ascii=False)


def _block(text: str) -> str:
    """The definitions in a docstring: what stands indented, and the lines of words between."""
    defined = text.split("::\n", 1)[1].strip("\n").replace("::\n", ":\n")
    return "\n".join(line.removeprefix("    ") for line in defined.splitlines())


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "`" + json.dumps(value).replace("null", "NULL") + "`"
    return str(value)
