"""Every error of cdc_lake, drawn as a tree.

::

    CdcLakeError
    ├─ ConfigError      CFG1xx  a pipeline file, an environment, a reference
    ├─ SourceError      SRC2xx  the database: connection, slot, publication, snapshot
    ├─ DecodeError      DEC3xx  bytes of the stream
    ├─ LakeError        LAK4xx  tables: bronze, silver, control; Spark; catalogs
    ├─ QualityError     QUA5xx  rules and reports
    ├─ StateError       STA6xx  watermarks, fences, order
    └─ DeployError      DEP7xx  bundles and jobs

The message says what failed and where, the hint what to do, `retry` whether waiting helps. The cause is chained,
never pasted into the message; no message holds a row value or a secret. Each code has a page in `docs/errors/`.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Retry(enum.Enum):
    """Whether trying again without changing anything can help."""

    NEVER = "never"
    LATER = "later"


class CdcLakeError(Exception):
    """The root: a code, a message in the user's words, a place, a hint, and whether waiting helps."""

    code: ClassVar[str] = "CDC000"
    hint: ClassVar[str] = ""
    retry: ClassVar[Retry] = Retry.NEVER
    exit_code: ClassVar[int | None] = None

    def __init__(self, message: str, *, where: str = "", hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = type(self).hint if hint is None else hint

    @property
    def exit_status(self) -> int:
        """The process exit code this error stands for (`docs/reference/exit-codes.md`)."""
        if self.exit_code is not None:
            return self.exit_code
        return 4 if self.retry is Retry.LATER else 1


# ── configuration ────────────────────────────────────────────────────────────────────────────────────────────


class ConfigError(CdcLakeError):
    """A pipeline file cannot be used as it is."""

    code = "CFG100"
    exit_code = 3


# ── source ───────────────────────────────────────────────────────────────────────────────────────────────────


class SourceError(CdcLakeError):
    """The source database refused, is not reachable, or is not what bronze was fed from."""

    code = "SRC200"


class ServerUnreachable(SourceError):
    """Nobody answers at the address, or the connection broke off."""

    code = "SRC201"
    retry = Retry.LATER
    hint = "is the server running there? check `source.host` and `source.port`; nothing is lost, the slot keeps the WAL"


class AuthenticationRefused(SourceError):
    """The server does not accept the role and its password from here."""

    code = "SRC202"
    hint = "check `source.user` and `source.password`, and that pg_hba.conf lets this role in from this machine"


class DatabaseUnknown(SourceError):
    """The server has no such database."""

    code = "SRC203"
    hint = "check `source.database`"


class SlotInvalidated(SourceError):
    """The server dropped WAL that the slot still needed."""

    code = "SRC204"
    hint = "raise max_slot_wal_keep_size on the server; then drop the slot, move the lake folder away and run again"


class RoleLacksReplication(SourceError):
    """The role may not read the write-ahead log."""

    code = "SRC205"
    hint = "a superuser runs: ALTER ROLE <user> REPLICATION"


class TlsRefused(SourceError):
    """The encrypted connection that was asked for cannot be had."""

    code = "SRC206"
    hint = "check `source.tls`: mode, and root_cert for verify-ca and verify-full; is `ssl` on at the server?"


class ServerBusy(SourceError):
    """The server has no connection or WAL sender left, or is starting up or shutting down."""

    code = "SRC207"
    retry = Retry.LATER
    hint = "try again; if it stays so, raise max_connections or max_wal_senders on the server"


class ServerSettings(SourceError):
    """The server is not set up for logical decoding, or is not one we can read from."""

    code = "SRC208"
    hint = "a superuser runs: ALTER SYSTEM SET wal_level = logical; then the server is restarted"


class DriverMissing(SourceError):
    """The database driver is not installed."""

    code = "SRC209"
    hint = "install it: pip install 'cdc_lake[receive]'"


class NoFreeSlot(SourceError):
    """Every replication slot the server was given is in use."""

    code = "SRC211"
    hint = "raise max_replication_slots (needs a restart), or drop a slot nobody needs: see pg_replication_slots"


class SlotMissing(SourceError):
    """Bronze was fed from a slot that is no longer there: what came after bronze's last position is not kept."""

    code = "SRC212"
    hint = "a new slot cannot bring back what was between: move the lake folder away and run again"


class SlotActive(SourceError):
    """Another process reads the slot."""

    code = "SRC213"
    retry = Retry.LATER
    hint = "stop the other receiver; after a crash the server frees the slot within wal_sender_timeout"


class SlotForeign(SourceError):
    """A slot of this name exists, but it is not one this pipeline can have made or may take over."""

    code = "SRC214"
    hint = "name another in `source.slot.name`, or drop this one if unused: SELECT pg_drop_replication_slot('…')"


class SlotAhead(SourceError):
    """The slot's confirmed position lies beyond what bronze holds: the changes between are missing."""

    code = "SRC215"
    hint = "it was recreated, or something else read or advanced it: drop it, move the lake folder away, run again"


class OtherSource(SourceError):
    """The server or the database is not the one bronze was fed from."""

    code = "SRC216"
    hint = "check `source`; if it was replaced on purpose, move the lake folder away and run again"


class BronzeAhead(SourceError):
    """Bronze holds transactions the server does not have: it was restored from a backup, or failed over too early."""

    code = "SRC217"
    hint = "find out first what the server lost: `cdc-lake inspect tx POSITION` shows what bronze holds"


class PublicationMissing(SourceError):
    """The publication that the slot reads is not there."""

    code = "SRC220"
    hint = "changes since it went cannot be decoded: make it again, drop the slot, move the lake folder away, run again"


class PublicationUnfit(SourceError):
    """The publication exists, but does not publish what the pipeline asks for."""

    code = "SRC221"
    hint = "change it by ALTER PUBLICATION, or name another in `source.publication` and it will be made"


class NoTableMatches(SourceError):
    """A pattern of `tables` matches nothing in the database."""

    code = "SRC222"
    hint = "write `schema.table`, unquoted and in the catalog's case; `*` and `?` match within a part"


class NoReplicaIdentity(SourceError):
    """The server would refuse updates and deletes of a table once published: it has no key to log."""

    code = "SRC223"
    hint = "add a primary key, or: ALTER TABLE … REPLICA IDENTITY FULL"


class SourcePermission(SourceError):
    """The role may connect, but not do this."""

    code = "SRC224"
    hint = "the role needs SELECT on the tables; it must own them to make the publication, or their owner makes it"


class QueryRefused(SourceError):
    """The server answered a statement of ours with an error."""

    code = "SRC225"
    hint = "the server's log says more; with --debug the cause is shown"


class ReceiverDied(SourceError):
    """The receiver's process ended without saying why."""

    code = "SRC227"
    retry = Retry.LATER
    hint = "its log says more; killed by signal 9 it ran out of memory most likely: bronze is whole, run it again"


class StreamProtocol(SourceError):
    """The server sent a message that the streaming replication protocol does not have."""

    code = "SRC226"
    hint = "is there a proxy between? report it with the server's version"


class CopyUnknown(SourceError):
    """Bronze holds changes of a stream, but nothing says that its initial copy was finished."""

    code = "SRC230"
    hint = "were the control tables deleted? put them back; else drop the slot, move the lake folder away, run again"


class TableRewritten(SourceError):
    """A table was rewritten between the slot's snapshot and its copy: the snapshot no longer sees its rows."""

    code = "SRC231"
    retry = Retry.LATER
    hint = "run again when the ALTER TABLE is over: the copy starts anew"


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────


class DecodeError(CdcLakeError):
    """Bytes that are not what the protocol allows. `offset` counts from the start of the message."""

    code = "DEC300"
    hint = "leave the slot as it is, it keeps the bytes; report what `cdc-lake run --only receive --debug` says"

    def __init__(self, message: str, *, offset: int = 0, where: str = "", hint: str | None = None) -> None:
        super().__init__(f"{message} (at byte {offset})", where=where, hint=hint)
        self.offset = offset


class TruncatedMessage(DecodeError):
    """A message ends before the value it announces."""

    code = "DEC301"

    def __init__(self, *, need: int, left: int, at: int) -> None:
        super().__init__(f"the message ends early: {need} bytes announced, {left} left", offset=at)


class UnexpectedMessage(DecodeError):
    """A message, tuple or value of a kind that was not asked for, or that nobody knows."""

    code = "DEC302"
    hint = "stream pgoutput with proto_version 1, in text and without streaming; if it is, report it"


class MalformedMessage(DecodeError):
    """A message whose parts contradict each other or the protocol."""

    code = "DEC303"


class InvalidText(DecodeError):
    """Text that is not valid UTF-8."""

    code = "DEC304"
    hint = "`SHOW server_encoding`: SQL_ASCII checks nothing. Repair the row at the source, then take a new copy"

    def __init__(self, *, at: int) -> None:
        super().__init__("the text is not valid UTF-8", offset=at)


class OutOfSequence(DecodeError):
    """A message where the protocol does not allow it: a change outside a transaction, a BEGIN inside one."""

    code = "DEC305"


class UnknownRelation(DecodeError):
    """A change of a table whose layout was never announced on this connection."""

    code = "DEC306"
    hint = "run `cdc-lake run` again: a new connection announces every table anew; if it repeats, report it"


class UnknownType(DecodeError):
    """A column of a type whose name neither the stream nor the catalog gives."""

    code = "DEC307"
    hint = "was the type dropped since? `SELECT typname FROM pg_type WHERE oid = …` tells; if so: new slot, new copy"


class BatchTooLarge(DecodeError):
    """More bytes in one batch of transactions than an Arrow array can address."""

    code = "DEC308"
    hint = "split the transaction at the source; a batch holds less than 2 GiB of values"


# ── lake ─────────────────────────────────────────────────────────────────────────────────────────────────────


class LakeError(CdcLakeError):
    """A table could not be read or written."""

    code = "LAK400"


class JavaMissing(LakeError):
    """Spark's Java is not there."""

    code = "LAK401"
    hint = "install a Java 17 or 21 runtime, or point JAVA_HOME at one; `cdc-lake check` shows what is found"


class SparkMissing(LakeError):
    """The Python package is not installed."""

    code = "LAK402"
    hint = "pip install 'cdc_lake[spark]'"

    def __init__(self) -> None:
        super().__init__("applying needs Spark, and pyspark is not installed here")


class IcebergMissing(LakeError):
    """The Python package is not installed."""

    code = "LAK404"
    hint = "pip install 'cdc_lake[iceberg]'"

    def __init__(self) -> None:
        super().__init__("the pipeline has Iceberg tables, and pyiceberg is not installed here")


class SparkNotStarted(LakeError):
    """Java is there, Spark did not come up."""

    code = "LAK403"
    hint = "the first start fetches Delta's and Iceberg's jars: check the way to Maven Central or your mirror of it"


class SparkDied(LakeError):
    """The JVM that Spark runs in ended while it was needed."""

    code = "LAK405"
    retry = Retry.LATER
    hint = "state is safe, run again; if it dies each time, raise `apply.driver_memory` or lower `apply.span_rows`"


class DestructiveChange(LakeError):
    """The source's table changed in a way that would lose or reinterpret data in silver."""

    code = "LAK410"
    hint = "the table waits, the others go on; undo the change at the source, or start over with a new copy"


class MergeRefused(LakeError):
    """Silver does not hold what the change refers to."""

    code = "LAK411"
    hint = "run `cdc-lake compare` for the table: something else wrote to it, or rows were missing from the start"


class ApplyFailed(LakeError):
    """A table could not be merged, for a reason Spark gave."""

    code = "LAK413"
    hint = "silver is unchanged; run again with --debug to see what Spark said, or read the log in `<lake>/logs`"


class TableChangedMeanwhile(LakeError):
    """Another writer committed to the silver table while a span was merged."""

    code = "LAK412"
    retry = Retry.LATER
    hint = "nothing was published; run again. Only one `run` may apply a pipeline, and nothing else may write to silver"


class SilverMissing(LakeError):
    """A silver table, or a version of it, is not there to be read."""

    code = "LAK424"
    hint = "run `cdc-lake run --once` to make the table; versions that VACUUM or expiry removed cannot be read again"

    def __init__(self, table: str, version: int | None = None) -> None:
        at = "" if version is None else f" at version {version}"
        super().__init__(f"the silver table {table} is not there{at}", where=table)


class BronzeNotWritten(LakeError):
    """A commit to bronze failed, and is known not to have landed."""

    code = "LAK420"
    retry = Retry.LATER
    hint = "nothing was confirmed, so nothing is lost: check disk space and permissions of the folder, then run again"


class BronzeUnknown(LakeError):
    """The folder holds a table that is not a bronze table this version can use."""

    code = "LAK421"
    hint = "point `bronze.path` at the pipeline's own table; a newer contract needs a newer cdc_lake"


class BronzeDamaged(LakeError):
    """Bronze does not hold what its own rows or markers announce."""

    code = "LAK422"
    hint = "run `cdc-lake inspect chain` to see where; rows were removed or edited by something else"


class ControlNotWritten(LakeError):
    """A commit to a control table failed, and is known not to have landed."""

    code = "LAK423"
    retry = Retry.LATER
    hint = "check disk space and permissions of the control folder, then run again"


# ── quality ──────────────────────────────────────────────────────────────────────────────────────────────────


class QualityError(CdcLakeError):
    """A rule or a report."""

    code = "QUA500"


class RuleStopped(QualityError):
    """A change breaks a rule with `on_fail: stop`; everything before its transaction is applied."""

    code = "QUA501"
    exit_code = 5
    hint = "correct the row at the source, or set the rule to `quarantine` or `warn`, and run again"


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


class DuplicateRule(QualityError):
    """Two rules of a table have one name."""

    code = "QUA504"
    exit_code = 3
    hint = "give one of them another `name:`"


class QualityEngineMissing(QualityError):
    """Great Expectations is not installed here."""

    code = "QUA505"
    hint = "install the extra: `pip install 'cdc_lake[quality]'`"


class ReportNotWritten(QualityError):
    """The files of a report could not be written."""

    code = "QUA506"
    hint = "make the folder writable and free space on its disk; the data is not affected"


# ── state ────────────────────────────────────────────────────────────────────────────────────────────────────


class StateError(CdcLakeError):
    """Positions, watermarks or streams do not fit together."""

    code = "STA600"


class SilverLost(StateError):
    """The last cut lists a silver table that is not there any more."""

    code = "STA612"
    hint = "put the table back as it was, or start over with a new copy (docs/guides/operations.md)"


class SnapshotIncomplete(StateError):
    """Bronze has a stream whose initial copy never finished."""

    code = "STA611"
    hint = "let `cdc-lake run --only receive` finish the copy first"


class NoKey(StateError):
    """A table has nothing that identifies a row in what the server logs."""

    code = "STA610"
    hint = "give it a primary key, or ALTER TABLE … REPLICA IDENTITY USING INDEX …, or name `keys` with identity FULL"


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


class AnotherApply(StateError):
    """Another process applies this pipeline on this machine."""

    code = "STA624"
    retry = Retry.LATER
    hint = "let it end or stop it, then run again; bronze was not held up"


class NotInBronze(StateError):
    """What was asked for is not in bronze."""

    code = "STA623"
    hint = "`cdc-lake status` shows the positions that bronze holds; table and key are written as in the source"


# ── deployment ───────────────────────────────────────────────────────────────────────────────────────────────


class DeployError(CdcLakeError):
    """A bundle or a job."""

    code = "DEP700"
