"""`slot inspect` on a real server: every fact of one slot as the server has it, and what is threatened by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.cli.commands.slots import details_text
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import SlotDetails
from cdc_lake.errors import SlotMissing
from cdc_lake.ops.slots import inspect_slot
from cdc_lake.source.base import format_stream_position
from cdc_lake_testing.beside import streams, until
from tests.conftest import Database, make_database, make_role, start_server
from tests.live.test_receive_loop import once, running
from tests.pipeline_file import with_orders

pytestmark = pytest.mark.live


@pytest.fixture
def project(database: Database, tmp_path: Path) -> Project:
    return with_orders(database, tmp_path)


def seen(admin: psycopg.Connection[Any], name: str) -> dict[str, Any]:
    row = admin.execute("SELECT to_jsonb(s) FROM pg_replication_slots AS s WHERE slot_name = %s", [name]).fetchone()
    assert row is not None
    found: dict[str, Any] = row[0]
    return found


def threats(found: SlotDetails) -> str:
    """All of them, each with its remedy; the text for people has them too."""
    for one in found.threats:
        assert one.text
        assert f"    → {one.remedy}" in details_text(found, 80).splitlines()
    return "\n".join(f"{one.text} → {one.remedy}" for one in found.threats)


def test_everything_of_the_pipelines_slot_is_told_beside_what_bronze_holds(
    database: Database, project: Project
) -> None:
    with pytest.raises(SlotMissing, match="does not exist") as absent:
        inspect_slot(project)
    assert "slot list" in absent.value.remedy
    once(project)
    with database.admin() as admin:
        admin.execute("INSERT INTO orders VALUES (101)")
        until(lambda: not seen(admin, project.slot)["active"], "the reader has left")
        found, row = inspect_slot(project), seen(admin, project.slot)
    state = bronze_reader(project).state()
    assert state is not None
    assert found.slot.own
    assert (found.slot.plugin, found.slot.database, found.slot.kind) == ("pgoutput", database.name, "logical")
    assert (found.slot.confirmed, found.restart) == (row["confirmed_flush_lsn"], row["restart_lsn"])
    assert (found.catalog_xmin, found.wal_status) == (int(row["catalog_xmin"]), row["wal_status"])
    assert (found.two_phase, found.slot.temporary) == (row["two_phase"], row["temporary"]) == (False, False)
    for name in ("conflicting", "synced", "two_phase_at"):
        assert getattr(found, name) == row.get(name), "what this version has"
    assert (found.inactive_since is not None) == ("inactive_since" in row)
    assert found.catalog_age is not None
    assert found.counters is not None
    assert found.bronze is not None
    assert found.bronze.landed == format_stream_position(state.stream, state.upto)
    assert found.bronze.unconfirmed == 0
    assert found.read_by is None
    standbys = "standbys   do not have it" if "failover" in row else None
    assert [line.strip() for line in details_text(found, 80).splitlines() if "standbys" in line] == (
        [standbys] if standbys else []
    ), "what this version tells"
    assert "no limit on the WAL retained" in threats(found), "as the server is set"
    assert "all of it is acknowledged" in details_text(found, 80)


def test_who_reads_it_is_named(project: Project) -> None:
    once(project)
    with running(project, told := []):
        until(lambda: streams(told))
        found = inspect_slot(project)
    assert found.slot.state == "active"
    assert found.read_by is not None
    assert found.read_by.startswith("server process ")
    assert "cdc_lake" in found.read_by
    assert "no limit on" not in threats(found), "it is read"


def test_a_slot_of_which_bronze_holds_nothing_or_too_little_is_told_with_the_remedy(
    database: Database, project: Project
) -> None:
    with database.admin() as admin:
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [project.slot])
        found = inspect_slot(project)
        assert found.bronze is None
        assert "bronze contains nothing" in threats(found)
        admin.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])
        once(project)
        admin.execute("INSERT INTO orders VALUES (101)")
        until(lambda: not seen(admin, project.slot)["active"], "the reader has left")
        admin.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", [project.slot])
    ahead = inspect_slot(project)
    assert ahead.bronze is not None
    assert ahead.bronze.unconfirmed is not None
    assert ahead.bronze.unconfirmed < 0
    assert "are missing" in threats(ahead)
    assert "ahead" in details_text(ahead, 80)


def test_a_position_that_the_server_forgot_is_told_once_it_keeps_log_for_it(
    database: Database, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(project)
    with database.admin() as admin:
        until(lambda: not seen(admin, project.slot)["active"], "the reader has left")
        admin.execute("SELECT pg_copy_logical_replication_slot(%s, 'older')", [project.slot])
        admin.execute("INSERT INTO orders VALUES (101)")
        once(project)
        until(lambda: not seen(admin, project.slot)["active"], "the reader has left")
        admin.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])
        admin.execute("SELECT pg_copy_logical_replication_slot('older', %s)", [project.slot])
        admin.execute("SELECT pg_drop_replication_slot('older')")
    assert "slot advance" not in threats(inspect_slot(project)), "less than a file of the log"
    monkeypatch.setattr("cdc_lake.connectors.base.LEAST_LET_GO", 1)
    found = inspect_slot(project)
    assert "bronze already contains → cdc-lake slot advance" in threats(found)
    assert "can still be acknowledged" in details_text(found, 80)


def test_slots_of_others_are_told_too(database: Database, project: Project) -> None:
    with database.admin() as admin:
        admin.execute("SELECT pg_create_physical_replication_slot('standby', true)")
        admin.execute("SELECT pg_create_logical_replication_slot('passing', 'pgoutput', true)")
        try:
            standby, passing = inspect_slot(project, "standby"), inspect_slot(project, "passing")
        finally:
            admin.execute("SELECT pg_drop_replication_slot('standby')")
    assert (standby.slot.own, standby.slot.kind, standby.slot.confirmed) == (False, "physical", None)
    assert (standby.counters, standby.bronze, standby.catalog_xmin) == (None, None, None)
    assert (passing.slot.temporary, passing.slot.plugin) == (True, "pgoutput")
    assert passing.read_by is not None
    assert "disappears with the connection" in threats(passing)
    assert "temporary" in details_text(passing, 80)


def test_what_decoding_it_took_and_prepared_transactions_are_told(database: Database, project: Project) -> None:
    with database.admin() as admin:
        admin.execute("CREATE TABLE large (id int PRIMARY KEY, body text); CREATE PUBLICATION large FOR TABLE large")
        admin.execute("SELECT pg_create_logical_replication_slot('spills', 'pgoutput', false, true)")
        try:
            admin.execute("INSERT INTO large SELECT n, repeat('x', 100) FROM generate_series(1, 3000) n")
            admin.execute("SET logical_decoding_work_mem = '64kB'")
            options = "'proto_version', '1', 'publication_names', 'large'"
            admin.execute(f"SELECT FROM pg_logical_slot_peek_binary_changes('spills', NULL, NULL, {options})")

            def spilled() -> bool:
                counters = inspect_slot(project, "spills").counters
                return counters is not None and counters.spilled_transactions > 0

            until(spilled, "the statistics are there")
            found, row = inspect_slot(project, "spills"), seen(admin, "spills")
            admin.execute("SELECT pg_stat_reset_replication_slot('spills')")

            def begun_anew() -> SlotDetails | None:
                seen_now = inspect_slot(project, "spills")
                return seen_now if seen_now.counters is not None and seen_now.counters.since is not None else None

            reset = until(begun_anew, "the statistics began anew")  # on 14 they come by a file, after a while
            assert reset is not None
        finally:
            admin.execute("SELECT pg_drop_replication_slot('spills')")
    assert found.counters is not None
    assert f"spilled {found.counters.spilled_transactions:,} transaction" in details_text(found, 80)
    assert "logical_decoding_work_mem" in threats(found)
    assert "since the slot's statistics began" in threats(found)
    assert reset.counters is not None
    assert reset.counters.since is not None
    assert "were spilled to the server's disk" not in threats(reset), "it was before"
    assert f"; since {reset.counters.since:%Y-%m-%dT%H:%M:%SZ}" in details_text(reset, 80)
    assert found.two_phase is True
    assert found.two_phase_at == row.get("two_phase_at")


def test_how_a_slot_is_lost_is_told_step_by_step(tmp_path: Path) -> None:
    little = start_server(settings={"max_slot_wal_keep_size": "40MB"})
    found, said = [], []
    try:
        make_role(little)
        database = make_database(little)
        project = with_orders(database, tmp_path)
        once(project)
        with database.admin() as admin:
            for _ in range(6):
                found.append(inspect_slot(project))
                said.append(threats(found[-1]))
                admin.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000)); SELECT pg_switch_wal()")
            admin.execute("CHECKPOINT")
        found.append(inspect_slot(project))
        said.append(threats(found[-1]))
    finally:
        little.remove()
    states = [one.wal_status for one in found]
    assert states[0] == "reserved"
    assert "unreserved" in states
    assert states[-1] == "lost"
    assert "no limit on" not in said[0]
    assert "the server invalidates it" in "\n".join(said[: states.index("unreserved")])
    assert "a checkpoint may remove that WAL" in said[states.index("unreserved")]
    assert "max_slot_wal_keep_size" in said[-1]
    assert found[-1].slot.state == "lost"
