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
extensions' types) is `string`, converted: the text that the server prints. A domain is text even over a type that
is listed, because the stream names the domain only; declare its type.

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
every digit, and the one beside it, with `_decimal` behind its name, is NULL exactly where the number is not one of the
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
