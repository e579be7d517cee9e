"""The page of the GaussDB family's decoding options, from the table of options and the rules themselves."""

from __future__ import annotations

from cdc_lake.config.gaussdb_options import GAUSSDB, OPTIONS, Form, Mode, Option
from cdc_lake.config.gaussdb_refusal import Rule

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

## Rules

`cdc-lake validate` checks them without a connection; rules of releases where `source.version` says the release.

| rule | code | |
|---|---|---|
{rules}
"""


def options_page() -> str:
    """Every option of logical decoding, and every rule."""
    options = "\n".join(map(_option_row, OPTIONS.values()))
    rules = "\n".join(
        f"| `{rule.label}` | [{rule.problem}](../errors/{rule.problem}.md) | {rule.sentence} |" for rule in Rule
    )
    return _PAGE.format(options=options, rules=rules)


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
    cells = [f"`{option.name}`", value, option.default, option.ours, products + since, *marks, option.about]
    return "| " + " | ".join(cells) + " |"
