"""The proof of one recorded stream: decoded, it says what the other styles say and gives the tables of the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from functools import cache

from cdc_lake.decode.gaussdb.records import Begin, Record
from cdc_lake.model.relation import TableName
from cdc_lake_testing.oracle import Oracle
from tests.unit.samples.recorded import State, Stream, final, stream, transactions
from tests.unit.samples.withheld import unfollowed, withheld

REFERENCE = "og_a_par2_b_batch1"

ORACLE = frozenset({REFERENCE, "og_a_ser_default"})
"""Streams that the kit's oracle follows too; it takes a second."""

FLOATS = {("t_types", "c_f4"): 6, ("t_types", "c_f8"): 15}
"""Columns of floats, and the digits with which the final tables print them; the stream prints all (V14)."""


def prove(version: str, name: str) -> None:
    """A stream of the whole workload decodes; its state is that of the server but for what the server withholds."""
    recorded = stream(version, name)
    found = list(recorded.records())
    state = State(Oracle() if name in ORACLE else None).run(found)
    assert state.lost == unfollowed(recorded)
    told = withheld(recorded)
    tables = final(version, recorded.database)
    assert {w.table for w in told} <= {table.name for table in tables}
    held = state.tables()
    for table, (columns, rows) in tables.items():
        missing = sum((w.missing_of(rows) for w in told if w.table == table.name), Counter())
        extra = Counter(row for w in told if w.table == table.name for row in w.extra)
        got, wanted = rounded(table, columns, bag(held.get(table, []), columns)), rounded(table, columns, rows)
        missing = rounded(table, columns, missing)
        assert (got - wanted, wanted - got) == (extra, missing), f"{table}: beyond what is named"
    if version != "3.0.0" and recorded.parallel and "originid" not in name and name.startswith("og_a"):
        assert said(found) == said_by_reference(version)


@cache
def said_by_reference(version: str) -> list:
    return said(stream(version, REFERENCE).records())


def said(records: Iterable[Record]) -> list:
    """CSN by CSN what a parallel stream says, without what styles and options add: types and LSNs, xids and times."""
    found = list(records)
    csns = [r.csn for r in found if isinstance(r, Begin)]
    return [
        csns,
        [[(r.operation, r.table, values(r.new), values(r.old)) for r in rows] for rows in transactions(found)],
    ]


def values(fields: tuple | None) -> list | None:
    return None if fields is None else [(f.name, f.value) for f in fields]


def bag(rows: Iterable[dict], columns: tuple[str, ...]) -> Counter:
    """Rows as a bag; a column that a row has not is NULL."""
    return Counter(tuple(row.get(c) for c in columns) for row in rows)


def bags(recorded: Stream) -> dict[str, Counter]:
    """Table → rows as a bag, as a stream leaves them."""
    return State().run(recorded.records()).bags()


def rounded(table: TableName, columns: tuple[str, ...], rows: Counter) -> Counter:
    """The rows with their floats as the final tables print them."""
    digits = [FLOATS.get((table.name, column)) for column in columns]
    if not any(digits):
        return rows
    out: Counter = Counter()
    for row, number in rows.items():
        out[tuple(v if d is None or v is None else float_text(v, d) for v, d in zip(row, digits, strict=True))] += (
            number
        )
    return out


def float_text(value: str, digits: int) -> str:
    if value in {"NaN", "Infinity", "-Infinity"}:
        return value
    return f"{Decimal(value):.{digits - 1}e}"
