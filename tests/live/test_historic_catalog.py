"""What a change means is decided by the catalog of then: the receiver is behind, and the table was altered since."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.factory import source_view
from cdc_lake.errors import NoReplicaIdentity
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Missing, Relation, TableName, predecessors
from cdc_lake_testing.beside import until
from tests.conftest import Database
from tests.live.added_columns import layouts, words
from tests.live.test_evolution_live import project_of, receive

pytestmark = pytest.mark.live
T = TableName("public", "t")


def landed(database: Database, folder: Path, made: str, *steps: str, more: str = "") -> tuple[Project, list[Relation]]:
    """The layouts of `t` in bronze: it is made, a change of it is received, and then all that `steps` do at once."""
    project = project_of(database, folder, more)
    with database.connect() as conn:
        for statement in filter(None, map(str.strip, made.split(";"))):
            conn.execute(statement)
    receive(project)
    with database.connect() as conn:
        conn.execute("INSERT INTO t (id) VALUES (1)")
    receive(project)
    for step in steps:
        with database.connect() as conn:
            conn.execute(step)  # several statements are one transaction
    receive(project)
    return project, layouts(project, T)


def came_to(found: Sequence[Relation]) -> list[list[str]]:
    return [words(*pair) for pair in pairwise(found)]


PLAIN = "CREATE TABLE t (id int PRIMARY KEY, a text)"
PARTS = f"""{PLAIN} PARTITION BY RANGE (id);
CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100);
CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (100) TO (200);
INSERT INTO t VALUES (100)"""
REPLACED = """ALTER TABLE t ADD a_new text; UPDATE t SET a_new = 'x';
ALTER TABLE t RENAME a TO a_old; ALTER TABLE t RENAME a_new TO a"""
SWAPPED = "ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b"
INSIDE = """BEGIN; INSERT INTO t VALUES (2); ALTER TABLE t DROP a; INSERT INTO t VALUES (3);
ALTER TABLE t ADD b text; INSERT INTO t VALUES (4); COMMIT"""


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            [REPLACED, "INSERT INTO t VALUES (2)"],
            [["add column a_new string to t"], ["rename column a of t to a_old", "rename column a_new of t to a"]],
        ),
        (
            ["ALTER TABLE t ADD b text", "INSERT INTO t VALUES (2, 'a', 'b')", SWAPPED, "INSERT INTO t VALUES (3)"],
            [["add column b string to t"], ["rename column a of t to b", "rename column b of t to a"]],
        ),
        (
            ["ALTER TABLE t DROP a; ALTER TABLE t ADD a text", "INSERT INTO t VALUES (2)"],
            [["take column a of t for a new one", "drop column a of t", "add column a string to t"]],
        ),
        (
            ["INSERT INTO t VALUES (2)", "ALTER TABLE t DROP a; ALTER TABLE t ADD a text"],
            [["take column a of t for the one that it was"]],
        ),
        (
            ["INSERT INTO t VALUES (2)", "ALTER TABLE t DROP a; ALTER TABLE t ADD b text", "INSERT INTO t VALUES (3)"],
            [["keep column a of t, NULL from now on", "add column b string to t"]],
        ),
        (  # `a` may be gone already, and `b` have its name
            [INSIDE],
            [
                ["take column a of t for the one that it was"],
                ["keep column a of t, NULL from now on"],
                ["add column b string to t"],
            ],
        ),
    ],
)
def test_a_column_is_the_one_that_had_its_name_then(
    database: Database, tmp_path: Path, steps: list[str], expected: list[list[str]]
) -> None:
    _, found = landed(database, tmp_path, PLAIN, *steps)
    assert came_to(found) == expected


def test_who_waits_for_a_tables_lock_alters_it_behind_changes_of_greater_numbers(
    database: Database, tmp_path: Path
) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn, database.connect() as other:
        conn.execute(PLAIN)
        receive(project)
        conn.execute("INSERT INTO t VALUES (1)")
        receive(project)
        conn.execute("BEGIN; SELECT FROM t")
        alter = threading.Thread(target=lambda: other.execute("ALTER TABLE t DROP a, ADD a text"))
        alter.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
        until(lambda: conn.execute(waits).fetchone() == (1,))
        conn.execute("INSERT INTO t VALUES (2, 'of the column that is dropped'); COMMIT")
        alter.join()
        ((row, dropped),) = conn.execute(
            "SELECT t.xmin::text::int, a.xmin::text::int FROM t, pg_attribute AS a WHERE id = 2 AND attrelid = 't'::regclass AND attnum = 2"
        )
        assert dropped < row
    receive(project)
    assert [c.ambiguous for c in layouts(project, T)[-1].columns] == [False, True]


UNKNOWN = [["add column c int to t, rows before it unknown"]]
KNOWN = [["add column c int to t"]]


@pytest.mark.parametrize("made", [PLAIN, PARTS])
@pytest.mark.parametrize(
    ("alter", "expected", "missing"),
    [
        ("ADD c int", KNOWN, None),
        ("ADD c int DEFAULT 5", KNOWN, "5"),
        ("ADD c int NOT NULL DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT", KNOWN, "5"),
        ("ADD c int; ALTER TABLE t ALTER c SET DEFAULT 5", KNOWN, None),
        ("ADD c int DEFAULT 5; ALTER TABLE t ALTER c SET DEFAULT 6", KNOWN, "5"),
        ("ADD c int NOT NULL DEFAULT (random() * 9)::int; ALTER TABLE t ALTER c DROP DEFAULT", UNKNOWN, None),
        ("ADD c int DEFAULT (random() * 9)::int; ALTER TABLE t ALTER c DROP DEFAULT", UNKNOWN, None),
        (
            "ADD c int DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT; ALTER TABLE t ALTER a TYPE int USING 7",
            UNKNOWN,
            None,
        ),
    ],
)
def test_what_old_rows_hold_in_an_added_column_is_known_or_asked(
    database: Database, tmp_path: Path, made: str, alter: str, expected: list[list[str]], missing: str | None
) -> None:
    project, found = landed(database, tmp_path, made, f"ALTER TABLE t {alter}", "INSERT INTO t (id, c) VALUES (2, 1)")
    kinds = [one for one in came_to(found)[0] if "column c" in one]
    assert [kinds] == expected
    column = next(c for c in found[-1].columns if c.name == "c")
    assert (column.missing.text if column.missing is not None else None) == missing
    with source_view(project) as source:
        assert source.layout(T) == found[-1]


@pytest.mark.parametrize("made", [PLAIN, PARTS])
def test_a_column_that_is_generated_no_more_has_values_that_nobody_was_sent(
    database: Database, tmp_path: Path, made: str
) -> None:
    generated = f"{made}; ALTER TABLE t ADD c int GENERATED ALWAYS AS (id * 2) STORED"
    _, found = landed(
        database, tmp_path, generated, "ALTER TABLE t ALTER c DROP EXPRESSION", "INSERT INTO t VALUES (2)"
    )
    assert came_to(found) == UNKNOWN


@pytest.mark.parametrize("made", [PLAIN, PARTS])
@pytest.mark.parametrize("then", ["SELECT", "ALTER DOMAIN seven DROP DEFAULT"])
def test_the_default_of_a_domain_is_one_too(database: Database, tmp_path: Path, made: str, then: str) -> None:
    """PostgreSQL 18 keeps it, one before rewrites the table."""
    domain, alter = "CREATE DOMAIN seven AS int DEFAULT 7;", "ALTER TABLE t ADD c seven"
    _, found = landed(database, tmp_path, domain + made, f"{alter}; {then}", "INSERT INTO t (id) VALUES (2)")
    column = next(c for c in found[-1].columns if c.name == "c")
    assert column.missing in (Missing("7"), Missing(None))


@pytest.mark.parametrize("made", [PLAIN, PARTS])
def test_what_old_rows_hold_is_not_forgotten_when_the_table_is_rewritten(
    database: Database, tmp_path: Path, made: str
) -> None:
    files = "ALTER TABLE t ALTER a TYPE int USING 7"  # as VACUUM FULL does, and in a transaction
    _, found = landed(database, tmp_path, made, "ALTER TABLE t ADD c int DEFAULT 5", "INSERT INTO t (id) VALUES (2)")
    assert came_to(found) == KNOWN
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("ALTER TABLE t ALTER c DROP DEFAULT")
        conn.execute(files)
        conn.execute("INSERT INTO t (id) VALUES (3)")
    receive(project)
    newest = layouts(project, T)[-1]
    assert "add column c int to t" in words(found[0], newest)
    assert next(c.missing for c in newest.columns if c.name == "c") == next(
        c.missing for c in found[-1].columns if c.name == "c"
    )
    with database.connect() as conn:
        conn.execute("ALTER TABLE t ADD d int")
        conn.execute("INSERT INTO t (id) VALUES (4)")
    receive(project)
    assert words(newest, layouts(project, T)[-1]) == ["add column d int to t"], "nothing was rewritten since"


def test_a_table_that_is_rewritten_between_two_layouts_asks_once(database: Database, tmp_path: Path) -> None:
    project, found = landed(
        database, tmp_path, PLAIN, "ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT"
    )
    with database.connect() as conn:
        conn.execute("VACUUM FULL t")
        conn.execute("INSERT INTO t (id) VALUES (2)")
    receive(project)
    assert came_to(layouts(project, T)) == UNKNOWN
    assert len(found) == 1


MOVE = "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (code)"
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize(
    ("steps", "keys"),
    [
        ([MOVE, "UPDATE t SET a = 'x'"], [["id"], ["code"]]),
        (["UPDATE t SET a = 'x'", MOVE], [["id"]]),
        (["UPDATE t SET a = 'x'", MOVE, "UPDATE t SET a = 'y'"], [["id"], ["code"]]),
        ([f"UPDATE t SET a = 'x'; {MOVE}", "UPDATE t SET a = 'y'"], [["id"], ["code"]]),
        ([f"ALTER TABLE t RENAME id TO code2; ALTER TABLE t RENAME code TO id; {MOVE.replace('(code)', '(id)')}",
          "UPDATE t SET a = 'y'"], [["id"], ["id"]]),
        (["UPDATE t SET a = 'x'", "ALTER TABLE t RENAME id TO ident", "UPDATE t SET a = 'y'"], [["id"], ["ident"]]),
        (["UPDATE t SET a = 'x'", "DROP TABLE t"], [["id"]]),
    ],
)  # fmt: skip
def test_the_primary_key_is_the_one_of_then(
    database: Database, tmp_path: Path, identity: str, steps: list[str], keys: list[list[str]]
) -> None:
    made = f"CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL DEFAULT 7, a text); {FULL if identity == 'FULL' else ''}"
    _, found = landed(database, tmp_path, made, *steps)
    assert [list(one.primary_key) for one in found] == keys
    numbers = [[next(c.number for c in one.columns if c.name == name) for name in one.primary_key] for one in found]
    assert len(numbers) == 1 or numbers[0] != numbers[1] or keys[-1] == ["ident"]


LEAVES = """CREATE TABLE t (id int, region text, a text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE t_n PARTITION OF t FOR VALUES IN ('n'); CREATE TABLE t_s PARTITION OF t DEFAULT;
CREATE UNIQUE INDEX t_s_a ON t_s (id, region, a); ALTER TABLE t_s ALTER a SET NOT NULL, ALTER a SET DEFAULT ''"""
BY_INDEX = "ALTER TABLE t_s REPLICA IDENTITY USING INDEX t_s_a"


@pytest.mark.parametrize(
    ("identities", "identity", "keys", "mixed"),
    [
        ("", "d", "id region", False),
        (FULL, "d", "id region", True),
        (f"{FULL}; ALTER TABLE t_n REPLICA IDENTITY FULL", "d", "id region", True),
        (
            f"{FULL}; ALTER TABLE t_n REPLICA IDENTITY FULL; ALTER TABLE t_s REPLICA IDENTITY FULL",
            "f",
            "id region a",
            False,
        ),
        (f"{FULL}; ALTER TABLE t_n REPLICA IDENTITY FULL; {BY_INDEX}", "f", "id region a", False),
        (f"ALTER TABLE t_n REPLICA IDENTITY FULL; {BY_INDEX}", "d", "id region", False),
    ],
)
def test_a_partitioned_table_logs_what_its_partitions_log(
    database: Database, tmp_path: Path, identities: str, identity: str, keys: str, mixed: bool
) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute(f"{LEAVES}; {identities}")
        receive(project)
        conn.execute("INSERT INTO t VALUES (1, 'n', ''), (2, 's', '')")
        conn.execute("UPDATE t SET id = id + 10")
        receive(project)
    (found,) = layouts(project, T)
    assert (found.identity.value, found.mixed) == (identity, mixed)
    assert " ".join(c.name for c in found.columns if c.key) == keys
    with source_view(project) as source:
        assert source.layout(T) == found


def test_a_delete_says_which_row_went_whatever_its_partition_logs(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute(f"{LEAVES}; {FULL}; ALTER TABLE t_n REPLICA IDENTITY FULL")
        conn.execute(f"{BY_INDEX}; ALTER TABLE t ADD b text")
        receive(project)
        conn.execute("INSERT INTO t VALUES (1, 'n', 'x', 'b'), (2, 's', 'y', 'b')")
        conn.execute("UPDATE t SET id = id + 10")
        conn.execute("DELETE FROM t")
        receive(project)
    reader = bronze_reader(project)
    (found,) = layouts(project, T)
    assert (found.mixed, [c.name for c in found.columns if c.key]) == (True, ["id", "region", "a"])
    rows = reader.changes(T, Span(1, 0, 1 << 62)).to_pylist()
    assert {tuple(row["old"]) for row in rows if row["op"] == "D"} == {("11", "n", "x", "b"), ("12", "s", "y", None)}
    assert {tuple(row["old"][:3]) for row in rows if row["op"] == "U"} == {("1", "n", "x"), ("2", "s", "y")}


def test_the_identity_of_a_partition_is_the_one_of_then(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    whole = f"{FULL}; ALTER TABLE t_n REPLICA IDENTITY FULL; ALTER TABLE t_s REPLICA IDENTITY FULL"
    with database.connect() as conn:
        conn.execute(f"{LEAVES}; {FULL}")
        receive(project)
        conn.execute("INSERT INTO t VALUES (1, 'n', ''), (2, 's', '')")
        conn.execute(f"{whole}")
        conn.execute("UPDATE t SET a = 'x'")
        conn.execute("ALTER TABLE t_n REPLICA IDENTITY DEFAULT")
        conn.execute("UPDATE t SET id = id + 10")
        receive(project)
    reader = bronze_reader(project)
    rows = reader.changes(T, Span(1, 0, 1 << 62)).to_pylist()
    found = reader.layouts([T])
    assert [(row["op"], found[row["layout"]].mixed) for row in rows] == [
        *[("I", True)] * 2,
        ("U", True),  # the other partition was last announced with the key alone
        ("U", False),
        *[("U", True)] * 2,
    ]


STREAMED = pytest.mark.parametrize("streamed", [False, True])


def stream_each_change(database: Database) -> None:
    """Have the server send transactions before they commit, as it does with large ones."""
    with database.admin() as admin:
        if admin.info.server_version < 160_000:
            pytest.skip("the server streams large transactions only")
        admin.execute(f'ALTER DATABASE "{database.name}" SET debug_logical_replication_streaming = immediate')


@STREAMED
def test_changes_of_a_table_that_had_another_name_for_a_while_are_its_own(
    database: Database, tmp_path: Path, *, streamed: bool
) -> None:
    if streamed:
        stream_each_change(database)
    away = "ALTER TABLE t RENAME TO away; UPDATE away SET a = 'meanwhile'; ALTER TABLE away RENAME TO t"
    project, found = landed(database, tmp_path, PLAIN, away)
    assert {one.table for one in found} == {T}
    assert bronze_reader(project).changes(T, Span(1, -1, 2**62))["op"].to_pylist() == ["I", "U"]


@STREAMED
@pytest.mark.parametrize("gone", ["ALTER TABLE t DETACH PARTITION t_s", "DROP TABLE t_s"])
def test_the_identity_of_a_partition_that_is_gone_counts_too(
    database: Database, tmp_path: Path, gone: str, *, streamed: bool
) -> None:
    project = project_of(database, tmp_path)
    if streamed:
        stream_each_change(database)
    with database.connect() as conn:
        conn.execute(f"{LEAVES}; {FULL}; ALTER TABLE t_n REPLICA IDENTITY FULL")
        receive(project)
        conn.execute("INSERT INTO t VALUES (1, 'n', ''), (2, 's', '')")
        conn.execute("UPDATE t SET id = id + 10 WHERE region = 's'")
        conn.execute(gone)
        receive(project)
    reader = bronze_reader(project)
    rows, found = reader.changes(T, Span(1, 0, 1 << 62)).to_pylist(), reader.layouts([T])
    assert [found[row["layout"]].mixed for row in rows if row["op"] == "U"] == [True]


def test_a_partition_that_does_not_log_the_key_is_refused_before_it_is_published(
    database: Database, tmp_path: Path
) -> None:
    """What the hint says is done, and the application's updates go on."""
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("""CREATE TABLE t (id int, a text) PARTITION BY RANGE (id);
            CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
            CREATE TABLE t_1_1 PARTITION OF t_1 DEFAULT; CREATE TABLE t_2 PARTITION OF t DEFAULT""")
        conn.execute("INSERT INTO t VALUES (1), (200)")
        for bare in ("public.t, public.t_1_1, public.t_2", "public.t_1_1"):
            with pytest.raises(NoReplicaIdentity, match=f"identity: {bare}\n") as caught:
                receive(project)
            conn.execute(caught.value.remedy.split("run: ")[1].rpartition("; or")[0])
            if bare != "public.t_1_1":
                conn.execute("ALTER TABLE t_1_1 REPLICA IDENTITY DEFAULT")
        receive(project)
        conn.execute("UPDATE t SET a = 'x'")
        receive(project)
    assert layouts(project, T)[-1].identity.value == "f"


@STREAMED
def test_changes_that_came_under_a_partitions_name_for_a_while_are_its_roots(
    database: Database, tmp_path: Path, *, streamed: bool
) -> None:
    """Somebody turned `publish_via_partition_root` off, and on again before the receiver's next start."""
    project = project_of(database, tmp_path)
    if streamed:
        stream_each_change(database)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int, a text, b text, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
        conn.execute("CREATE TABLE t_1 (b text, gone int, id int NOT NULL, a text); ALTER TABLE t_1 DROP gone")
        conn.execute("ALTER TABLE t ATTACH PARTITION t_1 DEFAULT")
        receive(project)
        conn.execute("INSERT INTO t VALUES (1, 'a', 'b')")
        receive(project)
        conn.execute(f"ALTER PUBLICATION {project.publication} SET (publish_via_partition_root = false)")
        conn.execute("INSERT INTO t VALUES (2, 'a2', 'b2')")
        conn.execute("UPDATE t SET b = 'x' WHERE id = 1")
        conn.execute("TRUNCATE t_1")
        conn.execute("INSERT INTO t VALUES (3, 'a3', 'b3')")
        conn.execute(f"ALTER PUBLICATION {project.publication} SET (publish_via_partition_root = true)")
        conn.execute("DELETE FROM t WHERE id = 3")
        receive(project)
    reader = bronze_reader(project)
    found, rows = reader.layouts([T]), reader.changes(T, Span(1, 0, 1 << 62)).to_pylist()
    assert [row["op"] for row in rows] == ["I", "I", "U", "I", "D"]
    newest = found[rows[0]["layout"]]
    for row, wanted in zip(
        rows, (["1", "a", "b"], ["2", "a2", "b2"], ["1", "a", "x"], ["3", "a3", "b3"]), strict=False
    ):
        places = predecessors(found[row["layout"]], newest)
        assert [row["new"][place or 0] for place in places] == wanted
    assert {one.table for one in reader.layouts().values()} == {T}


def test_changes_that_land_under_a_partitions_name_are_found(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause that was mended, planted again."""
    monkeypatch.setattr("cdc_lake.decode.pgoutput.relations._of_root", lambda relation, _: relation)
    with pytest.raises(AssertionError, match="'D'"):
        test_changes_that_came_under_a_partitions_name_for_a_while_are_its_roots(database, tmp_path, streamed=False)
