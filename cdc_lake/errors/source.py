"""The database: connection, slot, publication, snapshot: SRC2xx.

The slot: missing, in use, foreign, invalidated, or moved past bronze: codes among SRC2xx.
"""

from __future__ import annotations

from cdc_lake.errors.base import ANEW, CdcLakeError, Retry, install


class SourceError(CdcLakeError):
    """The source database refused an operation, cannot be reached, or is not the one that bronze was fed from."""

    code = "SRC200"


class ServerUnreachable(SourceError):
    """Nothing responds at the address, or the connection was lost."""

    code = "SRC201"
    retry = Retry.LATER
    hint = (
        "check that the server is running and that `source.host` and `source.port` are correct; nothing is lost, "
        "because the slot retains the WAL"
    )


class AuthenticationRefused(SourceError):
    """The server does not accept the role and its password from this machine."""

    code = "SRC202"
    hint = "check `source.user` and `source.password`, and that pg_hba.conf admits this role from this machine"


class DatabaseUnknown(SourceError):
    """The server has no such database."""

    code = "SRC203"
    hint = "check `source.database`"


class RoleLacksReplication(SourceError):
    """The role does not have the REPLICATION attribute."""

    code = "SRC205"
    hint = "run as a superuser: ALTER ROLE <user> REPLICATION"


class TlsRefused(SourceError):
    """The requested encrypted connection cannot be established."""

    code = "SRC206"
    hint = "check `source.tls`: mode, and root_cert for verify-ca and verify-full; check that `ssl` is on at the server"


class ServerBusy(SourceError):
    """The server has no free connection or WAL sender, or is starting up or shutting down."""

    code = "SRC207"
    retry = Retry.LATER
    hint = "retry; if the error persists, raise max_connections or max_wal_senders on the server"


class ServerSettings(SourceError):
    """The server is not configured for logical decoding, or is not a supported one."""

    code = "SRC208"
    hint = "run as a superuser: ALTER SYSTEM SET wal_level = logical; then restart the server"


class DriverMissing(SourceError):
    """The database driver is not installed."""

    code = "SRC209"
    hint = "install the extra `receive` of cdc_lake from the same origin as cdc_lake itself"

    def __init__(self, message: str = "the driver psycopg is not installed") -> None:
        super().__init__(message, hint=install("receive"))


class NoFreeSlot(SourceError):
    """All replication slots of the server are in use."""

    code = "SRC211"
    hint = "raise max_replication_slots and restart the server; `cdc-lake slot list` shows which slots exist"


class OtherSource(SourceError):
    """The server or the database is not the one that bronze was fed from."""

    code = "SRC216"
    hint = (
        "check `source`; create another pipeline with its own name for another source; if the server was replaced "
        f"or upgraded on purpose: {ANEW}"
    )


class BronzeAhead(SourceError):
    """Bronze contains transactions that the server lacks: it was restored from a backup, or failed over too early."""

    code = "SRC217"
    hint = (
        "if the lost transactions matter, save them first: `cdc-lake inspect tx POSITION` prints what bronze "
        f"contains; then {ANEW}"
    )


class PublicationMissing(SourceError):
    """The publication that the slot reads does not exist."""

    code = "SRC220"
    hint = f"changes since the publication was dropped cannot be decoded, even if it is created again: {ANEW}"


class PublicationUnfit(SourceError):
    """The publication exists, but does not publish what the pipeline needs, or belongs to another pipeline."""

    code = "SRC221"
    hint = (
        "change it with ALTER PUBLICATION, or set `source.publication` to another name, and the publication will be "
        "created"
    )


class PublicationAltered(SourceError):
    """A table's part of the publication was altered, or another table took its name, while changes were read."""

    code = "SRC252"
    retry = Retry.LATER
    hint = (
        "restart the receiver: it copies the table again when it starts; a receiver that is running restarts by itself"
    )


class NoTableMatches(SourceError):
    """A pattern of `tables` matches nothing in the database."""

    code = "SRC222"
    hint = "write `schema.table`, without quotes and in the catalog's case; `*` and `?` match within each part"


class RowFilterUnfit(SourceError):
    """A filter of `source.row_filters` is not valid as the row filter of a publication on this server."""

    code = "SRC239"
    hint = "correct the filter, or remove it to capture all rows of the table"


class NoReplicaIdentity(SourceError):
    """A table has no key that the server could log, so updates and deletes would not identify a row."""

    code = "SRC223"
    hint = "add a primary key, or: ALTER TABLE … REPLICA IDENTITY FULL"


class SourcePermission(SourceError):
    """The role can connect, but lacks the privilege for this operation."""

    code = "SRC224"
    hint = "run `cdc-lake check --sql` and have a superuser execute what it prints"


class RowsHidden(SourceError):
    """A row security policy hides rows of a table from the role, although the stream would contain them."""

    code = "SRC237"
    hint = (
        "let the role read all rows: `cdc-lake check --sql` prints the command for a superuser, ALTER ROLE … BYPASSRLS"
    )


class QueryRefused(SourceError):
    """The server answered a statement of this program with an error."""

    code = "SRC225"
    hint = "see the server's log; run again with --debug to see the cause"


class LogUndecodable(SourceError):
    """The server failed with an internal error while it decoded a transaction of its WAL."""

    code = "SRC253"
    hint = (
        "run again: if the error does not recur, nothing else is needed; if it recurs, nothing after this "
        "transaction can be read from the slot: keep the server's log for its vendor, look for a newer minor "
        f"release, and if there is none: {ANEW}"
    )


class ReceiverDied(SourceError):
    """The receiver's process ended without a report."""

    code = "SRC227"
    retry = Retry.LATER
    hint = "see its log; if it was killed by signal 9, it most likely ran out of memory; bronze is intact: run it again"


class HashingDied(SourceError):
    """The helper process of the receiver that hashes rows ended before the receiver did."""

    code = "SRC228"
    retry = Retry.LATER
    hint = (
        "no action is needed: the receiver continues with a new process, and bronze is intact; if it was killed by "
        "signal 9, the machine most likely ran out of memory"
    )


class StreamProtocol(SourceError):
    """The server sent a message that the streaming replication protocol does not define."""

    code = "SRC226"
    hint = "connect without a proxy, if there is one; otherwise report the error with the server's version"


class CopyUnknown(SourceError):
    """Bronze contains changes of a stream, but no record shows that its initial copy was finished."""

    code = "SRC230"
    hint = f"if the control tables were deleted, restore them; otherwise {ANEW}"


class TableRewritten(SourceError):
    """A table was rewritten between the slot's snapshot and its copy: the snapshot no longer sees its rows."""

    code = "SRC231"
    retry = Retry.LATER
    hint = "run again when the ALTER TABLE has finished: the copy continues with the tables that are not complete yet"


class TableLocked(SourceError):
    """A table cannot be read or copied, because another session holds a lock on it or waits to alter it."""

    code = "SRC232"
    retry = Retry.LATER
    hint = "run again when the ALTER TABLE has finished: pg_stat_activity shows which sessions wait for a lock"


class ReplicationPortNeeded(SourceError):
    """A server of the GaussDB family accepts replication connections only at its HA port."""

    code = "SRC240"
    hint = (
        "set `source.replication_port` to the HA port: the service port + 1, unless the server is configured otherwise"
    )


class ServicePortNeeded(SourceError):
    """A statement was sent to the HA port of a server of the GaussDB family, which accepts only replication."""

    code = "SRC241"
    hint = "set `source.port` to the service port; the HA port belongs in `source.replication_port`"


class AuthenticationUnsupported(SourceError):
    """The server requires an authentication method that this client does not support."""

    code = "SRC242"
    hint = "use a `sha256` line for this role in pg_hba.conf (gs_hba.conf), then set its password again"


class PluginMissing(SourceError):
    """The server does not have the output plugin of the slot."""

    code = "SRC243"
    hint = (
        "set `source.slot.plugin` to a plugin that the server has: pgoutput on PostgreSQL, or test_decoding from "
        "its contrib package; mppdb_decoding on the GaussDB family"
    )


class WrongOutputOrder(SourceError):
    """The slot's output order is not the one that the pipeline asks for: CSN instead of LSN, or the reverse."""

    code = "SRC244"
    hint = f"set `source.slot.output_order` to the order that the slot has; to use the other order: {ANEW}"


class SlotNameInvalid(SourceError):
    """The server does not accept this text as the name of a slot."""

    code = "SRC245"
    hint = (
        "use at most 63 lower-case letters, digits and `_` in `source.slot.name`; the name must not begin with "
        "`gs_roach`"
    )


class OptionUnknown(SourceError):
    """This server, or this mode of decoding, has no option of that name."""

    code = "SRC246"
    hint = "remove it from `source.decoding`: it belongs to another product or version, or to parallel decoding"


class OptionRefused(SourceError):
    """The server knows the option, but rejects this value."""

    code = "SRC247"
    hint = "correct its value in `source.decoding`; the server's documentation states the range"


class StandbyNeeded(SourceError):
    """The options ask for decoding on a standby only, but the server is a primary."""

    code = "SRC248"
    retry = Retry.LATER
    hint = "remove `standby-connection` from `source.decoding`, or name a standby in `source.hosts`"


class DecodersExhausted(SourceError):
    """The server already runs as many parallel decodings as it can: 20 in the open-source edition."""

    code = "SRC249"
    retry = Retry.LATER
    hint = (
        "stop another parallel stream of this server, or wait until one ends, then run again; a stream in CSN order "
        f"cannot continue serially: to decode serially, set `parallel-decode-num: 1` and `order: lsn`; then {ANEW}"
    )


class NoPrimary(SourceError):
    """The server is a standby or, if several are configured, each one that answers is."""

    code = "SRC250"
    retry = Retry.LATER
    hint = "wait if a failover is in progress; otherwise name the primary in `source.host` or `source.hosts`"


class SeveralPrimaries(SourceError):
    """More than one of the configured hosts is a primary: their commits differ."""

    code = "SRC251"
    retry = Retry.LATER
    hint = "stop the server that should not be the primary, or make it a standby again; until then nothing is read"


class OtherTimeline(SourceError):
    """The server is on an older timeline than the stream was read on, or on a different one of the same number."""

    code = "SRC260"
    hint = "name the current primary in `source`: this may be the old primary, which still runs"


class TimelineUntold(SourceError):
    """The server is on a newer timeline, and does not know where that timeline branched off."""

    code = "SRC261"
    hint = "restore the timeline's .history file in pg_wal (from the archive or another server), then run again"


class HistoryDiffers(SourceError):
    """The server sends a transaction below bronze's end that bronze does not contain."""

    code = "SRC262"
    hint = (
        "if `tables` was changed after a crash, change it back for one run; if a server that lacked the end of the "
        f"WAL took over: {ANEW}"
    )


class SlotInvalidated(SourceError):
    """The server invalidated the slot for another reason, or the slot never had a position."""

    code = "SRC218"
    hint = f"read `cdc-lake explain SRC218` for the meaning of each reason and what to do first; then {ANEW}"


class WalGone(SlotInvalidated):
    """The server removed WAL that the slot still needed."""

    code = "SRC204"
    hint = f"raise max_slot_wal_keep_size on the server; then {ANEW}"


class SlotMissing(SourceError):
    """The slot that bronze was fed from no longer exists, so the WAL after bronze's last position is not retained."""

    code = "SRC212"
    hint = f"a new slot cannot send the changes in between: {ANEW}"


class SlotActive(SourceError):
    """Another process is using the slot."""

    code = "SRC213"
    retry = Retry.LATER
    hint = "stop the other receiver; after a crash the server releases the slot within wal_sender_timeout"


class SlotForeign(SourceError):
    """A slot of this name exists, but this pipeline cannot have created it and must not take it over."""

    code = "SRC214"
    hint = (
        "check that the volume of `lake.path` is mounted and that `lake.path` and `bronze.path` are unchanged; "
        "restore them, and nothing is lost; if this lake is new, set `source.slot.name` to another name: the owner "
        "of this slot may need it"
    )


class SlotAhead(SourceError):
    """The slot's confirmed position is beyond the end of bronze: the changes in between are missing."""

    code = "SRC215"
    hint = (
        "if an older lake was restored, restore the newer one; otherwise the slot was recreated, or another program "
        f"read it: {ANEW}"
    )


class SlotOfOtherPlugin(SlotForeign):
    """The slot uses another output plugin than the pipeline."""

    code = "SRC219"
    hint = (
        "set `source.slot.plugin` to the slot's plugin; for a new pipeline, set `source.slot.name` to another name; "
        f"to read the stream with the other plugin: {ANEW}"
    )


class SlotOfOtherDatabase(SlotForeign):
    """The slot belongs to another database of the same server."""

    code = "SRC229"
    hint = (
        "check `source.database`, or set `source.slot.name` to another name: slot names are shared by all databases "
        "of a server"
    )


class SlotTwoPhase(SlotForeign):
    """The slot sends transactions when they are prepared, but the pipeline reads them at their COMMIT PREPARED."""

    code = "SRC236"
    hint = (
        "turn two-phase decoding off by copying the slot and copying it back, as `cdc-lake explain SRC236` "
        "describes; or set `two_phase: true` in `source.decoding`"
    )


class SlotNotTwoPhase(SlotForeign):
    """The slot sends transactions at their COMMIT PREPARED, but the pipeline asks for them when they are prepared, and
    only pgoutput can turn that on in an existing slot.
    """

    code = "SRC238"
    hint = (
        "remove `two_phase` from `source.decoding`: prepared transactions then arrive complete at their COMMIT "
        f"PREPARED; or use it with a new slot: {ANEW}"
    )


class AdvancePastBronze(SourceError):
    """The slot was to be advanced past changes that bronze does not contain."""

    code = "SRC234"
    hint = (
        "receive the changes first: `cdc-lake run --once --only receive`; `cdc-lake slot advance` then advances the "
        "slot up to the end of bronze"
    )


class WalBudgetExceeded(SourceError):
    """The server retains more WAL, or older WAL, for the slot than the pipeline allows."""

    code = "SRC235"
    hint = (
        "see why bronze is behind: `cdc-lake status`; `cdc-lake slot list` shows how much WAL the server retains "
        "for each slot"
    )


class SlotGivenUp(SourceError):
    """The WAL budget stayed exceeded, and the pipeline is configured to drop its slot in that case."""

    code = "SRC233"
    hint = f"find out why bronze fell behind, or raise `source.wal_budget`; then {ANEW}"
