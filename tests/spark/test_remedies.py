"""Remedies of silver that work: tables break, each in a way of its own, what is said of it is done at once, and silver is
what the source has.

All tables are of one pipeline and break together, so that one run says what is wrong with each and its neighbour goes on.
The commands are taken from what `status` prints, and done as often as it prints some.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, write_deltalake

from cdc_lake.config.loader import load_project
from cdc_lake.runtime.apply import key_following
from cdc_lake.runtime.maintain import maintain
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.silver_table import PIPELINE, STREAM
from cdc_lake.tables.spark_session import RUNTIME_SETTINGS
from tests.conftest import CDC_PASSWORD, INTERPRETED, Database, drop_database, make_database
from tests.shell import QuickShell

from .conftest import BUDGET

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    pytest.mark.timeout(1200),
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
COMMAND = re.compile(r"`cdc-lake ([a-z][^`]*)`")
ONCE = ("run", "--once")
ROUNDS = 4  # one remedy may lead to the next
Step = Callable[["Shop", str], None]


@dataclass(frozen=True)
class Case:
    """`first`: the table's section of the pipeline file, `then`: from when it breaks, `mended`: as the hint says in
    words; `mend`: the same at the source or in the lake; `only`: the commands that are done, where a hint leaves a choice;
    `made`: how the table is made, where it is another one than most.
    """

    code: str
    breaks: Step | None = None
    first: dict[str, Any] = field(default_factory=dict)
    then: dict[str, Any] | None = None
    mended: dict[str, Any] | None = None
    mend: Step | None = None
    only: tuple[str, ...] = ("rebuild", "resync", "run")
    made: Step | None = None


def sql(*statements: str) -> Step:
    return lambda shop, table: shop.change(*(statement.replace("@", table) for statement in statements))


def stranger(work: Callable[[DeltaTable], object]) -> Step:
    return lambda shop, table: (work(shop.silver(table)), None)[1]


def stolen(shop: Shop, table: str) -> None:
    """Another pipeline took the table."""
    properties = f"'{PIPELINE}' = 'other', '{STREAM}' = 'pg:1:elsewhere:other:0/10'"
    shop.spark.sql(f"ALTER TABLE delta.`{shop.silver_path(table)}` SET TBLPROPERTIES ({properties})")
    shop.silver(table).delete("id < 3")


def forgotten(shop: Shop, table: str) -> None:
    control_tables(load_project(shop.file)).delete("quarantine", pc.field("relation") == f"public.{table}")


CASES: dict[str, Case] = {
    "dropped": Case("LAK410", sql("ALTER TABLE @ DROP n"), {"on_drop": "drop"}),
    "retyped": Case("LAK410", sql("ALTER TABLE @ ALTER n TYPE text")),
    "drawn": Case("LAK410", sql("ALTER TABLE @ ADD u uuid NOT NULL DEFAULT gen_random_uuid()"), only=("resync",)),
    "recast": Case("LAK456", sql("ALTER TABLE @ ALTER f TYPE text")),
    "failing": Case(
        "LAK413",
        sql("INSERT INTO @ (id, body) VALUES (40, 'none')"),
        {"compute": {"x": "CAST(body AS INT)"}},
        mended={"compute": {"x": "try_cast(body AS INT)"}},
    ),
    "other_kind": Case("LAK451", then={"kind": "history"}),
    "copies": Case(
        "LAK451", sql("ALTER TABLE @ REPLICA IDENTITY FULL", "ALTER TABLE @ DROP CONSTRAINT @_pkey"), only=("resync",)
    ),
    "keyless": Case(
        "STA610", sql("ALTER TABLE @ DROP CONSTRAINT @_pkey"), mend=sql("ALTER TABLE @ ADD PRIMARY KEY (id)")
    ),
    "put_back": Case("LAK466", stranger(lambda silver: silver.restore(0))),
    "forward_again": Case(
        "LAK466",
        stranger(lambda silver: silver.restore(0)),
        mend=stranger(lambda silver: silver.restore(silver.version() - 1)),
        only=(),
    ),
    "written": Case("LAK467", stranger(lambda silver: silver.delete("id = 3"))),
    "stolen": Case("LAK469", stolen),
    "widened": Case("LAK457", stranger(lambda silver: silver.alter.add_columns(Field("segment", "string")))),
    "divided": Case("LAK477", then={"partition_by": ["n"]}),
    "reformed": Case(
        "LAK476", sql("ALTER TABLE @ ADD grade int DEFAULT 7"), then={"where": "grade > 5", "rename": {"grade": "mark"}}
    ),
    "unfit": Case("LAK475", then={"where": "nothing > 1"}, mended={}),
    "declared": Case("LAK479", then={"types": {"columns": {"n": "date"}}}, mended={}),
    "named": Case(
        "LAK450",
        sql("ALTER TABLE @ ADD _lsn text"),
        {"lineage": True},
        mended={"lineage": True, "rename": {"_lsn": "lsn"}},
    ),
    "hidden": Case(
        "LAK450",
        sql("ALTER TABLE @ ADD is_current bool"),
        {"kind": "history"},
        mended={"kind": "history", "exclude": ["is_current"]},
    ),
    "tracked": Case(
        "LAK452",
        sql("UPDATE @ SET f = 9 WHERE id = 1"),
        {"kind": "history", "track": ["n"]},
        {"kind": "history", "track": ["nothing"]},
        {"kind": "history", "track": ["n"]},
    ),
    "unlogged": Case(
        "STA610",
        sql("UPDATE @ SET f = 9 WHERE id = 1"),
        then={"keys": ["n"]},
        mend=sql("ALTER TABLE @ REPLICA IDENTITY FULL"),
    ),
    "moved_key": Case(
        "STA610",
        sql(
            "BEGIN; UPDATE @ SET n = 50 WHERE id = 1; ALTER TABLE @ DROP CONSTRAINT @_pkey, ADD PRIMARY KEY (n);"
            " UPDATE @ SET n = 51 WHERE id = 2; COMMIT"
        ),
    ),
    "gone": Case("STA612", lambda shop, table: shutil.rmtree(shop.silver_path(table))),
    "unheld": Case(
        "STA613", forgotten, {"rules": [{"rule": "between", "column": "n", "max": 99, "on_fail": "quarantine"}]}
    ),
    "misjudged": Case(
        "QUA502", then={"rules": [{"rule": "between", "column": "n", "max": "much", "on_fail": "warn"}]}, mended={}
    ),
    "unjudged": Case(
        "QUA503", then={"rules": [{"rule": "not_null", "column": "nothing", "on_fail": "warn"}]}, mended={}
    ),
    "Twin": Case(
        "LAK493",
        sql('CREATE TABLE "@" (id int PRIMARY KEY, n int)', 'INSERT INTO "@" VALUES (7, 7)'),
    ),
}
BESIDE = "twin"
KEYED = ("unlogged", "moved_key")
LAYOUT = "(id int PRIMARY KEY, n int, f float8, body text)"
ROWS = "SELECT g, g, g, repeat(md5(g::text), 200) FROM generate_series(1, 5) g"
LATE: dict[str, Case] = {
    "partial": Case(
        "LAK411",
        sql("UPDATE @ SET n = 50 WHERE id = 1"),
        made=sql(f"CREATE TABLE @ {LAYOUT}", "ALTER TABLE @ ALTER body SET STORAGE EXTERNAL", f"INSERT INTO @ {ROWS}"),
    ),
    "crowd": Case("LAK472", sql("UPDATE @ SET id = id + 100")),
    "parts": Case(
        "STA610",
        sql("ALTER TABLE @_all REPLICA IDENTITY DEFAULT", "UPDATE @ SET n = 50 WHERE id = 1"),
        mend=sql("ALTER TABLE @_all REPLICA IDENTITY FULL"),
        made=sql(
            "CREATE TABLE @ (id int NOT NULL, n int, f float8, body text) PARTITION BY RANGE (id)",
            "CREATE TABLE @_all PARTITION OF @ DEFAULT",
            "ALTER TABLE @_all ADD PRIMARY KEY (id), REPLICA IDENTITY FULL",
            "ALTER TABLE @ REPLICA IDENTITY FULL",
            "INSERT INTO @ SELECT g, g FROM generate_series(1, 5) g",
        ),
    ),
}
"""Of a pipeline whose stream begins without a copy."""


@dataclass
class Shop:
    """The pipeline, its source, and what was said of each table; `meanwhile`: the neighbour's rows while they waited."""

    spark: Any
    shell: QuickShell
    database: Database
    cases: dict[str, Case]
    snapshot: str = "initial"
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    codes: dict[str, list[str]] = field(default_factory=dict)
    meanwhile: tuple[int, ...] = ()
    verdicts: dict[str, str] = field(default_factory=dict)
    planned: list[str] = field(default_factory=list)
    compared: list[dict[str, Any]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.shell.folder / "pipelines" / "shop.yaml"

    def write(self, **sections: dict[str, Any]) -> None:
        """The pipeline file, with other sections of some tables."""
        self.sections |= sections
        tables = [{"from": f"public.{name}", **given} for name, given in self.sections.items() if given]
        source = {**self.database.source, "password": "${env:PGPASSWORD}", "slot": {"name": self.database.name}}
        values = {"version": 1, "pipeline": "shop", "source": source, "silver": {"tables": tables}}
        values["snapshot"] = {"mode": self.snapshot}
        if "drawn" in self.cases:
            values["bronze"] = {"redact": [{"columns": ["public.drawn.body"], "strategy": None}]}
        self.file.write_text(json.dumps(values), encoding="utf-8")

    def change(self, *statements: str) -> None:
        with self.database.connect() as db:
            for statement in statements:
                db.execute(statement.encode())

    def silver_path(self, table: str) -> Path:
        return self.shell.folder / "lake" / "silver" / table

    def silver(self, table: str) -> DeltaTable:
        return DeltaTable(str(self.silver_path(table)))

    def ids(self, table: str) -> tuple[int, ...]:
        return tuple(sorted(self.silver(table).to_pyarrow_table()["id"].to_pylist()))

    def insert(self, id_: int) -> None:
        self.change(*(f'INSERT INTO "{table}" (id) VALUES ({id_})' for table in self.cases if table not in KEYED))
        keyed = [*KEYED, BESIDE] if self.cases is CASES else []
        self.change(*(f"INSERT INTO {table} (id, n) VALUES ({id_}, {id_})" for table in keyed))

    def waiting(self) -> dict[str, tuple[str, str]]:
        """Code and remedy of each table that waits, as printed."""
        tables = json.loads(self.shell.fine("status", "--json"))["tables"]
        return {t["source"].removeprefix("public."): (t["code"], t["remedy"]) for t in tables if t["state"] == "failed"}

    def obey(self, first: bool) -> None:
        """Do what is said of each table that waits, and run."""
        copied, options = [], []
        for table, (code, remedy) in self.waiting().items():
            case = self.cases[table]
            self.codes.setdefault(table, []).append(code)
            if first and case.mend is not None:
                case.mend(self, table)
            if first and case.mended is not None:
                self.write(**{table: case.mended})
            for command in COMMAND.findall(remedy):
                match shlex.split(command):
                    case [verb, *_] if verb not in case.only:
                        pass
                    case ["resync", *words]:
                        copied += words
                    case ["run", *words]:
                        options += words
                    case words:
                        self.shell.fine(*words)
        if copied:
            self.shell.fine("resync", *copied)
        self.shell(*ONCE, *options)

    def break_all(self) -> str:
        """Each table breaks in its way; what a run says."""
        for table, case in self.cases.items():
            if case.breaks is not None:
                case.breaks(self, table)
        self.write(**{table: case.then for table, case in self.cases.items() if case.then is not None})
        self.insert(41)
        said = self.shell(*ONCE)
        assert said.code == 1, said.err
        return said.err

    def mend_all(self) -> None:
        """What is said of each is done; then all are compared."""
        for number in range(ROUNDS):
            if self.waiting():
                self.obey(first=number == 0)
        self.insert(42)
        self.shell(*ONCE)
        compared = json.loads(self.shell("compare", "--json").out)
        self.verdicts = {t["table"].removeprefix("public."): t["verdict"] for t in compared["tables"]}


@pytest.fixture(scope="module")
def opened(
    spark: Any, server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[dict[str, Case]], Shop]]:
    """Shops whose tables are made."""
    databases = []

    def shop(cases: dict[str, Case]) -> Shop:
        database, folder = make_database(server), tmp_path_factory.mktemp("remedies")
        databases.append(database)
        (folder / "pipelines").mkdir()
        shell = QuickShell(folder, {"PGPASSWORD": database.password})
        shop = Shop(spark, shell, database, cases, sections={t: c.first for t, c in cases.items()})
        for table, case in cases.items():
            if case.made is not None:
                case.made(shop, table)
            elif table != "Twin":
                plain(shop, table)
        return shop

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", CDC_PASSWORD)
        for key, value in INTERPRETED.items() if BUDGET == 1 else ():
            patch.setitem(RUNTIME_SETTINGS, key, value)
        yield shop
    for database in databases:
        drop_database(database)


plain = sql(f"CREATE TABLE @ {LAYOUT}", "INSERT INTO @ SELECT g, g, g, g FROM generate_series(1, 5) g")


@pytest.fixture(scope="module")
def shop(opened: Callable[[dict[str, Case]], Shop]) -> Shop:
    shop = opened(CASES)
    plain(shop, BESIDE)
    shop.change("UPDATE unheld SET n = 200 WHERE id = 5")
    write_deltalake(str(shop.silver_path(BESIDE)), pa.table({"whose": ["a stranger's"]}))
    shop.write()
    refused = shop.shell(*ONCE)
    assert "error[LAK469]" in refused.err, refused.err
    (command,) = COMMAND.findall(refused.err)
    shop.shell.fine(*shlex.split(command), "--once")
    said = shop.break_all()
    if "`public.Twin` and `public.twin` would both be written" in said:  # it was not in silver yet
        shop.codes["Twin"] = ["LAK493"]
        shop.write(Twin={"to": "other_twin"})
    shop.meanwhile = shop.ids(BESIDE)
    shop.mend_all()
    return shop


@pytest.fixture(scope="module")
def late(opened: Callable[[dict[str, Case]], Shop]) -> Shop:
    shop = opened(LATE)
    shop.snapshot = "none"
    shop.write()
    shop.shell.fine(*ONCE)
    shop.insert(40)
    shop.shell.fine(*ONCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_following, "FOLLOWED_AT_MOST", 3)
        shop.break_all()
        shop.planned = [action["text"] for action in json.loads(shop.shell.fine("plan", "--json"))["actions"]]
        shop.compared = json.loads(shop.shell("compare", "--json").out)["tables"]
        shop.mend_all()
    return shop


@pytest.mark.parametrize("table", CASES)
def test_what_is_said_of_a_table_that_waits_is_done_at_once_and_it_is_what_the_source_has(
    shop: Shop, table: str
) -> None:
    assert shop.codes[table][0] == CASES[table].code
    assert table not in shop.waiting()
    assert shop.verdicts[table].startswith("equal"), shop.verdicts


@pytest.mark.parametrize("table", LATE)
def test_the_same_where_the_stream_began_without_a_copy(late: Shop, table: str) -> None:
    assert late.codes[table][0] == LATE[table].code
    assert table not in late.waiting()
    assert late.verdicts[table].startswith("equal"), late.verdicts


@pytest.mark.parametrize("table", LATE)
def test_plan_and_compare_say_why_a_table_waits(late: Shop, table: str) -> None:
    code = f"[{LATE[table].code}]"
    assert [table in text for text in late.planned if code in text] == [True], late.planned
    assert [one["silver"].endswith(f".{table}") for one in late.compared if code in one["reason"]] == [True], (
        late.compared
    )


PAST: dict[str, Case] = {
    "recast_past": Case("LAK456", sql("ALTER TABLE @ ALTER f TYPE text"), {"kind": "history"}),
    "recast_soft": Case("LAK456", sql("ALTER TABLE @ ALTER body TYPE int USING 7"), {"deletes": "soft"}),
}
"""Tables that keep a past, of which values cannot be converted."""


def test_a_table_that_keeps_a_past_goes_on_in_another_one_where_its_values_cannot_be_converted(
    opened: Callable[[dict[str, Case]], Shop],
) -> None:
    shop = opened(PAST)
    shop.change("UPDATE recast_soft SET body = 'no number' WHERE id = 5")
    shop.write()
    shop.shell.fine(*ONCE)
    shop.break_all()
    while options := [
        word
        for _, remedy in shop.waiting().values()
        for command in COMMAND.findall(remedy)
        if command.startswith("run")
        for word in shlex.split(command)[1:]
    ]:
        shop.shell(*ONCE, *options)
    for code, remedy in shop.waiting().values():
        assert code == "LAK456"
        assert "(`to`), then run `cdc-lake restart`" in remedy
    shop.write(**{table: {**case.first, "to": f"{table}_2"} for table, case in PAST.items()})
    shop.shell.fine("restart", "--yes")
    shop.mend_all()
    assert dict.fromkeys(PAST, "equal") == shop.verdicts
    assert [shop.ids(table) for table in PAST] == [(1, 2, 3, 4, 5)] * 2, "their pasts are there"


@pytest.mark.obeys("STA665")
def test_a_table_whose_transactions_left_bronze_is_copied_again_while_the_others_go_on(
    opened: Callable[[dict[str, Case]], Shop],
) -> None:
    shop = opened({"behind": Case("LAK410", sql("ALTER TABLE @ DROP n"), {"on_drop": "drop"}), "level": Case("")})
    shop.write()
    values = json.loads(shop.file.read_text(encoding="utf-8"))
    shop.file.write_text(json.dumps({**values, "bronze": {"retention": {"min_age": "1 d"}}}), encoding="utf-8")
    shop.shell.fine(*ONCE)
    shop.change("ALTER TABLE behind DROP n")
    shop.insert(41)
    shop.shell(*ONCE)
    maintain(load_project(shop.file), force=True, started_at=datetime.now(UTC) + timedelta(days=2))
    shop.insert(43)
    said = shop.shell(*ONCE)
    assert "error[STA665]" in said.err
    assert (shop.ids("level"), shop.ids("behind")) == ((1, 2, 3, 4, 5, 41, 43), (1, 2, 3, 4, 5))
    ((code, remedy),) = shop.waiting().values()
    assert code == "STA665"
    (command,) = COMMAND.findall(remedy)
    shop.shell.fine(*shlex.split(command))
    shop.mend_all()
    assert shop.verdicts == {"behind": "equal", "level": "equal"}


def test_a_table_beside_them_went_on(shop: Shop) -> None:
    assert shop.meanwhile == (1, 2, 3, 4, 5, 41)
    assert shop.verdicts[BESIDE] == "equal"


def test_a_redacted_column_stays_redacted_in_a_table_that_was_copied_again(shop: Shop) -> None:
    rows = shop.silver("drawn").to_pyarrow_table()
    assert (rows["body"].null_count, rows["u"].null_count, rows.num_rows) == (7, 0, 7)


def test_a_rule_that_stops_names_table_and_transaction_and_goes_on_as_its_hint_says(shop: Shop) -> None:
    rule = {"rule": "not_null", "column": "n"}
    shop.write(**{BESIDE: {"rules": [{**rule, "on_fail": "stop"}]}})
    shop.change(f"INSERT INTO {BESIDE} (id) VALUES (60)")
    said = shop.shell(*ONCE)
    assert (said.code, "error[QUA501]" in said.err) == (5, True), said.err
    assert f"`not_null_n` of silver.{BESIDE} stops the run: a change of public.{BESIDE}" in said.err
    (look,) = COMMAND.findall(said.err)
    assert "60" in shop.shell.fine(*shlex.split(look)), "the key"
    shop.write(**{BESIDE: {"rules": [{**rule, "on_fail": "quarantine"}]}})
    shop.shell.fine(*ONCE)
    assert 60 not in shop.ids(BESIDE)


def test_a_table_whose_keys_identify_no_rows_is_what_the_source_has_after_what_compare_says(shop: Shop) -> None:
    def compared() -> dict[str, Any]:
        (table,) = json.loads(shop.shell("compare", "unlogged", "--json").out)["tables"]
        return table

    assert shop.sections["unlogged"] == {"keys": ["n"]}
    shop.change("INSERT INTO unlogged (id, n) VALUES (70, NULL), (71, NULL), (72, NULL)")
    shop.shell(*ONCE)
    assert compared()["text"] == "equal but for 1 quarantined key"
    shop.change("INSERT INTO unlogged (id, n) VALUES (73, 1)")
    shop.shell(*ONCE)
    said = compared()
    assert (said["verdict"], said["repeated"]) == ("different", 1), said
    (command,) = COMMAND.findall(said["hint"])
    shop.write(unlogged={"keys": ["id"]})
    shop.shell.fine(*shlex.split(command.replace("TABLE", "unlogged")))
    shop.shell(*ONCE)
    assert compared()["text"] == "equal", "nothing is held any more"
