"""Proof: what is known of each epoch beside bronze, which the chain is held against.

It comes from the control tables and from the stream's own identity. The end of an epoch is known once the next one has
begun: its hand-over row says where bronze was then.
"""

from __future__ import annotations

import pyarrow.compute as pc

from cdc_lake.bronze.chain import Beside
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.errors import OtherSource
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import StreamRow
from cdc_lake.model.position import OrderDomain
from cdc_lake.source.stream import StreamIdentity


def known_beside(project: Project, reader: BronzeReader, control: ControlTables) -> dict[int, Beside]:
    """What is known of every epoch. Raises LakeError."""
    state = reader.state()
    if state is None:
        return {}
    rows = {row.epoch: row for row in control.streams()}
    gaps = _gaps(control)
    out = {}
    for epoch in range(1, state.epoch + 1):
        row, after = rows.get(epoch), rows.get(epoch + 1)
        stream = row.stream if row is not None else state.stream if epoch == state.epoch else None
        identity = None if stream is None else _identity(stream)
        out[epoch] = Beside(
            stream=stream,
            start=None if identity is None else identity.start,
            head=None if after is None or after.last_hash is None else bytes.fromhex(after.last_hash),
            dense=_dense(project, state, row, epoch),
            gaps=gaps.get((epoch, stream or ""), ()),
        )
    return out


def _identity(stream: str) -> StreamIdentity | None:
    """None for a text of another form: it says nothing of a start."""
    try:
        return StreamIdentity.parse(stream)
    except OtherSource:
        return None


def _dense(project: Project, state: BronzeState, row: StreamRow | None, epoch: int) -> bool:
    """Where no row says it, the pipeline's file does for the newest stream: it cannot go on under another order."""
    if row is not None and row.dense is not None:
        return row.dense
    source = project.pipeline.source
    identity = _identity(state.stream)
    if epoch != state.epoch or identity is None or not isinstance(source, FamilySource):
        return False
    return identity.domain is OrderDomain.CSN and source.slot_order == "lsn"


def _gaps(control: ControlTables) -> dict[tuple[int, str], tuple[tuple[int, int], ...]]:
    """Epoch and stream → the CSNs recorded as missing, ascending, none twice."""
    found: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for row in control.read("gaps", pc.field("first") <= pc.field("last")).sort_by("first").to_pylist():
        spans = found.setdefault((row["epoch"], row["stream"]), [])
        first = max(row["first"], spans[-1][1] + 1) if spans else row["first"]
        if first <= row["last"]:
            spans.append((first, row["last"]))
    return {place: tuple(spans) for place, spans in found.items()}
