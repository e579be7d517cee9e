"""Compares bronze with its source: whether it contains everything that was committed, once, and nothing else.

A source keeps no history, so only the state of its tables can be compared. The chain is verified; then bronze's newest
stream, from its copy on, is replayed (`bronze.row_history`) and compared with one snapshot of the source, row by row. A
change that is missing, duplicated, out of order, torn or aborted gives another state, unless a later change of the same
row hides it. The slot's confirmed position is also checked: bronze must have everything up to it. Silver and Spark are
not involved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.hash_chain import ChainVerdict
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_history import Row, replay_rows
from cdc_lake.comparison.columns import count_copies, match
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import all_rows
from cdc_lake.connectors.factory import compare_source, source_view
from cdc_lake.connectors.redaction import RedactedComparison, redaction_of
from cdc_lake.control.snapshots import copies_in_force
from cdc_lake.control.table_pauses import read_epoch_facts
from cdc_lake.errors import BronzeDamaged, NoKey, NoStream
from cdc_lake.model.position import Lsn, Span, parse_position
from cdc_lake.model.relation import Relation
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent
from cdc_lake.runtime.apply.snapshot_alignment import AlignmentPoint, point
from cdc_lake.silver.layout_mapping import default_keys, without_key
from cdc_lake.tables.canonical_values import arrow_type, from_source
from cdc_lake.tables.control_tables import control_tables


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
    """The result. `confirmed`: position confirmed by the slot; `held`: the one that bronze permits."""

    chain: ChainVerdict
    confirmed: str | None
    held: str
    forgotten: bool  # the slot has confirmed more than bronze has
    tables: tuple[TableProof, ...]

    @property
    def holds(self) -> bool:
        """True without a contradiction; inconclusive tables are none."""
        return self.chain.holds and not self.forgotten and all(t.verdict != "different" for t in self.tables)


def against_source(project: Project, report: ProgressReporter = silent) -> SourceProof:
    """Verify the chain and compare bronze with its source. Raises SourceError, LakeError, StateError."""
    with source_view(project) as view:
        slot = view.slot()  # before bronze is read: it may grow meanwhile
    bronze = bronze_reader(project)
    state = bronze.state()
    if state is None:
        raise NoStream("bronze contains no stream yet: there is nothing to verify", where=bronze.place)
    control = control_tables(project)
    chain = verify(bronze, load_epoch_facts=lambda: read_epoch_facts(project, bronze, control), report=report)
    confirmed = None if slot is None else slot.confirmed
    forgotten = confirmed is not None and parse_position(confirmed) > state.confirm
    tables = _tables(project, bronze, state, report)
    is_lsn = confirmed is not None and "/" in confirmed  # both positions are printed in the same form
    held = str(Lsn(state.confirm) if is_lsn else state.confirm)
    return SourceProof(chain, confirmed, held, forgotten, tables)


def _tables(
    project: Project, bronze: BronzeReader, state: StreamCheckpoint, report: ProgressReporter
) -> tuple[TableProof, ...]:
    with compare_source(project, state) as opened:
        source = RedactedComparison(opened, redaction_of(project))
        captured = source.captured_tables()
        report(ProgressEvent("chain", "taking a snapshot of the source"))
        with source.snapshot([published.table for published in captured]) as snapshot:
            where = point(bronze, snapshot, state.upto, partial(source.ahead, snapshot))
            relations = [source.relation_of(published) for published in captured]
            rows = [
                all_rows(source, relation, published) for relation, published in zip(relations, captured, strict=True)
            ]
    copies = copies_in_force(control_tables(project).snapshots(), state.stream, state.upto) or {}
    copied = {name: published.position for name, published in copies.items()}
    proofs = []
    for relation, source_rows in zip(relations, rows, strict=True):
        name, keys = str(relation.table), relation.names
        reason = _cannot(project, bronze, state, where, relation)
        try:
            keys = keys if without_key(relation) else default_keys(relation)
        except NoKey as none:
            reason = none.message
        if reason:
            proofs.append(TableProof(name, "inconclusive", source_rows.num_rows, reason=reason))
        else:
            proofs.append(_compare_table(bronze, state, relation, source_rows, keys, copied))
        report(ProgressEvent("chain", f"{name}: {proofs[-1].verdict}", source_rows.num_rows, unit="rows"))
    return tuple(proofs)


def _cannot(
    project: Project, bronze: BronzeReader, state: StreamCheckpoint, where: AlignmentPoint, relation: Relation
) -> str:
    """Why replaying a table cannot give the source's state, if it cannot."""
    if project.pipeline.snapshot.mode == "none":
        return "the stream was started without a copy of the existing rows"
    if state.epoch in bronze.last_trimmed():
        return "retention removed the beginning of the stream"
    if bronze.undecodable(Span(state.epoch, -1, state.upto)):
        return "bronze contains a transaction that could not be decoded"
    gap = where.gap(relation.table, state.upto)
    return "" if gap is None else gap.reason


def _compare_table(
    bronze: BronzeReader,
    state: StreamCheckpoint,
    relation: Relation,
    source_rows: pa.Table,
    keys: Sequence[str],
    copied: Mapping[str, int],
) -> TableProof:
    name = str(relation.table)
    try:
        rows = replay_rows(bronze, state.epoch, {name: keys}, copied)[name]
    except BronzeDamaged as damaged:
        return TableProof(name, "different", source_rows.num_rows, reason=damaged.message)
    bronze_side, source_side = _table(rows, relation), _canonical({c: source_rows[c] for c in relation.names}, relation)
    rows_there, rows_here = source_side.num_rows, bronze_side.num_rows
    if without_key(relation):
        source_side, bronze_side = count_copies(source_side), count_copies(bronze_side)
    differences = match(source_side, bronze_side, keys)
    same = not differences.keys and bronze_side.num_rows == source_side.num_rows
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
