"""Watermarks, fences, order: STA6xx."""

from __future__ import annotations

from cdc_lake.errors.root import ANEW, CdcLakeError, Retry


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
    given = "give it a primary key, or ALTER TABLE … REPLICA IDENTITY USING INDEX …, or name `keys` with identity FULL"
    hint = f"{given}; if changes landed without one, `cdc-lake resync TABLE` then copies the table again"


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
