"""The page of types, from the table that silver converts by (`cdc_lake.tables.types.LEDGER`)."""

from __future__ import annotations

from cdc_lake.config.silver_tables import MAX_PRECISION, Declared, TypePolicy
from cdc_lake.model.relation import Column
from cdc_lake.tables.types import LEDGER, ColumnType, Loss, column_type
from tools.docs import GENERATED

_HEAD = """# Types

Which type a column of the source has in silver. `cdc-lake check` and `cdc-lake plan` print this for every captured
column of your own tables before the first row is read, also with `--json`. `lossless`: every value is the same value
there, but for the ones named in the last column, which are **held**: the change goes to quarantine with its text under
the rule `type_<column>`, and later changes of its key wait behind it. A value is never truncated, rounded or replaced
by NULL. `converted`: silver has another form of the value, mostly the text that the server prints, so nothing is lost.
`refused`: the pipeline declares a type to which the column cannot be converted; its table waits
([LAK479](../errors/LAK479.md)). With [transforms](../concepts/transforms.md), `check` and `plan` also show the silver
names, `left out` for columns that silver does not have, and `computed` with the expression; `plan` shows
its type when the table exists.

| at the source | also called | silver | | note | held |
|---|---|---|---|---|---|
"""

_TAIL = """
Everything that is not listed (enums, domains, composites, arrays of any dimension, ranges, geometric types, hstore,
extensions' types) is `string`, converted: the text that the server prints. A domain is text even over a type that
is listed, because the stream names the domain only; declare its type.

## Declared types

If the source type allows several silver types, the pipeline file can declare one, for the numerics of all tables or of
one table, and by column:

```yaml
silver:
  defaults:
    types: {{numeric: "decimal(38,9)"}}   # for numerics that no decimal can represent; string by default
  tables:
    - from: public.orders
      types:
        numeric: string
        misfit: stop                    # quarantine by default
        columns:
          amount: both(38,4)            # two columns: amount and amount_decimal
          quantity: int                 # a domain over integer
          tags: array<string>
          valid_until: string           # infinity and years BC are stored as text, and not held
```

| declared | for columns | silver | held |
|---|---|---|---|
{declared}

No decimal can represent a `numeric` without precision, with more than {digits} digits, or with a scale outside 0 to its
precision. With `decimal(p,s)` its values are padded with zeros after the decimal point, which are not digits of the
value; values that need more digits are held, as are NaN and the infinities. With `both(p,s)` nothing is held: the
column is text with every digit, and a second column with the suffix `_decimal` is NULL if and only if the number is
not a valid decimal of that type; `compare` recomputes it. A text is read as a declared type by the same rules as a
column that has the type at the source (below): `007` is not an `int`. An array is converted if it has one dimension
that begins at 1 and each element fits; its elements may be NULL.

**`misfit: stop`** next to `numeric` or `columns` ends the run before a value that does not fit
([QUA501](../errors/QUA501.md)), instead of holding its change.

Rules, `compare`, the initial copy and all kinds of tables use the declared type; a rule may name the decimal column of
`both`. Declaring another type for an existing table is a change of its type, which [must be
allowed](../concepts/evolution.md), or requires a [rebuild](../concepts/rebuild.md) from bronze. A table with the
decimal column of a `both` that is no longer declared waits until it is rebuilt ([LAK457](../errors/LAK457.md)).

## How values are read

The server prints values with `DateStyle` ISO, `TimeZone` UTC, `IntervalStyle` iso_8601, `bytea_output` hex and the
shortest exact floats, in the initial copy and in the stream alike; servers of the GaussDB family with `IntervalStyle`
postgres, and in parallel decoding with the database's own `TimeZone`. A text fits if the typed value prints as
exactly the same text; floats, which have many representations, must be a number or `NaN`, `Infinity`, `-Infinity`. With
`decoding.binary` the receiver converts the value's bytes to the same text, or refuses the type
([DEC325](../errors/DEC325.md)).

A `character(n)` keeps its padding. An instant (`timestamptz`) is the same instant in silver; the time zone in which it
was written is not kept, because PostgreSQL does not keep it either. A numeric with a precision of at most {digits} and
a scale between 0 and the precision is a `decimal`; others remain text with all their digits unless the pipeline
declares a type. JSON remains text, because a `variant` would not preserve the document
([why](../decisions/{variant}.md)).

## The GaussDB family

Observed on openGauss 6.0.2, in databases of compatibility A and PG:

* In a database of compatibility A, the default, an **empty text is NULL**: in `char`, `varchar2`, `nvarchar2`, `text`,
  `clob` and `bytea`, not in `blob`. The server stores it as NULL, and silver contains what the server has. `check`
  shows the compatibility of the database.
* In such a database, a column declared **`date` is a `timestamp(0)`**, in the catalog and in the stream, so silver has
  `timestamp_ntz`; arrays of dates likewise.
* `number` is `numeric`, `binary_double` is `float8`, `binary_integer` is `int4`: the catalog has no other names.
  Numbers are sent without a leading zero (`.05`), which silver adds; floats with 9 or 17 digits.
* `clob` is printed as `text` in the formats t and j, and as `clob` in b.
* `blob` and `raw` are sent as upper-case hexadecimal digits, without `\\x`. `money` is sent with the currency symbol
  and the separators of its `lc_monetary`.
* `abstime`, `reltime` and `tinterval` are text.

## Names

A column keeps its name unless Delta, Iceberg or Spark cannot use it: a name with a space, one of `,;{{}}()=.` or a
backtick, a name that differs from that of an earlier column only in case, and names that the formats reserve for their
own metadata columns (`_file`, `_pos`, `_deleted`, …). In such a name these characters are replaced by `_`, and six
hexadecimal digits are appended that depend only on the name. Adding a column at the source does not rename existing
columns.
"""

_VARIANT = "0020-types-that-are-declared"

_EXAMPLES = (
    ("`string`", "all", Column("c", "timestamp", 1114), "string"),
    ("`decimal(p,s)`", "`numeric`, and text in silver", Column("c", "numeric", 1700), "decimal(38,9)"),
    ("`both(p,s)`", "`numeric`", Column("c", "numeric", 1700), "both(38,9)"),
    ("`int`, `bigint`", "narrower integers", Column("c", "int2", 21), "bigint"),
    ("`smallint`, `int`, `bigint`", "text in silver", Column("c", "text", 25), "int"),
    ("`float`, `double`", "text in silver", Column("c", "text", 25), "double"),
    ("`boolean`", "text in silver", Column("c", "text", 25), "boolean"),
    ("`binary`", "text in silver", Column("c", "text", 25), "binary"),
    ("`date`, `timestamp_ntz`, `timestamp`", "text in silver", Column("c", "text", 25), "date"),
    (
        "`array<…>` of one of them, except `smallint`",
        "text in silver",
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


def types_page() -> str:
    """The whole page."""
    rows = []
    for row in LEDGER:
        if row.name == "numeric":
            bounded = column_type(_BOUNDED)
            sql = ColumnType("decimal(p,s)", bounded.family, bounded.loss, bounded.note, bounded.held)
            rows.append(_type_row("numeric(p,s)", "decimal(p,s)", sql, f"p ≤ {MAX_PRECISION} and 0 ≤ s ≤ p"))
        rows.append(_type_row(row.name, ", ".join(f"`{name}`" for name in row.aliases), row.type))
    return (
        GENERATED
        + _HEAD
        + "\n".join(rows)
        + "\n"
        + _TAIL.format(digits=MAX_PRECISION, declared=_declared_rows(), variant=_VARIANT)
    )


def _type_row(name: str, also: str, kind: ColumnType, note: str = "") -> str:
    loss = kind.loss.value if kind.loss is Loss.LOSSLESS else f"**{kind.loss.value}**"
    return f"| `{name}` | {also} | `{kind.sql}` | {loss} | {note or kind.note} | {kind.held} |"
