"""The page of rules, and the catalogue it is made of: what each kind judges and counts, and what NULL means to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from cdc_lake.config.rules import (
    EXPECTATIONS,
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
from tools.docs import GENERATED


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
        "Both tables are read at the last cut. A row whose customer is held is counted: silver does not contain the "
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


_OF_EVERY_RULE = ("rule", "name", "thresholds", "on_fail")


_RULES = """# Rules

What a silver table has to satisfy, written under `silver.tables[].rules` of a [pipeline file](pipeline.md).

```yaml
rules:
{examples}
```

**Rules of rows** judge the row after each change, before it is merged, in the pass that reads the changes anyway.
`on_fail` says what becomes of a change that fails: `warn` (default) counts it, `quarantine`
[holds](../concepts/holds.md) it and later changes of its key, `stop` ends the run before it. They name the source's
columns. A report judges the rows of silver by them again, with Great Expectations: a test asserts that both count the
same.

**Rules of tables** judge a table as it stands [when silver is judged](../guides/quality.md#when-silver-is-judged), over
the rows that hold: not deleted ones of `deletes: soft`, not former versions of `kind: history`. They name silver's
columns. They can hold or stop nothing ([CFG171](../errors/CFG171.md)).

| rule | judges | a NULL | Great Expectations |
|---|---|---|---|
{overview}

Every rule may have a `name` (letters, digits, `_`; `<rule>_<column>` by default) and `thresholds`.

## Thresholds

Without thresholds every failure is of concern. With them a rule is good while the share of failures is below the
lowest, and its level is the highest it has reached: `warn` (amber), `error` or `critical` (red). Shares are above 0 and
up to 1; at least one is given. Of changes it is the share among those of the runs shown, of silver that among its rows;
the worse counts. Thresholds hold nothing back: that is what `on_fail` is for.

```yaml
rules:
  - {{rule: not_null, column: email, thresholds: {{warn: 0.001, error: 0.01, critical: 0.1}}}}
```

{kinds}
## Expectations that can be named

{expectations}

Not those that need a database's query language, or a second table.
"""


def rules_page() -> str:
    """Every kind of rule."""
    return GENERATED + _RULES.format(
        examples="\n".join(f"  - {kind.example}" for kind in CATALOGUE),
        overview="\n".join(
            f"| [`{_rule(kind)}`](#{_rule(kind)}) | {kind.judges} | {kind.null} | {_expected(kind)} |"
            for kind in CATALOGUE
        ),
        kinds="\n".join(map(_kind, CATALOGUE)),
        expectations=", ".join(f"`{name}`" for name in EXPECTATIONS),
    )


def _rule(kind: Kind) -> str:
    return str(get_args(kind.rule.model_fields["rule"].annotation)[0])


def _expected(kind: Kind) -> str:
    if not kind.expectation:
        return "none"
    return f"`{kind.expectation}`" if kind.expectation.startswith("expect_") else kind.expectation


def _kind(kind: Kind) -> str:
    """A kind's section: what it says, an example, its options, and what is counted."""
    own = {name: field for name, field in kind.rule.model_fields.items() if name not in _OF_EVERY_RULE}
    options = "\n".join(
        f"| `{name}` | {'required' if field.is_required() else 'optional'} | {field.description} |"
        for name, field in own.items()
    )
    parts = [
        f"## {_rule(kind)}\n\n{(kind.rule.__doc__ or '').strip()}\n\n```yaml\nrules:\n  - {kind.example}\n```\n",
        f"| option | | |\n|---|---|---|\n{options}\n" if options else "",
        f"Counted is:\n\n```sql\n{kind.counts}\n```\n" if kind.counts else "",
        f"{kind.notes}\n" if kind.notes else "",
    ]
    return "\n".join(filter(None, parts))
