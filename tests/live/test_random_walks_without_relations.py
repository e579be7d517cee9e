"""The same walks where the stream announces no layouts: test_decoding, and the GaussDB family's plugin on the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.decode.gaussdb.records import Style
from cdc_lake_testing.altered import MADE
from tests.conftest import Database
from tests.live.test_gaussdb_receive import project_of as family_project
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_random_walks import BUDGET, RECEIVED, Round, printing
from tests.live.test_receive_loop import once, project_of
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture
from tests.seeds import seeds

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

LEFT_OUT = frozenset({"parts", "nothing"})
"""Partitions are tables of their own here. REPLICA IDENTITY NOTHING is left out for what is known to go wrong: a key that
is updated under it is taken for another row, and the catalog keeps no trace of it.
"""
SEEDS = seeds(100 if BUDGET > 1 else 1)
KINDS = [Kind(style, by_csn=True) for style in Style]
"""Each of them has a quarter of the rounds; in CI one of them, by the seed, has the only one."""


@pytest.mark.parametrize("seed", SEEDS)
def test_walks_over_test_decoding_end_equal_or_wait_for_what_mends_them(
    database: Database, tmp_path: Path, seed: int
) -> None:
    project = project_of(database, tmp_path, source={"slot": {"plugin": "test_decoding"}})
    with printing(database) as conn:
        walks = Round(conn, project, seed)
        walks.run(lambda: once(project), without=LEFT_OUT)
    print(walks.outcomes)


@pytest.mark.parametrize("seed", SEEDS)
def test_walks_over_the_family_end_equal_or_wait_for_what_mends_them(
    stand_in: StandIn, tmp_path: Path, seed: int
) -> None:
    kind = KINDS[seed % len(KINDS)]
    project = family_project(stand_in, kind, tmp_path)
    with printing(stand_in.database) as conn:
        walks = Round(conn, project, seed)
        # parallel decoding sends no TRUNCATE
        walks.run(lambda: once(project), without=LEFT_OUT if kind.style is Style.SERIAL else LEFT_OUT | {"truncates"})
    print(walks.outcomes)


OF_THE_FAMILY = {
    "a default that the server writes into the rows is asked for": (
        f"""INSERT INTO t (id, k) VALUES (21, 1);
            {RECEIVED}
            ALTER TABLE t ADD c json NOT NULL DEFAULT '7';
            ALTER TABLE t ALTER c DROP DEFAULT;
            ALTER TABLE t ALTER c DROP NOT NULL;
            {RECEIVED}
            INSERT INTO t (id, k) VALUES (22, 2);""",
        "doubted",
    ),
    "a value is as wide as its column was then": (
        f"""ALTER TABLE t ADD c char(5), ADD d numeric(6,2)
            INSERT INTO t VALUES (21, 1021, 1, 'x', '9', 1.23)
            {RECEIVED}
            UPDATE t SET a = 5 WHERE id = 21
            ALTER TABLE t ALTER c TYPE char(9), ALTER d TYPE numeric(8,4)
            {RECEIVED}
            INSERT INTO t VALUES (22, 1022, 1, 'x', '8', 1.2345)""",
        "allowed",
    ),
    "one transaction changes rows and widths": (
        f"""ALTER TABLE t ADD c char(5), ADD d numeric(6,2)
            INSERT INTO t VALUES (21, 1021, 1, 'x', '9', 1.23)
            {RECEIVED}
            DO $$ BEGIN UPDATE t SET a = 5 WHERE id = 21; ALTER TABLE t ALTER c TYPE char(9), ALTER d TYPE numeric(8,4); INSERT INTO t VALUES (22, 1022, 1, 'x', '8', 1.2345); END $$
            {RECEIVED}
            INSERT INTO t VALUES (23, 1023, 1, 'x', '7', 1.2345)""",
        "allowed",
    ),
    "a column behind a dropped one is known from the copy on": (
        f"""ALTER TABLE t DROP a
            INSERT INTO t VALUES (21, 1021, 'x')
            {RECEIVED}
            ALTER TABLE t ADD c int
            INSERT INTO t VALUES (22, 1022, 'y', 7)""",
        "equal",
    ),
    "rows that come while there is no key are whole in later updates": (
        f"""ALTER TABLE t DROP CONSTRAINT t_pkey
            INSERT INTO t SELECT 21, 1021, 1, string_agg(md5(n::text), '') FROM generate_series(1, 300) AS n
            ALTER TABLE t ADD PRIMARY KEY (id)
            {RECEIVED}
            UPDATE t SET a = 2 WHERE id = 21""",
        "equal",
    ),
}
"""What walks found, and how it ends."""


@pytest.mark.parametrize("name", OF_THE_FAMILY)
def test_what_walks_found_of_the_family(stand_in: StandIn, tmp_path: Path, name: str) -> None:
    project, (script, ends) = family_project(stand_in, KINDS[0], tmp_path), OF_THE_FAMILY[name]
    with printing(stand_in.database) as conn:
        walks = Round(conn, project, 1)
        walks.direct(lambda: once(project), "plain", script)
    assert walks.outcomes == {ends: 1}


ROWS = "INSERT INTO t SELECT id, 1000 + id, 10, 'x' FROM generate_series(11, 14) AS id"
BY_K = "CREATE UNIQUE INDEX t_by_k ON t (k)"
USING_K = "ALTER TABLE t REPLICA IDENTITY USING INDEX t_by_k"
DEFAULT = "ALTER TABLE t REPLICA IDENTITY DEFAULT"
SAVED = "BEGIN {}; EXCEPTION WHEN OTHERS THEN RAISE; END;"
KEY = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY"
IDENTITIES = {
    "an index takes over": f"""{ROWS}
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        UPDATE t SET k = 8 WHERE id = 13
        {BY_K}
        {USING_K}
        UPDATE t SET a = 1 WHERE id = 14
        UPDATE t SET id = 15 WHERE k = 8""",
    "an index leaves": f"""{ROWS}
        {BY_K}
        {USING_K}
        INSERT INTO t VALUES (16, 1016)
        {RECEIVED}
        UPDATE t SET id = 15 WHERE id = 12
        UPDATE t SET id = 12 WHERE id = 13
        {DEFAULT}
        UPDATE t SET a = 1 WHERE id = 14""",
    "an index is dropped": f"""{ROWS}
        {BY_K}
        {USING_K}
        INSERT INTO t VALUES (16, 1016)
        {RECEIVED}
        UPDATE t SET id = 15 WHERE id = 12
        {DEFAULT}
        DROP INDEX t_by_k
        DELETE FROM t WHERE id = 14""",
    "an index took over long ago": f"""{ROWS}
        {BY_K}
        {USING_K}
        UPDATE t SET id = 15 WHERE id = 12
        {RECEIVED}
        ALTER TABLE t ADD c int
        UPDATE t SET id = 12 WHERE id = 13""",
    "an index took over unread": f"""{ROWS}
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        {BY_K}
        {USING_K}
        UPDATE t SET id = 15 WHERE id = 12
        ALTER TABLE t ADD c int
        UPDATE t SET id = 12 WHERE id = 13""",
    "the key moves": f"""{ROWS}
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        UPDATE t SET k = 1012 WHERE id = 13
        {KEY} (k)
        UPDATE t SET id = 15 WHERE id = 12
        UPDATE t SET a = 1 WHERE id = 14""",
    "the key grows": f"""{ROWS}
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        UPDATE t SET id = 15 WHERE id = 13
        DELETE FROM t WHERE id = 14
        {KEY} (id, k)
        UPDATE t SET k = 9 WHERE id = 15""",
    "the key shrinks": f"""{ROWS}
        {KEY} (id, k)
        INSERT INTO t VALUES (16, 1016)
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        UPDATE t SET id = 15 WHERE id = 13
        DELETE FROM t WHERE id = 14
        {KEY} (id)
        UPDATE t SET k = 9 WHERE id = 15""",
    "a table of the backlog": f"""DROP TABLE t
        CREATE TABLE t ({MADE})
        {ROWS}
        UPDATE t SET k = 7 WHERE id = 12
        {BY_K}
        {USING_K}
        UPDATE t SET id = 15 WHERE id = 13""",
    "nothing, at last": f"""{ROWS}
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        ALTER TABLE t REPLICA IDENTITY NOTHING
        UPDATE t SET a = 1 WHERE id = 14
        ALTER TABLE t REPLICA IDENTITY FULL
        UPDATE t SET a = 2 WHERE id = 14""",
    "an index took over in a savepoint": f"""{ROWS}
        {RECEIVED}
        DO $$ BEGIN UPDATE t SET a = 2 WHERE id = 14; {SAVED.format(BY_K)} {SAVED.format(USING_K)} UPDATE t SET id = 15 WHERE id = 12; END $$""",
    "an index for a while": f"""{ROWS}
        {RECEIVED}
        {BY_K}
        {USING_K}
        UPDATE t SET id = 15 WHERE id = 12
        {DEFAULT}
        UPDATE t SET a = 2 WHERE id = 14""",
    "an index that is only new": f"""{ROWS}
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        ALTER TABLE t ADD c int
        {BY_K}
        UPDATE t SET k = 8 WHERE id = 13""",
    "an index that is older": f"""{ROWS}
        {BY_K}
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        ALTER TABLE t ADD c int
        UPDATE t SET k = 8 WHERE id = 13
        {USING_K}
        UPDATE t SET id = 15 WHERE id = 12""",
    "another key for a while": f"""{ROWS}
        {RECEIVED}
        {KEY} (k)
        UPDATE t SET id = 15 WHERE id = 12
        {KEY} (id)
        UPDATE t SET a = 2 WHERE id = 14""",
    "another key before all rows": f"""DROP TABLE t
        CREATE TABLE t ({MADE})
        {RECEIVED}
        {ROWS}
        {KEY} (k)
        UPDATE t SET id = 15 WHERE id = 12
        {KEY} (id)""",
    "no key any more": f"""{ROWS}
        {RECEIVED}
        UPDATE t SET id = 16 WHERE id = 11
        ALTER TABLE t DROP CONSTRAINT t_pkey
        {RECEIVED}
        UPDATE t SET a = 3 WHERE id = 12
        UPDATE t SET id = 15 WHERE id = 13
        {RECEIVED}
        ALTER TABLE t REPLICA IDENTITY FULL""",
    "whole rows at last": f"""{ROWS}
        {RECEIVED}
        UPDATE t SET k = 7 WHERE id = 12
        ALTER TABLE t REPLICA IDENTITY FULL
        UPDATE t SET k = 8 WHERE id = 13""",
}
"""What identified rows is another thing when it is read. An UPDATE of the family's always brings its old key along."""


UNKNOWABLE = {
    **dict.fromkeys(
        (
            *("an index takes over", "an index leaves", "an index is dropped", "an index that is older"),
            *("an index took over unread", "the key moves", "the key grows"),
        ),
        "allowed",
    ),
    **dict.fromkeys(
        (
            *("an index for a while", "an index took over in a savepoint"),
            *("another key for a while", "another key before all rows", "no key any more"),
        ),
        "unmatched",
    ),
}
"""What the catalog leaves open, and how it ends: the likeliest is true, or it is not."""


@pytest.mark.parametrize("name", IDENTITIES)
def test_rows_of_test_decoding_are_known_by_the_identity_of_then(database: Database, tmp_path: Path, name: str) -> None:
    project = project_of(database, tmp_path, source={"slot": {"plugin": "test_decoding"}})
    ends = UNKNOWABLE.get(name, "equal")
    with printing(database) as conn:
        walks = Round(conn, project, 1, knows=ends == "allowed")
        walks.direct(lambda: once(project), "plain", IDENTITIES[name])
    assert walks.outcomes == {ends: 1}
