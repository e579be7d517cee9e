"""Finds the last cut for a requested position or time.

A cut contains every transaction up to its position, so a request is converted to a position: the one before the first
transaction after the requested moment. If silver lacks transactions that bronze has up to there, the moment is not
reached: the last cut would be older than requested, and another one tomorrow.

In the stream's own domain the position is the given one. A CSN in a stream ordered by LSN, or an LSN in one ordered by
CSN, is looked up in bronze, whose COMMIT rows contain both. The commit time of a position is the latest one up to it,
because the source's clock may move backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import COMMIT
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader, span_filter
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import WrittenCut, parse_cut, pinned_cuts, standing
from cdc_lake.errors import BeforeFirstCut, CutNotReached, CutUnknown
from cdc_lake.model import position
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.source.base import Kind, StreamIdentity, domain_of, format_stream_position
from cdc_lake.tables.control_tables import ControlTables, control_tables


def find_cut(project: Project, asked: position.AsOf, epoch: int | None = None) -> WrittenCut:
    """The cut for a request; positions and `latest` refer to the newest stream, or to `epoch`.

    Raises BeforeFirstCut, CutNotReached, CutUnknown.
    """
    return _Cuts(project, epoch).find(asked)


@dataclass
class _Cuts:
    """The cuts of a pipeline, all or of one epoch, and its bronze."""

    project: Project
    epoch: int | None

    @cached_property
    def control(self) -> ControlTables:
        return control_tables(self.project)

    @cached_property
    def bronze(self) -> BronzeReader:
        return bronze_reader(self.project)

    @cached_property
    def places(self) -> pa.Table:
        """The positions and times of the cuts, in order; at least one."""
        places = self.control.cut_places()
        if places.num_rows == 0:
            raise BeforeFirstCut("there is no cut yet: nothing was applied", where=str(self.project.control))
        if self.epoch is None:
            return places
        own_places = places.filter(pc.field("epoch") == self.epoch)
        if own_places.num_rows == 0:
            epochs = ", ".join(map(str, sorted(set(places["epoch"].to_pylist()))))
            raise CutUnknown(f"there is no cut of epoch {self.epoch}; there are some of {epochs}")
        return own_places

    def find(self, asked: position.AsOf) -> WrittenCut:
        match asked:
            case position.Latest():
                return self._latest()
            case position.Named(name):
                return self._find_pinned(name)
            case position.Moment(time):
                return self._find_by_time(time)
            case position.Position(epoch, value):
                return _Stream(_Cuts(self.project, epoch)).find_upto(value)
            case position.Stored(value):
                return _Stream(self).find_upto(value)
            case position.Lsn() | position.Csn() | position.Number():
                return _Stream(self).read(asked)
            case other:
                assert_never(other)

    def _latest(self) -> WrittenCut:
        if self.epoch is not None or (row := self.control.last_cut()) is None:
            return self._read_cut(self.places.num_rows - 1)
        return parse_cut(row)

    def _read_cut(self, row: int) -> WrittenCut:
        return parse_cut(self.control.cuts(self.places.slice(row, 1))[0])

    def _find_pinned(self, name: str) -> WrittenCut:
        by_name = {pin.name: pin for pin in pinned_cuts(self.control)}
        if name in by_name and standing([by_name[name]], datetime.now(UTC)):
            return by_name[name].cut
        ended = by_name[name].until if name in by_name else None
        what = f"the pin `{name}` ended at {ended.isoformat()}" if ended else f"no cut is pinned as `{name}`"
        raise CutUnknown(what)

    def _find_by_time(self, time: datetime) -> WrittenCut:
        """The last cut whose transactions were all committed by then.

        A cut with only copied rows has no commit time: it is older than the moment it was written.
        """
        times = self.places["commit_ts"].cast(pa.int64())
        has_time = np.asarray(pc.is_valid(times))
        latest = np.maximum.accumulate(np.asarray(pc.fill_null(times, -position.END)))
        moment = pa.scalar(time, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
        own = np.where(has_time, latest, np.asarray(self.places["recorded_at"].cast(pa.int64())))
        fits = np.flatnonzero((latest <= moment) & (own <= moment))
        if not len(fits):
            raise BeforeFirstCut(f"no cut contains only what was committed by {time.isoformat()}")
        cut = self._read_cut(int(fits[-1]))
        if fits[-1] == self.places.num_rows - 1 and (more := _Stream(self).waiting("commit_ts", time, cut.position)):
            several, verb = pluralize(more, "transaction"), "is" if more == 1 else "are"
            raise CutNotReached(f"{several} committed by {time.isoformat()} {verb} landed and not applied")
        return cut


@dataclass
class _Stream:
    """The newest stream of a set of cuts."""

    cuts: _Cuts

    @cached_property
    def epoch(self) -> int:
        return int(self.cuts.places["epoch"][-1].as_py())

    @cached_property
    def name(self) -> str:
        return str(self.cuts.places["stream"][-1].as_py())

    @cached_property
    def identity(self) -> StreamIdentity | None:
        """The stream's identity in the GaussDB family, whose transactions have CSNs; otherwise None."""
        return StreamIdentity.parse(self.name) if self.name.startswith(f"{Kind.GAUSS}:") else None

    def read(self, asked: position.Lsn | position.Csn | position.Number) -> WrittenCut:
        """The cut at an LSN or CSN, whichever orders the stream."""
        by_csn, identity = domain_of(self.name) is position.OrderDomain.CSN, self.identity
        match asked:
            case position.Number(value):
                return self.find_upto(value) if by_csn or identity is None else self.read(position.Csn(value))
            case position.Lsn(value):
                if not by_csn:
                    return self.find_upto(value)
                return self._looked_up("commit_lsn", value, str(asked), None if identity is None else identity.point)
            case position.Csn(value):
                if by_csn:
                    return self.find_upto(value)
                if identity is None:
                    raise CutUnknown(f"the stream has no CSNs, so {value} is not a position of it")
                return self._looked_up("csn", value, f"CSN {value}", identity.snapshot_csn)
            case other:
                assert_never(other)

    def find_upto(self, position: int) -> WrittenCut:
        """The last cut at or below a position. Raises CutNotReached if silver may lack something up to it."""
        places, text = self.cuts.places, format_stream_position(self.name, max(position, 0))
        row_numbers = np.flatnonzero(np.asarray(pc.equal(places["epoch"], self.epoch)))
        positions = np.asarray(places["position"])[row_numbers]
        below = np.flatnonzero(positions <= position)
        if not len(below):
            first = format_stream_position(self.name, int(positions[0]))
            raise BeforeFirstCut(f"{text} is before the first cut of epoch {self.epoch}, which is at {first}")
        cut = parse_cut(self.cuts.control.cuts(places.slice(int(row_numbers[below[-1]]), 1))[0])
        if below[-1] == len(positions) - 1 and position > cut.position:
            self._check_reached(position, cut.position, text)
        return cut

    def _check_reached(self, position: int, applied: int, text: str) -> None:
        bronze = self.cuts.bronze
        landed = bronze.highest_commit(self.epoch, position)
        if landed is not None and landed > applied:
            raise CutNotReached(
                f"silver is at {format_stream_position(self.name, applied)}, but bronze has more transactions up to "
                f"{text}"
            )
        state = bronze.state()
        if state is not None and state.epoch == self.epoch and position > state.upto:
            raise CutNotReached(
                f"bronze itself has reached only {format_stream_position(self.name, state.upto)}, not {text}"
            )

    def _looked_up(self, column: str, value: int, text: str, copied: position.Lsn | position.Csn | None) -> WrittenCut:
        """The last cut without a transaction whose number in a column of bronze is greater than `value`."""
        if copied is not None and value < copied.value:
            raise BeforeFirstCut(f"{text} is before the initial copy, which is at {copied}")
        commits = self._commits(column)
        if commits.num_rows and commits[column].null_count == commits.num_rows:
            raise CutUnknown(f"the position of {text} cannot be determined from the transactions of this stream")
        if commits.num_rows == 0 or value > (pc.max(commits[column]).as_py() or -1):
            raise CutNotReached(f"bronze has no transaction at or after {text} yet")
        next_position = pc.min(commits.filter(pc.field(column) > value)["position"]).as_py()
        lowest = pc.min(commits["position"]).as_py()
        if next_position == lowest and self.epoch in self.cuts.bronze.last_trimmed():
            raise BeforeFirstCut(f"retention removed the transactions up to {text} from bronze")
        if next_position is None:
            return self.find_upto(int(pc.max(commits["position"]).as_py()))
        try:
            return self.find_upto(int(next_position) - 1)
        except BeforeFirstCut as early:
            raise BeforeFirstCut(f"{text} is before the first cut of epoch {self.epoch}") from early

    def waiting(self, column: str, value: object, applied: int) -> int:
        """How many landed transactions after `applied` have at most that value in a column."""
        return int(self._commits(column, applied).filter(pc.field(column) <= value).num_rows)

    def _commits(self, column: str, after: int = -1) -> pa.Table:
        files, span = self.cuts.bronze.files(), position.Span(self.epoch, after, position.END)
        paths = files.select(epoch=self.epoch, after=after, op=COMMIT)
        return files.read(paths, ["position", column], span_filter(span) & (pc.field("op") == COMMIT))
