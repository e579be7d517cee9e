"""Bronze as an Iceberg table of the pipeline's catalog.

The whole state stands in the summary of each version that is made here: the stream, both markers, the head of the
chain, and the last chunk of each snapshot of the stream. A version without it (a compaction by others) is passed over
to the one before. `lake.iceberg_log` says how a version is committed, fenced and found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation

from cdc_lake.bronze.contract import CONTRACT_VERSION, SCHEMA, order_app
from cdc_lake.bronze.files import BOUNDED, PLAIN, Files
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.state import (
    CONTRACT_PROPERTY,
    TRIMMED_PROPERTY,
    check_contract,
    from_note,
    from_rows,
    note_of,
    trimmed_of,
    trimmed_text,
)
from cdc_lake.bronze.table import Written
from cdc_lake.errors import (
    AnotherReceiver,
    BronzeAltered,
    BronzeDamaged,
    BronzeNotWritten,
    BronzeUnknown,
    CommitUncertain,
)
from cdc_lake.lake.catalog import CatalogAddress, is_there, open_catalog, reaching
from cdc_lake.lake.delta_leftovers import Leftovers
from cdc_lake.lake.iceberg_files import described, filesystem
from cdc_lake.lake.iceberg_leftovers import leftovers, local_path, remove, replaced
from cdc_lake.lake.iceberg_log import COMMIT_PROPERTY, Change, IcebergLog, NotLanded, Unknown
from cdc_lake.lake.object_store import reading
from cdc_lake.lake.parquet_file import Rows

NAMESPACE = "bronze"

_PREFIX = "cdc-lake."
_CHUNK = "cdc-lake.chunk:"
_LOOKS = 5
_BOUNDS = pa.schema([SCHEMA.field(name) for name in BOUNDED])


class IcebergBronzeTable:
    """The table `bronze.<name>` of a catalog (`bronze.upkeep.MaintainedTable`)."""

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

    def look(self) -> bool:
        """Ask the catalog."""
        if self._opened is None and not is_there(self._address):
            return False
        with reading(self.place), reaching(self._address):
            if not self._log.look():
                return False
        properties = self._log.table.properties
        if CONTRACT_PROPERTY not in properties:
            raise BronzeUnknown("the catalog has a table of this name that is not a bronze table", where=self.place)
        check_contract(properties[CONTRACT_PROPERTY], self.place)
        return True

    def create(self) -> None:
        """Make the empty table, and the namespace where there is none."""
        with self._writing("the bronze table could not be made"):
            try:
                self._log.create(SCHEMA, {CONTRACT_PROPERTY: str(CONTRACT_VERSION)})
            except TableAlreadyExistsError as cause:
                raise BronzeNotWritten("the bronze table is there already", where=self.place) from cause

    def state(self) -> BronzeState | None:
        """From the summary of the newest version that has it."""
        noted = self._noted()
        if noted is None:
            told = from_rows(self.files())
            if told is not None:
                reason = f"bronze has rows of the stream {told.stream} but no version with its markers"
                raise BronzeDamaged(reason, where=self.place)
            return None
        told = from_note({key.removeprefix(_PREFIX): value for key, value in noted.items()})
        upto, confirm = int(noted[f"{_PREFIX}upto"]), int(noted[f"{_PREFIX}confirm"])
        return BronzeState(told.stream, told.epoch, upto, confirm, told.head, told.empty)

    def prove(self) -> None:
        """By the versions that the catalog knows: the newest of ours is the head, or the head has the same files."""
        with reading(self.place):
            changed = self._changed()
        if changed is None:
            return
        told, ours = changed
        remedy = f"set the branch main to snapshot {ours}, the receiver's last one, then run again"
        raise BronzeAltered(f"something else changed bronze: {told}", where=self.place, hint=remedy)

    def last_chunk(self, app: str) -> int | None:
        """From the same summary: each version repeats the chunks of its stream."""
        found = (self._noted() or {}).get(_CHUNK + app)
        return None if found is None else int(found)

    def files(self) -> Files:
        """The files of the version with the bounds its manifests give; of a newer one where its lists are gone."""
        for _ in range(_LOOKS):
            try:
                with reading(self.place):
                    return self._files()
            except OSError as cause:
                failure = cause
                self.look()
        raise BronzeDamaged("the manifests of the newest version cannot be read", where=self.place) from failure

    def write(self, rows: Rows) -> Written:
        """One Parquet file, in no version yet."""
        with self._writing("a data file could not be written"):
            file = self._log.write(rows, stats=BOUNDED, plain=PLAIN)
        return Written(file, file.file_size_in_bytes)

    def commit(self, files: Sequence[Written], state: BronzeState, chunks: Mapping[str, int]) -> int:
        """One version, right after the one looked at."""
        return self._make(Change(added=[written.file for written in files]), state, chunks)

    # ── upkeep (`bronze.upkeep.MaintainedTable`) ──

    def prepare(self, state: BronzeState) -> None:
        """Nothing: each commit lets the versions go that are too old."""
        del state

    def exchange(self, removed: Sequence[str], files: Sequence[Written], state: BronzeState, *, gone: bool) -> int:
        """One version, which readers of a stream pass over unless rows leave."""
        actions = self.files().actions
        locations = dict(zip(actions["path"].to_pylist(), actions["location"].to_pylist(), strict=True))
        operation = Operation.DELETE if gone else Operation.REPLACE
        added, leaving = [written.file for written in files], {locations[path] for path in removed}
        with reading(self.place):
            replaced(self._log.table, removed)
        return self._make(Change(added, leaving, operation=operation), state, {})

    def trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """From the table's properties."""
        return trimmed_of(self._log.table.properties.get(TRIMMED_PROPERTY))

    def record_trimmed(self, trimmed: Mapping[int, tuple[int, bytes]], state: BronzeState) -> None:
        """As a property of the table."""
        self._make(Change(properties={TRIMMED_PROPERTY: trimmed_text(trimmed)}), state, {})

    def leftovers(self, now: float, files_seconds: float | None) -> Leftovers | None:
        """Files of metadata and of data that no version names."""
        with reading(self.place):
            return leftovers(self._log, now, files_seconds)

    def tidy(self, now: float, files_seconds: float | None) -> Leftovers | None:
        """Remove the leftovers."""
        found = self.leftovers(now, files_seconds)
        if found is not None:
            with reading(self.place):
                remove(self._log, found)
        return found

    def written_at(self) -> float | None:
        """By the file of its metadata; None in a store."""
        file = local_path(self._log.table, self._log.table.metadata_location)
        return None if file is None else file.stat().st_mtime

    # ── the log ──

    def _make(self, change: Change, state: BronzeState, chunks: Mapping[str, int]) -> int:
        """Commit on top of the version looked at, and stand at the one made."""
        self.prove()
        note = {f"{_PREFIX}{key}": str(value) for key, value in note_of(state).items()}
        note |= {f"{_PREFIX}upto": str(state.upto), f"{_PREFIX}confirm": str(state.confirm)}
        note |= self._chunks(state.stream) | {_CHUNK + app: str(chunk) for app, chunk in chunks.items()}
        with self._writing("the commit failed and did not land"):
            try:
                version = self._log.commit(change, note)
            except NotLanded as failure:
                if failure.overtaken:
                    raise AnotherReceiver("another writer committed to bronze", where=self.place) from failure
                raise BronzeNotWritten("the commit failed and did not land", where=self.place) from failure
            except Unknown as silence:
                told = "the commit failed, and the catalog does not say whether it landed"
                raise CommitUncertain(told, where=self.place) from silence
        return version.sequence_number or 0

    @property
    def _log(self) -> IcebergLog:
        if self._opened is None:
            self._opened = IcebergLog(open_catalog(self._address), (NAMESPACE, self._name))
        return self._opened

    def _changed(self) -> tuple[str, int] | None:
        """What others made of the newest version of ours, and which that is; None: nothing."""
        ours, head = self._log.newest(COMMIT_PROPERTY), self._log.head
        if ours is None or head == ours or not self._log.stands_at_main:
            return None
        if head is None or ours.snapshot_id not in self._log.ancestors():
            return f"the branch main was set back behind snapshot {ours.snapshot_id}", ours.snapshot_id
        before, now = self._log.located(ours), self._log.located(head)
        if before == now:
            return None
        operation = "unknown" if head.summary is None else head.summary.operation.value
        files = f"{len(before - now)} files left, {len(now - before)} came"
        return f"with snapshot {head.snapshot_id} ({operation}) {files}", ours.snapshot_id

    def _noted(self) -> Mapping[str, str] | None:
        return self._log.summary(f"{_PREFIX}stream")

    def _chunks(self, stream: str) -> dict[str, str]:
        """The chunks of the stream's snapshots so far, as each version says them again."""
        mine = f"{_CHUNK}{order_app(stream)}:"
        return {key: value for key, value in (self._noted() or {}).items() if key.startswith(mine)}

    def _files(self) -> Files:
        manifests = self._log.manifests()
        if any(m.content != ManifestContent.DATA for m in manifests):
            raise BronzeDamaged("rows of bronze were deleted by something else", where=self.place)
        known, self._described = self._described, {}
        for manifest in manifests:
            path = manifest.manifest_path
            self._described[path] = known[path] if path in known else self._describe(manifest)
        if not self._described:
            return Files.none()
        return Files.of(pa.concat_tables(self._described.values()), filesystem(self._log.table))

    def _describe(self, manifest: ManifestFile) -> pa.Table:
        return described(self._log.table, self._log.entries(manifest), _BOUNDS)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            with reaching(self._address):
                yield
        except OSError as cause:
            raise BronzeNotWritten(what, where=self.place) from cause
