"""`type: qhb` against a PostgreSQL that calls itself one (`tests.qhb_proxy`): never seen against a QHB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import AuthenticationRefused, OptionRefused, ServerSettings
from cdc_lake.ops.check.runner import check
from cdc_lake.ops.plan import plan
from cdc_lake_testing.workload import Workload
from tests.conftest import Database
from tests.live.test_receive_loop import assert_equal_to_source, once, project_of
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture
from tests.qhb_proxy import CalledQhb

pytestmark = pytest.mark.live
SAYS = "QHB 1.5.1 on x86_64-pc-linux-gnu, compiled by gcc 12.2.0, 64-bit"
LINES = {"slot": {"name": "lines", "plugin": "test_decoding"}}


@pytest.mark.parametrize("more", [{}, LINES | {"mode": "polling"}], ids=["streamed", "polled lines"])
def test_all_that_is_committed_lands(database: Database, tmp_path: Path, more: dict[str, Any]) -> None:
    with CalledQhb(database.server, SAYS, "1.5.1") as proxy, database.connect() as conn:
        project = project_of(database, tmp_path, source={"type": "qhb", "port": proxy.port, **more})
        workload = Workload(conn, 7)
        workload.create_tables()
        workload.run(10)
        assert once(project).snapshot_rows > 0
        workload.run(20)
        assert once(project).transactions > 5
        assert_equal_to_source(project, database)
        said = {line.subject: line.text for line in check(project)}
        assert said["server"].startswith("QHB 1.5.1 at ")
        assert said["release"].startswith("read as PostgreSQL 14: pgoutput's protocol up to version 2")
        assert not plan(project).destructive


def test_types_that_only_a_qhb_has_come_as_text(database: Database, tmp_path: Path) -> None:
    with CalledQhb(database.server, SAYS) as proxy, database.admin() as admin, database.connect() as conn:
        admin.execute("CREATE TYPE mvarchar")
        for name, of, given in (("in", "mvarchar", "cstring"), ("out", "cstring", "mvarchar")):
            admin.execute(
                f"CREATE FUNCTION mvarchar_{name}({given}) RETURNS {of} IMMUTABLE STRICT LANGUAGE internal AS 'text{name}'"
            )
        admin.execute("CREATE TYPE mvarchar (INPUT = mvarchar_in, OUTPUT = mvarchar_out, LIKE = text)")
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, name mvarchar)")
        conn.execute("INSERT INTO t VALUES (1, 'Война и мир')")
        project = project_of(database, tmp_path, source={"type": "qhb", "port": proxy.port})
        assert once(project).snapshot_rows == 1
        conn.execute("UPDATE t SET name = 'Анна Каренина'; INSERT INTO t VALUES (2, NULL)")
        assert once(project).transactions > 0
        assert_equal_to_source(project, database)


def test_what_the_server_is_and_what_the_pipeline_says_must_agree(database: Database, tmp_path: Path) -> None:
    def refused(says: str | None, version: str | None, **source: Any) -> ServerSettings:
        with CalledQhb(database.server, says, version) as proxy:
            project = project_of(database, tmp_path, source={"port": proxy.port, **source})
            with pytest.raises(ServerSettings) as error:
                once(project)
            return error.value

    assert refused(SAYS, "1.5.1", type="postgres").remedy == "set `source.type: qhb`"
    assert "the oldest supported version is 1.5.0" in refused("QHB 1.4.0 on Linux", "1.4.0", type="qhb").message
    assert "source.version" in refused("QHB on Linux", "12.4", type="qhb").remedy
    slot = {"name": "kept", "failover": True}
    assert "the server is QHB 1.5.1" in refused(SAYS, None, type="qhb", slot=slot).message


def test_options_that_a_release_does_not_have_are_refused(database: Database, tmp_path: Path) -> None:
    with CalledQhb(database.server, SAYS) as proxy, database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source = {"type": "qhb", "port": proxy.port, "decoding": {"proto_version": 3}}
        with pytest.raises(OptionRefused, match=r"QHB 1\.5\.1 supports versions 1 to 2"):
            once(project_of(database, tmp_path, source=source))


def test_who_is_not_let_in_is_told_of_the_file_of_a_qhb(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, source={"type": "qhb", "password": "another"})
    with pytest.raises(AuthenticationRefused) as refused:
        once(project)
    assert "qhb_hba.conf" in refused.value.remedy
