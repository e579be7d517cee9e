"""Bronze as an Iceberg table of the pipeline's catalog.

The summary of each version of cdc_lake contains the whole state: the stream, both markers, the head of the chain, and
the last chunk of each snapshot of the stream. A version without it (a compaction by others) is skipped in favour of the
one before. `tables.iceberg_log` defines how a version is committed, fenced and found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation

from cdc_lake import errors
from cdc_lake.bronze import data_files
from cdc_lake.bronze.contract import CONTRACT_VERSION, SCHEMA, StreamCheckpoint, order_app
from cdc_lake.bronze.data_files import BOUNDED, CONTRACT_PROPERTY, PLAIN, TRIMMED_PROPERTY, Files, WrittenFile
from cdc_lake.tables.catalog import CatalogAddress, is_there, open_catalog, reaching
from cdc_lake.tables.files import Rows
from cdc_lake.tables.iceberg_io import describe_files, filesystem
from cdc_lake.tables.iceberg_log import COMMIT_PROPERTY, Change, CommitOutcomeUnknown, IcebergCommitFailed, IcebergLog
from cdc_lake.tables.object_store import reading
from cdc_lake.tables.orphan_files import OrphanFiles, iceberg_leftovers, local_path, mark_replaced, remove_from_iceberg

NAMESPACE = "bronze"

_PREFIX = "cdc-lake."
_CHUNK = "cdc-lake.chunk:"
_LOOKS = 5
_BOUNDS = pa.schema([SCHEMA.field(name) for name in BOUNDED])


class IcebergBronzeTable:
    """The table `bronze.<name>` of a catalog (`bronze.compaction.MaintainedTable`)."""

    def __init__(self, address: CatalogAddress, name: str) -> None:
        self._address = address
        self._name = name
        self._opened: IcebergLog | None = None
        self._described: dict[str, pa.Table] = {}

    @property
    def place(self) -> str:
        """Catalog and table."""
        return f"{self._address.name}: {NAMESPACE}.{self._name}"

    @property
    def version(self) -> int:
        """The sequence number of the version."""
        head = self._log.head
        return 0 if head is None else head.sequence_number or 0

    def refresh(self) -> bool:
        """Query the catalog."""
        if self._opened is None and not is_there(self._address):
            return False
        with reading(self.place), reaching(self._address):
            if not self._log.refresh():
                return False
        properties = self._log.table.properties
        if CONTRACT_PROPERTY not in properties:
            raise errors.BronzeUnknown(
                "the catalog has a table of this name that is not a bronze table", where=self.place
            )
        data_files.check_contract(properties[CONTRACT_PROPERTY], self.place)
        return True

    def create(self) -> None:
        """Create the empty table, and the namespace if it does not exist."""
        with self._writing("the bronze table could not be created"):
            try:
                self._log.create(SCHEMA, {CONTRACT_PROPERTY: str(CONTRACT_VERSION)})
            except TableAlreadyExistsError as cause:
                raise errors.BronzeNotWritten("the bronze table already exists", where=self.place) from cause

    def state(self) -> StreamCheckpoint | None:
        """From the summary of the newest version with a state."""
        noted = self._read_note()
        if noted is None:
            note = data_files.from_rows(self.files())
            if note is not None:
                reason = f"bronze has rows of the stream {note.stream} but no version with its markers"
                raise errors.BronzeDamaged(reason, where=self.place)
            return None
        note = data_files.from_note({key.removeprefix(_PREFIX): value for key, value in noted.items()})
        upto, confirm = int(noted[f"{_PREFIX}upto"]), int(noted[f"{_PREFIX}confirm"])
        return StreamCheckpoint(note.stream, note.epoch, upto, confirm, note.head, note.empty)

    def prove(self) -> None:
        """From the versions in the catalog: our newest one is the head, or the head has the same files."""
        with reading(self.place):
            changed = self._find_foreign_change()
        if changed is None:
            return
        change, own_snapshot = changed
        remedy = f"set the branch main to snapshot {own_snapshot}, the receiver's latest one, then run again"
        raise errors.BronzeAltered(f"bronze was modified outside cdc_lake: {change}", where=self.place, hint=remedy)

    def last_chunk(self, app: str) -> int | None:
        """From the same summary: each version repeats the chunks of its stream."""
        chunk = (self._read_note() or {}).get(_CHUNK + app)
        return None if chunk is None else int(chunk)

    def files(self) -> Files:
        """The files of the version with the bounds in its manifests; of a newer one if its lists are gone."""
        for _ in range(_LOOKS):
            try:
                with reading(self.place):
                    return self._files()
            except OSError as cause:
                failure = cause
                self.refresh()
        raise errors.BronzeDamaged("the manifests of the latest version cannot be read", where=self.place) from failure

    def write(self, rows: Rows) -> WrittenFile:
        """Write one Parquet file, in no version yet."""
        with self._writing("a data file could not be written"):
            file = self._log.write(rows, stats=BOUNDED, plain=PLAIN)
        return WrittenFile(file, file.file_size_in_bytes)

    def commit(self, files: Sequence[WrittenFile], state: StreamCheckpoint, chunks: Mapping[str, int]) -> int:
        """Write one version, directly after the current one."""
        return self._make(Change(added=[written.file for written in files]), state, chunks)

    # ── upkeep (`bronze.compaction.MaintainedTable`) ──

    def prepare(self, state: StreamCheckpoint) -> None:
        """Nothing: each commit expires old versions."""
        del state

    def exchange(
        self, removed: Sequence[str], files: Sequence[WrittenFile], state: StreamCheckpoint, *, gone: bool
    ) -> int:
        """Write one version, which streaming readers skip unless rows are removed."""
        actions = self.files().actions
        locations = dict(zip(actions["path"].to_pylist(), actions["location"].to_pylist(), strict=True))
        operation = Operation.DELETE if gone else Operation.REPLACE
        added, leaving = [written.file for written in files], {locations[path] for path in removed}
        with reading(self.place):
            mark_replaced(self._log.table, removed)
        return self._make(Change(added, leaving, operation=operation), state, {})

    def last_trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """From the table's properties."""
        return data_files.trimmed_of(self._log.table.properties.get(TRIMMED_PROPERTY))

    def record_trimmed(self, trimmed: Mapping[int, tuple[int, bytes]], state: StreamCheckpoint) -> None:
        """As a property of the table."""
        self._make(Change(properties={TRIMMED_PROPERTY: data_files.trimmed_text(trimmed)}), state, {})

    def leftovers(self, now: float, files_seconds: float | None) -> OrphanFiles | None:
        """Metadata and data files that no version refers to."""
        with reading(self.place):
            return iceberg_leftovers(self._log, now, files_seconds)

    def tidy(self, now: float, files_seconds: float | None) -> OrphanFiles | None:
        """Remove them."""
        leftovers = self.leftovers(now, files_seconds)
        if leftovers is not None:
            with reading(self.place):
                remove_from_iceberg(self._log, leftovers)
        return leftovers

    def written_at(self) -> float | None:
        """The time of its metadata file; None in an object store."""
        file = local_path(self._log.table, self._log.table.metadata_location)
        return None if file is None else file.stat().st_mtime

    # ── the log ──

    def _make(self, change: Change, state: StreamCheckpoint, chunks: Mapping[str, int]) -> int:
        """Commit on top of the current version, and move to the new one."""
        self.prove()
        note = {f"{_PREFIX}{key}": str(value) for key, value in data_files.note_of(state).items()}
        note |= {f"{_PREFIX}upto": str(state.upto), f"{_PREFIX}confirm": str(state.confirm)}
        prefix = f"{_CHUNK}{order_app(state.stream)}:"  # each version repeats the last chunks of the stream's snapshots
        note |= {key: value for key, value in (self._read_note() or {}).items() if key.startswith(prefix)}
        note |= {_CHUNK + app: str(chunk) for app, chunk in chunks.items()}
        with self._writing("the commit failed and did not land"):
            try:
                version = self._log.commit(change, note)
            except IcebergCommitFailed as failure:
                if failure.overtaken:
                    raise errors.AnotherReceiver("another writer committed to bronze", where=self.place) from failure
                raise errors.BronzeNotWritten("the commit failed and did not land", where=self.place) from failure
            except CommitOutcomeUnknown as silence:
                message = "the commit failed, and the catalog does not report whether it landed"
                raise errors.CommitUncertain(message, where=self.place) from silence
        return version.sequence_number or 0

    @property
    def _log(self) -> IcebergLog:
        if self._opened is None:
            self._opened = IcebergLog(open_catalog(self._address), (NAMESPACE, self._name))
        return self._opened

    def _find_foreign_change(self) -> tuple[str, int] | None:
        """What others changed since our newest version, and that version; None: nothing."""
        own_snapshot, head = self._log.newest(COMMIT_PROPERTY), self._log.head
        if own_snapshot is None or head == own_snapshot or not self._log.stands_at_main:
            return None
        if head is None or own_snapshot.snapshot_id not in self._log.ancestors():
            return f"the branch main was reset to before snapshot {own_snapshot.snapshot_id}", own_snapshot.snapshot_id
        before, now = self._log.file_locations(own_snapshot), self._log.file_locations(head)
        if before == now:
            return None
        operation = "unknown" if head.summary is None else head.summary.operation.value
        files = f"{len(before - now)} files were removed, {len(now - before)} added"
        return f"with snapshot {head.snapshot_id} ({operation}) {files}", own_snapshot.snapshot_id

    def _read_note(self) -> Mapping[str, str] | None:
        return self._log.summary(f"{_PREFIX}stream")

    def _files(self) -> Files:
        manifests = self._log.manifests()
        if any(m.content != ManifestContent.DATA for m in manifests):
            raise errors.BronzeDamaged("another program deleted rows of bronze", where=self.place)
        previous, self._described = self._described, {}
        for manifest in manifests:
            path = manifest.manifest_path
            if path not in previous:
                previous[path] = describe_files(self._log.table, self._log.entries(manifest), _BOUNDS)
            self._described[path] = previous[path]
        if not self._described:
            return Files.empty()
        return Files.from_actions(pa.concat_tables(self._described.values()), filesystem(self._log.table))

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            with reaching(self._address):
                yield
        except OSError as cause:
            raise errors.BronzeNotWritten(what, where=self.place) from cause
