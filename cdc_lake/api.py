"""The public interface: a pipeline as an object, with what the command line does as methods that return values.

They return or raise; none prints, exits or installs a signal handler. What a method needs (Spark, a database driver,
Great Expectations) is imported when it is called.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_lake.config.loader import load_project, validate
from cdc_lake.config.project import Project
from cdc_lake.model.position import Given
from cdc_lake.model.position import as_of as parse_as_of
from cdc_lake.observability.events import ProgressReporter, silent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cdc_lake.bronze.change_reader import ChangeReader
    from cdc_lake.config.loader import Secrets
    from cdc_lake.connectors.base import SlotAdvanced, SlotDetails, SlotDropped, SlotList, SlotMade
    from cdc_lake.control.cut_session import CutSession
    from cdc_lake.control.table_pauses import PauseState
    from cdc_lake.control.verdicts import Comparison
    from cdc_lake.model.quarantine import Verb
    from cdc_lake.ops.findings import CheckLine
    from cdc_lake.ops.html_pages import ReportFiles, StatusPage
    from cdc_lake.ops.inspect import RowView, TransactionView
    from cdc_lake.ops.plan import Plan
    from cdc_lake.ops.status import Status
    from cdc_lake.runtime.apply.rebuild import Rebuilt
    from cdc_lake.runtime.cut_retention import CutList, CutViews, PinResult
    from cdc_lake.runtime.maintain import Maintenance, Upgrade
    from cdc_lake.runtime.quarantine import QuarantineDecision, QuarantineList
    from cdc_lake.runtime.receive.lag import PreparedList
    from cdc_lake.runtime.restart import Restarted
    from cdc_lake.runtime.resync import Resynced
    from cdc_lake.runtime.run import RunSummary


class Pipeline:
    """A pipeline: what its file says, its lake, and the server it reads from."""

    def __init__(self, project: Project) -> None:
        """`Pipeline.load` reads a file; a project is what that makes of it."""
        self.project = project

    @classmethod
    def load(cls, file: str | Path, *, environment: str | None = None, secrets: Secrets | None = None) -> Pipeline:
        """Read a pipeline file.

        Args:
            file: The YAML file, as `pipelines/shop.yaml`.
            environment: Name of the file in `conf/` whose settings override those of the file.
            secrets: Called with scope and key, returns the value of `${secret:scope/key}`.

        Raises:
            ConfigInvalid: The file has errors, which the error lists with line and column.
        """
        return cls(load_project(Path(file), environment=environment, secrets=secrets))

    def __repr__(self) -> str:
        """Its name and file."""
        return f"Pipeline({self.project.name!r}, {str(self.project.file)!r})"

    # ── run ──

    def check(self) -> list[CheckLine]:
        """Check what a run needs: the server, its settings and rights, the lake, this machine.

        Returns:
            A line for each check, failed ones with what to do.

        Raises:
            SourceError: The server cannot be reached.
        """
        from cdc_lake.ops.check.runner import check

        return check(self.project)

    def plan(self) -> Plan:
        """Work out what a run would do, without doing it.

        Returns:
            The actions in the order of a run, and those among them that a run does only if they are allowed.

        Raises:
            SourceError: The server cannot be reached.
            LakeError: Bronze, silver or the control tables cannot be read.
        """
        from cdc_lake.ops.plan import plan

        return plan(self.project)

    def run(
        self,
        *,
        once: bool = False,
        only: str | None = None,
        stop: threading.Event | None = None,
        report_progress: ProgressReporter = silent,
        allowed: Iterable[str] = (),
        adopt: Iterable[str] = (),
        spark: SparkSession | None = None,
    ) -> RunSummary:
        """Receive from the source into bronze and apply bronze to silver.

        Args:
            once: End when silver is where the source was at the start. Otherwise run until `stop` is set.
            only: `receive` or `apply`, to run one of the two.
            stop: Ends the run at the next safe point.
            report_progress: Called with each event of the run.
            allowed: Destructive operations on silver tables that may be done, in the words of `plan`.
            adopt: Silver tables (`namespace.table`) whose content is replaced although they are another pipeline's.
            spark: The session of a platform that brings its own.

        Raises:
            SilverNotOwned: A silver table belongs to another pipeline.
            SourceError: The source refuses what a run needs; lost connections are retried.
            LakeError: A table could not continue; the others did.
            RuleStopped: A change fails a `stop` rule.
        """
        from cdc_lake.runtime.run import run

        return run(
            self.project,
            once=once,
            only=only,
            stop=stop or threading.Event(),
            report=report_progress,
            allowed=frozenset(allowed),
            adopt=frozenset(adopt),
            spark=spark,
        )

    def run_once(
        self,
        *,
        only: str | None = None,
        report_progress: ProgressReporter = silent,
        allowed: Iterable[str] = (),
        adopt: Iterable[str] = (),
    ) -> RunSummary:
        """Bring bronze and silver to where the source is now: `run` with `once=True`."""
        return self.run(once=True, only=only, report_progress=report_progress, allowed=allowed, adopt=adopt)

    def restart(self, *, yes: bool = False) -> Restarted:
        """Let the next run begin a new stream with new copies of all tables.

        Args:
            yes: Do it. Without it the result says what it would do.

        Raises:
            NoStream: There is no stream to replace.
            SlotActive: A receiver reads the slot.
        """
        from cdc_lake.runtime.restart import restart

        return restart(self.project, yes=yes)

    def resync(self, *tables: str, dry_run: bool = False, report_progress: ProgressReporter = silent) -> Resynced:
        """Copy tables again from the source while the stream continues; the next run puts the copies in place.

        Args:
            tables: Source tables, as `public.orders`.
            dry_run: Only say which tables would be copied.
            report_progress: Called with each event.

        Raises:
            TableNotKnown: The pipeline does not capture a table.
            CopyUnplaced: The stream takes no copy of a single table.
            SourceError: The source cannot be read.
        """
        from cdc_lake.runtime.resync import resync

        return resync(self.project, tables, dry_run=dry_run, report=report_progress)

    def rebuild(
        self,
        table: str,
        *,
        to: int | None = None,
        into: str | None = None,
        dry_run: bool = False,
        keys: int = 0,
        report_progress: ProgressReporter = silent,
    ) -> Rebuilt:
        """Build a silver table again from bronze, and put it in place of the one there.

        Args:
            table: The source table, as `public.orders`.
            to: Position to build up to; None for that of the last cut.
            into: Name of a new table, for the content of an earlier position.
            dry_run: Build and compare, and leave the table as it is.
            keys: How many keys of rows that differ the result names.
            report_progress: Called with each event.

        Raises:
            NothingToRebuild: Bronze contains neither a copy nor a change of the table.
            PastTrimmed: Transactions that it needs were trimmed from bronze.
        """
        from cdc_lake.runtime.apply.rebuild import rebuild

        return rebuild(self.project, table, to=to, into=into, dry_run=dry_run, keys=keys, report=report_progress)

    def pause(self, table: str) -> PauseState:
        """Stop one silver table, named by its source, while the others continue."""
        from cdc_lake.control.table_pauses import pause

        return pause(self.project, table)

    def resume(self, table: str) -> PauseState:
        """Let a paused table continue from where it is."""
        from cdc_lake.control.table_pauses import resume

        return resume(self.project, table)

    def maintain(
        self,
        *,
        dry_run: bool = False,
        force: bool = False,
        only: str | None = None,
        report_progress: ProgressReporter = silent,
        spark: SparkSession | None = None,
    ) -> Maintenance:
        """Compact small files, expire old versions and transactions, and delete orphan files.

        Args:
            dry_run: Only say what would be done.
            force: Also do what is not due yet.
            only: `bronze` or `silver`.
            report_progress: Called with each event.
            spark: The session of a platform that brings its own.

        Raises:
            LakeError: A table cannot be read or written.
        """
        from cdc_lake.runtime.maintain import maintain

        return maintain(self.project, dry_run=dry_run, force=force, only=only, report=report_progress, spark=spark)

    def upgrade(self, *, yes: bool = False) -> Upgrade:
        """Bring a lake that an older version left to the form of this one; without `yes` say what that takes."""
        from cdc_lake.runtime.maintain import upgrade

        return upgrade(self.project, yes=yes)

    # ── state and proof ──

    def status(self) -> Status:
        """Where the receiver and every silver table are, what they wait for, and what to do.

        Raises:
            LakeError: Bronze or the control tables cannot be read.
        """
        from cdc_lake.ops.status import status

        return status(self.project)

    def write_status_page(self, file: str | Path) -> StatusPage:
        """Write the status as an HTML page.

        Raises:
            ReportNotWritten: The file cannot be written.
            LakeError: Bronze or the control tables cannot be read.
        """
        from cdc_lake.ops.html_pages import write_status_page

        return write_status_page(self.project, self.status(), Path(file))

    def write_report(self) -> ReportFiles:
        """Write the data-quality report: a page, and Data Docs of Great Expectations if these are installed.

        Raises:
            ReportNotWritten: A file cannot be written.
            LakeError: A table cannot be read.
        """
        from cdc_lake.ops.html_pages import report

        return report(self.project)

    def compare(
        self,
        tables: Sequence[str] = (),
        *,
        repair: bool = False,
        yes: bool = False,
        values: bool = False,
        at: Given | None = None,
        sample: str | None = None,
        full: bool = False,
        exclude: Sequence[str] = (),
        report_progress: ProgressReporter = silent,
    ) -> Comparison:
        """Compare silver with a snapshot of the source, row by row, whatever both are doing meanwhile.

        Args:
            tables: Source tables; empty for all.
            repair: Work out which differing rows can be read again at the source.
            yes: With `repair`, land them in bronze; the next run merges them.
            values: Return the rows of keys that differ, not only the keys.
            at: Compare silver as of a cut: its position, a time with its zone, or the name of a pinned cut.
            sample: Compare some rows, as `5%` or `10000`.
            full: Compare all rows without hashing them first.
            exclude: Source tables to leave out.
            report_progress: Called with each event.

        Raises:
            SourceError: The source cannot be read.
            LakeError: Silver or bronze cannot be read.
        """
        from cdc_lake.comparison.columns import Sample
        from cdc_lake.comparison.compare import compare

        return compare(
            self.project,
            tables,
            report_progress,
            repair=repair,
            yes=yes,
            values=values,
            as_of=None if at is None else parse_as_of(at),
            sample=None if sample is None else Sample.parse(sample),
            full=full,
            exclude=exclude,
        )

    # ── read ──

    def bronze(self) -> ChangeReader:
        """The bronze table, to be read by transaction, by table or by row, without Spark."""
        from cdc_lake.bronze.change_reader import ChangeReader
        from cdc_lake.bronze.open import bronze_reader

        return ChangeReader(bronze_reader(self.project))

    def read(
        self,
        table: str,
        *,
        as_of: Given = "latest",
        epoch: int | None = None,
        allow_behind: bool = False,
        versions: bool = False,
    ) -> pa.Table:
        """Read one silver table as of a cut, without Spark; see `cut`, which gives all tables as of one.

        Args:
            table: As `public.orders`, `orders` or `silver.orders`.
            as_of: See `cut`.
            epoch: See `cut`.
            allow_behind: Also read a table that was behind the cut.
            versions: All versions of a historised table, not only those in force.

        Raises:
            TableBehind: The table was behind the cut.
            CutUnknown: No cut is meant by `as_of`.
        """
        from cdc_lake.control.cut_session import read_table

        return read_table(self.project, table, parse_as_of(as_of), epoch, allow_behind=allow_behind, versions=versions)

    def cut(self, as_of: Given = "latest", *, epoch: int | None = None, allow_behind: bool = False) -> CutSession:
        """All silver tables as of one position.

        Args:
            as_of: `latest`, a position as it is printed (`0/16B3748`, `951909`) or as tables store it (an integer), a
                time with its zone, or the name of a pinned cut.
            epoch: The stream that a position is of; None for the newest.
            allow_behind: Also read tables that were behind the cut.

        Raises:
            BeforeFirstCut: `as_of` is before the first cut.
            CutNotReached: Silver has not reached the position yet.
            CutUnknown: No pinned cut has this name.
            MalformedPosition: `as_of` is neither position, time nor name.
        """
        from cdc_lake.control.cut_session import open_session

        return open_session(self.project, parse_as_of(as_of), epoch, allow_behind=allow_behind)

    def cuts(self, *, limit: int = 20, pinned: bool = False) -> CutList:
        """The newest cuts, or with `pinned` those that stay readable."""
        from cdc_lake.runtime.cut_retention import list_cuts

        return list_cuts(self.project, limit, pinned=pinned)

    def pin_cut(
        self,
        name: str,
        *,
        as_of: Given = "latest",
        epoch: int | None = None,
        keep: timedelta | None = None,
        report_progress: ProgressReporter = silent,
    ) -> PinResult:
        """Keep a cut readable under a name.

        Args:
            name: Letters, digits and underscores.
            as_of: See `cut`.
            epoch: See `cut`.
            keep: For how long; None until `unpin_cut`.
            report_progress: Called with each event.

        Raises:
            NotPinned: The name is taken or none.
            VersionGone: A version that the cut needs was deleted.
            CutWithheld: A rule keeps the cut back.
        """
        from cdc_lake.runtime.cut_retention import pin_cut

        return pin_cut(self.project, name, parse_as_of(as_of), epoch, keep, report_progress)

    def create_cut_views(self, name: str, database: str, *, spark: SparkSession | None = None) -> CutViews:
        """Create or replace a view of each table as of the cut pinned as `name`, in a database of the Hive metastore.

        Raises NotPinned, TableBehind, VersionGone; LakeError if the pipeline has no `lake.delta.metastore`.
        """
        from cdc_lake.runtime.cut_retention import create_views

        return create_views(self.project, name, database, spark)

    def unpin_cut(self, name: str, *, report_progress: ProgressReporter = silent) -> PinResult:
        """Let go of a pinned cut. Raises NotPinned if no cut is pinned under the name."""
        from cdc_lake.runtime.cut_retention import unpin_cut

        return unpin_cut(self.project, name, report_progress)

    def history(
        self, table: str, *, since: datetime | None = None, until: datetime | None = None, limit: int | None = None
    ) -> pa.Table:
        """Rows of a control table (`runs`, `cuts`, `verified` …), oldest first.

        Args:
            table: Name of the control table.
            since: From this time on.
            until: Before this time.
            limit: The newest so many.

        Raises:
            LakeError: The table cannot be read.
        """
        from cdc_lake.control.cut_session import read_history

        return read_history(self.project, table, since=since, until=until, limit=limit)

    # ── inspect and decide ──

    def inspect_row(self, table: str, *key: object) -> RowView:
        """Every change in bronze of the rows that had a key, and what silver and quarantine have of it.

        Args:
            table: The source table.
            key: The values of the key, in the order of the primary key, or one mapping by column.

        Raises:
            NotInBronze: Bronze has no row with this key.
        """
        from cdc_lake.bronze.open import bronze_reader
        from cdc_lake.control.streams import source_table
        from cdc_lake.ops.inspect import inspect_row, row_key
        from cdc_lake.tables.control_tables import control_tables

        name, bronze = source_table(table), bronze_reader(self.project)
        match key:
            case (Mapping() as named,):
                wanted = {str(column): str(value) for column, value in named.items()}
            case _:
                wanted = row_key(bronze, name, key)
        return inspect_row(bronze, name, wanted, control_tables(self.project).snapshots())

    def inspect_transaction(self, position: str | int, *, epoch: int | None = None) -> TransactionView:
        """The transaction at a commit position, as it is printed or as bronze stores it. Raises NotInBronze."""
        from cdc_lake.bronze.open import bronze_reader
        from cdc_lake.model.position import parse_position
        from cdc_lake.ops.inspect import inspect_transaction

        number = parse_position(position) if isinstance(position, str) else position
        return inspect_transaction(bronze_reader(self.project), number, epoch)

    def prepared_transactions(self) -> PreparedList:
        """Prepared transactions that the receiver keeps until their COMMIT PREPARED. Raises LakeError."""
        from cdc_lake.runtime.receive.lag import list_prepared

        return list_prepared(self.project)

    def quarantine(self) -> QuarantineList:
        """What is in quarantine: changes that rules or conversions keep back, the changes queued behind them, and
        transactions that are not decoded.
        """
        from cdc_lake.runtime.quarantine import list_quarantine

        return list_quarantine(self.project)

    def release_quarantined(
        self, table: str, *, key: Sequence[str | None] | None = None, rule: str | None = None, reason: str
    ) -> QuarantineDecision:
        """Let quarantined changes through as they are; the next run applies them.

        Args:
            table: The source table.
            key: The key whose changes are meant; None for all.
            rule: Only changes that nothing but this rule keeps back.
            reason: Recorded with the decision.

        Raises:
            QualityError: A change cannot be let through.
        """
        return self._decide("release", table, key, rule, reason)

    def discard_quarantined(
        self, table: str, *, key: Sequence[str | None] | None = None, rule: str | None = None, reason: str
    ) -> QuarantineDecision:
        """Drop quarantined changes for good; silver keeps the rows it has. Arguments as of `release_quarantined`."""
        return self._decide("discard", table, key, rule, reason)

    def _decide(
        self, verb: Verb, table: str, key: Sequence[str | None] | None, rule: str | None, reason: str
    ) -> QuarantineDecision:
        from cdc_lake.runtime.quarantine import Choice, decide

        choice = Choice(None if key is None else tuple(key), rule)
        return decide(self.project, verb, table, choice, reason, yes=True)

    # ── slots ──

    def slots(self) -> SlotList:
        """Every replication slot of the server, the pipeline's own marked. Raises SourceError."""
        from cdc_lake.ops.slots import list_slots

        return list_slots(self.project)

    def inspect_slot(self, name: str | None = None) -> SlotDetails:
        """The pipeline's slot, or the one named: what the server keeps for it, and what threatens it.

        Raises:
            SlotMissing: There is no such slot.
            SourceError: The server cannot be reached.
        """
        from cdc_lake.ops.slots import inspect_slot

        return inspect_slot(self.project, name)

    def create_slot(self, *, report_progress: ProgressReporter = silent) -> SlotMade:
        """Begin the stream as a first run does, with its copy, and receive nothing more. Raises SourceError."""
        from cdc_lake.ops.slots import create_slot

        return create_slot(self.project, report=report_progress)

    def advance_slot(self, upto: int | None = None) -> SlotAdvanced:
        """Let the server discard WAL that bronze has, up to a position or all of it. Raises AdvancePastBronze."""
        from cdc_lake.ops.slots import advance_slot

        return advance_slot(self.project, upto)

    def drop_slot(self, name: str | None = None, *, yes: bool = False, wait: float = 0) -> SlotDropped:
        """Drop the pipeline's slot, or the one named.

        Args:
            name: Name of the slot; None for the pipeline's.
            yes: Do it. Without it the result says what would be lost.
            wait: Seconds to wait for its reader to leave.

        Raises:
            SlotActive: The slot is still read.
            SlotMissing: There is no such slot.
        """
        from cdc_lake.ops.slots import drop_slot

        return drop_slot(self.project, name, yes=yes, wait=wait)


__all__ = ["Pipeline", "validate"]
