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

One append-only table a pipeline, contract version {version}: a Delta table in `<lake>/bronze/<pipeline>`, or, with
`bronze.format: iceberg`, the table `bronze.<pipeline>` of the catalog of `lake.iceberg`. Every change of every
transaction is in it, as the server sent it. A transaction is there as a whole or not at all: `B`, its changes, `C`, all
in one commit of the table. [What it is for](../concepts/bronze.md).

## Columns

| column | type | meaning |
|---|---|---|
{columns}

Rows are ordered by `(epoch, position, ordinal)`. Layout rows (`R`) stand before the changes that follow them and have
no ordinal; each commit repeats the layouts it uses, and files that upkeep put together have each where it changed.

## An example of every row

A bronze table with one row of the initial copy, one transaction with every kind of change, and one that could not be
decoded. The table `public.books` has the columns {layout}, so `new` and `old` have three places.

| position | ordinal | op | | new | old | old_kind | unchanged |
|---|---|---|---|---|---|---|---|
{rows}

In the update at ordinal 2 the large text did not change, so the server did not send it: `unchanged` names its place,
and NULL in that place of `new` means nothing. In the update at ordinal 3 the key moved, so the old key came along. A
delete sends the key only; with REPLICA IDENTITY FULL it would send the whole row, and `old_kind` would be `full`.

The first row of each kind, without the columns that are NULL. `info`, text in the table, is shown as the document it
is, `raw` in hexadecimal digits.

{examples}

`info` of a layout row describes the layout: names, types as the server names them with OID and modifier, which columns
are of the replica identity (`key`), the primary key, what the server logs of old rows (`identity`: d, n, f, i). Where
the catalog told, it also has the table's number there (`oid`), each column's (`number`), and what rows from before a
column was added hold in it (`missing`: text, null where nobody can say; left out: NULL). `info` of a COMMIT row says
how many changes of which kind each table has, the bytes received, the digest of the changes, the hash that chains this
transaction to the one before it, how many transactions without rows stand between the two (where the stream shows
them), and under which configuration of the pipeline it was landed; of an undecodable one also why.

## The chain

```
{digests}
```

BLAKE2b-256 is BLAKE2b with a digest of 32 bytes, without key or salt; every length but that of a tuple has 4 bytes. A
tuple has a value for every column of its layout: in that of an old key the other columns are `n`. Relation and tuples
are as in the row's `relation`, `new`, `old`, with `u` at the places that `unchanged` names. A message has no relation,
and its `content` in `info` is in base64. `reading` of an undecodable row is that of its own `info`: only the first of a
transaction has one, for the others it is empty. Each level of the tree is cut into groups of 1024 from the left, also
where there is one digest alone, until one node is left. Layout rows are no changes.

The first transaction of a stream takes BLAKE2b-256 of the text `cdc_lake` as the hash before it. The hash of the last
one stands in the table's newest commit (`head`), and at the start of the next stream in the control table `streams`.

`cdc-lake inspect chain` computes everything again from the rows and compares, and says where the first thing is that
does not fit. What it finds: a row or transaction that was edited, removed, doubled, moved or exchanged; counts that are
wrong; a layout that is not described as its number says; an end that is missing, also of an epoch that is over; rows of
another stream; and in a stream that shows every CSN a number that is neither of a transaction, nor counted as empty,
nor in the control table `gaps`. What repeats on every row of a transaction (`csn`, LSNs, `xid`, `commit_ts`) must agree
there; on all of them alike they can be changed unseen, but for `csn` where it is the position. Not covered, because a
repeat may bring it again in another form: `lsn`, `ingest_ts`, `user`, `origin`, `bytes`, the number of the
configuration, and which of two layouts of a table with as many columns a row follows. Nor is `empty_before` of a stream
that does not show every CSN. Snapshot rows (`S`) are outside of the chain.

There is no secret in the chain. It shows damage and edits; whoever may write to the lake can compute everything anew
from the edited row to the head, and can put the whole table back to an older version, markers and all. Of that nothing
in the table tells: `inspect chain --against source` does, or a hash that was noted elsewhere.

## Reading

From Python, without Spark and without the source:

```python
from cdc_lake import Pipeline

bronze = Pipeline.load("pipelines/shop.yaml").bronze()
span = bronze.span("0/7D0", "0/BB8")  # behind the first position, up to the second and with it

changes = bronze.changes("public.orders", span)  # a pyarrow table
print(changes.select(["_position", "_op", "id", "status"]).to_pandas())

print(bronze.transactions(span).select(["position", "xid", "commit_ts", "counts"]).to_pylist())

for batch in bronze.change_batches("public.orders", snapshot=True):  # all of bronze, a part at a time
    print(batch.num_rows)
```

`changes(table, span)` gives the changes of a table in order. Without a span it reads every epoch, with `snapshot=True`
also the rows of initial copies. `bronze.span()` alone is all of the newest epoch; `epoch=` names another. Only files
and row groups whose positions meet the span are read.

| column | |
|---|---|
| `_epoch`, `_position`, `_ordinal` | the change's place; they order it |
| `_csn`, `_lsn`, `_xid`, `_commit_ts` | as in bronze; `_lsn` is the change's own |
| `_op` | I, U, D, T, or S |
| the table's columns | the new tuple, in [the types of silver](types.md) and under its names |
| `_old` | a struct of the same columns: the old tuple, NULL where none was sent |
| `_old_kind` | `key`: only the columns of the replica identity are part of `_old`; `full` |
| `_unchanged` | names of the columns that were not sent because they did not change |
| `_absent` | names of the columns that the table did not have when the change was made |

The columns are those of the newest layout that the span's changes use, then those that only older ones have, each in
the type of the newest layout that has it. NULL in a column is SQL NULL, unless `_unchanged` or `_absent` names it; a
delete has its values in `_old`. A text that has no value of the type (`infinity` in a date, an old text in a column
that became a number) stops the reading ([STA660](../errors/STA660.md)); with `misfits="keep"` the column is NULL there
and the map `_misfit` has the text (`_old.<column>` for the old tuple). `typed=False` gives all as text. A span with
a transaction that is not decoded is refused ([STA655](../errors/STA655.md)).

`transactions(span)` gives a row a transaction: `epoch`, `position`, `csn`, `first_lsn`, `commit_lsn`, `xid`,
`commit_ts`, `ingest_ts` (when the receiver built its last row), `user`, `origin`, `counts` (table → operation →
number), `bytes`, `empty_before`, `configuration`, `content`, `hash`, and `undecodable` (the code of the error that
decoding it gave, also where it was decoded later).
`change_batches` and `transaction_batches` give the same as a `pyarrow.RecordBatchReader`, for spans that memory does
not hold.

### From Spark

```python
bronze.spark_changes(spark, "public.orders", span)  # a DataFrame with the same columns
bronze.spark_transactions(spark, span)

bronze.register_views(spark)  # temporary views public_orders, …, transactions: the files as they are now
bronze.register_views(spark, database="bronze_shop")  # views that stay, of a bronze in Delta
```

```sql
SELECT _position, _op, id, status FROM public_orders WHERE _position > 2000 ORDER BY _position, _ordinal;
SELECT position, commit_ts, counts['public.orders']['I'] AS inserted FROM transactions;
```

A view is `<schema>_<table>`, has the columns of `changes` with `_misfit` and the rows of initial copies, and no order
of its own. Of a bronze in an object store the files are copied near by first, whole, and stay as long as `bronze` does:
name a span. Views that stay read the table as it is then, so it has to be on this machine. They know the layouts of the
time they were made: a query that meets another one fails and says so, rather than to show NULL; register them again.

## Markers

Each commit of a **Delta** table carries application transactions (Delta's `txn`), and in its `commitInfo` the document
`cdc_lake` with the rest of the state: `contract`, `stream`, `epoch`, `head`, `empty`, and `commit`, an id by which it
is found again.

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

The property `cdc_lake.trimmed` of either table says, where retention let transactions leave, which of each epoch was
the last, and its hash: `{{"3": [26739528, "9f…"]}}`. The chain of that epoch starts behind it.

The newest 50 versions stay in an Iceberg table's metadata, ten minutes of them in Delta's log; data files stay until
upkeep has put others in their place. Exact bounds of every scalar column but `info` and `raw` are in Delta's log and in
Iceberg's manifests, never cut.
"""

_CONTROL = """# Control tables

Small Delta tables in `<lake>/control/<pipeline>`: what the two loops tell each other, and you. They follow from
bronze and silver. Read them with `cdc_lake.history` or anything that reads Delta ([how](../guides/history.md)).

{tables}"""


_ABOUT = {
    "streams": "One row a stream: which slot of which server bronze is fed from, and where the stream starts.",
    "snapshots": "The steps of each initial copy.",
    "cuts": "One row a span: the position that the silver tables have reached together, with the version of each.",
    "promises": "Cuts that stay readable, by name or by schedule, each with the versions it needs.",
    "withheld": "Cuts that were not promised for what rules found of silver at them, each with the rules.",
    "pauses": "Tables that were paused, and let go on.",
    "held": "Changes that were kept back, in full, each with its position and reason.",
    "decisions": "Held changes that were [released or discarded](../concepts/holds.md#release-and-discard), each "
    "whole. One is nothing where its change does not wait.",
    "gaps": "CSNs that a stream passed over because they did not arrive in time, where it is told to go on.",
    "timelines": "The server's timelines that a stream was read on, one row from the moment it was read on it.",
    "memberships": "Which table each name of the stream was read from (its entry in the publication, its OID), one row "
    "whenever that is another one: [tables that were renamed or swapped]"
    "(../guides/postgres.md#tables-that-are-renamed-swapped-or-dropped) and "
    "[a publication that somebody altered](../guides/postgres.md#a-publication-that-somebody-alters) are seen by it.",
    "decoded": "Transactions that landed as bytes and were decoded later by `quarantine retry`.",
    "configurations": "What each number of a configuration in COMMIT rows stands for: tables, redaction, encoding.",
    "quality": "What rules came to over silver, one row a rule and time that silver was judged; what comparisons "
    "found, as the rule `equal_to_source`.",
    "verified": "What comparisons with the source found of silver tables: one row a table and comparison.",
    "runs": "One row a run.",
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
