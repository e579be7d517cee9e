"""Random texts of every silver type, in one Spark job: what fits, and which value it is, equals Python's own reading."""

from __future__ import annotations

import datetime as dt
import math
import os
import random
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.silver_tables import Declared, TypePolicy
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.apply.rule_gate import conditions
from cdc_lake.silver.kind import TablePart
from cdc_lake.silver.layout_mapping import make_shape
from cdc_lake.silver.transforms import plain
from cdc_lake.tables.canonical_values import elements_of
from cdc_lake.tables.casts import cast_sql, fits_sql
from cdc_lake.tables.types import ColumnType, Family, column_type, companion_type
from tests.pipeline_file import make_project
from tests.seeds import one_seed

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

SEED = one_seed()
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
MISFIT = object()
TEXT = Column("t", "text", 25)
NUMERIC = Column("n", "numeric", 1700)


def declared(sql: str, column: Column = TEXT) -> ColumnType:
    return column_type(column, TypePolicy(columns=((column.name, Declared.parse(sql)),)))


def own(name: str, modifier: int = -1) -> ColumnType:
    return column_type(Column("c", name, 0, modifier))


def beside(sql: str) -> ColumnType:
    kind = companion_type(NUMERIC, TypePolicy(Declared.parse(sql)))
    assert kind is not None
    return kind


KINDS = [
    *(own(name) for name in ("int2", "int4", "int8", "oid", "int1", "float4", "float8", "bool", "bytea", "blob")),
    *(own(name) for name in ("date", "timestamp", "timestamptz", "smalldatetime")),
    own("numeric", ((12 << 16) | 3) + 4),
    own("numeric", ((38 << 16) | 38) + 4),
    *(declared(sql, NUMERIC) for sql in ("decimal(38,9)", "decimal(5,0)", "decimal(3,3)")),
    beside("both(38,9)"),
    beside("both(6,2)"),
    *(declared(sql) for sql in ("int", "bigint", "decimal(10,2)", "boolean", "date")),
    *(declared(f"array<{sql}>") for sql in ("string", "int", "double", "decimal(9,2)", "timestamp_ntz", "boolean")),
]


# ── Python's reading ──


def read(kind: ColumnType, text: str) -> Any:
    """The value of a text, MISFIT where it has none."""
    try:
        return READERS[kind.family](kind, text)
    except (ValueError, OverflowError, ArithmeticError):
        return MISFIT


def integer(kind: ColumnType, text: str) -> Any:
    bits = {"smallint": 16, "int": 32, "bigint": 64}[kind.sql]
    value = int(text) if re.fullmatch("0|-?[1-9][0-9]*", text, re.ASCII) else MISFIT
    return value if isinstance(value, int) and -(1 << bits - 1) <= value < 1 << bits - 1 else MISFIT


def scale_of(kind: ColumnType) -> tuple[int, int]:
    precision, scale = re.findall("[0-9]+", kind.sql)
    return int(precision), int(scale)


def within(text: str, digits: int) -> Any:
    """Not minus zero, and at most so many digits before the point."""
    value = Decimal(text)
    return MISFIT if (text.startswith("-") and not value) or value.copy_abs() >= Decimal(10) ** digits else value


def decimal(kind: ColumnType, text: str) -> Any:
    precision, scale = scale_of(kind)
    found = re.fullmatch(rf"-?(0|[1-9][0-9]*|){rf'[.][0-9]{{{scale}}}' if scale else ''}", text, re.ASCII)
    if found is None or (not found[1] and not scale):
        return MISFIT
    return within(text, precision - scale)


def number(kind: ColumnType, text: str) -> Any:
    precision, scale = scale_of(kind)
    found = re.fullmatch("-?(0|[1-9][0-9]*|)(?:[.]([0-9]+))?", text, re.ASCII)
    if found is None or not (found[1] or found[2]) or len((found[2] or "").rstrip("0")) > scale:
        return MISFIT
    return within(text, precision - scale)


def number_or_null(kind: ColumnType, text: str) -> Any:
    value = number(kind, text)
    return None if value is MISFIT else value


def floating(kind: ColumnType, text: str) -> Any:
    if text in {"NaN", "Infinity", "-Infinity"}:
        return float(text.replace("Infinity", "inf"))
    if not re.fullmatch("-?([0-9]+([.][0-9]+)?|[.][0-9]+)(e[+-][0-9]+)?", text, re.ASCII):
        return MISFIT
    value = float(text)
    if kind.sql == "float":
        value = struct.unpack("f", struct.pack("f", value))[0]
    return MISFIT if math.isinf(value) else value


def boolean(_: ColumnType, text: str) -> Any:
    return {"t": True, "f": False}.get(text, MISFIT)


def binary(_: ColumnType, text: str) -> Any:
    return bytes.fromhex(text[2:]) if re.fullmatch(r"\\x([0-9a-f]{2})*", text) else MISFIT


def hexadecimal(_: ColumnType, text: str) -> Any:
    return bytes.fromhex(text) if re.fullmatch("([0-9A-F]{2})*", text) else MISFIT


def date(_: ColumnType, text: str) -> Any:
    return dt.date.fromisoformat(text) if re.fullmatch("[0-9]{4}(-[0-9]{2}){2}", text, re.ASCII) else MISFIT


CLOCK = "[0-9]{4}(-[0-9]{2}){2} ([0-9]{2}:){2}[0-9]{2}([.][0-9]{0,5}[1-9])?"


def timestamp(_: ColumnType, text: str) -> Any:
    return dt.datetime.fromisoformat(text) if re.fullmatch(CLOCK, text, re.ASCII) else MISFIT


def instant(_: ColumnType, text: str) -> Any:
    if not re.fullmatch(CLOCK + "[+-](0[0-9]|1[0-5])(:[0-5][0-9])*", text, re.ASCII):
        return MISFIT
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC)


def array(kind: ColumnType, text: str) -> Any:
    assert kind.element is not None
    elements = elements_of(text) if "\1" not in text and "\2" not in text else None
    if elements is None:
        return MISFIT
    values = [None if one is None else read(kind.element, one) for one in elements]
    return MISFIT if any(value is MISFIT for value in values) else values


READERS: dict[Family, Callable[[ColumnType, str], Any]] = {
    Family.TEXT: lambda _, text: text,
    Family.INTEGER: integer,
    Family.DECIMAL: decimal,
    Family.NUMBER: number,
    Family.NUMBER_OR_NULL: number_or_null,
    Family.FLOAT: floating,
    Family.BOOLEAN: boolean,
    Family.BINARY: binary,
    Family.HEX: hexadecimal,
    Family.DATE: date,
    Family.TIMESTAMP: timestamp,
    Family.TIMESTAMPTZ: instant,
    Family.ARRAY: array,
}


# ── texts ──


def text_of(draw: random.Random, kind: ColumnType) -> str:
    """A text such as a server prints for a value of the type, or for one that it cannot hold."""
    match kind.family:
        case Family.TEXT:
            return "".join(draw.choices('ab "\\,{}\tÄ漢😀NUL\1', k=draw.randrange(6)))
        case Family.INTEGER:
            return str(draw.choice([-1, 1]) * draw.getrandbits(draw.choice([1, 8, 15, 16, 31, 32, 63, 64, 65])))
        case Family.DECIMAL | Family.NUMBER | Family.NUMBER_OR_NULL:
            precision, scale = scale_of(kind)
            whole = str(draw.getrandbits(8)) if draw.random() < 0.5 else "9" * draw.randrange(precision - scale + 2)
            digits = scale if draw.random() < 0.7 else draw.randrange(scale + 3)
            fraction = "".join(draw.choices("00019", k=digits))
            sign = "-" if draw.random() < 0.3 else ""
            return draw.choice([f"{sign}{whole}" + (f".{fraction}" if fraction else ""), "NaN", "Infinity", f"{sign}0"])
        case Family.FLOAT:
            if draw.random() < 0.3:
                return draw.choice(["NaN", "Infinity", "-Infinity", "-0", "1e+400", "3.5e+38", ".5", "1e-46", "0"])
            return repr(struct.unpack("d", struct.pack("Q", draw.getrandbits(64)))[0]).replace("inf", "Infinity")
        case Family.BOOLEAN:
            return draw.choice(["t", "f", "true", "1"])
        case Family.BINARY:
            return "\\x" + draw.randbytes(draw.randrange(5)).hex()
        case Family.HEX:
            return draw.randbytes(draw.randrange(5)).hex().upper()
        case Family.DATE | Family.TIMESTAMP | Family.TIMESTAMPTZ:
            return time_of(draw, kind)
        case Family.ARRAY:
            return array_of(draw, kind)


def time_of(draw: random.Random, kind: ColumnType) -> str:
    if draw.random() < 0.2:
        return draw.choice(
            [
                "infinity",
                "-infinity",
                "0044-03-15 BC",
                "10000-01-01",
                "+10000-01-01",
                "0044-03-15 12:00:00 BC",
                "0000-02-29",
            ]
        )
    if draw.random() < 0.03:  # another year where the instant is than where it is printed
        return draw.choice(["0001-01-01 00:00:00", "9999-12-31 23:59:59"]) + draw.choice(["+15:59:59", "-10", "+00"])
    moment = dt.datetime(1, 1, 1) + dt.timedelta(microseconds=draw.randrange(9999 * 365 * 86_400 * 1_000_000))  # noqa: DTZ001
    if draw.random() < 0.5:
        moment = moment.replace(microsecond=0)
    if kind.family is Family.DATE:
        return f"{moment:%Y-%m-%d}".zfill(10)
    text = str(moment).zfill(19).rstrip("0" if moment.microsecond else "")
    zone = draw.choice(["+00", "+00", "+05:30", "-03:30", "+15:59:59", "-00:53:28", "+16", ""])
    return text + (zone if kind.family is Family.TIMESTAMPTZ else "")


def array_of(draw: random.Random, kind: ColumnType) -> str:
    """As array_out prints it, sometimes of two dimensions or from another lower bound on."""
    assert kind.element is not None
    elements = []
    for _ in range(draw.randrange(4)):
        text = text_of(draw, kind.element)
        bare = text and text.upper() != "NULL" and not re.search(r'[\s"\\{},]', text)
        bare = bare or draw.random() < 0.02  # no server prints it so
        quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        elements.append("NULL" if draw.random() < 0.2 else text if bare else quoted)
    whole = "{" + ",".join(elements) + "}"
    return whole if draw.random() < 0.9 else draw.choice([f"[0:{len(elements) - 1}]={whole}", f"{{{whole},{whole}}}"])


def mutated(draw: random.Random, text: str) -> str:
    at = draw.randrange(len(text) + 1)
    piece = draw.choice(
        ["", " ", "0", "-", ".", "+", '"', "\\", "{", "}", ",", "e5", "T", "Z", "NULL", "é", "٣", "\n", "x"]
    )
    return text[:at] + piece + text[at + draw.randrange(2) :]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("d", one) == struct.pack("d", other)
    return one == other and type(one) is type(other)


def test_a_misfit_is_held_or_stops_as_the_pipeline_says(spark: Any, lake_root: Path) -> None:
    assert spark is not None  # conditions are Spark's columns
    layout = Relation(
        TableName("public", "t"), (Column("id", "int4", 23, key=True), NUMERIC), ReplicaIdentity.DEFAULT, ("id",)
    )
    for misfit in ("quarantine", "stop"):
        table = {"from": "public.t", "types": {"numeric": "decimal(9,2)", "misfit": misfit}}
        target = make_project(lake_root, "p", silver={"tables": [table]}).target(layout.table)
        shape = make_shape([1], {1: layout}, None, types=target.types)
        part = TablePart(shape, frozenset(), (), Span(1, 0, 1))
        found = {one.name: one.on_fail for one in conditions(target, part, plain(shape))}
        assert found == {"type_id": misfit, "type_n": misfit}


def test_what_fits_and_its_value_are_what_python_reads(spark: Any) -> None:
    print("CDC_LAKE_SEED =", SEED)
    draw = random.Random(SEED)
    rows = []
    for _ in range(400 * BUDGET):
        texts = [text_of(draw, kind) for kind in KINDS]
        rows.append([mutated(draw, text) if draw.random() < 0.4 else text for text in texts])
    spark.createDataFrame(
        [(at, texts) for at, texts in enumerate(rows)], "at int, v array<string>"
    ).createOrReplaceTempView("texts")
    expressions = ", ".join(
        f"{fits_sql(f'v[{i}]', kind)} AS f{i}, CASE WHEN {fits_sql(f'v[{i}]', kind)} THEN {cast_sql(f'v[{i}]', kind)} END AS v{i}"
        for i, kind in enumerate(KINDS)
    )
    found = spark.sql(f"SELECT at, {expressions} FROM texts").toArrow().sort_by("at")
    wrong, fitting = [], 0
    for i, kind in enumerate(KINDS):
        assert found.schema.field(f"v{i}").type is not None
        for texts, fits, value in zip(rows, found[f"f{i}"].to_pylist(), found[f"v{i}"].to_pylist(), strict=True):
            expected = read(kind, texts[i])
            fitting += fits
            if fits != (expected is not MISFIT) or (fits and not same(value, expected)):
                wrong.append(f"{kind.sql} {kind.family.value}: {texts[i]!r} is {value!r} ({fits}), not {expected!r}")
    assert not wrong, "\n".join(wrong[:40])
    assert fitting > len(rows) * len(KINDS) / 4
