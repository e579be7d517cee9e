"""Watermarks, fences, order: STA6xx.

Rules and reports: QUA5xx.

Bundles, jobs and monitoring: DEP7xx.
"""

from __future__ import annotations

from cdc_lake.errors.base import ANEW, CdcLakeError, Retry, install


class StateError(CdcLakeError):
    """Positions, watermarks or streams contradict each other."""

    code = "STA600"


class SilverLost(StateError):
    """The latest cut lists a silver table that no longer exists."""

    code = "STA612"
    hint = "restore the table, or run `cdc-lake rebuild TABLE` to recreate it from bronze"


class QuarantineLost(StateError):
    """The latest cut counts more quarantined keys of a table than are recorded."""

    code = "STA613"
    hint = "restore the control table `quarantine`, or run `cdc-lake rebuild TABLE`, which evaluates every change again"


class TransactionUndecoded(StateError):
    """Silver cannot continue: the next transaction of bronze is stored as bytes that could not be decoded."""

    code = "STA655"
    hint = (
        "run `cdc-lake quarantine list` to see what is missing; provide it, or install a version that can decode it, "
        "then run `cdc-lake quarantine retry`"
    )


class SlotUndecodable(StateError):
    """A comparison cannot read the pending changes of the slot, because the next one cannot be decoded."""

    code = "STA656"
    hint = "run `cdc-lake run`, which reports why it cannot be decoded; compare again when the transaction is in bronze"


class SnapshotIncomplete(StateError):
    """Bronze contains a stream whose initial copy never finished."""

    code = "STA611"
    hint = "run `cdc-lake run --only receive` to finish the copy first"


class NoKey(StateError):
    """Nothing that the server logs identifies a row of the table."""

    code = "STA610"
    identity_hint = (
        "give it a primary key, or run ALTER TABLE … REPLICA IDENTITY USING INDEX …, or name `keys` and use "
        "identity FULL"
    )
    hint = (
        f"{identity_hint}; if changes landed without one, run `cdc-lake resync TABLE`, which then copies the table "
        "again"
    )


class MalformedPosition(StateError):
    """The text is not a valid position."""

    code = "STA601"
    hint = "write an LSN like 0/16B3748, or a CSN like 951909"

    def __init__(self, text: str) -> None:
        super().__init__(f"`{text}` is not a position")


class AnotherReceiver(StateError):
    """Another writer committed to the bronze table since this receiver read its markers."""

    code = "STA620"
    hint = "find the other receiver (`cdc-lake status`) and stop it, then start again: a pipeline has only one receiver"


class NotInOrder(StateError):
    """The positions of transactions given to bronze are not ascending."""

    code = "STA621"
    hint = "leave the slot as it is, because it retains the data, and report the error: it is a bug in the receiver"


class NoStream(StateError):
    """Bronze was given transactions before a stream was started, or a stream that it already contains."""

    code = "STA622"
    hint = (
        "use `cdc-lake run`, which starts a stream together with its slot; do not use the name of a stream for "
        "another slot"
    )


class TableNotKnown(StateError):
    """A command names a source table that bronze does not contain."""

    code = "STA690"
    hint = "write the name as `cdc-lake status` does: schema.table, or only the table for schema `public`"


class AnotherApply(StateError):
    """Another process applies this pipeline."""

    code = "STA624"
    retry = Retry.LATER
    hint = (
        "wait for the other apply process to finish, or stop it, then run again; ingestion into bronze was not affected"
    )


class AnotherCopy(StateError):
    """Another process copies tables of this pipeline while the stream continues."""

    code = "STA625"
    retry = Retry.LATER
    hint = (
        "wait until it has finished, then run again: it is `cdc-lake resync`, or a receiver that copies tables "
        "added to the pipeline"
    )


class CopyUnplaced(StateError):
    """A table cannot be copied again, because nothing determines the position of such a copy in the stream."""

    code = "STA626"
    hint = f"run `cdc-lake compare TABLE --repair` to repair the rows that differ; to copy every table again: {ANEW}"


class NotInBronze(StateError):
    """Bronze does not contain the requested position, table or column."""

    code = "STA623"
    hint = (
        "`cdc-lake status` shows the positions that bronze contains; write the table and key columns as in the source"
    )


class RecordingNotWritten(StateError):
    """A recording cannot be written: its file exists, or the folder is not writable."""

    code = "STA630"
    hint = "name a file that does not exist: recordings are never overwritten"


class CsnMissing(StateError):
    """A CSN did not arrive in time: a transaction was lost, or was not sent."""

    code = "STA640"
    retry = Retry.LATER
    hint = (
        "run again: the server sends from the acknowledged position; if the error recurs, see `cdc-lake explain STA640`"
    )


class LateTransaction(StateError):
    """A transaction arrived whose CSN had been recorded as a gap."""

    code = "STA641"
    hint = f"the named file keeps its content, and new copies contain it: {ANEW}"


class CsnTwice(StateError):
    """Two different transactions of a stream have the same CSN."""

    code = "STA643"
    hint = f"CSNs of this server do not number its transactions: set `source.order: lsn`; then {ANEW}"


class KeylessDelete(StateError):
    """A delete without a key, for a silver table that is merged by key."""

    code = "STA644"
    hint = "give the table a primary key or REPLICA IDENTITY FULL at the source, then run `cdc-lake resync TABLE`"


class ValueNotTyped(StateError):
    """A text in bronze is not a value of its column's type."""

    code = "STA660"
    hint = 'read with `misfits="keep"`, which returns the text in an additional column, or with `typed=False`'


class ViewNotMade(StateError):
    """A view of bronze cannot be created, or would not show the current content."""

    code = "STA661"
    hint = "create temporary views (without `database`), or read with `spark_changes`"


class SpanTrimmed(StateError):
    """Bronze no longer contains transactions that silver lacks."""

    code = "STA665"
    hint = f"the lake has no other copy of what was removed from bronze: {ANEW}"


class BeforeFirstCut(StateError):
    """A position or time before the first cut, or there is no cut."""

    code = "STA675"
    hint = (
        "choose a position from the first cut on (`cdc-lake cuts list`); if there is no cut, run `cdc-lake run --once`"
    )


class CutNotReached(StateError):
    """A position or time that silver has not reached yet."""

    code = "STA676"
    retry = Retry.LATER
    hint = "wait until `cdc-lake run` has applied it, or read `latest`"


class TableBehind(StateError):
    """A table of a cut has not reached the cut's position."""

    code = "STA677"
    hint = "see `cdc-lake status` for the reason; `allow_behind=True` reads the table as it was when it stopped"


class NotInCut(StateError):
    """A cut does not contain the requested table."""

    code = "STA678"
    hint = "`cdc-lake cuts show` lists the tables of a cut; write the name as in the source, or as `namespace.table`"


class CutUnknown(StateError):
    """The argument is not a position of a stream, a time with a time zone, or the name of a pinned cut."""

    code = "STA679"
    hint = (
        "give `latest`, a position from `cdc-lake cuts list`, a time such as 2026-01-31T12:00:00Z, or the name of a pin"
    )


class PastTrimmed(StateError):
    """A table cannot be rebuilt from bronze, because retention removed its beginning."""

    code = "STA670"
    hint = (
        "run `cdc-lake resync TABLE` to copy it again, or `cdc-lake restart` to copy every table if this one keeps "
        "a past"
    )


class PositionUnavailable(StateError):
    """The requested position of a rebuild is before the table's first copy or after the end of bronze."""

    code = "STA671"
    hint = "give a position between the first copy and the end of bronze; `cdc-lake status` shows the latest"


class RebuildNeedsPlace(StateError):
    """A rebuild would put a live table into a past state."""

    code = "STA672"
    hint = "add `--into NAME` to write the past state to a separate table"


class NothingToRebuild(StateError):
    """Bronze contains neither a copy nor a change of a table, or silver has no content of it yet."""

    code = "STA673"
    hint = "name one of the tables that `cdc-lake status` lists"


class QualityError(CdcLakeError):
    """A rule or a report failed."""

    code = "QUA500"


class RuleStopped(QualityError):
    """A change violates a rule with `on_fail: stop`; everything before its transaction is applied."""

    code = "QUA501"
    exit_code = 5
    hint = (
        "set the rule to `quarantine` or `warn`, or correct the rule, and run again; for a rule `type_<column>`, "
        "set `misfit: quarantine`, or declare a type that can hold the value"
    )


class RuleDoesNotFit(QualityError):
    """A rule cannot evaluate a column of that type, or its constants are not values of it."""

    code = "QUA502"
    exit_code = 3
    hint = "change the rule in the pipeline file, then run `cdc-lake validate`"


class RuleColumnMissing(QualityError):
    """A rule names a column that the table does not have."""

    code = "QUA503"
    exit_code = 3
    hint = "name a column of the source table, or remove the rule, then run `cdc-lake validate`"


class QualityEngineMissing(QualityError):
    """Great Expectations is not installed here."""

    code = "QUA505"
    hint = "install the extra `quality` of cdc_lake from the same origin as cdc_lake itself"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=install("quality"))


class NotQuarantined(QualityError):
    """No change of this key is held, so there is nothing to decide."""

    code = "QUA510"
    hint = "`cdc-lake quarantine list` shows the quarantined changes and their keys"


class QuarantineRemains(QualityError):
    """Quarantined changes that can be neither released nor discarded as they are."""

    code = "QUA511"
    hint = (
        "correct the row at the source, or correct the pipeline file and run `cdc-lake rebuild TABLE`; a TRUNCATE "
        "also ends holds"
    )


class DecidedOtherwise(QualityError):
    """The opposite decision about these quarantined changes is recorded, and takes effect in the next run."""

    code = "QUA512"
    hint = "run `cdc-lake run` to carry out the recorded decision; `cdc-lake quarantine list` shows it"


class TruncateQuarantined(QualityError):
    """A transaction truncates a table of a group and is held: it cannot be applied in part."""

    code = "QUA513"
    hint = (
        "correct the rule, or set it to `warn` until a run has applied the transaction; or remove the table from "
        "its group for that run"
    )


class GroupDisagrees(QualityError):
    """A transaction is to be held in one table of a group, but another table of the group has applied it."""

    code = "QUA514"
    hint = (
        "restore the rules; or remove the table from its group, run and rebuild, and put it back: see `cdc-lake "
        "explain QUA514`"
    )


class GroupWaits(QualityError):
    """A table waits because another table of its group cannot continue."""

    code = "QUA515"
    hint = "repair the table that it waits for: the same run reports the error of that table"


class ReportNotWritten(QualityError):
    """The files of a report could not be written."""

    code = "QUA506"
    hint = "make the folder writable and free disk space; the data is not affected"


class CutWithheld(QualityError):
    """A cut was not pinned: a rule evaluated at it has reached the level of `quality.pin_below`."""

    code = "QUA507"
    exit_code = 5
    hint = (
        "see the results of the rules with `cdc-lake report`; correct the rows at the source, or the rule, and "
        "pin again"
    )


class DeployError(CdcLakeError):
    """A bundle or a job failed."""

    code = "DEP700"


class NotDeployable(DeployError):
    """A pipeline that could not run as jobs on Databricks, or would expose a secret there."""

    code = "DEP701"
    exit_code = 3


class ServerlessCompute(DeployError):
    """A job would run on serverless compute, which supports only Spark Connect."""

    code = "DEP703"
    exit_code = 3
    hint = "run it on a classic job cluster: `job_cluster_key`, as `cdc-lake bundle` writes it"


class RuntimeUnfit(DeployError):
    """The Spark version of a cluster is not the one that this version of cdc_lake supports."""

    code = "DEP709"
    exit_code = 3
    hint = "use a Databricks Runtime with Spark 4.1: 18.0, or a later one that includes it"


class MetricsNotServed(DeployError):
    """The address for metrics cannot be used for listening."""

    code = "DEP710"
    hint = (
        "another program or another receiver uses the address: give each pipeline its own port in "
        "`observe.metrics`, at an address of this machine"
    )


class MetricsNotWritten(DeployError):
    """The file for metrics cannot be written. This is reported and retried; apply continues."""

    code = "DEP711"
    hint = "create the folder of `observe.textfile`, and give the user that runs apply permission to write to it"


class JobParametersWrong(DeployError):
    """A job was started with unknown parameters."""

    code = "DEP712"
    hint = "use the parameters `--pipeline=FILE`, `--environment=NAME` and, for receive and apply, `--once=true`"


class LakeFolderUnfit(DeployError):
    """The lake's file system lacks an operation that atomic commits need."""

    code = "DEP713"
    hint = (
        "put bronze and the control tables into an object store (`bronze.path`, `lake.control`), or `lake.path` on a "
        "file system with hard links and file locks; every job must have it under the same path"
    )


class BundleNotWritten(DeployError):
    """The file of a bundle could not be written, or was edited by hand."""

    code = "DEP715"


class LineageNotSent(DeployError):
    """Lineage events cannot be sent. This is reported, and unsent events are lost; apply continues."""

    code = "DEP716"
    hint = "check the server that `observe.openlineage.to` names, or create the folder of its file"
