"""The recorded streams of real openGauss servers, their final tables, and the state their rows amount to.

`tests/data/opengauss/README.md` says what was recorded. The workload made and altered tables in the stream's own time,
which the stream does not show: every table starts empty, keys are those of the workload, a column that a row has not
yet is NULL.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Record, Row, Style, Truncated
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.decode.gaussdb.text import table_name
from cdc_lake.devtools.recording import Data, RecordingReader
from cdc_lake.model.change import Boundaries, Change, Delete, Insert, OldKind, Transaction, Truncate, Tuple
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake_testing.oracle import Oracle

DATA = Path(__file__).resolve().parents[2] / "data" / "opengauss"
CODEC = Codec()

KEYS = {
    "t_comp": ("b", "a"),
    "t_uidx": ("c", "a"),
    "t_emptykey": ("k", "k2"),
    "t_oids": ("a",),
    "t_other_in_tx": ("a",),
    "Upper Case": ("Id",),
    'Tab.le "x"': ("a.b",),
    "select": ("table",),
    "中文表": ("编号",),
}
"""Primary keys of the workload that are not `id`."""

KEYLESS = {
    "t_nokey": ("a", "b"),
    "t_full": ("a", "b", "c"),
    "t_list": ("id", "region"),
    "t_ctas": ("id", "name"),
    "u_nokey": ("a", "b", "c"),
    "u_full": ("a", "b", "c"),
    "mvw": ("c",),
}
"""Tables without a key: the whole row is its own, and a column that is not sent is NULL (V29, or added later)."""


HEADS = frozenset({TableName("My Schema", 'Tab.le "x"'), TableName("public", "table x INSERT")})
"""Tables whose rows in style t cannot be told from those of others without knowing them (V7)."""


@dataclass(frozen=True)
class Stream:
    """One recorded stream: how it was asked for, and its messages as (header LSN, payload)."""

    version: str
    name: str
    database: str | None
    options: dict[str, str]
    plugin: str

    @property
    def parallel(self) -> bool:
        return int(self.options.get("parallel-decode-num", "1")) > 1

    @property
    def style(self) -> Style:
        return Style(self.options.get("decode-style", "b")) if self.parallel else Style.SERIAL

    @property
    def batch(self) -> bool:
        return self.options.get("sending-batch") == "1"

    def messages(self) -> list[tuple[int, bytes]]:
        played = RecordingReader(io.BytesIO(streams_of(self.version)[self.name]), self.name)
        return [(entry.lsn, entry.payload) for entry in played if isinstance(entry, Data)]

    def records(self) -> Iterator[Record]:
        for lsn, payload in self.messages():
            yield from records(
                payload, self.style, batch=self.batch, codec=CODEC, header_lsn=lsn, plugin=self.plugin, tables=HEADS
            )


ARCHIVES = ("streams.tar.xz", "more_streams.tar.xz")


@lru_cache(maxsize=1)
def streams_of(version: str) -> dict[str, bytes]:
    """The recordings of a version by name."""
    found = {}
    for name in ARCHIVES:
        if (DATA / version / name).exists():
            with tarfile.open(DATA / version / name) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    assert file is not None
                    found[Path(member.name).stem] = file.read()
    return found


def stream(version: str, name: str) -> Stream:
    """A stream by its name, which says how it was asked for."""
    options = {}
    if found := re.search(r"_par([0-9]*)_([btj])(?:_?b(?:atch)?([01]))?", name):
        batch = found[3] or ("1" if name == "spec_par_b" else "0")
        options = {"parallel-decode-num": found[1] or "2", "decode-style": found[2], "sending-batch": batch}
    database = next((d for d in ("og_a", "og_pg") if name.startswith(d)), None)
    return Stream(version, name, database, options, "test_decoding" if "test_decoding" in name else "mppdb_decoding")


@cache
def final(version: str, database: str) -> dict[TableName, tuple[tuple[str, ...], Counter]]:
    """The tables at the end as the server's COPY wrote them: columns, and rows as a bag."""
    tables = {}
    with tarfile.open(DATA / version / f"final_{database}.tar.xz") as archive:

        def read(name: str) -> str:
            file = archive.extractfile(name)
            assert file is not None
            return file.read().decode()

        for name, file in json.loads(read("index.json")).items():
            columns, *rows = csv.reader(io.StringIO(read(file), newline=""))
            values = (tuple(None if value == r"\N" else value for value in row) for row in rows)
            tables[table_name(name)] = (tuple(columns), Counter(values))
    return tables


AT_A_TIME = 500
"""Changes the oracle takes at once, at least: it copies all tables each time, and only the end is looked at."""


@dataclass
class State:
    """Rows as the transactions of a stream leave them: a dictionary a table.

    With an `oracle`, the kit's dictionary oracle is given the same changes, and `tables` is what it holds. Follows the family's own traps (V13, V30): a DELETE without a key on a table with one takes back the INSERT before
    it; an INSERT of a key that is there replaces its row. What cannot be followed because the server does not say it
    is counted in `lost`: (what, table) → number.
    """

    oracle: Oracle | None = None
    lost: Counter = field(default_factory=Counter)
    _rows: dict[TableName, dict[tuple, dict]] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _relations: dict[tuple, Relation] = field(default_factory=dict)

    def run(self, found: Iterable[Record]) -> State:
        for rows in transactions(found):
            self.apply(rows)
        return self

    def apply(self, rows: Iterable[Row | Truncated]) -> None:
        """One transaction."""
        for row in self._without_taken_back(rows):
            self._changes.extend(self._truncate(row) if isinstance(row, Truncated) else self._change(row))
        if self.oracle is None:
            self._changes = []
        elif len(self._changes) >= AT_A_TIME:
            self._flush(self.oracle)

    def tables(self) -> dict[TableName, list[dict[str, str | None]]]:
        """Rows by column name."""
        if self.oracle is None:
            return {table: list(rows.values()) for table, rows in self._rows.items()}
        self._flush(self.oracle)
        return {table: list(rows.values()) for table, rows in self.oracle.tables.items()}

    def bags(self) -> dict[str, Counter]:
        """The rows of each table that has any, as a bag."""
        return {
            t.name: Counter(tuple(sorted(row.items())) for row in rows) for t, rows in self.tables().items() if rows
        }

    def _flush(self, oracle: Oracle) -> None:
        if self._changes:
            oracle.apply(Transaction(Boundaries(0, 0), tuple(self._changes)))
            self._changes = []

    def _without_taken_back(self, rows: Iterable[Row | Truncated]) -> list[Row | Truncated]:
        kept: list[Row | Truncated] = []
        for row in rows:
            if isinstance(row, Row) and row.operation is Operation.DELETE and row.old is None:
                before = next((k for k in reversed(kept) if isinstance(k, Row) and k.table == row.table), None)
                if before is not None and before.operation is Operation.INSERT and row.table.name not in KEYLESS:
                    kept.remove(before)
                else:
                    self.lost["delete without a key", row.table.name] += 1
            else:
                kept.append(row)
        return kept

    def _truncate(self, truncated: Truncated) -> Iterator[Change]:
        for table in truncated.tables:
            self._rows[table] = {}
            yield Truncate(self._relation(table, ()))

    def _change(self, row: Row) -> Iterator[Change]:
        """Of an UPDATE: the old row goes, the new one comes. The oracle wants rows to be there, and each once."""
        if row.operation is not Operation.INSERT:
            if row.old is None:
                self.lost["update without a key", row.table.name] += 1
                return
            if row.operation is Operation.UPDATE and not row.new:
                self.lost["update without columns", row.table.name] += 1
                return
            yield from self._removed(row.table, row.old, f"{row.operation.name.lower()} of no row", missed=True)
        if row.operation is not Operation.DELETE:
            if not (fields := row.new):
                self.lost["insert without columns", row.table.name] += 1
                return
            yield from self._removed(row.table, fields, "insert of a row that is there", missed=False)
            relation, new, key = self._tuple(row.table, fields)
            self._rows.setdefault(row.table, {})[key] = dict(zip(relation.names, new, strict=True))
            yield Insert(relation, new)

    def _removed(self, table: TableName, fields: tuple[Field, ...], what: str, *, missed: bool) -> Iterator[Change]:
        """The row of this key goes, if it is there; noted as lost where it is missed, or was not to be there."""
        relation, values, key = self._tuple(table, fields)
        there = self._rows.setdefault(table, {}).pop(key, None) is not None
        if there:
            yield Delete(relation, values, OldKind.KEY)
        if there is not missed:
            self.lost[what, table.name] += 1

    def _tuple(self, table: TableName, fields: tuple[Field, ...]) -> tuple[Relation, Tuple, tuple]:
        named = {f.name: f.value for f in fields}
        named = {**dict.fromkeys(KEYLESS.get(table.name, ())), **named}
        relation = self._relation(table, tuple(named))
        return relation, tuple(named.values()), tuple(named[name] for name in relation.primary_key)

    def _relation(self, table: TableName, names: tuple[str, ...]) -> Relation:
        known = self._relations.get((table, names))
        if known is None:
            key = KEYLESS.get(table.name) or KEYS.get(table.name, ("id",))
            known = Relation(table, tuple(Column(n, "text", 25) for n in names), ReplicaIdentity.DEFAULT, key)
            self._relations[table, names] = known
        return known


def transactions(found: Iterable[Record]) -> Iterator[list[Row | Truncated]]:
    """The rows of each transaction that has any."""
    rows: list[Row | Truncated] = []
    for record in found:
        match record:
            case Begin():
                rows = []
            case Row() | Truncated():
                rows.append(record)
            case Commit() if rows:
                yield rows
