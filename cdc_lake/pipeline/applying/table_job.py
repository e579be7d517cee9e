"""What there is to do of one table in a span: its changes, or the rows of a copy of it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from cdc_lake.bronze.files import Files
from cdc_lake.bronze.nearby import as_they_are
from cdc_lake.bronze.outline import Outline, outline
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.marker import Marker
from cdc_lake.model.decision import NOTHING_DECIDED, Decided
from cdc_lake.model.relation import Relation
from cdc_lake.model.reread import Reread, rereads_in
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Tell, silent
from cdc_lake.pipeline.applying.evolve import next_layout
from cdc_lake.silver.holding import Waiting
from cdc_lake.silver.row_events import Unit


@dataclass(frozen=True, slots=True)
class Copied:
    """Of a table that was copied again: when the last transaction that the copy has was committed, None: not known."""

    commit_ts: datetime | None


@dataclass(frozen=True)
class TableJob:
    """What to prepare: a table's changes in `span`, or the rows of its snapshot at the span's end, then with the layout
    they follow. `held`: what waits; `stood`: the table's marker when the span was chosen. `size`: bytes that
    the changes took as they were received, at most; None where nobody knows. `near`: where Spark reads data files.
    `follows`: the layout that silver's rows have, None: nobody knows; `allowed`: destructive operations in words;
    `known`: all layouts of the table. `seen`: the outline, where it was read. `rereads`: what of the table
    was read again and comes into force in the span, `decided` what was decided of it. `whole`: transactions that
    are held whole. `copied`: the snapshot's rows end all that silver has, None where nothing is there. `adopts`: the
    table is somebody else's, and its content is replaced on purpose. `form`: the table's last layout, where it is built
    from the beginning (`span_shape.looking_ahead`).
    """

    project: Project
    target: Target
    stream: str
    span: Span
    files: Files
    layouts: Mapping[int, Relation]
    held: Waiting
    stood: Marker
    layout: int | None = None
    size: int | None = None
    near: Callable[[Files, Sequence[str]], list[str]] = as_they_are
    follows: Relation | None = None
    allowed: Container[str] = frozenset()
    known: Callable[[], Iterable[Relation]] = tuple
    seen: Outline | None = None
    rereads: tuple[Reread, ...] = ()
    decided: Decided = NOTHING_DECIDED
    whole: frozenset[Unit] = frozenset()
    tell: Tell = silent
    copied: Copied | None = None
    adopts: bool = False
    form: Relation | None = None

    @property
    def snapshot(self) -> bool:
        """Whether this is rows of a copy."""
        return self.layout is not None

    @property
    def first(self) -> bool:
        """Whether this is the table's first content."""
        return self.snapshot and self.copied is None

    @property
    def next_layout(self) -> int | None:
        """The position of the first transaction of the span that needs another silver table than those before it."""
        try:
            return None if self.seen is None else next_layout(self.seen, self.layouts, self.target)
        except CdcLakeError:  # a layout that cannot be had: `prepare` says why, and only this table waits
            return None

    def until(self, position: int) -> TableJob:
        """The same up to before a position."""
        span = Span(self.span.epoch, self.span.after, position - 1)
        rereads, decided = rereads_in(self.rereads, span), self.decided.within(span)
        return replace(self, span=span, seen=None, rereads=rereads, decided=decided).outlined()

    def outlined(self) -> TableJob:
        """The same, with the outline read."""
        seen = outline(
            self.files,
            self.target.source,
            self.span,
            snapshot=self.snapshot,
            rereads=self.rereads,
            released=self.decided.released,
            follows=None if self.follows is None else self.follows.layout,
        )
        return replace(self, seen=seen)
