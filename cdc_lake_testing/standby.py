"""A standby of an embedded server: a copy that follows its WAL, and can be promoted to replace it."""

from __future__ import annotations

from pathlib import Path

import psycopg

from cdc_lake_testing.server import EmbeddedServer


def standby_of(
    primary: EmbeddedServer, folder: Path, *, slot: str = "standby", slots_of: str | None = None
) -> EmbeddedServer:
    """Copy a running server into `folder`; what is returned is not started. It follows by the physical slot `slot`.

    With `slots_of`, a database, it keeps copies of the primary's slots that are for it (PostgreSQL 17 and newer).
    """
    standby = EmbeddedServer(folder, binaries=primary.binaries)
    with psycopg.connect(primary.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_create_physical_replication_slot(%s, true)", [slot])
        standby.prepare(primary.password)
        follow = ("-d", primary.dsn(slots_of or "postgres"), "-S", slot, "-R")
        primary.run("pg_basebackup", "-D", standby.data, *follow, "-X", "stream", "-c", "fast", "--no-sync")
        with (standby.data / "postgresql.conf").open("a") as conf:
            conf.write("hot_standby_feedback = on\n")
            if slots_of is not None:
                conf.write("sync_replication_slots = on\n")
    return standby


def promote(standby: EmbeddedServer) -> None:
    """Make the running standby a primary, on a new timeline, and wait for it."""
    standby.run("pg_ctl", "promote", "-w", "-t", "60", "-D", standby.data)
