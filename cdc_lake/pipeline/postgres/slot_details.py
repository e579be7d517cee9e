"""One slot of a PostgreSQL, seen from all sides: what the server tells, what bronze holds, what is threatened by it."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import SourceError
from cdc_lake.model.counting import counted
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.model.slot_counters import SlotCounters
from cdc_lake.pipeline.ports.action import size
from cdc_lake.pipeline.ports.slot_details import (
    LEAST_LET_GO,
    BesideBronze,
    SlotDetails,
    SlotThreat,
    beside_bronze,
    held_already,
    nothing_of_it,
    unbounded,
)
from cdc_lake.pipeline.ports.slot_values import SlotView
from cdc_lake.pipeline.postgres.facts import limits
from cdc_lake.pipeline.postgres.resume import check_own_slot
from cdc_lake.source import slot
from cdc_lake.source.connection import Session, named
from cdc_lake.source.slot_extras import SlotExtras, slot_extras

_BOUND = "; a bound: ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'"


def details(
    project: Project, session: Session, facts: slot.SlotFacts, view: SlotView, state: BronzeState | None
) -> SlotDetails | None:
    """Everything of a slot, of which `facts` and `view` were made; None where it went meanwhile. Raises SourceError."""
    more, counters = slot_extras(session, facts.name), slot.slot_counters(session, facts.name)
    if more is None:
        return None
    confirmed = None if facts.confirmed is None else facts.confirmed.value
    bronze = beside_bronze(state, confirmed, OrderDomain.LSN) if view.own else None
    return SlotDetails(
        pipeline=project.name,
        source=project.postgres.place,
        server=str(limits(session, project.postgres).product),
        slot=view,
        order=OrderDomain.LSN.value,
        read_by=_reader(facts, more),
        inactive_since=more.inactive_since,
        restart=None if facts.restart is None else str(facts.restart),
        log_end=str(_end(session)),
        wal_status=facts.wal_status,
        invalidation=facts.invalidation,
        conflicting=more.conflicting,
        catalog_xmin=more.catalog_xmin,
        catalog_age=more.catalog_age,
        synced=more.synced,
        two_phase=facts.two_phase,
        two_phase_at=more.two_phase_at,
        counters=counters,
        bronze=bronze,
        threats=tuple(_threats(project, facts, more, counters, bronze, state)),
    )


def read_for_moments(project: Project, facts: slot.SlotFacts) -> bool:
    """Whether the slot is the pipeline's own, which reads it for moments only."""
    return facts.name == project.slot and project.postgres.mode == "polling"


def _threats(
    project: Project,
    facts: slot.SlotFacts,
    more: SlotExtras,
    counters: SlotCounters | None,
    bronze: BesideBronze | None,
    state: BronzeState | None,
) -> Iterator[SlotThreat]:
    own = facts.name == project.slot
    if own:
        yield from _for_the_pipeline(project, facts, state)
    yield from _at_the_server(facts, more, own=own, polled=read_for_moments(project, facts))
    held = 0 if bronze is None else bronze.unconfirmed or 0
    if facts.active_pid is None and held >= LEAST_LET_GO:
        yield held_already(held)
    if counters is not None and counters.spilled_transactions:
        many, much = counted(counters.spilled_transactions, "transaction"), size(counters.spilled_bytes)
        text = f"{many} went to the server's disk while they were decoded, {much} in all, {counters.counted_since}"
        yield SlotThreat(text, "raise logical_decoding_work_mem on the server; `source.decoding.streaming` sends them")


def _reader(facts: slot.SlotFacts, more: SlotExtras) -> str | None:
    if facts.active_pid is None:
        return None
    words = [word for word in (more.application, f"from {more.address}" if more.address else None) if word]
    return f"server process {facts.active_pid}" + (f" ({', '.join(words)})" if words else "")


def _end(session: Session) -> Lsn:
    """Where the log ends, of a standby what is replayed of it."""
    with named("reading the WAL position"):
        row = session.execute(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text"
        ).fetchone()
    assert row is not None
    return Lsn.parse(str(row[0]))


def _for_the_pipeline(project: Project, facts: slot.SlotFacts, state: BronzeState | None) -> Iterator[SlotThreat]:
    """Why the pipeline could not go on with its slot, or would miss something."""
    if state is None:
        yield nothing_of_it(facts.name)
        return
    try:
        check_own_slot(project, facts, project.postgres.database, state.confirm)
    except SourceError as error:
        yield SlotThreat(error.message, error.remedy)
        return
    if project.postgres.slot.failover and not facts.failover:
        text = "the pipeline asks for `failover`, and the slot does not have it: a standby that is promoted is without"
        yield SlotThreat(text, "start the receiver, which sets it: cdc-lake run")


def _at_the_server(facts: slot.SlotFacts, more: SlotExtras, *, own: bool, polled: bool) -> Iterator[SlotThreat]:
    """What the server may do to the slot, or the slot to the server."""
    if facts.lost:
        if not own:
            text = f"the server gave it up ({facts.invalidation or facts.wal_status}): what it had not sent is gone"
            yield SlotThreat(text, f"its reader has to begin anew: cdc-lake slot drop {facts.name} --yes")
        return
    if facts.temporary:
        yield SlotThreat("it is temporary and goes with the connection that made it", "nothing has to be dropped")
        return
    if more.synced and more.in_recovery:
        text = "it is a standby's copy of the primary's slot: nobody can read it here"
        yield SlotThreat(text, "read it at the primary, or promote this server")
        return
    yield from _kept(facts, more)
    if facts.active_pid is None and not polled:
        if more.keep_size is None:
            yield unbounded(own=own, bound=_BOUND)
        if more.idle_timeout is not None:
            since = (
                "" if more.inactive_since is None else f"; this one rests since {more.inactive_since:%Y-%m-%dT%H:%MZ}"
            )
            text = f"the server gives up a slot that nobody reads for {more.idle_timeout}{since}"
            yield SlotThreat(text, "start who reads it, or raise idle_replication_slot_timeout on the server")
    if more.catalog_age is not None and 2 * more.catalog_age >= more.freeze_age:
        text = (
            f"vacuum leaves all that was deleted from catalogs in the last {counted(more.catalog_age, 'transaction')}"
        )
        yield SlotThreat(text, "let it be read up to now, or drop it; the server stops writing before numbers run out")


def _kept(facts: slot.SlotFacts, more: SlotExtras) -> Iterator[SlotThreat]:
    """What is kept for it, against what the server allows."""
    kept = size(facts.retained or 0)
    if facts.wal_status == "unreserved":
        text = f"it needs log beyond max_slot_wal_keep_size = {more.keep_size}: a checkpoint may remove it any time"
        yield SlotThreat(text, "let it be read at once, or raise max_slot_wal_keep_size on the server")
    elif facts.safe is not None and facts.safe <= (facts.retained or 0):
        text = f"{kept} of log are kept for it, and after {size(facts.safe)} more the server gives it up"
        yield SlotThreat(text, "let it be read, or raise max_slot_wal_keep_size on the server")
    elif facts.wal_status == "extended":
        yield SlotThreat(f"{kept} of log are kept for it, more than max_wal_size", "let it be read up to now")
    before = facts.confirmed.value - facts.restart.value if facts.confirmed and facts.restart else 0
    if before >= LEAST_LET_GO and 2 * before >= (facts.retained or 0):
        text = f"{size(before)} of it are from before its position: a transaction was open for long then"
        yield SlotThreat(text, "end what is open for long: pg_stat_activity (xact_start), pg_prepared_xacts")
