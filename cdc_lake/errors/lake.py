"""Tables: bronze, silver, control; Spark; catalogs: LAK4xx."""

from __future__ import annotations

from cdc_lake.errors.base import ANEW, CdcLakeError, Retry, install


class LakeError(CdcLakeError):
    """A table could not be read or written."""

    code = "LAK400"


class JavaMissing(LakeError):
    """No suitable Java is installed for Spark."""

    code = "LAK401"
    hint = "install a Java 17 or 21 runtime, or set JAVA_HOME to one; `cdc-lake check` shows which one is found"


class SparkMissing(LakeError):
    """The Python package is not installed."""

    code = "LAK402"
    hint = "install the extra `spark` of cdc_lake from the same origin as cdc_lake itself"

    def __init__(self) -> None:
        super().__init__("applying needs Spark, but pyspark is not installed here", hint=install("spark"))


class IcebergMissing(LakeError):
    """The Python package is not installed."""

    code = "LAK404"
    hint = "install the extra `iceberg`, `hive` or `glue` of cdc_lake from the same origin as cdc_lake itself"

    def __init__(self, extra: str = "iceberg") -> None:
        what = {"iceberg": "pyiceberg", "hive": "pyiceberg's client of Hive", "glue": "pyiceberg's client of AWS Glue"}
        super().__init__(
            f"the pipeline has Iceberg tables, but {what[extra]} is not installed here", hint=install(extra)
        )


class BotocoreMissing(LakeError):
    """The Python package is not installed."""

    code = "LAK407"
    hint = "install the extra `aws` of cdc_lake from the same origin as cdc_lake itself"

    def __init__(self) -> None:
        super().__init__("assuming a role needs botocore, which is not installed here", hint=install("aws"))


class DuplicateMismatch(LakeError):
    """The server sends a transaction again at a position that bronze contains, but its content is different."""

    code = "LAK440"
    hint = (
        "run `cdc-lake inspect chain`: if it is broken, bronze was altered: restore it; if it is intact, the server "
        f"was restored or replaced: {ANEW}"
    )


class SparkNotStarted(LakeError):
    """Java is installed, but Spark did not start."""

    code = "LAK403"
    hint = (
        "the first start downloads the jars of Delta and Iceberg: check the connection to Maven Central or to your "
        "mirror of it"
    )


class SparkDied(LakeError):
    """The JVM of Spark ended while it was needed."""

    code = "LAK405"
    retry = Retry.LATER
    hint = "run again: no state was lost; if it ends each time, raise `apply.driver_memory` or lower `apply.span_rows`"

    def __init__(self, how: str) -> None:
        super().__init__(f"the Java process that Spark runs in has ended ({how})")
        self.how = how


class OtherCatalog(LakeError):
    """The running Spark session already has the catalog of another pipeline under this one's name."""

    code = "LAK406"
    hint = (
        "run this pipeline in its own process, or keep both pipelines in one folder, so that they share a lake and "
        "a catalog"
    )


class DestructiveChange(LakeError):
    """The source table changed in a way that would lose or reinterpret data in silver."""

    code = "LAK410"
    hint = (
        "the table waits; the other tables continue; undo the change at the source, or run `cdc-lake rebuild TABLE` "
        "to give the silver table the new columns of the source"
    )


class Unconvertible(LakeError):
    """A column changed its type, and only the source knows its old values in the new type."""

    code = "LAK456"
    hint = (
        "the table waits; the other tables continue: `cdc-lake resync TABLE` copies it again; or undo the change at "
        "the source"
    )


class UnexpectedColumn(LakeError):
    """A silver table has a column that the source table never had and that the pipeline does not add."""

    code = "LAK457"
    hint = (
        "move the content of the column into a separate table or view, joined by key; then run `cdc-lake rebuild "
        "TABLE` to recreate the silver table without the column"
    )


class NameTaken(LakeError):
    """A column of the source has the name of a column that silver adds."""

    code = "LAK450"
    hint = (
        "rename the column in silver (`rename`) or exclude it (`exclude`), or remove the setting that adds a column "
        "of the same name: `lineage`, `deletes: soft`, or the table's kind; then run `cdc-lake rebuild TABLE`"
    )


class TypeRefused(LakeError):
    """The pipeline declares a silver type to which a column cannot be converted, or names no existing column."""

    code = "LAK479"
    hint = "correct `types` of the table; `cdc-lake check` lists every column with its type"


class KindChanged(LakeError):
    """A silver table is of another kind than the pipeline file says."""

    code = "LAK451"
    hint = (
        "restore the setting in the pipeline file, or run `cdc-lake rebuild TABLE` to recreate the table from "
        "bronze as the pipeline file says"
    )


class ColumnNotTracked(LakeError):
    """History should track a column that the table does not have, or whose values cannot be compared."""

    code = "LAK452"
    hint = "name columns of the source table in `track` of the pipeline file"


class BaseRowMissing(LakeError):
    """Silver does not contain the row that a change refers to."""

    code = "LAK411"
    hint = (
        "another program wrote to the table, or rows were missing from the start; `cdc-lake compare TABLE` lists "
        "them, and `cdc-lake resync TABLE` copies the table again"
    )


class ApplyFailed(LakeError):
    """Spark failed to merge a table."""

    code = "LAK413"
    hint = "silver is unchanged; run again with --debug to see the error of Spark, or read the log in `<lake>/logs`"


class ClockBehind(LakeError):
    """Iceberg rejects a snapshot that is more than a minute older than the table's latest one."""

    code = "LAK414"
    retry = Retry.LATER
    hint = "silver is unchanged: correct this machine's clock, or wait until it is past the table's latest snapshot"


class ConcurrentModification(LakeError):
    """Another writer committed to the silver table while a span was being merged."""

    code = "LAK412"
    retry = Retry.LATER
    hint = (
        "run again: nothing was published. Only one `run` may apply a pipeline, and no other program may write to "
        "silver"
    )


class TooManyFollowed(LakeError):
    """Too many changes of one table in a span must be collected one by one in the driver's memory."""

    code = "LAK472"
    identity_hint = (
        "one transaction changes so many keys, or violates a rule so often, that it cannot be split: give the rule "
        "`on_fail: warn` or `stop`"
    )
    hint = f"{identity_hint}; otherwise `cdc-lake resync TABLE` copies the table again"


class SilverRestored(LakeError):
    """A silver table has older content again, and its later commits are gone."""

    code = "LAK466"
    hint = "bring the table forward to the version in the latest cut, or run `cdc-lake rebuild TABLE`"


class OtherWriter(LakeError):
    """Another program changed rows of a silver table."""

    code = "LAK467"
    hint = "find out what writes to the table and stop it; then revert its commit or run `cdc-lake rebuild TABLE`"


class MarkerGone(LakeError):
    """Delta has removed the entry of the history that had the watermark of a silver table, and only SQL can read it."""

    code = "LAK453"
    hint = (
        "drop the table and run `cdc-lake rebuild TABLE`; a longer `delta.logRetentionDuration` of the table keeps "
        "the entry"
    )


class NameElsewhere(LakeError):
    """The Hive metastore has a table or view of the name of a silver table, at another place."""

    code = "LAK454"
    hint = (
        "set `to` of the table or `silver.defaults.namespace` to a name that is free; or drop that table from the "
        "metastore, if nothing needs it there, and run again"
    )


class SilverNotOwned(LakeError):
    """A silver table belongs to another pipeline, or was not written by cdc_lake."""

    code = "LAK469"
    hint = (
        "set another `silver.defaults.namespace` for this pipeline, or give the table another name with `to`; to "
        "replace the content of the existing table on purpose: `cdc-lake run --adopt TABLE`"
    )


class RebuildPlaceTaken(LakeError):
    """The table that a rebuild should create exists, or will exist."""

    code = "LAK468"
    hint = "give `--into` a name that no table in the lake has"


class SilverMissing(LakeError):
    """A silver table, or a version of it, does not exist."""

    code = "LAK424"
    hint = (
        "run `cdc-lake run --once` to create the table; versions that VACUUM or snapshot expiry removed cannot be "
        "read again"
    )

    def __init__(self, table: str, version: int | None = None) -> None:
        version_text = "" if version is None else f" at version {version}"
        super().__init__(f"the silver table {table} does not exist{version_text}", where=table)


class BronzeNotWritten(LakeError):
    """A commit to bronze failed, and certainly did not land."""

    code = "LAK420"
    retry = Retry.LATER
    hint = (
        "check the disk space and the permissions of the folder, then run again: nothing was acknowledged, so "
        "nothing is lost"
    )


class CommitNotOnDisk(LakeError):
    """A commit is in a table's log, but the disk failed to store it durably."""

    code = "LAK426"
    hint = (
        "check the disk (see the kernel's log), then run `cdc-lake inspect chain`: nothing after this commit was "
        "acknowledged"
    )


class BronzeUnknown(LakeError):
    """The folder contains a table that is not a bronze table of this version."""

    code = "LAK421"
    hint = "set `bronze.path` to the pipeline's own table; if the table has a newer contract, install a newer cdc_lake"


class BronzeDamaged(LakeError):
    """Bronze lacks something that its own rows or markers announce."""

    code = "LAK422"
    hint = (
        "run `cdc-lake inspect chain` to see where, and restore what was removed or edited from a copy; if there is "
        f"no copy: {ANEW}"
    )


class BronzeAltered(LakeError):
    """Another program changed the data of bronze since the receiver's last commit."""

    code = "LAK425"
    hint = f"find out what writes to the table, and restore the table; if it cannot be restored: {ANEW}"


class BronzeGone(LakeError):
    """The control tables record a stream, but bronze is empty."""

    code = "LAK427"
    hint = (
        "if `bronze.path` was changed or the folder was moved, restore it, and nothing is lost: the slot retains "
        "the WAL; if bronze is lost permanently: `cdc-lake restart`"
    )


class ControlNewer(LakeError):
    """A control table was written or upgraded by a newer version."""

    code = "LAK490"
    hint = "install a newer cdc_lake: at least the version that upgraded the lake"


class ControlNotWritten(LakeError):
    """A commit to a control table failed, and certainly did not land."""

    code = "LAK423"
    retry = Retry.LATER
    hint = "check the disk space and the permissions of the control folder, then run again"


class CatalogUnreachable(LakeError):
    """The Iceberg catalog did not respond, or refused the request."""

    code = "LAK430"
    retry = Retry.LATER
    hint = "check `lake.iceberg`: its `uri`, whether the catalog is running, and the credentials in `properties`"


class CatalogReadOnly(LakeError):
    """The Iceberg catalog, or its storage, does not let the pipeline create and change tables."""

    code = "LAK432"
    hint = (
        "allow the pipeline's role to create, change and drop tables in the namespace of silver and to write their "
        "files, then run again"
    )


class CatalogNotConditional(LakeError):
    """The Iceberg catalog accepts a commit although its requirement is not met: commits of others would be lost."""

    code = "LAK433"
    hint = (
        "use another catalog, or a newer version of this one; or set `format: delta` for silver, which needs no catalog"
    )


class CatalogKeepsNoVersions(LakeError):
    """The Iceberg catalog keeps only the newest version of a table: there would be nothing for cuts to refer to."""

    code = "LAK434"
    hint = (
        "use a catalog that keeps the history of tables (Nessie does not), or set `format: delta` for silver, which "
        "needs no catalog"
    )


class CatalogWithoutFence(LakeError):
    """The Iceberg catalog registers no tables, which rebuilds need, and all commits if it keeps no branches either."""

    code = "LAK439"
    hint = (
        "use a catalog that supports `registerTable`, or update this one; or set `format: delta` for silver, which "
        "needs no catalog"
    )


class CommitUncertain(LakeError):
    """A commit to bronze failed, and it is unknown whether it landed."""

    code = "LAK431"
    retry = Retry.LATER
    hint = (
        "run again: nothing was acknowledged, so nothing is lost, and the next run reads from the catalog what "
        "bronze contains"
    )


class StoreUnavailable(LakeError):
    """The object store did not respond, or failed, until the retries were exhausted."""

    code = "LAK435"
    retry = Retry.LATER
    hint = "run again: nothing is lost; if the error persists, check `lake.storage.endpoint` and the network to it"


class StoreRefused(LakeError):
    """The object store denied access, or the bucket does not exist."""

    code = "LAK436"
    hint = "check the bucket's name and `lake.storage`: region, keys, and their permissions on the bucket"


class StaleObjectListing(LakeError):
    """The object store has a version of a table, but its listing omits it."""

    code = "LAK437"
    retry = Retry.LATER
    hint = "run again; if listings of the store lag behind its writes, use another store: this one cannot hold bronze"


class StoreUnfenced(LakeError):
    """The object store overwrites an object although a conditional PUT forbids it."""

    code = "LAK438"
    hint = "use a store that honours `If-None-Match` on PUT, or a newer version of this one: bronze needs it"


class BronzeBusy(LakeError):
    """Maintenance of bronze found no gap between two commits of the receiver."""

    code = "LAK445"
    retry = Retry.LATER
    hint = "run `cdc-lake maintain` again when less is received: nothing was changed"


class VersionGone(LakeError):
    """The version of a silver table that a cut names was removed."""

    code = "LAK462"
    hint = "use a cut that `cdc-lake cuts list` marks as readable; pin the next cut before its versions are removed"

    def __init__(self, table: str, version: int, cut: str) -> None:
        super().__init__(f"version {version} of {table}, which the cut at {cut} names, no longer exists", where=table)


class NotPinned(LakeError):
    """A cut could not be pinned, or no cut is pinned under that name."""

    code = "LAK463"
    hint = "`cdc-lake cuts list` shows the cuts and the current pins"


class TransformUnfit(LakeError):
    """The pipeline file's transforms of a silver table do not fit its source table."""

    code = "LAK475"
    hint = (
        "the table waits; the other tables continue; correct the pipeline file, and the next run continues with the "
        "table"
    )


class TransformChanged(LakeError):
    """A silver table was created with other transforms than the pipeline file has now."""

    code = "LAK476"
    hint = "restore the transforms, or run `cdc-lake rebuild TABLE` to recreate the table with the current ones"


class DivisionChanged(LakeError):
    """A silver table is partitioned differently from what the pipeline file says now."""

    code = "LAK477"
    hint = "restore `partition_by`, or run `cdc-lake rebuild TABLE` to recreate the table with the current setting"


class SilverNameShared(LakeError):
    """Two source tables would be written to one silver table."""

    code = "LAK493"
    hint = (
        "both tables wait; the other tables continue; give one of the two another name: `silver.tables: [{from: …, "
        "to: …}]`"
    )


class TableEndsSpark(LakeError):
    """Spark's JVM ended twice while it worked on one table alone."""

    code = "LAK494"
    hint = (
        "give Spark more memory (`apply.driver_memory`) if the machine has it, lower `apply.span_rows`, or set the "
        "table aside: `cdc-lake pause TABLE`; the other tables continue; `logs/spark.log` of the lake contains the "
        "output of Java"
    )


class SilverBusy(LakeError):
    """Maintenance of a silver table conflicted with apply at each attempt."""

    code = "LAK478"
    retry = Retry.LATER
    hint = "run `cdc-lake maintain` again when less is applied: the failed step changed nothing"


class SpoolFull(LakeError):
    """Uncommitted transactions take more disk space on this machine than they may."""

    code = "LAK481"
    hint = (
        "raise `bronze.spool.max_bytes`, or end the transaction at the source: `SELECT pid, xact_start FROM "
        "pg_stat_activity ORDER BY 2` shows the oldest; nothing is lost, because the slot retains the WAL"
    )


class SpoolNotWritten(LakeError):
    """An uncommitted transaction could not be written to this machine's disk, or not read back."""

    code = "LAK482"
    retry = Retry.LATER
    hint = (
        "free disk space, or move the folder with `bronze.spool.path`; nothing is lost, because the slot retains "
        "the WAL"
    )


class PreparedNotKept(LakeError):
    """A prepared transaction could not be stored until its COMMIT PREPARED, or not read back."""

    code = "LAK483"
    retry = Retry.LATER
    hint = (
        "free disk space for the control tables, and check that their folder is writable; the slot retains what is "
        "not stored here"
    )


class PreparedDamaged(LakeError):
    """The file of a prepared transaction is not what the receiver wrote."""

    code = "LAK484"
    hint = (
        "restore the file from a backup; if there is none, `cdc-lake explain DEC322` describes how to have the "
        "server send the transaction again"
    )
