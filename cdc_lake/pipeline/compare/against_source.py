"""Bronze against its source: is everything that was committed in it, once, and nothing that was not?

What can be asked of a source that keeps no history of its own: the state of its tables. So the chain is verified, then
bronze's newest stream, from its copy on, is folded (`bronze.fold`) and set beside one snapshot of the source, row by
row; a change that is missing, doubled, out of order, torn or of an aborted transaction leaves another state, unless a
later change of the same row hides it. And the slot is asked what it was told to forget: bronze must hold that.
Silver and Spark have no part in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from cdc_lake.bronze.chain import ChainVerdict, verify
from cdc_lake.bronze.fold import Row, folded
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.errors import BronzeDamaged, NoKey, NoStream
from cdc_lake.lake.arrow_values import arrow_type
from cdc_lake.lake.canonical import from_source
from cdc_lake.lake.control import control_tables
from cdc_lake.model.position import Lsn, parse_position
from cdc_lake.model.relation import Relation
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Progress, Tell, silent
from cdc_lake.pipeline.applying.point import Point, point
from cdc_lake.pipeline.compare.match import counted, match
from cdc_lake.pipeline.server import compare_source, source_view
from cdc_lake.pipeline.state.copies import copies_in_force
from cdc_lake.pipeline.state.proof import known_beside
from cdc_lake.pipeline.stream.redaction import RedactedSource, redaction_of
from cdc_lake.silver.shape import default_keys, without_key


@dataclass(frozen=True, slots=True)
class TableProof:
    """One table: `equal`, `different` or `inconclusive`, and in how many keys."""

    table: str
    verdict: str
    source_rows: int = 0
    bronze_rows: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    repeated: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SourceProof:
    """What was found. `confirmed`: what the slot was told to forget; `held`: what bronze says it may."""

    chain: ChainVerdict
    confirmed: str | None
    held: str
    forgotten: bool  # the slot was told to forget more than bronze holds
    tables: tuple[TableProof, ...]

    @property
    def holds(self) -> bool:
        """True where nothing contradicts; tables that could not be judged do not."""
        return self.chain.holds and not self.forgotten and all(t.verdict != "different" for t in self.tables)


def against_source(project: Project, tell: Tell = silent) -> SourceProof:
    """Verify the chain and set bronze beside its source. Raises SourceError, LakeError, StateError."""
    with source_view(project) as view:
        slot = view.slot()  # before bronze is looked at: it may grow meanwhile
    bronze = bronze_reader(project)
    state = bronze.state()
    if state is None:
        raise NoStream("bronze holds no stream yet: there is nothing to verify", where=bronze.place)
    control = control_tables(project)
    chain = verify(bronze, beside=lambda: known_beside(project, bronze, control), tell=tell)
    confirmed = None if slot is None else slot.confirmed
    forgotten = confirmed is not None and parse_position(confirmed) > state.confirm
    tables = _tables(project, bronze, state, tell)
    return SourceProof(chain, confirmed, _as(confirmed, state), forgotten, tables)


def _as(confirmed: str | None, state: BronzeState) -> str:
    """What bronze says may be forgotten, printed as the slot's own position is."""
    return str(Lsn(state.confirm)) if confirmed is not None and "/" in confirmed else str(state.confirm)


def _tables(project: Project, bronze: BronzeReader, state: BronzeState, tell: Tell) -> tuple[TableProof, ...]:
    with compare_source(project, state) as opened:
        source = RedactedSource(opened, redaction_of(project))
        captured = source.captured()
        tell(Progress("chain", "taking a snapshot of the source"))
        with source.snapshot([one.table for one in captured]) as seen:
            where = point(bronze, seen, state.upto, partial(source.ahead, seen))
            relations = [source.relation_of(one) for one in captured]
            rows = [source.rows(relation, one) for relation, one in zip(relations, captured, strict=True)]
    keys: dict[str, tuple[str, ...]] = {}
    reasons = {str(relation.table): _cannot(project, bronze, state, where, relation) for relation in relations}
    for relation in relations:
        try:
            keys[str(relation.table)] = relation.names if without_key(relation) else default_keys(relation)
        except NoKey as none:
            reasons[str(relation.table)] = none.message
    copies = copies_in_force(control_tables(project).snapshots(), state.stream, state.upto) or {}
    copied = {name: one.position for name, one in copies.items()}
    found = []
    for relation, given in zip(relations, rows, strict=True):
        name = str(relation.table)
        if reasons[name]:
            found.append(TableProof(name, "inconclusive", given.num_rows, reason=reasons[name]))
        else:
            found.append(_judged(bronze, state, relation, given, keys[name], copied))
        tell(Progress("chain", f"{name}: {found[-1].verdict}", given.num_rows, unit="rows"))
    return tuple(found)


def _cannot(project: Project, bronze: BronzeReader, state: BronzeState, where: Point, relation: Relation) -> str:
    """Why a table's fold cannot be the source's state, if it cannot."""
    if project.pipeline.snapshot.mode == "none":
        return "the stream began without a copy of the rows that were there"
    if state.epoch in bronze.trimmed():
        return "retention let the beginning of the stream go"
    if bronze.undecodable(Span(state.epoch, -1, state.upto)):
        return "bronze holds a transaction that could not be decoded"
    gap = where.gap(relation.table, state.upto)
    return "" if gap is None else gap.reason


def _judged(
    bronze: BronzeReader,
    state: BronzeState,
    relation: Relation,
    given: pa.Table,
    keys: Sequence[str],
    copied: Mapping[str, int],
) -> TableProof:
    name = str(relation.table)
    try:
        rows = folded(bronze, state.epoch, {name: keys}, copied)[name]
    except BronzeDamaged as damaged:
        return TableProof(name, "different", given.num_rows, reason=damaged.message)
    ours, theirs = _table(rows, relation), _canonical({c: given[c] for c in relation.names}, relation)
    rows_there, rows_here = theirs.num_rows, ours.num_rows
    if without_key(relation):
        theirs, ours = counted(theirs), counted(ours)
    differences = match(theirs, ours, keys)
    same = not differences.keys and ours.num_rows == theirs.num_rows
    return TableProof(
        name,
        "equal" if same else "different",
        rows_there,
        rows_here,
        len(differences.missing),
        len(differences.extra),
        len(differences.changed),
        len(differences.repeated),
    )


def _table(rows: Sequence[Row], relation: Relation) -> pa.Table:
    texts = {name: pa.array([row.get(name) for row in rows], pa.large_string()) for name in relation.names}
    return _canonical({name: pa.chunked_array([values]) for name, values in texts.items()}, relation)


def _canonical(columns: Mapping[str, pa.ChunkedArray], relation: Relation) -> pa.Table:
    kinds = {column.name: arrow_type(column) for column in relation.columns}
    return pa.table({name: from_source(values, kinds[name]) for name, values in columns.items()})
