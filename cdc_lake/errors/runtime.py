"""Watermarks, fences, order: STA6xx.

Rules and reports: QUA5xx.

Bundles and jobs, and what monitoring is shown of them: DEP7xx.
"""

from __future__ import annotations

from cdc_lake.errors.base import ANEW, CdcLakeError, Retry, install


class StateError(CdcLakeError):
    """Positions, watermarks or streams do not fit together."""

    code = "STA600"


class SilverLost(StateError):
    """The last cut lists a silver table that is not there any more."""

    code = "STA612"
    hint = "put the table back as it was, or run `cdc-lake rebuild TABLE` to make it again from bronze"


class HeldLost(StateError):
    """The last cut counts more held keys of a table than are recorded."""

    code = "STA613"
    hint = "put the control table `held` back as it was, or run `cdc-lake rebuild TABLE`: it judges every change again"


class TransactionUndecoded(StateError):
    """Silver cannot go on: the next transaction of bronze is there as bytes that could not be decoded."""

    code = "STA655"
    hint = (
        "`cdc-lake held list` shows what is missing; with that set, or with a version that can, `cdc-lake held retry`"
    )


class SlotUndecodable(StateError):
    """A comparison cannot know what the slot still has: the next of it cannot be decoded."""

    code = "STA656"
    hint = "`cdc-lake run` says what is wrong with it; once bronze has it, compare again"


class SnapshotIncomplete(StateError):
    """Bronze has a stream whose initial copy never finished."""

    code = "STA611"
    hint = "let `cdc-lake run --only receive` finish the copy first"


class NoKey(StateError):
    """A table has nothing that identifies a row in what the server logs."""

    code = "STA610"
    identity_hint = (
        "give it a primary key, or ALTER TABLE … REPLICA IDENTITY USING INDEX …, or name `keys` with identity FULL"
    )
    hint = f"{identity_hint}; if changes landed without one, `cdc-lake resync TABLE` then copies the table again"


class MalformedPosition(StateError):
    """A text that is not a position."""

    code = "STA601"
    hint = "an LSN looks like 0/16B3748, a CSN like 951909"

    def __init__(self, text: str) -> None:
        super().__init__(f"`{text}` is not a position")


class AnotherReceiver(StateError):
    """Another writer committed to the bronze table since this one read its markers."""

    code = "STA620"
    hint = "one receiver a pipeline: find the other one (`cdc-lake status`) and stop it, then start again"


class NotInOrder(StateError):
    """Transactions given to bronze do not ascend by position."""

    code = "STA621"
    hint = "this is a bug in the receiver: leave the slot as it is, it keeps the bytes, and report it"


class NoStream(StateError):
    """Bronze was given transactions before a stream was started, or a stream that stands already."""

    code = "STA622"
    hint = "`cdc-lake run` starts a stream with its slot; do not reuse a stream's name for another slot"


class TableNotKnown(StateError):
    """A command names a source table that bronze knows nothing of."""

    code = "STA690"
    hint = "write it as `cdc-lake status` does: schema.table, or a table of `public`"


class AnotherApply(StateError):
    """Another process applies this pipeline on this machine."""

    code = "STA624"
    retry = Retry.LATER
    hint = "let it end or stop it, then run again; bronze was not held up"


class AnotherCopy(StateError):
    """Another process copies tables of this pipeline beside its stream."""

    code = "STA625"
    retry = Retry.LATER
    hint = "let it end, then run again: `cdc-lake resync`, or a receiver that copies tables that came to the pipeline"


class CopyUnplaced(StateError):
    """A table cannot be copied again: nothing says where such a copy stands in the stream."""

    code = "STA626"
    hint = f"`cdc-lake compare TABLE --repair` mends rows that differ; to have every table copied again: {ANEW}"


class NotInBronze(StateError):
    """What was asked for is not in bronze."""

    code = "STA623"
    hint = "`cdc-lake status` shows the positions that bronze holds; table and key are written as in the source"


class RecordingNotWritten(StateError):
    """A recording cannot be written: its file is there already, or the folder refuses it."""

    code = "STA630"
    hint = "name a file that is not there yet: a recording is never overwritten"


class CsnMissing(StateError):
    """A CSN did not arrive within the bound: a transaction is lost, or was not sent."""

    code = "STA640"
    retry = Retry.LATER
    hint = "run again: the server sends from the confirmed position; if it repeats, `cdc-lake explain STA640`"


class LateTransaction(StateError):
    """A transaction came whose CSN was recorded as a gap and passed over."""

    code = "STA641"
    hint = f"its content is kept in the file named, and new copies hold it: {ANEW}"


class CsnTwice(StateError):
    """Two different transactions of a stream have one CSN."""

    code = "STA643"
    hint = f"CSNs of this server do not count its transactions: set `source.order: lsn`; then {ANEW}"


class KeylessDelete(StateError):
    """A delete of a row that the server did not name, for a silver table that is merged by key."""

    code = "STA644"
    hint = "give the table a primary key or REPLICA IDENTITY FULL at the source, then `cdc-lake resync TABLE`"


class ValueNotTyped(StateError):
    """A text in bronze has no value of its column's type."""

    code = "STA660"
    hint = 'read with `misfits="keep"`, which gives its text beside it, or with `typed=False`'


class ViewNotMade(StateError):
    """A view of bronze that cannot be made, or would not show what it says."""

    code = "STA661"
    hint = "make temporary views (without `database`), or read with `spark_changes`"


class SpanTrimmed(StateError):
    """Bronze let go transactions that silver does not have."""

    code = "STA665"
    hint = f"what left bronze is nowhere else in the lake: {ANEW}"


class BeforeFirstCut(StateError):
    """A position or a time before the first cut, or no cut at all."""

    code = "STA675"
    hint = "`cdc-lake cuts list` shows the first cut; `cdc-lake run --once` makes one where there is none"


class CutNotReached(StateError):
    """A position or a time that silver has not come to yet."""

    code = "STA676"
    retry = Retry.LATER
    hint = "let `cdc-lake run` apply what is there, or read `latest`"


class TableBehind(StateError):
    """A table of a cut is not at the cut's position."""

    code = "STA677"
    hint = "`cdc-lake status` says why it waits; `allow_behind=True` reads it as it was when it stopped"


class NotInCut(StateError):
    """A cut does not list the table that was asked for."""

    code = "STA678"
    hint = "`cdc-lake cuts show` lists the tables of a cut; name one as in the source, or as `namespace.table`"


class CutUnknown(StateError):
    """What names a cut is neither a position of a stream, nor a time with its zone, nor the name of a promise."""

    code = "STA679"
    hint = "give `latest`, a position as `cdc-lake cuts list` prints it, 2026-01-31T12:00:00Z, or the name of a promise"


class PastTrimmed(StateError):
    """A table cannot be built again from bronze: its beginning left by retention."""

    code = "STA670"
    hint = "`cdc-lake resync TABLE` copies it again, and `cdc-lake restart` every table where it keeps a past"


class PositionNotHeld(StateError):
    """There is no state of the table at a position that a rebuild was asked for."""

    code = "STA671"
    hint = "give a position between the first copy and what bronze holds; `cdc-lake status` shows the newest"


class RebuildNeedsPlace(StateError):
    """A live table was to be put into a past state."""

    code = "STA672"
    hint = "add `--into NAME`: the state is put into a table of its own"


class NothingToRebuild(StateError):
    """Bronze holds nothing of a table."""

    code = "STA673"
    hint = "`cdc-lake status` lists the tables that the stream carries"


class QualityError(CdcLakeError):
    """A rule or a report."""

    code = "QUA500"


class RuleStopped(QualityError):
    """A change breaks a rule with `on_fail: stop`; everything before its transaction is applied."""

    code = "QUA501"
    exit_code = 5
    hint = (
        "set the rule to `quarantine` or `warn`, or correct the rule, and run again; where it is `type_<column>`, "
        "set `misfit: quarantine`, or declare a type that has room"
    )


class RuleDoesNotFit(QualityError):
    """A rule cannot judge a column of that type, or its constants are no values of it."""

    code = "QUA502"
    exit_code = 3
    hint = "change the rule in the pipeline file, then run `cdc-lake validate`"


class RuleColumnMissing(QualityError):
    """A rule names a column the table does not have."""

    code = "QUA503"
    exit_code = 3
    hint = "name a column of the source table, or take the rule out, then run `cdc-lake validate`"


class QualityEngineMissing(QualityError):
    """Great Expectations is not installed here."""

    code = "QUA505"
    hint = "install the extra `quality` of cdc_lake, from where cdc_lake was installed"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=install("quality"))


class NotHeld(QualityError):
    """No change that keeps this key is held, so there is nothing to decide."""

    code = "QUA510"
    hint = "`cdc-lake held list` shows what is held, with keys"


class HoldStays(QualityError):
    """Held changes that nobody can let through, or give up, as they are."""

    code = "QUA511"
    hint = (
        "mend the row at the source, or the pipeline file and then `cdc-lake rebuild TABLE`; a TRUNCATE ends holds too"
    )


class DecidedOtherwise(QualityError):
    """The opposite was decided of these held changes, and comes into force with the next run."""

    code = "QUA512"
    hint = "`cdc-lake run` carries out what was decided; `cdc-lake held list` shows it"


class TruncateHeld(QualityError):
    """A transaction truncates a table of a group and is held: neither can be shown in part."""

    code = "QUA513"
    hint = (
        "correct the rule, or set it to `warn` until a run has passed the transaction; or take the table out of its "
        "group for that run"
    )


class GroupDisagrees(QualityError):
    """A transaction is to be held in one table of a group that another one has passed."""

    code = "QUA514"
    hint = (
        "set the rules back to what they were, or take the table out of its group, run and rebuild, and put it back: "
        "`cdc-lake explain QUA514`"
    )


class GroupWaits(QualityError):
    """A table waits because another one of its group cannot go on."""

    code = "QUA515"
    hint = "mend the table that it waits for: the same run tells its error"


class ReportNotWritten(QualityError):
    """The files of a report could not be written."""

    code = "QUA506"
    hint = "make the folder writable and free space on its disk; the data is not affected"


class CutWithheld(QualityError):
    """A cut was not promised: a rule over silver at it has reached the level of `quality.promise_below`."""

    code = "QUA507"
    exit_code = 5
    hint = "`cdc-lake report` shows what the rules found; correct the rows at the source or the rule, and promise again"


class DeployError(CdcLakeError):
    """A bundle or a job."""

    code = "DEP700"


class NotDeployable(DeployError):
    """A pipeline that would not run as jobs on Databricks, or would carry a secret there."""

    code = "DEP701"
    exit_code = 3


class ServerlessCompute(DeployError):
    """A job would run on serverless compute, which speaks Spark Connect only."""

    code = "DEP703"
    exit_code = 3
    hint = "run it on a classic job cluster: `job_cluster_key`, as `cdc-lake bundle` writes it"


class RuntimeUnfit(DeployError):
    """A cluster's Spark is not the one that this version runs on."""

    code = "DEP709"
    exit_code = 3
    hint = "use a Databricks Runtime of Spark 4.1: 18.0 or a later one that has it"


class MetricsNotServed(DeployError):
    """The address for metrics cannot be listened at."""

    code = "DEP710"
    hint = (
        "another program listens there, or another receiver: give each pipeline a port of its own in "
        "`observe.metrics`, with an address that this machine has"
    )


class MetricsNotWritten(DeployError):
    """The file for metrics cannot be written. It is told, and tried again; apply goes on."""

    code = "DEP711"
    hint = "make the folder of `observe.textfile`, and let the user that applies write into it"


class JobParametersWrong(DeployError):
    """A job was started with parameters that it does not take."""

    code = "DEP712"
    hint = "parameters are `--pipeline=FILE`, `--environment=NAME` and, for receive and apply, `--once=true`"


class LakeFolderUnfit(DeployError):
    """The folder of the lake cannot do what commits stand on."""

    code = "DEP713"
    hint = (
        "put bronze and the control tables into an object store (`bronze.path`, `lake.control`), or `lake.path` on a "
        "file system with hard links and file locks; every job must have it under the same path"
    )


class BundleNotWritten(DeployError):
    """The file of a bundle could not be written, or holds what somebody changed."""

    code = "DEP715"


class LineageNotSent(DeployError):
    """Events of lineage cannot be sent. It is told, and what was not sent is lost; apply goes on."""

    code = "DEP716"
    hint = "look at the server that `observe.openlineage.to` names, or make the folder of its file"
