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


_TIMES = (
    "A number is compared exactly, in the type of the column; text without a time zone is UTC for a column with one."
)
_SPARK = (
    "A report is created without Spark and shows the counts of apply; `run_suite` evaluates it on a Spark DataFrame."
)

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
        "Each value must be valid for the column.",
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
        "The pattern may match anywhere in the text. Syntax that differs between Java and Python is refused, "
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
        "As Spark reads text: surrounding spaces are ignored, digits beyond the scale of a decimal are rounded. The "
        f"expectation wants `true` of a column that Spark computes. {_SPARK}",
    ),
    Kind(
        Expression,
        '{rule: expression, name: ships_later, expression: "shipped_at >= ordered_at"}',
        "the row: Spark SQL over the source's columns, under the names that silver gives them before `rename`",
        "an expression that is NULL passes, as a CHECK of SQL does",
        "NOT (shipped_at >= ordered_at)",
        "expect_column_values_to_be_in_set",
        "It must be deterministic and use only its own row: clocks, random numbers, "
        "aggregates, windows and subqueries are refused before the table's first row "
        "([QUA502](../errors/QUA502.md)). Columns that a change did not send have the value of the row. "
        "It is evaluated in ANSI mode: a division by zero stops the table, `try_divide` returns NULL. "
        "The expectation wants `true` of a column that Spark computes. "
        f"{_SPARK}",
    ),
    Kind(
        Unique,
        "{rule: unique, columns: [email]}",
        "all but arrays",
        "a row with a NULL among the values passes, as in a UNIQUE of SQL",
        "SELECT sum(n) FROM (SELECT count(*) n FROM silver WHERE email IS NOT NULL GROUP BY email) WHERE n > 1",
        "expect_column_values_to_be_unique",
        "Every row whose values are not unique counts. For several columns the expectation is "
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
        "dates, timestamps; those without a time zone are read as UTC, a day begins at midnight",
        "ignored; if there is no value at all, the rule fails",
        "SELECT max(updated_at) < now() - INTERVAL 2 HOURS FROM silver",
        "expect_column_max_to_be_between",
        "Relative to the time of the report or the cut. The page shows the age, not the value.",
    ),
    Kind(
        Monotonic,
        "{rule: monotonic, column: created_at, by: id}",
        "numbers, dates, timestamps; by text too",
        "rows in which the value or the ordering column is NULL are ignored",
        "SELECT count_if(v < was) FROM (SELECT created_at v, lag(created_at) OVER (ORDER BY id, created_at) was …)",
        "expect_column_values_to_be_increasing",
        "Rows with the same ordering value are ordered by value. With `strict: true` an equal value also fails.",
    ),
    Kind(
        Expectation,
        "{rule: expectation, name: usual_amount, expectation: expect_column_mean_to_be_between, "
        "arguments: {column: amount, min_value: 20, max_value: 80}}",
        "those that the expectation supports; numbers as doubles, timestamps as UTC",
        "as Great Expectations says",
        "",
        "its own",
        "It passes or fails as a whole, even with `mostly`: one failure of one. `check` reports unsupported arguments.",
    ),
)


_OF_EVERY_RULE = ("rule", "name", "thresholds", "on_fail")


_RULES = """# Rules

Rules state what a silver table must satisfy. They are written under `silver.tables[].rules` of a
[pipeline file](pipeline.md).

```yaml
rules:
{examples}
```

**Row rules** are evaluated on the row after each change, before it is merged, in the same pass that reads the changes.
`on_fail` determines what happens to a change that fails: `warn` (default) counts it, `quarantine`
[holds](../concepts/quarantine.md) it and later changes of its key, `stop` ends the run before it. They name columns
of the source. A report evaluates them again on the rows of silver, with Great Expectations: a test asserts that both
counts are equal.

**Table rules** are evaluated on the whole table [when silver is judged](../guides/quality.md#when-silver-is-judged),
on its current rows: not deleted rows of `deletes: soft`, not former versions of `kind: history`. They name columns of
silver. They cannot hold changes or stop a run ([CFG171](../errors/CFG171.md)).

| rule | applies to | a NULL | Great Expectations |
|---|---|---|---|
{overview}

Every rule may have a `name` (letters, digits, `_`; `<rule>_<column>` by default) and `thresholds`.

## Thresholds

Without thresholds, every failure counts. With thresholds, a rule passes as long as the share of failures is below the
lowest threshold; otherwise its level is the highest that the share has reached: `warn` (amber), `error` or `critical`
(red). Shares are greater than 0 and at most 1; give at least one. For changes it is the share in the runs shown, for
silver the share of its rows; the worse of the two counts. Thresholds do not hold changes: use `on_fail` for that.

```yaml
rules:
  - {{rule: not_null, column: email, thresholds: {{warn: 0.001, error: 0.01, critical: 0.1}}}}
```

{kinds}
## Supported expectations

{expectations}

Expectations that require the query language of a database, or a second table, are not supported.
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
        f"What is counted:\n\n```sql\n{kind.counts}\n```\n" if kind.counts else "",
        f"{kind.notes}\n" if kind.notes else "",
    ]
    return "\n".join(filter(None, parts))
