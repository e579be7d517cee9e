"""Tables: bronze, silver, control; Spark; catalogs: LAK4xx."""

from __future__ import annotations

from cdc_lake.errors.base import ANEW, CdcLakeError, Retry, install


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
    hint = "install the extra `spark` of cdc_lake, from where cdc_lake was installed"

    def __init__(self) -> None:
        super().__init__("applying needs Spark, and pyspark is not installed here", hint=install("spark"))


class IcebergMissing(LakeError):
    """The Python package is not installed."""

    code = "LAK404"
    hint = "install the extra `iceberg` of cdc_lake, from where cdc_lake was installed"

    def __init__(self) -> None:
        words = "the pipeline has Iceberg tables, and pyiceberg is not installed here"
        super().__init__(words, hint=install("iceberg"))


class RepeatDiffers(LakeError):
    """The server sends a transaction again that bronze holds at its position, and it is another one."""

    code = "LAK440"
    hint = (
        "run `cdc-lake inspect chain`: if it is broken, bronze was altered, so put it back as it was; if it holds, the "
        f"server was restored or replaced: {ANEW}"
    )


class SparkNotStarted(LakeError):
    """Java is there, Spark did not come up."""

    code = "LAK403"
    hint = "the first start fetches Delta's and Iceberg's jars: check the way to Maven Central or your mirror of it"


class SparkDied(LakeError):
    """The JVM that Spark runs in ended while it was needed."""

    code = "LAK405"
    retry = Retry.LATER
    hint = "state is safe, run again; if it dies each time, raise `apply.driver_memory` or lower `apply.span_rows`"

    def __init__(self, how: str) -> None:
        super().__init__(f"the Java process that Spark runs in has ended ({how})")
        self.how = how


class OtherCatalog(LakeError):
    """The session of Spark that runs already has the catalog of another pipeline under this one's name."""

    code = "LAK406"
    hint = "run this pipeline in a process of its own, or keep both in one folder: they share its lake and its catalog"


class DestructiveChange(LakeError):
    """The source's table changed in a way that would lose or reinterpret data in silver."""

    code = "LAK410"
    hint = (
        "the table waits, the others go on; undo the change at the source, or run `cdc-lake rebuild TABLE` to give the "
        "table the form that it has there now"
    )


class Unconvertible(LakeError):
    """A column changed its type, and what its old values are in the new one, only the source knows."""

    code = "LAK456"
    hint = (
        "the table waits, the others go on: `cdc-lake resync TABLE` copies it again; or undo the change at the source"
    )


class ShapeForeign(LakeError):
    """A silver table has a column that neither its source table ever had nor the pipeline adds."""

    code = "LAK457"
    hint = (
        "move what the column holds into a table or view of its own, joined by key; then `cdc-lake rebuild TABLE` "
        "makes the silver table without it"
    )


class NameTaken(LakeError):
    """A column of the source has the name of one that silver adds itself."""

    code = "LAK450"
    hint = (
        "give the column another name in silver (`rename`) or leave it out (`exclude`), or leave out what adds its "
        "namesake: `lineage`, `deletes: soft`, or the table's kind; then `cdc-lake rebuild TABLE`"
    )


class TypeRefused(LakeError):
    """The pipeline declares a silver type for a column that its source type cannot become, or names no column."""

    code = "LAK479"
    hint = "correct `types` of the table; `cdc-lake check` lists every column with its type"


class KindChanged(LakeError):
    """A silver table keeps something else than the pipeline says."""

    code = "LAK451"
    hint = (
        "put the pipeline back, or run `cdc-lake rebuild TABLE` to make the table anew from bronze as the pipeline says"
    )


class ColumnNotTracked(LakeError):
    """History should track a column that the table does not have, or whose values cannot be compared."""

    code = "LAK452"
    hint = "`track` names columns of the source's table; correct it in the pipeline file"


class MergeRefused(LakeError):
    """Silver does not hold what the change refers to."""

    code = "LAK411"
    hint = (
        "something else wrote to the table, or rows were missing from the start; `cdc-lake compare TABLE` names them, "
        "and `cdc-lake resync TABLE` copies the table again"
    )


class ApplyFailed(LakeError):
    """A table could not be merged, for a reason Spark gave."""

    code = "LAK413"
    hint = "silver is unchanged; run again with --debug to see what Spark said, or read the log in `<lake>/logs`"


class ClockBehind(LakeError):
    """Iceberg takes no snapshot that is more than a minute older than the table's last one."""

    code = "LAK414"
    retry = Retry.LATER
    hint = "silver is unchanged: set this machine's clock, or wait until it is past the table's last snapshot"


class TableChangedMeanwhile(LakeError):
    """Another writer committed to the silver table while a span was merged."""

    code = "LAK412"
    retry = Retry.LATER
    hint = "nothing was published; run again. Only one `run` may apply a pipeline, and nothing else may write to silver"


class TooManyFollowed(LakeError):
    """More changes of one table must be followed one by one in a span than the driver's memory is for."""

    code = "LAK472"
    identity_hint = (
        "one transaction moves so many keys, or breaks a rule so often, that it cannot be taken apart: give the rule "
        "`on_fail: warn` or `stop`"
    )
    hint = f"{identity_hint}; or else `cdc-lake resync TABLE` copies the table again"


class SilverPutBack(LakeError):
    """A silver table is at an older content again, and its commits above that are gone."""

    code = "LAK466"
    hint = "bring the table forward again to the version the last cut lists, or run `cdc-lake rebuild TABLE` for it"


class OtherWriter(LakeError):
    """Something else changed rows of a silver table."""

    code = "LAK467"
    hint = "find out what writes to the table, take it back or run `cdc-lake rebuild TABLE` for it"


class SilverNotOwned(LakeError):
    """A silver table belongs to another pipeline, or was not written by cdc_lake."""

    code = "LAK469"
    hint = (
        "give this pipeline its own `silver.defaults.namespace` or the table another name with `to`; to replace what "
        "the table holds on purpose: `cdc-lake run --adopt TABLE`"
    )


class RebuildPlaceTaken(LakeError):
    """The table that a rebuild was to make is there, or will be."""

    code = "LAK468"
    hint = "give `--into` a name that no table of the lake has"


class SilverMissing(LakeError):
    """A silver table, or a version of it, is not there to be read."""

    code = "LAK424"
    hint = "run `cdc-lake run --once` to make the table; versions that VACUUM or expiry removed cannot be read again"

    def __init__(self, table: str, version: int | None = None) -> None:
        version_text = "" if version is None else f" at version {version}"
        super().__init__(f"the silver table {table} is not there{version_text}", where=table)


class BronzeNotWritten(LakeError):
    """A commit to bronze failed, and is known not to have landed."""

    code = "LAK420"
    retry = Retry.LATER
    hint = "nothing was confirmed, so nothing is lost: check disk space and permissions of the folder, then run again"


class CommitNotOnDisk(LakeError):
    """A commit is in a table's log, and the disk failed to keep it."""

    code = "LAK426"
    hint = "nothing behind it was confirmed: look at the disk (the kernel's log), then run `cdc-lake inspect chain`"


class BronzeUnknown(LakeError):
    """The folder holds a table that is not a bronze table this version can use."""

    code = "LAK421"
    hint = "point `bronze.path` at the pipeline's own table; a newer contract needs a newer cdc_lake"


class BronzeDamaged(LakeError):
    """Bronze does not hold what its own rows or markers announce."""

    code = "LAK422"
    hint = (
        "run `cdc-lake inspect chain` to see where, and put back from a copy what was removed or edited; if that "
        f"cannot be had: {ANEW}"
    )


class BronzeAltered(LakeError):
    """Something else changed the data of bronze since the last commit of its receiver."""

    code = "LAK425"
    hint = f"find out what writes to the table, and put it back as it was; if that cannot be had: {ANEW}"


class BronzeGone(LakeError):
    """The control tables know a stream, and bronze holds nothing."""

    code = "LAK427"
    hint = (
        "was `bronze.path` changed, or the folder moved? put it back, and nothing is lost: the slot keeps the log; if "
        "bronze is lost for good: `cdc-lake restart`"
    )


class ControlNewer(LakeError):
    """A control table was written or upgraded by a newer version."""

    code = "LAK490"
    hint = "install a newer cdc_lake, at least the version that upgraded the lake"


class ControlNotWritten(LakeError):
    """A commit to a control table failed, and is known not to have landed."""

    code = "LAK423"
    retry = Retry.LATER
    hint = "check disk space and permissions of the control folder, then run again"


class CatalogUnreachable(LakeError):
    """The Iceberg catalog did not answer, or refused us."""

    code = "LAK430"
    retry = Retry.LATER
    hint = "check `lake.iceberg`: its `uri`, that the catalog runs, and the credentials in `properties`"


class CommitUncertain(LakeError):
    """A commit to bronze failed, and whether it landed could not be asked."""

    code = "LAK431"
    retry = Retry.LATER
    hint = (
        "nothing was confirmed, so nothing is lost: the next run reads from the catalog what bronze holds and goes on"
    )


class StoreUnavailable(LakeError):
    """The object store did not answer, or failed, for as long as we were to be patient."""

    code = "LAK435"
    retry = Retry.LATER
    hint = "nothing is lost, run again; if it stays so check `lake.storage.endpoint` and the way to it"


class StoreRefused(LakeError):
    """The object store answered that we may not, or that the bucket is not there."""

    code = "LAK436"
    hint = "check the bucket's name and `lake.storage`: region, keys, and what they may do in the bucket"


class StoreBehind(LakeError):
    """The object store has a version of a table and leaves it out of its listing."""

    code = "LAK437"
    retry = Retry.LATER
    hint = "run again; a store whose listings stay behind what was written cannot hold bronze"


class StoreUnfenced(LakeError):
    """The object store overwrites where it was asked not to."""

    code = "LAK438"
    hint = "bronze needs a store that honours `If-None-Match` on PUT: choose another one, or a newer version of it"


class BronzeBusy(LakeError):
    """Upkeep of bronze found no moment between two commits of its receiver."""

    code = "LAK445"
    retry = Retry.LATER
    hint = "nothing was changed; run `cdc-lake maintain` again when less is received"


class VersionGone(LakeError):
    """The version of a silver table that a cut names was removed."""

    code = "LAK462"
    hint = "`cdc-lake cuts list` marks the cuts that stay readable; promise the next one before it goes"

    def __init__(self, table: str, version: int, cut: str) -> None:
        super().__init__(
            f"version {version} of {table}, which the cut at {cut} names, is not there any more", where=table
        )


class NotPromised(LakeError):
    """A cut could not be promised, or there is no promise of that name."""

    code = "LAK463"
    hint = "`cdc-lake cuts list` shows the cuts and the promises that stand"


class TransformUnfit(LakeError):
    """What a pipeline file says of a silver table's columns or rows does not fit its source table."""

    code = "LAK475"
    hint = "the table waits, the others go on; correct the pipeline file, and the next run goes on with the table"


class TransformChanged(LakeError):
    """A silver table was made with other transforms than the pipeline file has now."""

    code = "LAK476"
    hint = "put them back, or have the table made again with those of now: `cdc-lake rebuild TABLE`"


class DivisionChanged(LakeError):
    """A silver table's files are divided otherwise than the pipeline file says now."""

    code = "LAK477"
    hint = "put `partition_by` back, or have the table made again with the one of now: `cdc-lake rebuild TABLE`"


class SilverNameShared(LakeError):
    """Two source tables would be written to one silver table."""

    code = "LAK493"
    hint = "both wait, the others go on; give one of them another name: `silver.tables: [{from: …, to: …}]`"


class TableEndsSpark(LakeError):
    """Spark's JVM ended twice while it worked on one table alone."""

    code = "LAK494"
    hint = (
        "the others go on; give Spark more memory (`apply.driver_memory`) if the machine has it, lower "
        "`apply.span_rows`, or set the table aside: `cdc-lake pause TABLE`; "
        "what Java said is in `logs/spark.log` of the lake"
    )


class SilverBusy(LakeError):
    """Upkeep of a silver table lost against apply each time it was tried."""

    code = "LAK478"
    retry = Retry.LATER
    hint = "nothing was changed by the step that lost; run `cdc-lake maintain` again when less is applied"


class SpoolFull(LakeError):
    """Transactions that are not committed yet take more of this machine's disk than they may."""

    code = "LAK481"
    hint = (
        "nothing is lost, the slot keeps them; raise `bronze.spool.max_bytes`, or end the transaction at the source: "
        "`SELECT pid, xact_start FROM pg_stat_activity ORDER BY 2` shows the oldest"
    )


class SpoolNotWritten(LakeError):
    """A transaction that is not committed yet could not be kept on this machine's disk, or not read back."""

    code = "LAK482"
    retry = Retry.LATER
    hint = "is the disk full? make room, or put the folder elsewhere with `bronze.spool.path`; the slot keeps it all"


class PreparedNotKept(LakeError):
    """A prepared transaction could not be kept until its COMMIT PREPARED, or not be read back."""

    code = "LAK483"
    retry = Retry.LATER
    hint = "is the disk of the control tables full, or not writable? the slot keeps what is not kept here"


class PreparedDamaged(LakeError):
    """The file of a prepared transaction is not what the receiver wrote."""

    code = "LAK484"
    hint = "bring the file back from a backup; without it, the page of DEC322 says how the server sends it whole"
