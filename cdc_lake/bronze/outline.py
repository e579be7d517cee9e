"""The outline of a span: what a table's changes are like, without their values and without Spark.

It decides how the span is applied: which layouts occur and which is the newest, whether there is a truncate, which
columns have values that were not sent, whether a key can have moved. Reading it costs milliseconds: six narrow columns
of the files whose statistics overlap the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import DELETE, INSERT, SNAPSHOT, TRUNCATE, UPDATE
from cdc_lake.bronze.files import Files
from cdc_lake.model.relation import TableName
from cdc_lake.model.reread import Reread
from cdc_lake.model.span import Span
from cdc_lake.model.truncated import Truncated


@dataclass(frozen=True, slots=True)
class Run:
    """Changes that follow each other with one layout: its number, and the place of the first of them."""

    layout: int
    position: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Outline:
    """One table's changes in a span.

    `runs`: its layouts in the order of its changes; one that comes back is there again. `truncated`: its truncates in
    order. `unchanged`: layout → positions in the new tuple that some change did not send. `olds`: updates that carry an
    old tuple. `nameless`: the position of the first delete without an old tuple, None where there is none. `inserts`:
    how many of the rows are. `by_key`: layouts in which a change names its old row by its key; `bare`: the position of
    the first update or delete that does not name all of it. `rereads`: whose rows are among the changes.
    `by_whole`: layouts in which a change names all of its old row; `whole_deletes`: deletes that do.
    `older`: layouts of held changes that are let through in it.
    """

    rows: int
    runs: tuple[Run, ...]
    truncated: tuple[Truncated, ...]
    unchanged: dict[int, frozenset[int]]
    olds: int
    nameless: int | None = None
    inserts: int = 0
    by_key: frozenset[int] = frozenset()
    bare: int | None = None
    rereads: tuple[Reread, ...] = ()
    whole_deletes: int = 0
    older: tuple[int, ...] = ()
    by_whole: frozenset[int] = frozenset()

    @property
    def layouts(self) -> tuple[int, ...]:
        """Layout numbers, each once, in order of last use: the newest one is the last."""
        used = [*self.older, *(run.layout for run in self.runs)]
        return tuple(reversed(dict.fromkeys(reversed(used))))

    @property
    def truncates(self) -> tuple[tuple[int, int], ...]:
        """`(position, ordinal)` of each truncate, ascending."""
        return tuple((one.position, one.ordinal) for one in self.truncated)


_ORDER = [("position", "ascending"), ("ordinal", "ascending")]
_COLUMNS = ["position", "ordinal", "op", "layout", "unchanged", "old_kind"]


def span_files(files: Files, table: TableName, span: Span, *, snapshot: bool) -> list[str]:
    """The data files that may hold changes of `table` in `span`, or its snapshot rows at `span.upto`."""
    after = span.upto - 1 if snapshot else span.after
    return files.select(epoch=span.epoch, after=after, upto=span.upto, relations=[str(table)])


def outline(
    files: Files,
    table: TableName,
    span: Span,
    *,
    snapshot: bool,
    rereads: Sequence[Reread] = (),
    released: pa.Table | None = None,
    follows: int | None = None,
) -> Outline:
    """Read the outline of `table` in `span`, with `rereads` in it; with `snapshot` of its snapshot rows at `span.upto`
    instead. `released`: held changes that are let through in it (`model.decision`); `follows`: the layout that the
    table has, where nothing else is there.
    """
    op, ordinal, position = pc.field("op"), pc.field("ordinal"), pc.field("position")
    wanted = op.isin([SNAPSHOT] if snapshot else [INSERT, UPDATE, DELETE, TRUNCATE])
    for one in rereads:
        wanted |= (op == SNAPSHOT) & (ordinal >= one.first) & (ordinal <= one.last)
    wanted &= (pc.field("epoch") == span.epoch) & (pc.field("relation") == str(table))
    wanted &= (position <= span.upto) & (position > (span.upto - 1 if snapshot else span.after))
    paths = span_files(files, table, span, snapshot=snapshot)
    rows = files.read(paths, _COLUMNS, wanted)
    runs = _runs(rows.take(pc.sort_indices(rows, _ORDER)))
    older: tuple[int, ...] = ()
    if released is not None:
        rows = pa.concat_tables([rows, released.select(_COLUMNS).cast(rows.schema)])
        older = tuple(sorted(set(released["layout"].to_pylist())))
        first = released.slice(0, 1).to_pylist()[0]
        runs = runs or (Run(older[-1] if follows is None else follows, first["position"], first["ordinal"]),)
    rows = rows.take(pc.sort_indices(rows, _ORDER))
    truncated: tuple[Truncated, ...] = ()
    if pc.any(pc.equal(rows["op"], TRUNCATE)).as_py():
        found = files.read(paths, [f.name for f in fields(Truncated)], wanted & (pc.field("op") == TRUNCATE))
        truncated = tuple(Truncated(**row) for row in found.sort_by(_ORDER).to_pylist())
    updates = rows.filter(pc.and_(pc.equal(rows["op"], UPDATE), pc.is_valid(rows["old_kind"])))
    nameless = rows.filter(pc.and_(pc.equal(rows["op"], DELETE), pc.is_null(rows["old_kind"])))
    named = pc.and_(pc.equal(rows["old_kind"], "key"), pc.not_equal(rows["op"], SNAPSHOT))
    whole = pc.fill_null(pc.equal(rows["old_kind"], "full"), False)
    old = rows.filter(pc.and_(pc.is_in(rows["op"], pa.array([UPDATE, DELETE])), pc.invert(whole)))
    return Outline(
        rows=rows.num_rows,
        runs=runs,
        truncated=truncated,
        unchanged=_unchanged(rows),
        olds=updates.num_rows,
        nameless=nameless["position"][0].as_py() if nameless.num_rows else None,
        inserts=pc.sum(pc.equal(rows["op"], INSERT)).as_py() or 0,
        by_key=frozenset(rows.filter(pc.fill_null(named, False))["layout"].to_pylist()),
        bare=old["position"][0].as_py() if old.num_rows else None,
        rereads=tuple(rereads),
        whole_deletes=pc.sum(pc.and_(whole, pc.equal(rows["op"], DELETE))).as_py() or 0,
        older=older,
        by_whole=frozenset(rows.filter(whole)["layout"].to_pylist()),
    )


def cleared_before(files: Files, table: TableName, span: Span, run: Run) -> Truncated:
    """What stands for the end of all rows right before the first change of a run."""
    place = (pc.field("position") == run.position) & (pc.field("ordinal") == run.ordinal)
    wanted = (pc.field("epoch") == span.epoch) & (pc.field("relation") == str(table)) & place
    paths = span_files(files, table, Span(span.epoch, run.position - 1, run.position), snapshot=False)
    rows = files.read(paths, [f.name for f in fields(Truncated)], wanted)
    return Truncated(**(rows.to_pylist()[0] | {"ordinal": run.ordinal - 1}))


def _runs(rows: pa.Table) -> tuple[Run, ...]:
    told = rows.filter(pc.is_valid(rows["layout"]))
    if told.num_rows == 0:
        return ()
    layouts = told["layout"].combine_chunks()
    differs = pc.not_equal(layouts.slice(1), layouts.slice(0, len(layouts) - 1))
    first = told.filter(pa.concat_arrays([pa.array([True]), differs]))
    columns = (first[name].to_pylist() for name in ("layout", "position", "ordinal"))
    return tuple(Run(*place) for place in zip(*columns, strict=True))


def _unchanged(rows: pa.Table) -> dict[int, frozenset[int]]:
    some = rows.filter(pc.is_valid(rows["unchanged"]))
    out: dict[int, frozenset[int]] = {}
    for layout in some["layout"].unique().to_pylist():
        of_layout = some.filter(pc.equal(some["layout"], layout))
        out[layout] = frozenset(pc.list_flatten(of_layout["unchanged"]).unique().to_pylist())
    return out
