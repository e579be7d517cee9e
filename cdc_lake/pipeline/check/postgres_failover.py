"""The doctor's look at failovers of a PostgreSQL: one that was, and whether the next would go well."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, ServerSettings
from cdc_lake.lake.control import control_tables
from cdc_lake.pipeline.check.line import CheckLine, failed
from cdc_lake.pipeline.postgres.facts import ServerLimits, session_of
from cdc_lake.pipeline.postgres.resume import check_same
from cdc_lake.pipeline.state.streams import is_complete
from cdc_lake.source.connection import Session, named
from cdc_lake.source.server import FAILOVER_SLOTS, check_failover, identify


def failover_lines(project: Project, session: Session, limits: ServerLimits) -> Iterator[CheckLine]:
    """Whether bronze is in the server's history, and whether a standby that is promoted has the slot."""
    yield from _history(project)
    if limits.in_recovery:
        return
    wanted, place = project.postgres.slot.failover, project.postgres.place
    if wanted:
        try:
            check_failover(limits, place, two_phase=project.postgres.decoding.two_phase)
        except ServerSettings as error:
            yield failed("failover", error)
            return
    if limits.product.major >= FAILOVER_SLOTS and (standbys := _standbys(session)):
        yield _next(standbys, _waited_for(session), wanted=wanted)


def _history(project: Project) -> Iterator[CheckLine]:
    state, control = bronze_reader(project).state(), control_tables(project)
    if not is_complete(state, control):
        return
    try:
        with session_of(project, replication=project.postgres.streams) as replication:
            timeline, _ = check_same(project, replication, identify(replication, project.postgres), state, control)
    except CdcLakeError as error:
        yield failed("history", error)
    else:
        text = f"all that bronze holds is in the server's log (timeline {timeline.number})"
        yield CheckLine(ok=True, subject="history", text=text)


def _next(standbys: list[str], waited: str, *, wanted: bool) -> CheckLine:
    """What a failover would do to the stream."""
    many = "a standby" if len(standbys) == 1 else f"{len(standbys)} standbys"
    if not wanted:
        text = f"the server has {many}, which will not have the slot: after a failover everything is copied anew"
        return CheckLine(ok=None, subject="failover", text=text, fix="source.slot.failover: true")
    if not waited:
        text = f"the stream does not wait for {many}: bronze may hold what one that is promoted never had"
        fix = f"ALTER SYSTEM SET synchronized_standby_slots = '{', '.join(standbys)}';  those that may be promoted"
        return CheckLine(ok=None, subject="failover", text=text, fix=fix)
    return CheckLine(ok=True, subject="failover", text=f"the slot is for standbys too; the stream waits for {waited}")


def _standbys(session: Session) -> list[str]:
    """The physical slots: each is a standby's."""
    with named("looking for standbys"):
        rows = session.execute(
            "SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'physical' ORDER BY slot_name"
        ).fetchall()
    return [str(row[0]) for row in rows]


def _waited_for(session: Session) -> str:
    with named("reading the server's settings"):
        row = session.execute("SELECT current_setting('synchronized_standby_slots', true)").fetchone()
    return "" if row is None or row[0] is None else str(row[0])
