"""A span of bronze split by table: read once, and written to scratch files of which each table reads its own.

Data files of bronze hold the changes of all tables. Where a span touches several tables and is large, each of them
would read the others' rows in vain, and the cost would grow with tables times changes. Split, it does with changes.

Files hold the columns that applying reads, some 64 MiB of rows at a time, so memory does not grow with the span. They
are gone with the next span or with the run; what a killed run left goes with the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_lake.bronze.contract import DELETE, INSERT, SCHEMA, SNAPSHOT, TRUNCATE, UPDATE
from cdc_lake.bronze.files import Files
from cdc_lake.errors import LakeError
from cdc_lake.model.span import Span

SPLIT_FROM = 50_000
"""Rows that the tables of a span together would read in vain, from which it is split. Splitting 100,000 rows takes a
half second of processor time (measured); where it begins to pay is an estimate."""

_LEFT_OUT = {"stream", "raw", "info", "ingest_ts"}
_COLUMNS = [name for name in SCHEMA.names if name not in _LEFT_OUT]
_AT_ONCE = 64 << 20  # bytes of rows in memory


class Splitter:
    """Splits spans, one at a time, into `folder`, which is its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def split(self, files: Files, span: Span) -> dict[str, Files]:
        """The changes of a span by table, as bronze writes it, each as files of its own; a table without has none.

        Those of the span before are gone. Raises LakeError where the folder cannot be written.
        """
        self.close()
        self._number += 1
        folder = self._folder / str(self._number)
        written: dict[str, list[str]] = {}
        numbers: dict[str, int] = {}
        for n, part in enumerate(_parts(_rows(files, span))):
            for relation, rows in _by_table(part):
                number = numbers.setdefault(relation, len(numbers))
                written.setdefault(relation, []).append(_write(rows, folder / f"{number}-{n}.parquet"))
        return {relation: Files(pa.table({"path": paths})) for relation, paths in written.items()}

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _rows(files: Files, span: Span) -> Iterator[pa.Table]:
    """The changes of a span, a part at a time."""
    position = pc.field("position")
    wanted = (pc.field("epoch") == span.epoch) & (position > span.after) & (position <= span.upto)
    again = (pc.field("op") == SNAPSHOT) & (pc.field("ordinal") < 0)  # rows that were read again
    wanted &= pc.field("op").isin([INSERT, UPDATE, DELETE, TRUNCATE]) | again
    paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto)
    return files.batches(paths, _COLUMNS, wanted)


def _parts(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in parts of about `_AT_ONCE`."""
    some: list[pa.Table] = []
    for batch in batches:
        some.append(batch)
        if sum(one.nbytes for one in some) >= _AT_ONCE:
            yield pa.concat_tables(some)
            some = []
    if some:
        yield pa.concat_tables(some)


def _by_table(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each table, in order."""
    ordered = rows.sort_by([(name, "ascending") for name in ("relation", "position", "ordinal")])
    counts = ordered.group_by("relation", use_threads=False).aggregate([([], "count_all")])
    at = 0
    for relation, count in zip(counts["relation"].to_pylist(), counts["count_all"].to_pylist(), strict=True):
        yield relation, ordered.slice(at, count)
        at += count


def _write(rows: pa.Table, path: Path) -> str:
    """A file that lives for a span: fast to write and to read, not small."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, compression="snappy", use_dictionary=["op", "relation"], write_statistics=False)
    except OSError as cause:
        raise LakeError("a span could not be split by table", where=str(path.parent)) from cause
    return str(path)
