"""A start while somebody holds a table that has to be looked at: it waits so long, then says who holds what."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.errors import TableLocked
from cdc_lake.ops.check.runner import check
from cdc_lake.source.base import chooses
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.postgres.server import holders
from tests.conftest import TESTED, Database
from tests.live.test_large_transactions import landed, pipeline, streaming
from tests.live.test_receive_loop import once
from tests.live.test_two_phase_live import assert_whole, ended, parked, prepared, write

pytestmark = pytest.mark.live

__all__ = ["streaming"]
LOCKS = pytest.mark.skipif(TESTED < 16, reason="before 16 what a publication carries is read without a lock")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc_lake.source.postgres.server.LOCK_WAIT", "300ms")
    monkeypatch.setattr("cdc_lake.source.postgres.server.LOOK_WAIT", "100ms")


@LOCKS
@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.obeys("SRC232")
def test_a_start_behind_a_prepared_alter_table_names_the_table_the_transaction_and_the_remedy(
    streaming: Database, tmp_path: Path, *, two_phase: bool
) -> None:
    project = pipeline(streaming, tmp_path, "behind", decoding={"two_phase": two_phase})
    once(project)
    write(streaming, "INSERT INTO b VALUES (1, 1, 'before')")
    prepared(streaming, "it's", "ALTER TABLE a ADD COLUMN word text", "INSERT INTO a VALUES (1, 1, 'new', 'w')")
    with pytest.raises(TableLocked, match=r"public\.a is locked by prepared transaction `it's`") as held:
        once(project)
    assert held.value.code == "SRC232"
    assert "COMMIT PREPARED 'it''s' or ROLLBACK PREPARED 'it''s'" in held.value.remedy
    assert parked(project) == []
    [line] = [line for line in check(project) if line.code == "SRC232"]
    assert "`it's`" in line.text
    ended(streaming, "it's")
    once(project)
    assert [row["relation"] for row in landed(project) if row["op"] == "I"] == ["public.b", "public.a"]
    assert_whole(project, streaming)


def test_a_first_start_behind_one_leaves_nothing_and_begins_when_it_is_over(
    streaming: Database, tmp_path: Path
) -> None:
    project = pipeline(streaming, tmp_path, "first")
    prepared(streaming, "alters", "ALTER TABLE b ADD COLUMN word text")
    with pytest.raises(TableLocked, match="`alters`"):
        once(project)
    ended(streaming, "alters", "ROLLBACK")
    once(project)
    assert_whole(project, streaming)


@LOCKS
def test_a_process_that_holds_a_table_is_named(streaming: Database, tmp_path: Path) -> None:
    project = pipeline(streaming, tmp_path, "process")
    once(project)
    with streaming.connect(autocommit=False) as other:
        other.execute("SET application_name = 'migration'; LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
        pid = other.info.backend_pid
        with pytest.raises(TableLocked, match=rf"public\.b is locked by server process {pid} \(migration") as held:
            once(project)
        assert f"pg_terminate_backend({pid})" in held.value.remedy
    once(project)
    assert_whole(project, streaming)


@LOCKS
def test_of_tables_that_are_held_those_of_the_pipeline_are_named(streaming: Database, tmp_path: Path) -> None:
    project = pipeline(streaming, tmp_path, "others", tables=["public.b", "public.parts"])
    with streaming.connect() as conn:
        conn.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        conn.execute("CREATE TABLE one_part PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    once(project)
    with streaming.connect(autocommit=False) as other:
        other.execute("LOCK TABLE a, b, one_part IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TableLocked, match=r"public\.b is locked by .*; public\.one_part is locked by") as held:
            once(project)
    assert "public.a " not in held.value.message
    with connect(project.postgres, project.root) as session, streaming.connect(autocommit=False) as other:
        other.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        found = holders(session, chooses(project.postgres.tables))
        assert [str(one.table) for one in found] == ["public.a"], "any may be what is waited for"
