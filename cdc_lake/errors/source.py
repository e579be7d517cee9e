"""The database: connection, slot, publication, snapshot: SRC2xx.

The slot: missing, taken, not ours, of no more use, or moved where it must not be: codes among SRC2xx.
"""

from __future__ import annotations

from cdc_lake.errors.base import ANEW, CdcLakeError, Retry, install


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
    hint = "install the extra `receive` of cdc_lake, from where cdc_lake was installed"

    def __init__(self, message: str = "the driver psycopg is not installed") -> None:
        super().__init__(message, hint=install("receive"))


class NoFreeSlot(SourceError):
    """Every replication slot the server was given is in use."""

    code = "SRC211"
    hint = "raise max_replication_slots (the server has to be restarted); `cdc-lake slot list` shows who has them"


class OtherSource(SourceError):
    """The server or the database is not the one bronze was fed from."""

    code = "SRC216"
    hint = (
        "check `source`: another source is another pipeline, with a name of its own; if the server was replaced or "
        f"upgraded on purpose: {ANEW}"
    )


class BronzeAhead(SourceError):
    """Bronze holds transactions the server does not have: it was restored from a backup, or failed over too early."""

    code = "SRC217"
    hint = (
        f"keep what was lost, if it matters: `cdc-lake inspect tx POSITION` shows what bronze holds of it; then {ANEW}"
    )


class PublicationMissing(SourceError):
    """The publication that the slot reads is not there."""

    code = "SRC220"
    hint = f"changes since it went cannot be decoded, also where it is made again: {ANEW}"


class PublicationUnfit(SourceError):
    """The publication exists, but does not publish what the pipeline asks for, or is another pipeline's."""

    code = "SRC221"
    hint = "change it by ALTER PUBLICATION, or name another in `source.publication` and it will be made"


class PublicationAltered(SourceError):
    """Somebody altered what the publication has of a table, or gave its name to another, while changes were read."""

    code = "SRC252"
    retry = Retry.LATER
    hint = "the table is copied again at the next start, which a receiver that runs begins by itself"


class NoTableMatches(SourceError):
    """A pattern of `tables` matches nothing in the database."""

    code = "SRC222"
    hint = "write `schema.table`, unquoted and in the catalog's case; `*` and `?` match within a part"


class RowFilterUnfit(SourceError):
    """A filter of `source.row_filters` is none that a publication of this server could have."""

    code = "SRC239"
    hint = "correct it, or remove it: then all rows of the table are captured"


class NoReplicaIdentity(SourceError):
    """A table has no key that the server could log: nobody could tell which row an update or delete means."""

    code = "SRC223"
    hint = "add a primary key, or: ALTER TABLE … REPLICA IDENTITY FULL"


class SourcePermission(SourceError):
    """The role may connect, but not do this."""

    code = "SRC224"
    hint = "`cdc-lake check --sql` prints what a superuser has to run so that the role may do this"


class RowsHidden(SourceError):
    """A policy of row security hides rows of a table from the role, which the stream would have all the same."""

    code = "SRC237"
    hint = "let the role read all rows: `cdc-lake check --sql` prints what a superuser runs, ALTER ROLE … BYPASSRLS"


class QueryRefused(SourceError):
    """The server answered a statement of ours with an error."""

    code = "SRC225"
    hint = "the server's log says more; with --debug the cause is shown"


class LogUndecodable(SourceError):
    """The server failed with an internal error while it decoded a transaction of its log."""

    code = "SRC253"
    hint = (
        "run again: an error that does not come back was of that moment; where it does, nothing behind this "
        "transaction can be read from the slot: keep the server's log for its vendor, look for a newer minor release, "
        f"and without one {ANEW}"
    )


class ReceiverDied(SourceError):
    """The receiver's process ended without saying why."""

    code = "SRC227"
    retry = Retry.LATER
    hint = "its log says more; killed by signal 9 it ran out of memory most likely: bronze is whole, run it again"


class HashingDied(SourceError):
    """The process beside the receiver that hashes rows ended before the receiver did."""

    code = "SRC228"
    retry = Retry.LATER
    hint = "killed by signal 9, memory ran out most likely: bronze is whole, and the receiver goes on with a new one"


class StreamProtocol(SourceError):
    """The server sent a message that the streaming replication protocol does not have."""

    code = "SRC226"
    hint = "is there a proxy between? report it with the server's version"


class CopyUnknown(SourceError):
    """Bronze holds changes of a stream, but nothing says that its initial copy was finished."""

    code = "SRC230"
    hint = f"were the control tables deleted? put them back; otherwise {ANEW}"


class TableRewritten(SourceError):
    """A table was rewritten between the slot's snapshot and its copy: the snapshot no longer sees its rows."""

    code = "SRC231"
    retry = Retry.LATER
    hint = "run again when the ALTER TABLE is over: the copy goes on with what is not whole yet"


class TableLocked(SourceError):
    """A table cannot be read or copied, because somebody else holds it locked or waits to alter it."""

    code = "SRC232"
    retry = Retry.LATER
    hint = "run again when the ALTER TABLE is over: pg_stat_activity shows who waits for a lock"


class ReplicationPortNeeded(SourceError):
    """A server of the GaussDB family takes replication connections at its HA port only."""

    code = "SRC240"
    hint = "set `source.replication_port` to the HA port: the service port + 1 unless the server says otherwise"


class ServicePortNeeded(SourceError):
    """A statement was sent to the HA port of a server of the GaussDB family, which takes replication only."""

    code = "SRC241"
    hint = "set `source.port` to the service port; the HA port belongs in `source.replication_port`"


class AuthenticationUnsupported(SourceError):
    """The server asks for a kind of authentication that this client does not speak."""

    code = "SRC242"
    hint = "use a `sha256` line for this role in pg_hba.conf (gs_hba.conf), and set its password again"


class PluginMissing(SourceError):
    """The server does not have the output plugin that the slot is to use."""

    code = "SRC243"
    hint = (
        "set `source.slot.plugin` to one it has: pgoutput on PostgreSQL, whose contrib package brings test_decoding; "
        "mppdb_decoding on the GaussDB family"
    )


class WrongOutputOrder(SourceError):
    """The slot sends in another order than the pipeline asks for: CSN instead of LSN, or the other way round."""

    code = "SRC244"
    hint = f"make `source.slot.output_order` say what the slot has; to have the other order: {ANEW}"


class SlotNameInvalid(SourceError):
    """The server does not take this text as the name of a slot."""

    code = "SRC245"
    hint = "in `source.slot.name` use lower-case letters, digits and `_`, at most 63, not beginning with `gs_roach`"


class OptionUnknown(SourceError):
    """This server, or this kind of decoding, has no option of that name."""

    code = "SRC246"
    hint = "take it out of `source.decoding`: it belongs to another product, version or to parallel decoding"


class OptionRefused(SourceError):
    """The server knows the option, but not this value of it."""

    code = "SRC247"
    hint = "correct its value in `source.decoding`; the server's documentation has its range"


class StandbyNeeded(SourceError):
    """Decoding was asked for on a standby only, and the server is a primary."""

    code = "SRC248"
    retry = Retry.LATER
    hint = "take `standby-connection` out of `source.decoding`, or name one among `source.hosts`"


class DecodersExhausted(SourceError):
    """The server runs as many parallel decodings as it can: 20 in the open source."""

    code = "SRC249"
    retry = Retry.LATER
    hint = (
        "stop another parallel stream of this server, or wait until one ends, then run again; a stream in CSN order "
        f"cannot go on serially: for that set `parallel-decode-num: 1` and `order: lsn`; then {ANEW}"
    )


class NoPrimary(SourceError):
    """The server, or every one of several that answers, is a standby."""

    code = "SRC250"
    retry = Retry.LATER
    hint = "a failover may be under way; otherwise name the primary in `source.host`, or among `source.hosts`"


class SeveralPrimaries(SourceError):
    """More than one of several hosts is a primary: what is committed on the one is not on the other."""

    code = "SRC251"
    retry = Retry.LATER
    hint = "stop the one that is not to be, or make it a standby again; until then nothing is read"


class OtherTimeline(SourceError):
    """The server is on an older timeline than the stream was read on, or on another one of the same number."""

    code = "SRC260"
    hint = "is this the old primary, running beside the new one? name the server that is the primary now in `source`"


class TimelineUntold(SourceError):
    """The server is on a newer timeline, and cannot say where that one branched off."""

    code = "SRC261"
    hint = "put the timeline's .history file back into pg_wal (from the archive or another server), then run again"


class HistoryDiffers(SourceError):
    """The server sends a transaction below bronze's end that bronze does not have."""

    code = "SRC262"
    hint = (
        "were `tables` changed after a crash? then change them back for one run; did another server take over that "
        f"lacked the end of the log? {ANEW}"
    )


class SlotInvalidated(SourceError):
    """The server gave the slot up for a reason of its own, or it never had a position."""

    code = "SRC218"
    hint = f"the page of this code says what each reason means, and what to do first; then {ANEW}"


class WalGone(SlotInvalidated):
    """The server dropped WAL that the slot still needed."""

    code = "SRC204"
    hint = f"raise max_slot_wal_keep_size on the server; then {ANEW}"


class SlotMissing(SourceError):
    """Bronze was fed from a slot that is no longer there: what came after bronze's last position is not kept."""

    code = "SRC212"
    hint = f"a new slot cannot bring back what was between: {ANEW}"


class SlotActive(SourceError):
    """Another process reads the slot."""

    code = "SRC213"
    retry = Retry.LATER
    hint = "stop the other receiver; after a crash the server frees the slot within wal_sender_timeout"


class SlotForeign(SourceError):
    """A slot of this name exists, but it is not one this pipeline can have made or may take over."""

    code = "SRC214"
    hint = (
        "is the volume of `lake.path` mounted, and are `lake.path` and `bronze.path` as they were? put them back, and "
        "nothing is lost; if this lake is new, name another slot in `source.slot.name`: who owns this one may need it"
    )


class SlotAhead(SourceError):
    """The slot's confirmed position lies beyond what bronze holds: the changes between are missing."""

    code = "SRC215"
    hint = (
        "was an older lake put back? put the newer one back; otherwise the slot was recreated, or something else read "
        f"it: {ANEW}"
    )


class SlotOfOtherPlugin(SlotForeign):
    """The slot writes its changes by another output plugin than the one the pipeline reads."""

    code = "SRC219"
    hint = (
        "set `source.slot.plugin` to what the slot has; a new pipeline names another slot in `source.slot.name`; to "
        f"read the stream by the other plugin: {ANEW}"
    )


class SlotOfOtherDatabase(SlotForeign):
    """The slot carries the changes of another database of the same server."""

    code = "SRC229"
    hint = "check `source.database`, or name another slot in `source.slot.name`: names of slots are the server's"


class SlotTwoPhase(SlotForeign):
    """The slot sends transactions when they are prepared; the pipeline reads them at their COMMIT PREPARED."""

    code = "SRC236"
    hint = (
        "take it from the slot by copying the slot, and copying it back: the page of this code says how; or set "
        "`two_phase: true` in `source.decoding`"
    )


class SlotNotTwoPhase(SlotForeign):
    """The slot sends transactions at their COMMIT PREPARED; the pipeline asks for them when they are prepared, and no
    plugin but pgoutput can turn that on in a slot that is there.
    """

    code = "SRC238"
    hint = (
        "take `two_phase` out of `source.decoding`: prepared transactions arrive whole at their COMMIT PREPARED; or "
        f"have it in a new slot: {ANEW}"
    )


class AdvancePastBronze(SourceError):
    """The slot was to forget changes that bronze does not hold."""

    code = "SRC234"
    hint = (
        "receive them first: `cdc-lake run --once --only receive`; `cdc-lake slot advance` goes as far as bronze does"
    )


class WalBudgetExceeded(SourceError):
    """The server keeps more log for the slot, or older log, than the pipeline allows."""

    code = "SRC235"
    hint = "`cdc-lake status` says why bronze is behind; `cdc-lake slot list` shows what the server keeps for each slot"


class SlotGivenUp(SourceError):
    """The budget stayed exceeded, and the pipeline says that its slot is to be dropped then."""

    code = "SRC233"
    hint = f"find out why bronze fell behind, or raise `source.wal_budget`; then {ANEW}"
