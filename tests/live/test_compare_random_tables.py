"""Random tables on a real server, random differences planted in their silver: exactly those keys are told.

The oracle is two dictionaries of rows. Values come to silver by the driver's own conversions, or as the server's
`format` prints them where silver holds text.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from pyarrow import csv

from cdc_lake.config.model import Silver
from cdc_lake.control.verdicts import Verdict
from cdc_lake.model.relation import TableName
from cdc_lake.source.sql_text import PRINTING
from cdc_lake.tables.silver_table import FIRST, app_id
from tests.conftest import Database
from tests.live.test_compare_tables import Lake
from tests.seeds import one_seed, seeds
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore:The 'without_files' parameter:DeprecationWarning")]

Row: TypeAlias = tuple[Any, ...]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
TABLES = 8
"""Half of them without a difference; at budget 10 there are 100 of these."""
ALPHABET = ["", "a", "B", "|", ":", '"', "\\", "\n", "ß", "漢", ",", "NULL", "\\N", " ", "1"]


@dataclass(frozen=True)
class Kind:
    """A type of the source, silver's, and whether silver holds its text."""

    sql: str
    arrow: pa.DataType
    text: bool = False


KINDS = {
    "int2": Kind("int2", pa.int16()),
    "int4": Kind("int4", pa.int32()),
    "int8": Kind("int8", pa.int64()),
    "price": Kind("numeric(12,3)", pa.decimal128(12, 3)),
    "free": Kind("numeric", pa.string(), text=True),
    "float8": Kind("float8", pa.float64()),
    "float4": Kind("float4", pa.float32()),
    "bool": Kind("bool", pa.bool_()),
    "bytes": Kind("bytea", pa.binary()),
    "text": Kind("text", pa.string()),
    "varchar": Kind("varchar(40)", pa.string()),
    "padded": Kind("char(9)", pa.string(), text=True),
    "date": Kind("date", pa.date32()),
    "at": Kind("timestamp", pa.timestamp("us")),
    "instant": Kind("timestamptz", pa.timestamp("us", tz="UTC")),
    "uuid": Kind("uuid", pa.string(), text=True),
    "json": Kind("jsonb", pa.string(), text=True),
    "span": Kind("interval", pa.string(), text=True),
    "list": Kind("text[]", pa.string(), text=True),
}
KEYS = ("int2", "int4", "int8", "price", "text", "varchar", "padded", "date", "at", "uuid", "bytes")


def value(dice: random.Random, kind: str) -> Any:
    """A value as the driver takes it."""
    day = dt.date(1, 1, 1) + dt.timedelta(dice.choice([0, 365 * 2000, dice.randrange(3_600_000)]))
    moment = dt.datetime.combine(day, dt.time(dice.randrange(24), 0, dice.randrange(60), dice.choice([0, 1, 500_000])))
    match kind:
        case "int2" | "int4" | "int8":
            top = 2 ** (8 * int(kind[3:]) - 1)
            return dice.choice([0, -1, -top, top - 1, dice.randrange(-top, top)])
        case "price":
            return Decimal(dice.randrange(-(10**11), 10**11)).scaleb(-3)
        case "free":
            return dice.choice([Decimal("NaN"), Decimal("1.10"), Decimal(dice.randrange(10**6)), Decimal("1e-20")])
        case "float8" | "float4":
            return dice.choice([0.0, -0.0, float("nan"), float("inf"), 0.1, 1e-40, dice.gauss(0, 1e6)])
        case "bool":
            return dice.random() < 0.5
        case "bytes":
            return dice.randbytes(dice.randrange(4))
        case "text" | "varchar":
            long = 40 if kind == "varchar" else dice.choice([6, 40, 500])
            return "".join(dice.choices(ALPHABET, k=dice.choice([dice.randrange(6), dice.randrange(long)])))[:long]
        case "padded":
            return "".join(dice.choices("ab |", k=dice.randrange(6)))
        case "date":
            return day
        case "at":
            return moment
        case "instant":
            return moment.replace(tzinfo=dt.UTC)
        case "uuid":
            return f"{dice.getrandbits(128):032x}"
        case "json":
            return f'{{"b": {dice.randrange(9)}, "a": "|"}}'
        case "span":
            return f"{dice.randrange(99)} days {dice.randrange(99)} seconds"
        case _:
            return [dice.choice(ALPHABET) for _ in range(dice.randrange(3))]


class Table:
    """A random table at the source, and what silver is given of it."""

    def __init__(self, name: str, dice: random.Random, lake: Lake) -> None:
        self.name, self.dice = name, dice
        self.keys = dice.choice([["int8"], ["int4"], ["text"], *(dice.sample(KEYS, dice.choice([1, 2])) for _ in "ab")])
        self.kinds = [*self.keys, *dice.sample(sorted(set(KINDS) - {*self.keys}), dice.randrange(1, 9))]
        dice.shuffle(self.kinds)
        ddl = ", ".join(f'"{kind}" {KINDS[kind].sql}' for kind in self.kinds)
        listed = ", ".join(f'"{key}"' for key in self.keys)
        lake.sql.execute(f"CREATE TABLE {name} ({ddl}, PRIMARY KEY ({listed}))")
        marks = ", ".join(["%s"] * len(self.kinds))
        for _ in range(dice.choice([0, 1, 5, 60])):
            lake.sql.execute(f"INSERT INTO {name} VALUES ({marks}) ON CONFLICT DO NOTHING", self.row())

    def row(self) -> list[Any]:
        """A row that the table may have."""
        return [
            None if kind not in self.keys and self.dice.random() < 0.2 else value(self.dice, kind)
            for kind in self.kinds
        ]

    @property
    def others(self) -> list[str]:
        """Columns that are not of the key."""
        return [kind for kind in self.kinds if kind not in self.keys]

    def select(self) -> str:
        """The expressions that give silver's values."""
        return ", ".join(
            f"""CASE WHEN "{k}" IS NOT NULL THEN format('%%s', "{k}") END""" if KINDS[k].text else f'"{k}"'
            for k in self.kinds
        )

    def rows(self, lake: Lake) -> list[Row]:
        """Rows as silver holds them when it is right."""
        return list(lake.sql.execute(f"SELECT {self.select()} FROM {self.name}", ()).fetchall())

    def another(self, row: Row, kinds: Sequence[str], lake: Lake) -> tuple[Row, str]:
        """The row with another value in one column of these kinds, and the column."""
        kind = self.dice.choice(kinds)
        at = self.kinds.index(kind)
        while True:
            given = value(self.dice, kind)
            if KINDS[kind].text:
                (given,) = lake.sql.execute(f"SELECT format('%%s', %s::{KINDS[kind].sql})", (given,)).fetchone()
            elif kind not in self.keys and self.dice.random() < 0.2:
                given = None
            if exact(given, kind) != exact(row[at], kind):
                return (*row[:at], given, *row[at + 1 :]), kind

    def key(self, row: Row) -> Row:
        """What tells a row from others."""
        return tuple(exact(row[self.kinds.index(key)], key) for key in self.keys)

    def silver(self, rows: Sequence[Row]) -> pa.Table:
        """Rows as silver has them."""
        columns = zip(*rows, strict=True) if rows else [[]] * len(self.kinds)
        schema = pa.schema([(kind, KINDS[kind].arrow) for kind in self.kinds])
        return pa.Table.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )


def exact(given: Any, kind: str) -> str:
    """A value as silver's type has it; -0.0 is not 0.0."""
    return repr(pa.scalar(given, KINDS[kind].arrow).as_py())


Told: TypeAlias = list[tuple[Row, str, str]]
"""Keys that differ: which, how, and in which column where it is in one."""


def planted(table: Table, right: Sequence[Row], lake: Lake) -> tuple[list[Row], Told]:
    """Silver with up to four differences, and what is to be told of them."""
    dice, rows, told = table.dice, list(right), []
    keys = {table.key(row) for row in right}
    for row in dice.sample(right, min(len(right), dice.randrange(1, 5))):
        kind, key, column = dice.choice(["missing", "extra", "changed", "changed", "repeated"]), table.key(row), ""
        if kind == "extra":
            made, _ = table.another(row, table.keys, lake)
            key = table.key(made)
            if key in keys:
                continue
            keys.add(key)
            rows.append(made)
        elif kind == "repeated":
            rows.append(row)
        else:
            rows.remove(row)
            if kind == "changed":
                made, column = table.another(row, table.others, lake)
                rows.append(made)
        told.append((key, kind, column))
    return rows, told


def worked(table: Table, right: Sequence[Row], told: Told, lake: Lake) -> Told:
    """Transactions at the source, and what is to be told after them: a row that is written whole is right again."""
    dice, sql, name = table.dice, lake.sql, table.name
    written, gone = set(), set()
    taken = {key for key, _, _ in told} | {table.key(row) for row in right}
    for row in dice.sample(right, min(len(right), dice.randrange(6))):
        key, how = table.key(row), dice.choice(["update", "move", "delete", "delete and insert"])
        where = " AND ".join(f'"{one}" IS NOT DISTINCT FROM %s' for one in table.keys)
        parts = [row[table.kinds.index(one)] for one in table.keys]
        if how == "delete":
            gone.add(key)
            sql.execute(f"DELETE FROM {name} WHERE {where}", parts)
            continue
        other, kind = table.another(row, table.keys if how == "move" else table.others, lake)
        if how == "move" and table.key(other) in taken:
            continue
        (gone if how == "move" else written).add(key)
        taken.add(table.key(other))
        with sql.transaction():
            if how == "delete and insert":
                sql.execute(f"CREATE TEMP TABLE gone AS SELECT * FROM {name} WHERE {where}", parts)
                sql.execute(f"DELETE FROM {name} WHERE {where}", parts)
                sql.execute(f"INSERT INTO {name} SELECT * FROM gone")
                sql.execute("DROP TABLE gone")
            sql.execute(f'UPDATE {name} SET "{kind}" = %s WHERE {where}', [other[table.kinds.index(kind)], *parts])
    if dice.random() < 0.1:
        sql.execute(f"TRUNCATE {name}")
        return []
    return [one for one in told if one[0] not in gone and (one[0] not in written or one[1] == "repeated")]


def compared(lake: Lake, tables: Mapping[str, Table], oracle: Mapping[str, Told]) -> int:
    """Compare, and check what is told; the number of transactions that silver was rolled forward by."""
    forward = 0
    for name, found in lake.compare().items():
        told = oracle[name]
        by_kind = Counter({kind: getattr(found, kind) for kind in ("missing", "extra", "changed", "repeated")})
        assert +by_kind == Counter(kind for _, kind, _ in told), (name, tables[name].kinds)
        assert Counter(dict(found.columns)) == Counter(column for _, _, column in told if column)
        assert found.verdict is (Verdict.DIFFERENT if told else Verdict.EQUAL)
        assert (found.hashed_by, found.streamed) == ("server", "")
        assert told or found.rows_matched == 0, "the server's hashes are not ours"
        forward += found.rolled_forward
    return forward


@pytest.mark.parametrize("seed", seeds(25 if BUDGET > 1 else 1))
def test_exactly_the_planted_differences_are_told(seed: int, database: Database, tmp_path: Path) -> None:
    dice = random.Random(seed)
    with closing(Lake(database, tmp_path)) as lake:
        listed = [{"from": f"public.t{n}", "format": dice.choice(["delta", "iceberg"])} for n in range(TABLES)]
        silver = Silver.model_validate({"tables": listed})
        lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"silver": silver}))
        for name, setting in PRINTING.items():
            lake.sql.execute(f"SET {name} = '{setting}'")
        tables = {f"t{n}": Table(f"t{n}", dice, lake) for n in range(TABLES)}
        lake.receive()
        right = {name: table.rows(lake) for name, table in tables.items()}
        oracle: dict[str, Told] = {}
        for number, (name, table) in enumerate(tables.items()):
            rows, oracle[name] = planted(table, right[name], lake) if number % 2 else ([*right[name]], [])
            dice.shuffle(rows)
            lake.silver(name, table.silver(rows))
        assert compared(lake, tables, oracle) == 0
        oracle = {name: worked(table, right[name], oracle[name], lake) for name, table in tables.items()}
        lake.receive()
        assert compared(lake, tables, oracle) > 0
    tally("R19", comparisons=2)


LARGE = 5_000_000 if BUDGET > 1 else 200_000
"""Rows of a table in which one value is another one."""
FILL = """
CREATE TABLE large (id int8 PRIMARY KEY, customer int8, price numeric(12,3), at timestamp, note text);
INSERT INTO large SELECT n, hashint8(n), (n % 1000003) / 1000.0, timestamp '2020-01-01' + n * interval '1 second',
  CASE WHEN n % 7 <> 0 THEN md5(n::text) END FROM generate_series(1, {rows}) n;
"""
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int64()),
        ("price", pa.decimal128(12, 3)),
        ("at", pa.timestamp("us")),
        ("note", pa.string()),
    ]
)


def large_silver(lake: Lake, file: Path, planted: int | None = None) -> None:
    """Silver as the source is, but for the note of one row."""
    selected = ", ".join(COLUMNS.names).replace("note", f"CASE WHEN id = {planted or 0} THEN 'other' ELSE note END")
    with (
        file.open("wb") as out,
        lake.sql.cursor().copy(f"COPY (SELECT {selected} FROM large) TO STDOUT (FORMAT csv)") as rows,
    ):
        for part in rows:
            out.write(part)
    convert = csv.ConvertOptions(column_types=COLUMNS, strings_can_be_null=True, quoted_strings_can_be_null=False)
    target, state = lake.project.target(TableName("public", "large")), lake.state
    marker = CommitProperties(app_transactions=[Transaction(app_id(state.stream, target, FIRST), state.upto)])
    named = csv.ReadOptions(column_names=COLUMNS.names)
    with csv.open_csv(file, read_options=named, convert_options=convert) as blocks:
        place = str(lake.project.silver_path(target))
        write_deltalake(place, blocks, mode="overwrite", commit_properties=marker)
    file.unlink()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_one_value_of_a_large_table_is_found_and_nothing_where_there_is_none(
    database: Database, tmp_path: Path
) -> None:
    seed = one_seed()
    print(f"seed {seed}")
    with closing(Lake(database, tmp_path)) as lake:
        silver = Silver.model_validate({"tables": [{"from": "public.large", "format": "delta"}]})
        lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"silver": silver}))
        lake.sql.execute(FILL.format(rows=LARGE))
        lake.receive()
        large_silver(lake, tmp_path / "rows.csv")
        found = lake.compare()["large"]
        assert (found.verdict, found.source_rows, found.silver_rows) == (Verdict.EQUAL, LARGE, LARGE)
        planted = random.Random(seed).randint(1, LARGE)
        large_silver(lake, tmp_path / "rows.csv", planted)
        found = lake.compare()["large"]
        assert (found.verdict, found.changed) == (Verdict.DIFFERENT, 1), found
        assert (found.missing, found.extra, found.repeated) == (0, 0, 0)
        assert found.columns == (("note", 1),)
        assert dict(found.samples) == {"changed": ((str(planted),),)}
    tally("R19", **{"comparisons": 2, "rows compared": 2 * LARGE})
