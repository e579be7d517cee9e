"""Types of a server and their edge values, for everything that is tested over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg

from cdc_lake_testing.histories import AT_LIMITS, LINE_BREAKS

Values: TypeAlias = tuple[str, str, tuple[str, ...], tuple[str, ...]]
"""A column: its name in SQL, its type, values that fit, values that do not."""


@dataclass(frozen=True)
class Case:
    """A server type, values that fit, values that do not; all as SQL constants' text. `since`: the version with it."""

    type: str
    fit: tuple[str, ...]
    misfit: tuple[str, ...] = ()
    never_printed: tuple[str, ...] = ()  # texts a server does not print: a lenient cast would take them
    since: int = 14


SPACES = (" 1", "1 ", "+1", "1.0", "", "one", "01", "1L")
CASES = (
    Case("int2", ("-32768", "32767", "0"), never_printed=("32768", *SPACES)),
    Case("int4", ("-2147483648", "2147483647"), never_printed=("2147483648", *SPACES)),
    Case("int8", ("-9223372036854775808", "9223372036854775807"), never_printed=("9223372036854775808", *SPACES)),
    Case("oid", ("0", "4294967295"), never_printed=SPACES),
    Case("numeric(38,0)", ("9" * 38, "-" + "9" * 38, "0"), ("NaN",), ("1" * 39, *SPACES)),
    Case("numeric(38,38)", ("0." + "9" * 38, "-0." + "0" * 37 + "1", "0"), ("NaN",), ("1", "1." + "0" * 38)),
    Case("numeric(10,2)", ("99999999.99", "-0.01", "0", "1.5"), ("NaN",), ("1.005", "1e2", "123456789.00", "1")),
    Case("numeric(5,-2)", ("12345", "-9999900", "NaN"), since=15),
    Case("numeric", ("NaN", "Infinity", "1e-20", "1" * 131072, "0.10", "-0")),
    Case(
        "float4",
        ("NaN", "Infinity", "-Infinity", "-0", "3.4028235e38", "1e-45", "0.1", "16777217", "123456.7"),
        never_printed=("1f", " 1", "1d", "inf", "1e39", "nan", "", "0x1p3", "+1"),
    ),
    Case(
        "float8",
        ("NaN", "Infinity", "-Infinity", "-0", "1.7976931348623157e308", "5e-324", "0.1", "0.30000000000000004"),
        never_printed=("1f", " 1", "1D", "inf", "1e400", "-1e400", "infinity", "", "1_0"),
    ),
    Case("bool", ("true", "false"), never_printed=("true", "T", "", "1", " t", "yes")),
    Case("bytea", ("\\x", "\\x00ff10", "\\x" + "ab" * 5000), never_printed=("\\xa", "\\xAB", "ab", "\\xzz", "", "x00")),
    Case(
        "text",
        ("", " x ", "\t\n\r\\N\\.", "Größe 漢字 😀", "unchanged-toast-datum", "null", "'\"", *LINE_BREAKS, *AT_LIMITS),
    ),
    Case("varchar(12)", ("", "a ")),
    Case("char(5)", ("", "a", "ab   ")),
    Case('"char"', ("", "a", "\\377")),
    Case(
        "date",
        ("0001-01-01", "9999-12-31", "2024-02-29", "1582-10-10", "1900-03-01"),
        ("infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31", "4713-01-01 BC"),
        (
            "2024",
            "2024-1-1",
            "2024-01",
            "2024-02-30",
            "2024-01-01 ",
            "2024-01-01T",
            "+2024-01-01",
            "now",
            "-0044-03-15",
        ),
    ),
    Case(
        "timestamp",
        (
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999",
            "2024-03-31 02:30:00",
            "1969-12-31 23:59:59.999999",
            "2024-01-01 12:00:00.1",
            "1883-11-18 12:03:58",
            "1582-10-10 01:02:03.000001",
        ),
        ("infinity", "-infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00", "294276-12-31 23:59:59.999999"),
        (
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01 00:00:00+00",
            "2024-01-01 00:00",
            "2024-01-01 00:00:00.10",
            "2024-01-01 24:00:00",
            "2024-01-01 00:00:00.1234567",
            "2024-01-01 00:00:00Z",
        ),
    ),
    Case(
        "timestamptz",
        (
            "0001-01-01 00:00:00+00",
            "9999-12-31 23:59:59.999999+00",
            "2024-03-31 02:30:00 Europe/Berlin",
            "2024-10-27 02:30:00+02",
            "2024-10-27 02:30:00+01",
            "1883-11-18 12:03:58 America/New_York",
            "1969-12-31 23:59:59.5+00",
        ),
        ("infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00"),
        (
            "2024-01-01 00:00:00",
            "2024-01-01 00:00:00 UTC",
            "00:00:00+00",
            "2024-01-01+00",
        ),
    ),
    Case("time", ("24:00:00", "00:00:00.000001")),
    Case("timetz", ("24:00:00+05:30",)),
    Case("interval", ("-1 year 2 days 03:04:05.000006", "178000000 years")),
    Case("uuid", ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",)),
    Case("json", (' {"a" : 1.0, "a":2}',)),
    Case("jsonb", ('{"b":1e2,"a":"\\u00e4"}',)),
    Case("inet", ("192.168.0.1/24", "::1")),
    Case("bit(3)", ("101",)),
    Case("varbit", ("", "1")),
    Case("money", ("-1234.50",)),
    Case("int4range", ("[1,5)", "empty")),
    Case("int4[]", ("{}", "{1,NULL,3}", "[0:1]={1,2}")),
    Case("point", ("(1,-0)",)),
    Case("tsvector", ("a:1 'b c':2",)),
    Case("mood", ("so so",)),
    Case("positive", ("7",)),
)


def cases(sql: psycopg.Connection) -> tuple[Case, ...]:
    """Those that the server has."""
    return tuple(case for case in CASES if case.since <= sql.info.server_version // 10_000)


def every(sql: psycopg.Connection) -> tuple[Values, ...]:
    """A column of each type that the server has."""
    return tuple((f"c{at}", case.type, case.fit, case.misfit) for at, case in enumerate(cases(sql)))


def create(sql: psycopg.Connection, table: str, columns: Sequence[Values]) -> None:
    """A table of these columns, behind `id` and `note`; the types of users that `CASES` needs are there."""
    listed = ", ".join(f"{name} {kind}" for name, kind, *_ in columns)
    sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text, {listed})")


def create_types(sql: psycopg.Connection) -> None:
    """The types of users."""
    sql.execute("CREATE TYPE mood AS ENUM ('so so', 'well')")
    sql.execute("CREATE DOMAIN positive AS int4 CHECK (VALUE > 0)")


def insert(sql: psycopg.Connection, table: str, columns: Sequence[Values], half: int) -> None:
    """Every second row of all values, from the first or the second on; `note` says if it fits or will be held."""
    names = ", ".join(name for name, *_ in columns)
    given = ", ".join(f"CAST(CAST(%s AS text) AS {kind})" for _, kind, *_ in columns)
    for at, (fits, *values) in enumerate(_rows(columns)):
        if at % 2 == half:
            note = "fits" if fits else "held"
            sql.execute(f"INSERT INTO {table} (id, note, {names}) VALUES (%s, %s, {given})", (at, note, *values))


def _rows(columns: Sequence[Values]) -> list[tuple[Any, ...]]:
    """Values that fit side by side, then each that does not in a row of its own."""
    depth = max(len(fit) for _, _, fit, _ in columns)
    together = [(True, *(fit[at] if at < len(fit) else None for _, _, fit, _ in columns)) for at in range(depth)]
    alone = [
        (False, *(value if other == at else None for other in range(len(columns))))
        for at, (_, _, _, misfit) in enumerate(columns)
        for value in misfit
    ]
    return [(True, *(None for _ in columns)), *together, *alone]
