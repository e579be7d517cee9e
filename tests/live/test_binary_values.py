"""Binary values: each is decoded to exactly the text that the server prints of it, or its column is refused by name."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from psycopg import Connection

from cdc_lake.config.source import PostgresSource
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.pgoutput import binary_values, columnar
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate, tabulate_plain
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import UnreadBinary
from cdc_lake.model.position import Lsn
from cdc_lake.source.postgres.catalog import SourceCatalog
from cdc_lake.source.postgres.connection import connect
from cdc_lake_testing.histories import AT_LIMITS, LINE_BREAKS
from cdc_lake_testing.workload import Workload
from tests import type_cases
from tests.conftest import Database
from tests.decoded_columns import assert_same
from tests.live.test_receive_loop import assert_equal_to_source, once, project_of
from tests.seeds import seeds

pytestmark = pytest.mark.live

Dice = random.Random
ROWS = 60
REFUSED = ("money", "tsvector", "mood", "positive")
BITS = "01"
LETTERS = (
    "a",
    "B",
    "ü",
    "漢",
    "😀",
    "'",
    '"',
    "\\",
    " ",
    "\t",
    "\n",
    "{",
    "}",
    ",",
    ";",
    "(",
    "]",
    "null",
    *LINE_BREAKS,
)


def text(dice: Dice) -> str:
    return "".join(dice.choice(LETTERS) for _ in range(dice.randrange(6))) + dice.choice(("", "", "", *AT_LIMITS))


def number(dice: Dice, bits: int) -> str:
    return str(dice.getrandbits(dice.randrange(1, bits)) * dice.choice((1, -1)))


def numeric(dice: Dice) -> str:
    whole, scale = dice.randrange(0, 30), dice.randrange(0, 20)
    digits = "".join(dice.choice("000123459") for _ in range(whole)) or "0"
    fraction = "".join(dice.choice("000123459") for _ in range(scale))
    return dice.choice(("", "-")) + digits + (f".{fraction}" if scale else "")


def float_of(form: str, size: int) -> Callable[[Dice], str]:
    def made(dice: Dice) -> str:
        pick = dice.randrange(4)
        if pick == 0:  # halfway decimals, where the shortest text is in dispute
            return f"{dice.randrange(1, 10 ** dice.randrange(1, 5))}e{dice.randrange(5, 24 if size == 8 else 12)}"
        if pick == 1:
            return f"{dice.uniform(-1, 1) * 10 ** dice.randrange(-7, 20)!r}"
        if pick == 2:
            return repr(struct.unpack(form, struct.pack(form, float(2 ** dice.randrange(-100, 100))))[0])
        return repr(struct.unpack(form, dice.randbytes(size))[0])

    return made


def date(dice: Dice) -> str:
    year = dice.choice((dice.randrange(1, 10_000), dice.randrange(1, 4000), dice.randrange(10_000, 200_000)))
    return f"{year:04d}-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}" + (era(dice) if year < 4000 else "")


def clock(dice: Dice) -> str:
    fraction = dice.choice(("", ".5", f".{dice.getrandbits(19):06d}", ".000001"))
    return f"{dice.randrange(24):02d}:{dice.randrange(60):02d}:{dice.randrange(60):02d}{fraction}"


def era(dice: Dice) -> str:
    return dice.choice(("", "", " BC"))


def moment(dice: Dice) -> str:
    return dice.choice((f"{dice.randrange(1, 4000):04d}-02-28 {clock(dice)}{era(dice)}", "infinity", "-infinity"))


def interval(dice: Dice) -> str:
    parts = [f"{dice.randrange(-300, 300)} {unit}" for unit in ("years", "months", "days", "hours", "mins")]
    parts.append(f"{dice.choice((0, 5, -5, 90))}{dice.choice(('', '.5', '.000007'))} secs")
    return " ".join(dice.sample(parts, dice.randrange(1, 7)))


def inet(dice: Dice) -> str:
    if dice.random() < 0.4:
        return ".".join(str(dice.randrange(256)) for _ in range(4)) + dice.choice(("", "/32", "/8"))
    words = [dice.choice((0, 0, 1, 0xFFFF, dice.getrandbits(16))) for _ in range(8)]
    if dice.random() < 0.3:
        words[:6] = [0] * 5 + [dice.choice((0, 0xFFFF))]
    return ":".join(f"{word:x}" for word in words) + dice.choice(("", "/128", "/64"))


def cidr(dice: Dice) -> str:
    return dice.choice(
        (f"{dice.randrange(256)}.0.0.0/8", f"{dice.getrandbits(16):x}:0:0:{dice.getrandbits(16):x}::/64")
    )


def pair(dice: Dice) -> str:
    return f"({dice.uniform(-9, 9)!r},{dice.randrange(-5, 5)})"


def listed(one: Callable[[Dice], str]) -> Callable[[Dice], str]:
    def made(dice: Dice) -> str:
        def literal() -> str:
            value = one(dice).replace("\\", "\\\\").replace('"', '\\"')
            return dice.choice(("NULL", f'"{value}"', f'"{value}"'))

        wide = dice.randrange(1, 4)
        rows = ["{" + ",".join(literal() for _ in range(wide)) + "}" for _ in range(dice.randrange(1, 3))]
        shaped = dice.choice((rows[0], "{" + ",".join(rows) + "}", "{}"))
        return f"[5:{4 + wide}]={rows[0]}" if dice.random() < 0.2 else shaped

    return made


def ranged(one: Callable[[Dice], str], key: Callable[[str], object]) -> Callable[[Dice], str]:
    def made(dice: Dice) -> str:
        low, high = sorted((one(dice), one(dice)), key=key)  # type: ignore[type-var,arg-type]
        ends = dice.choice((low, "")), dice.choice((high, ""))
        return dice.choice("[(") + ",".join(f'"{end}"' if end else "" for end in ends) + dice.choice("])")

    return made


def several(one: Callable[[Dice], str]) -> Callable[[Dice], str]:
    return lambda dice: "{" + ",".join(one(dice) for _ in range(dice.randrange(3))) + "}"


def plain_date(dice: Dice) -> str:
    return f"{dice.randrange(1900, 2100)}-0{dice.randrange(1, 10)}-1{dice.randrange(10)}"


INT4 = ranged(lambda dice: number(dice, 30), int)
SPANS = ranged(lambda dice: f"{plain_date(dice)} {clock(dice)}", str)
RANDOM: dict[str, Callable[[Dice], str]] = {
    "int2": lambda dice: number(dice, 15),
    "int4": lambda dice: number(dice, 31),
    "int8": lambda dice: number(dice, 63),
    "oid": lambda dice: str(dice.getrandbits(32)),
    "xid8": lambda dice: str(dice.getrandbits(64)),
    "pg_lsn": lambda dice: f"{dice.getrandbits(32):X}/{dice.getrandbits(32):X}",
    "tid": lambda dice: f"({dice.getrandbits(32)},{dice.getrandbits(16)})",
    "bool": lambda dice: dice.choice("tf"),
    "float4": float_of("f", 4),
    "float8": float_of("d", 8),
    "numeric": numeric,
    "text": text,
    "varchar": text,
    "char(7)": lambda dice: text(dice)[:7],
    "name": text,
    "bytea": lambda dice: "\\x" + dice.randbytes(dice.randrange(9)).hex(),
    "date": date,
    "time": clock,
    "timetz": lambda dice: clock(dice) + dice.choice(("+00", "-08", "+05:30", "+01:02:03")),
    "timestamp": moment,
    "timestamptz": moment,
    "interval": interval,
    "uuid": lambda dice: dice.randbytes(16).hex(),
    "json": lambda dice: dice.choice(('{"a" : 1}', "[]", '"ü"')),
    "jsonb": lambda dice: dice.choice(('{"b":1e2, "a":"ä"}', "[]", "null")),
    "jsonpath": lambda dice: dice.choice(("$.a", "strict $[*] ? (@ > 1)")),
    "inet": inet,
    "cidr": cidr,
    "macaddr": lambda dice: dice.randbytes(6).hex(":"),
    "macaddr8": lambda dice: dice.randbytes(8).hex(":"),
    "bit(9)": lambda dice: "".join(dice.choice(BITS) for _ in range(9)),
    "varbit": lambda dice: "".join(dice.choice(BITS) for _ in range(dice.randrange(20))),
    "point": pair,
    "lseg": lambda dice: f"[{pair(dice)},{pair(dice)}]",
    "box": lambda dice: f"{pair(dice)},{pair(dice)}",
    "line": lambda dice: f"{{{dice.randrange(1, 9)},{dice.randrange(9)},{dice.random()!r}}}",
    "path": lambda dice: dice.choice(("[{}]", "({})")).format(
        ",".join(pair(dice) for _ in range(dice.randrange(1, 4)))
    ),
    "polygon": lambda dice: "({})".format(",".join(pair(dice) for _ in range(dice.randrange(1, 4)))),
    "circle": lambda dice: f"<{pair(dice)},{dice.randrange(9)}>",
    "int4range": INT4,
    "numrange": ranged(numeric, Decimal),
    "tsrange": SPANS,
    "tstzrange": SPANS,
    "daterange": ranged(plain_date, str),
    "int4multirange": several(INT4),
    "tsmultirange": several(SPANS),
    "int4[]": listed(lambda dice: number(dice, 31)),
    "text[]": listed(text),
    "numeric[]": listed(numeric),
    "timestamp[]": listed(moment),
    "box[]": lambda dice: "{" + f"{pair(dice)},{pair(dice)};{pair(dice)},{pair(dice)}" + "}",
    "tsrange[]": listed(SPANS),
    "bool[]": listed(lambda dice: dice.choice("tf")),
    "jsonb[]": listed(lambda dice: dice.choice(('{"a": "b"}', "[1, 2]"))),
}


def random_rows(conn: Connection, dice: Dice) -> None:
    """A table with a column of each type, some NULL, of which rows are changed in every way."""
    columns = [(f"c{at}", kind, make) for at, (kind, make) in enumerate(RANDOM.items())]
    dice.shuffle(columns)
    listed = ", ".join(f"{name} {kind}" for name, kind, _ in columns)
    conn.execute(f"CREATE TABLE random_values (id int PRIMARY KEY, {listed})")  # type: ignore[arg-type]
    conn.execute("ALTER TABLE random_values REPLICA IDENTITY FULL")
    casts = ", ".join(f"CAST(CAST(%s AS text) AS {kind})" for _, kind, _ in columns)
    names = ", ".join(name for name, *_ in columns)
    for at in range(ROWS):
        values = [None if dice.random() < 0.1 else make(dice) for *_, make in columns]
        conn.execute(f"INSERT INTO random_values (id, {names}) VALUES (%s, {casts})", (at, *values))  # type: ignore[arg-type]
    conn.execute("UPDATE random_values SET id = -id WHERE id % 3 = 1")
    conn.execute("DELETE FROM random_values WHERE id % 3 = 2")


def create_cases(conn: Connection) -> list[type_cases.Values]:
    """A table `every_type` for the edge values of all types that are read; its columns."""
    columns = [
        # versions print the other letters differently, and they are refused
        (name, kind, ("", "a", "~") if kind == '"char"' else fit, misfit)
        for name, kind, fit, misfit in type_cases.every(conn)
        if kind not in REFUSED
    ]
    type_cases.create(conn, "every_type", columns)
    return columns


class Slot:
    """A slot that is looked into, once with each form of values."""

    def __init__(self, database: Database) -> None:
        self.source = PostgresSource.model_validate(database.source)

    def transactions(self, **options: str) -> list[BufferedTransaction]:
        """What the slot has."""
        given = {"proto_version": "1", "publication_names": "tables", **options}
        words = [word for pair in given.items() for word in pair]
        query = "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s)"
        with connect(self.source, Path("/")) as session, connect(self.source, Path("/")) as catalog:
            assembler = Assembler(SourceCatalog(catalog))
            rows = session.execute(query, ["binary", words]).fetchall()
            return [
                raw
                for lsn, data in rows
                for raw in assembler.feed(bytes(data), Lsn.parse(str(lsn)).value)  # type: ignore[call-overload]
                if raw.count and isinstance(raw, BufferedTransaction)
            ]


@pytest.fixture
def slot(database: Database) -> Iterator[Slot]:
    with database.admin() as conn:
        conn.execute("CREATE PUBLICATION tables FOR ALL TABLES")
        conn.execute("SELECT pg_create_logical_replication_slot('binary', 'pgoutput')")
        yield Slot(database)
        conn.execute("SELECT pg_drop_replication_slot('binary')")


def differing(ours: ChangeColumns, theirs: ChangeColumns) -> list[tuple[str, str | None, str | None]]:
    """Type and both texts of values that are not the same."""
    return [
        (column.type_name, mine, other)
        for number, *tuples in zip(
            ours.relation,
            ours.new.to_pylist(),
            theirs.new.to_pylist(),
            ours.old.to_pylist(),
            theirs.old.to_pylist(),
            strict=True,
        )
        for some, others in (tuples[:2], tuples[2:])
        for column, mine, other in zip(ours.relations[number].columns, some or (), others or (), strict=False)
        if mine != other
    ]


@pytest.mark.parametrize("seed", seeds(1))
def test_every_value_is_the_text_that_the_server_prints(
    database: Database, slot: Slot, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    with database.connect() as conn:
        random_rows(conn, Dice(seed))
        cases = create_cases(conn)
        for half in (0, 1):
            type_cases.insert(conn, "every_type", cases, half)
    in_text, in_binary = slot.transactions(), slot.transactions(binary="true")
    assert sum(frame.count(b"b") for raw in in_binary for frame in raw.frames) > 0
    expected = tabulate_plain(in_text)
    assert differing(tabulate_plain(in_binary), expected) == []
    assert_same(tabulate_plain(in_binary), expected)
    monkeypatch.setattr(columnar, "SMALL", 1)
    monkeypatch.setattr(columnar, "tabulate_plain", lambda *_: pytest.fail("fell back"))
    assert_same(tabulate(in_binary), expected)


def test_types_are_numbered_as_the_server_numbers_them(database: Database) -> None:
    def pairs(conn: Connection, query: str) -> dict[int, int]:
        return {int(oid): int(of) for oid, of in conn.execute(query).fetchall()}  # type: ignore[call-overload,arg-type]

    with database.connect() as conn:
        arrays = pairs(conn, "SELECT typarray::int, oid::int FROM pg_type WHERE typarray > 0 AND oid < 16384")
        ranges = pairs(conn, "SELECT rngtypid::int, rngsubtype::int FROM pg_range WHERE rngtypid < 16384")
        multiranges = pairs(conn, "SELECT rngmultitypid::int, rngsubtype::int FROM pg_range WHERE rngtypid < 16384")
        delimiters = conn.execute(
            "SELECT oid::int FROM pg_type WHERE typdelim <> ',' AND typcategory <> 'A'"
        ).fetchall()
    assert binary_values.ARRAYS.items() <= arrays.items()
    assert (ranges, multiranges) == (binary_values.RANGES, binary_values.MULTIRANGES)
    assert delimiters == [(binary_values.BOX,)]


@pytest.mark.parametrize("kind", [*REFUSED, "mood[]", "regclass"])
def test_a_column_of_another_type_is_named_with_its_type_and_the_remedy(
    database: Database, slot: Slot, kind: str
) -> None:
    value = {"money": "1", "positive": "7", "mood": "well", "mood[]": "{well}", "regclass": "pg_class"}.get(kind, "a")
    with database.connect() as conn:
        type_cases.create_types(conn)
        conn.execute(f"CREATE TABLE odd (id int PRIMARY KEY, v {kind})")  # type: ignore[arg-type]
        conn.execute(f"INSERT INTO odd VALUES (1, CAST('{value}' AS {kind}))")  # type: ignore[arg-type]
    for decode in (tabulate, tabulate_plain):
        with pytest.raises(UnreadBinary, match=r"`public\.odd\.v` is of type `.*" + kind.strip("[]")) as refused:
            decode(slot.transactions(binary="true"))
    assert "remove `binary` from `source.decoding`" in refused.value.remedy
    assert len(tabulate(slot.transactions())) == 1


def test_a_stream_of_binary_values_lands_what_the_source_has(database: Database, tmp_path: Path) -> None:
    with database.connect() as conn:
        workload = Workload(conn, 4)
        workload.create_tables()
        conn.execute("CREATE TABLE odd (id int PRIMARY KEY, v money)")
        project = project_of(database, tmp_path, source={"decoding": {"binary": True}})
        with pytest.raises(UnreadBinary, match=r"`public\.odd\.v` is of type `money`"):
            once(project)
        conn.execute("DROP TABLE odd")
        once(project)
        workload.run(60)
        once(project)
    assert_equal_to_source(project, database)
