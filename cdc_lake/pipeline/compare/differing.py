"""What is known of the keys that differ: both rows, which columns differ, and the changes in bronze that touched them.

For the first keys of each kind only. Values leave this module where they were asked for; keys, columns and
transactions always do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from cdc_lake.bronze.touching import Touching, touching
from cdc_lake.lake.canonical import readable
from cdc_lake.lake.control_rows import SnapshotRow
from cdc_lake.pipeline.applying.read_again import canonical_texts
from cdc_lake.pipeline.applying.reread import read_again_note
from cdc_lake.pipeline.compare.job import Job
from cdc_lake.pipeline.compare.layout import Layout
from cdc_lake.pipeline.compare.match import Differences, Key, rows_among
from cdc_lake.pipeline.state.comparison import SAMPLE, DifferingKey, KeyChange
from cdc_lake.pipeline.state.copies import in_whole_copy, whole_copies
from cdc_lake.source.stream import shown

CHANGES = 10
"""The last changes that are told of a key."""

Row = Mapping[str, str | None]


class KeyRows:
    """Rows of keys that differ, as both sides have them: gathered part by part, of the first keys of each kind."""

    def __init__(self, layout: Layout, held: frozenset[Key]) -> None:
        """`held`: keys whose rows are explained otherwise, some of which may not be."""
        self._layout = layout
        self._held = held
        self.source: dict[Key, Row] = {}
        self.silver: dict[Key, Row] = {}

    def add(self, found: Differences, mine: pa.Table, theirs: pa.Table) -> None:
        """Take note of what one part's differences are of."""
        if self._layout.by_content:
            return
        keys = self._layout.keys
        kinds = (found.missing, found.extra, found.changed, found.repeated)
        wanted = {key for kind in kinds for key in first(kind, self._held)} | {*first(self._held, frozenset())}
        for rows, known in ((mine, self.source), (theirs, self.silver)):
            for row in rows_among(rows, keys, frozenset(wanted)):
                known[tuple(row[name] for name in keys)] = row


def first(keys: Sequence[Key] | frozenset[Key], held: frozenset[Key]) -> list[Key]:
    """The first keys of a kind that are told, without those that are held."""
    return sorted((key for key in keys if key not in held), key=repr)[:SAMPLE]


def differing_keys(
    job: Job, layout: Layout, samples: Sequence[tuple[str, Sequence[Key]]], rows: KeyRows
) -> tuple[DifferingKey, ...]:
    """What is known of the sample keys, kind by kind. Raises LakeError."""
    wanted = frozenset(key for _, keys in samples for key in keys)
    if layout.by_content or not wanted:
        return ()
    changes = touching(
        job.bronze, layout.relation.table, layout.keys, wanted, canonical_texts(layout.keys, layout.types)
    )
    snapshots = job.control.snapshots()
    whole = whole_copies(snapshots, layout.relation.table)
    changes = {
        key: [one for one in some if in_whole_copy(whole, one.epoch, one.position, one.ordinal, one.op)]
        for key, some in changes.items()
    }
    found = []
    for kind, key in ((kind, key) for kind, keys in samples for key in keys):
        source, silver = rows.source.get(key), rows.silver.get(key)
        columns = () if source is None or silver is None else tuple(n for n in source if source[n] != silver[n])
        last = tuple(_change(snapshots, one) for one in changes[key][-CHANGES:])
        told = (_readable(row, layout) if job.asked.values else None for row in (source, silver))
        found.append(DifferingKey(kind, key, columns, last, len(changes[key]), *told))
    return tuple(found)


def _change(snapshots: Sequence[SnapshotRow], one: Touching) -> KeyChange:
    return KeyChange(
        position=shown(one.stream, one.position),
        op=one.op,
        committed=None if one.commit_ts is None else one.commit_ts.isoformat(timespec="milliseconds"),
        csn=one.csn,
        commit_lsn=one.commit_lsn,
        note=read_again_note(snapshots, one.stream, one.position, one.ordinal, one.op),
    )


def _readable(row: Row | None, layout: Layout) -> dict[str, str | None] | None:
    """A row in canonical text, with floats as numbers again, which that text has as bits."""
    if row is None:
        return None
    return {name: readable(text, layout.types.get(name)) for name, text in row.items()}
