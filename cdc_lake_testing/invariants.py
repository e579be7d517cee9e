"""The checker: which of the invariants I1 to I8 a lake keeps, from its source, its bronze and its silver.

It uses the product's own commands: `inspect chain`, with `--against source` if there is one, and `compare`. It adds
only what these cannot know: what a test committed and rolled back, earlier watermarks, how a run ended, resource limits
of a process, and which words are secret.

    >>> invariants(project, Known(source=True, ledger=ledger)).assert_held("I1", "I2", "I4", "I5")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.hash_chain import ChainVerdict
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project
from cdc_lake.control.table_pauses import read_epoch_facts
from cdc_lake.control.verdicts import Verdict as Compared
from cdc_lake.errors import CdcLakeError
from cdc_lake.observability.events import silent
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.committed import Committed
from cdc_lake_testing.faults import assert_cuts_are_true, assert_nothing_is_held_twice
from cdc_lake_testing.ledger import Inserts
from cdc_lake_testing.secrets import leaks
from cdc_lake_testing.verdict import Standing, Verdict
from cdc_lake_testing.watermarks import Watch, gone_back
from cdc_lake_testing.whole import assert_whole_transactions

__all__ = ["Bound", "Known", "Standing", "Verdict", "invariants"]

BUG = 70
"""The exit code of an error that is ours."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Something that a process may use so much of."""

    what: str
    used: int
    limit: int


@dataclass(frozen=True)
class Known:
    """What a test knows beside the lake; what it leaves out is not looked at.

    `source`: the pipeline's source can be asked; `silver`: there is to be some. `ledger`, `committed`: what was written
    there; `applied`: the last cut is to have all of `committed`. `upkept`: silver's versions that nothing keeps may be
    gone. `watch`: what was seen meanwhile. `ended`: how the last run ended, None: well. `bounds`: what was used.
    `secrets`: words that are to be nowhere, nor in what was `said`.
    """

    source: bool = False
    silver: bool = True
    ledger: Inserts | None = None
    committed: Committed | None = None
    applied: bool = False
    upkept: bool = False
    watch: Watch | None = None
    ended: BaseException | None = None
    bounds: Sequence[Bound] = ()
    secrets: Sequence[str] = ()
    said: Sequence[str] = field(default=(), repr=False)


def invariants(project: Project, known: Known) -> Verdict:
    """Look at everything that can be looked at with what is known."""
    verdict = Verdict()
    with verdict.looking("I1"):
        reader = bronze_reader(project)
        state = reader.state()
        if state is not None:
            _bronze(verdict, project, known, reader, state)
            if known.silver:
                _silver(verdict, project, known, state)
        _watermarks(verdict, project, known, state)
        if state is None or known.source or known.committed is not None or known.ended is not None:
            verdict.look("I6", _ending(known, state))
    if known.bounds:
        verdict.look("I7", (f"{b.what}: {b.used:,} of {b.limit:,}" for b in known.bounds if b.used > b.limit))
    if known.secrets:
        found = leaks(project.lake, known.secrets) if project.lake.exists() else []
        spoken = [word for word in known.secrets if any(word in text for text in known.said)]
        verdict.look("I8", [*(f"it is in {place}" for place in found), *(f"{word} was said" for word in spoken)])
    return verdict


def _bronze(verdict: Verdict, project: Project, known: Known, reader: BronzeReader, state: StreamCheckpoint) -> None:
    if known.source:
        proof = against_source(project)
        others = [table for table in proof.tables if table.verdict != "equal"]  # also what could not be judged
        verdict.look("I1", [*_broken(proof.chain), *(f"bronze is not shown to be its source: {one}" for one in others)])
        verdict.look("I6", (f"the run ended before its source's state: {one}" for one in others if known.ended is None))
        past = [f"the slot was told to forget up to {proof.confirmed}, bronze holds {proof.held}"]
        verdict.look("I5", past if proof.forgotten else ())
    else:
        chain = verify(reader, load_epoch_facts=lambda: read_epoch_facts(project, reader, control_tables(project)))
        verdict.look("I1", _broken(chain))
    with verdict.looking("I3"):
        assert_whole_transactions(reader)
    if known.ledger is not None:
        verdict.look("I1", known.ledger.lost_or_twice(project))
        verdict.look("I2", known.ledger.not_committed(project))
    if (committed := known.committed) is not None:
        told = _told(project, state) if isinstance(known.ended, CdcLakeError) else frozenset[int]()
        verdict.look("I1", committed.lost_or_other(reader, state, told))
        verdict.look("I2", committed.not_committed(reader, state))
        if not told:
            verdict.look("I4", committed.not_folded(reader, state))


def _broken(chain: ChainVerdict) -> Iterator[str]:
    if not chain.holds:
        yield f"the chain is broken at {chain.broken_at}: {chain.reason}"


def _told(project: Project, state: StreamCheckpoint) -> frozenset[int]:
    """The CSNs that are recorded as missing: what ended a run by an error may be one of them."""
    rows = control_tables(project).read("gaps").to_pylist()
    mine = (row for row in rows if (row["epoch"], row["stream"]) == (state.epoch, state.stream))
    return frozenset(csn for row in mine for csn in range(row["first"], row["last"] + 1))


def _silver(verdict: Verdict, project: Project, known: Known, state: StreamCheckpoint) -> None:
    with verdict.looking("I3"):
        assert_cuts_are_true(project, upkept=known.upkept)
    with verdict.looking("I4"):
        assert_nothing_is_held_twice(project)
    if known.committed is not None:
        with verdict.looking("I4"):
            verdict.look("I4", known.committed.not_in_silver(project, state))
        if known.applied:
            verdict.look("I6", known.committed.not_applied(project, state))
    if known.source:
        for table in compare(project, (), silent).tables:
            if table.verdict in {Compared.DIFFERENT, Compared.INCONCLUSIVE}:
                verdict.look("I4", [f"{table.silver} is not shown to be its source: {table}"])


def _watermarks(verdict: Verdict, project: Project, known: Known, state: StreamCheckpoint | None) -> None:
    committed = known.committed
    if committed is not None and committed.confirmed is not None:
        held = -1 if state is None else state.confirm
        told = f"the server was told to forget up to {committed.confirmed}, bronze holds {held}"
        verdict.look("I5", [told] if committed.confirmed > held else ())
    if known.watch is not None:
        verdict.look("I5", known.watch.wrong)
    if state is not None and known.silver:
        with verdict.looking("I5"):
            verdict.look("I5", gone_back(project, state.stream))


def _ending(known: Known, state: StreamCheckpoint | None) -> Iterator[str]:
    """An error that says what it is, or the source's state: what is in silver is looked at elsewhere."""
    if known.ended is not None:
        if not isinstance(known.ended, CdcLakeError) or known.ended.exit_status == BUG:
            yield f"a run ended by {type(known.ended).__name__}: {known.ended}"
        return
    last = -1 if known.committed is None else known.committed.last
    if state is None or state.upto < last:
        reached = "has no stream" if state is None else f"is at {format_stream_position(state.stream, state.upto)}"
        yield f"nothing ended the run, and bronze {reached}, not at {last}"
