"""Replaying a recording: what a stream held, counted, and that it was one.

Every payload is decoded and every transaction followed from BEGIN to COMMIT, so a recording that replays is one that
the receiver could have taken. Works without the server and without a lake.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cdc_lake.decode.describe import Described
from cdc_lake.errors import DecodeError, OutOfSequence
from cdc_lake.pipeline.inspect.payload import PayloadReader, Reading, reading_of
from cdc_lake.source.recording_file import Alive, Data, RecordingReader

_CHANGES = frozenset({"insert", "update", "delete", "truncate"})


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a recording holds. `changes`: table → kind → number; `first`, `last`: LSNs of its data messages.

    `open_changes` counts the changes behind the last COMMIT: a recording may end inside a transaction.
    """

    file: str
    plugin: str
    messages: int
    keepalives: int
    bytes: int
    transactions: int
    empty: int
    first_csn: int | None
    last_csn: int | None
    changes: dict[str, dict[str, int]]
    others: dict[str, int]
    open_changes: int


@dataclass(slots=True)
class _Count:
    """The numbers as they grow."""

    messages: int = 0
    keepalives: int = 0
    bytes: int = 0
    transactions: int = 0
    empty: int = 0
    csns: list[int] = field(default_factory=list)
    changes: dict[str, Counter[str]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    open: Counter[tuple[str, str]] | None = None

    def take(self, found: Described) -> None:
        """One object of the stream. Raises OutOfSequence where it cannot stand here."""
        kind = found["type"]
        if (csn := found.get("csn")) is not None:
            self.csns = [min([csn, *self.csns]), max([csn, *self.csns])]
        if kind == "begin":
            if self.open is not None:
                raise OutOfSequence("a BEGIN inside a transaction")
            self.open = Counter()
        elif kind in _CHANGES:
            self._transaction(f"a {kind}").update((table, kind) for table in _tables(found))
        elif kind == "commit":
            self._commit(self._transaction("a COMMIT"))
        else:
            self.others[kind] += 1

    def _transaction(self, what: str) -> Counter[tuple[str, str]]:
        if self.open is None:
            raise OutOfSequence(f"{what} outside a transaction")
        return self.open

    def _commit(self, done: Counter[tuple[str, str]]) -> None:
        self.transactions += 1
        self.empty += not done
        for (table, kind), number in done.items():
            self.changes.setdefault(table, Counter())[kind] += number
        self.open = None


def replay(path: Path, given: Reading | None = None) -> Replayed:
    """Read a recording to its end. `given` None: as its header says.

    Raises DecodeError, whose `where` names the file and the number of the entry.
    """
    with RecordingReader.open(path) as recording:
        reading = given or reading_of(recording.header)
        reader, count = PayloadReader(reading), _Count()
        for number, entry in enumerate(recording, start=1):
            match entry:
                case Alive():
                    count.keepalives += 1
                case Data(lsn=lsn, payload=payload):
                    count.messages += 1
                    count.bytes += len(payload)
                    try:
                        for found in reader.objects(payload, lsn):
                            count.take(found)
                    except DecodeError as error:
                        error.where = f"{path}, entry {number}"
                        raise
    return Replayed(
        file=str(path),
        plugin=reading.plugin,
        messages=count.messages,
        keepalives=count.keepalives,
        bytes=count.bytes,
        transactions=count.transactions,
        empty=count.empty,
        first_csn=count.csns[0] if count.csns else None,
        last_csn=count.csns[-1] if count.csns else None,
        changes={table: dict(kinds) for table, kinds in sorted(count.changes.items())},
        others=dict(count.others),
        open_changes=0 if count.open is None else count.open.total(),
    )


def _tables(found: Described) -> list[str]:
    named = found.get("tables", [found])
    return [f"{t['schema']}.{t['table']}" if "table" in t else f"OID {t['relation_oid']}" for t in named]
