"""Creates Spark sessions, with one list of settings for every session of this package.

`newSession()` inherits no runtime settings, and Delta's and Iceberg's commit settings are session-wide, so each table
is merged in a session of its own, created by `derive`. On Databricks the runtime's session is used unchanged.

The versions are a set that was tested together (`docs/reference/versions.md`); the `_4.1` artifacts are the only Spark
minor version that Delta, Iceberg and Great Expectations all support.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cdc_lake.config.model import Provider, is_local
from cdc_lake.config.project import Project
from cdc_lake.errors import JavaMissing, LakeFolderUnfit, SparkMissing, SparkNotStarted
from cdc_lake.tables.catalog import AWS_PACKAGES, REDACTED, catalog_packages, catalog_settings
from cdc_lake.tables.store_options import hadoop_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SPARK_VERSION = "4.1.4"
PACKAGES = (
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.51.0.0",
)
STORE_PACKAGES: Final[Mapping[Provider, tuple[str, ...]]] = {
    "s3": ("org.apache.hadoop:hadoop-aws:3.4.2", "software.amazon.awssdk:s3-transfer-manager:2.54.17", *AWS_PACKAGES),
    "azure": ("org.apache.hadoop:hadoop-azure:3.4.2",),
    "gcs": ("com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",),
}
"""Needed by a lake in an object store: S3A takes most of Amazon's SDK from Iceberg's bundle. Spark cannot download the
shaded variant of GCS's connector, as its coordinates have no classifier.
"""
STORE_CLASS: Final = "cdc_lake.ConditionalPutLogStore"
_LOG_STORES: Final[Mapping[Provider, tuple[str, str]]] = {
    "s3": ("s3", STORE_CLASS),
    "azure": ("abfss", "io.delta.storage.AzureLogStore"),
    "gcs": ("gs", "io.delta.storage.GCSLogStore"),
}
"""Scheme, and the log store of Delta that commits to it on the condition that the version does not exist."""
_INCLUDED: Final = {
    "com.fasterxml.jackson.core": "jackson-core jackson-databind jackson-annotations",
    "com.fasterxml.jackson.datatype": "jackson-datatype-jsr310",
    "com.github.luben": "zstd-jni",
    "commons-codec": "commons-codec",
    "commons-logging": "commons-logging",
    "commons-pool": "commons-pool",
    "io.airlift": "aircompressor",
    "org.apache.hadoop": "hadoop-client-api hadoop-client-runtime",
    "org.apache.logging.log4j": "log4j-api log4j-core",
    "org.apache.parquet": "parquet-hadoop parquet-column parquet-common parquet-encoding parquet-format-structures "
    "parquet-jackson",
    "org.locationtech.jts": "jts-core",
    "org.roaringbitmap": "RoaringBitmap shims",
    "org.slf4j": "slf4j-api",
    "org.wildfly.openssl": "wildfly-openssl",
    "org.xerial.snappy": "snappy-java",
    "software.amazon.s3.analyticsaccelerator": "analyticsaccelerator-s3",
    "software.amazon.awssdk": "annotations arns auth aws-core aws-query-protocol aws-xml-protocol bundle checksums "
    "checksums-spi crt-core endpoints-spi http-auth http-auth-aws http-auth-aws-eventstream http-auth-spi "
    "http-client-spi identity-spi json-utils metrics-spi netty-nio-client profiles protocol-core regions retries "
    "retries-spi s3 sdk-core third-party-jackson-core utils utils-lite",
}
# In pyspark or in Iceberg's bundle: without these exclusions Ivy downloads 148 MB instead of 75 (measured).
EXCLUDES = tuple(f"{group}:{module}" for group, modules in _INCLUDED.items() for module in modules.split())
LOG_STORE: Final = Path(__file__).with_name("log_store") / "log_store.jar"
JAVA_MAJORS = (17, 21)

COLLECTOR = "-XX:+UseParallelGC"
"""Merges are short jobs of a few tasks: a quarter less CPU time than with the default collector (measured)."""

HUGE_METHODS = "-XX:-DontCompileHugeMethods"
"""By default Java never compiles methods of more than 8,000 bytes. The code that Spark generates for twenty rules is
one (8,364), and the pass over a span took twice as long (measured).
"""

STACK = "-Xss8m"
"""Stack size of a thread; the default is 1 MiB. Spark walks plans recursively, and those of 1,600 columns are deep.
Memory is allocated only as far as a thread uses it.
"""

EXTENSIONS: Final = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)

_OF_SUBMIT = (
    "spark.driver.extraJavaOptions",
    "spark.driver.memory",
    "spark.jars",
    "spark.jars.excludes",
    "spark.jars.packages",
    "spark.master",
)
"""What `spark-submit` has decided before this program begins."""

_ENDS_IT = "org.apache.spark.util.SparkUncaughtExceptionHandler"
_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_LOOKED_UP = (
    ("functions",),
    ("org.apache.spark.sql.functions",),
    ("PythonUtils",),
    ("PythonSQLUtils",),
    ("py4j", "reflection", "TypeUtil"),
)
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PASSWORD = "changeit"  # noqa: S105  # of Java's own truststore, which has no secrets
_PLAIN = re.compile(r"[A-Za-z0-9._/-]")
_OUT_OF_MEMORY = 52  # SparkExitCode.OOM

CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

RUNTIME_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # The default of 50 added 3.5 s to every small MERGE (measured, local mode).
    "spark.databricks.delta.snapshotPartitions": "1",
    # Other programs read the default, INT96, as nanoseconds that wrap outside the years 1677 to 2262 (seen).
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # An overwrite replaces the whole table: `dynamic` would keep partitions without new rows.
    "spark.sql.sources.partitionOverwriteMode": "static",
    # Inferring constraints takes Spark time quadratic in the columns: seen in its stack, with 1,600 of them.
    "spark.sql.constraintPropagation.enabled": "false",
}
"""The settings of every session, including those created by `newSession` and `foreachBatch`."""

_ON_ONE_MACHINE = {
    "spark.sql.shuffle.partitions": str(min(8, os.cpu_count() or 2)),
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
"""Further ones if no cluster runs the tasks."""


def start(project: Project, given: SparkSession | None = None, *, log: Path | None = None) -> SparkSession:
    """The session of this process: the given or existing one of the runtime, otherwise a new one with pinned jars, in
    the JVM of `spark-submit` if there is one.

    Raises JavaMissing, SparkMissing, SparkNotStarted, LakeFolderUnfit. The JVM's output goes to `log`, by default
    `<lake>/logs/spark.log`, and not to the terminal.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra: a receiver has no Spark
    except ImportError as cause:
        raise SparkMissing from cause
    if (active := given or SparkSession.getActiveSession()) is not None:
        return _reaching(apply_settings(active), project)
    require_java()
    log = log or project.lake / "logs" / "spark.log"
    if (storage := project.storage) is not None and storage.ca_file is not None:
        _write_trust_store(Path(storage.ca_file), _trust_store(project))
    _quiet_gateway()
    builder = SparkSession.builder.appName(f"cdc_lake {project.name}")
    private, submitted = secret_settings(project), "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted:
        _require_jars(project)
    for key, value in static_settings(project).items():
        if key not in (_OF_SUBMIT if submitted else private):
            builder = builder.config(key, value)
    with _settings_by_file(private), _jvm_output_to(log), _own_interrupt():
        try:
            spark = builder.getOrCreate()
        except Exception as cause:
            raise SparkNotStarted(f"Spark did not start; its output is in {log}") from cause
    _settle_jvm(spark)
    return _reaching(apply_settings(spark), project)


def _require_jars(project: Project) -> None:
    """Raise SparkNotStarted if `spark-submit` was not given the jars: Spark ignores missing extensions."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark
    from pyspark import SparkContext  # noqa: PLC0415 - an extra: a receiver has no Spark

    SparkContext._ensure_initialized()  # noqa: SLF001 - pyspark has no other word for it
    jvm = SparkContext._jvm  # noqa: SLF001
    assert jvm is not None, "`spark-submit` started it"
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in (*EXTENSIONS, *([STORE_CLASS] if _in_s3(project) else [])):
        try:
            loader.loadClass(name)
        except Py4JJavaError as cause:
            message = f"`spark-submit` was not given the JAR file of {name}"
            raise SparkNotStarted(message, hint=f"add `{_jar_options(project)}` to `spark-submit`") from cause


def _jar_options(project: Project) -> str:
    given = f"--packages {','.join(_needed_packages(project))} --exclude-packages {','.join(EXCLUDES)}"
    return f"{given} --jars {LOG_STORE}" if _in_s3(project) else given


def _in_s3(project: Project) -> bool:
    return (storage := project.storage) is not None and storage.provider == "s3"


def _reaching(spark: SparkSession, project: Project) -> SparkSession:
    """Raise LakeFolderUnfit if tasks run on other machines, and the lake is a folder of this one; SparkNotStarted if
    bronze is in an object store, and the session has no client of it.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

    if on_cluster(spark) and project.lake_address is None:
        message = f"the tasks of {spark.conf.get('spark.master')} would write into folders of other machines"
        hint = "set `lake.path` to a folder of an object store (for example `s3://bucket/folder`)"
        raise LakeFolderUnfit(message, where=str(project.lake), hint=hint)
    in_store = project.lake_address or project.bronze_address or project.pipeline.bronze.format == "iceberg"
    if (storage := project.storage) is not None and in_store:
        jvm, scheme = spark.sparkContext._jvm, _LOG_STORES[storage.provider][0]  # noqa: SLF001 - pyspark has no word
        assert jvm is not None, "the session is running"
        settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - nor for Hadoop's settings
        try:
            jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)
        except Py4JJavaError as cause:
            message = f"the Spark session of this process cannot read {scheme}://"
            names = ", ".join(hadoop_settings(storage))
            hint = (
                "run this in a process without a session, so that it creates one; or create the session with "
                f"`{_jar_options(project)}` and the settings {names}"
            )
            raise SparkNotStarted(message, hint=hint) from cause
    return spark


def death(spark: SparkSession) -> str | None:
    """How Spark's JVM ended, None while it is running."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with pyspark

    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - pyspark has no other word for it
    if process is not None and (code := process.poll()) is not None:
        memory = ", out of memory" if code == _OUT_OF_MEMORY else ""
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}{memory}"
    try:
        stopped = context._jsc.sc().isStopped()  # noqa: SLF001
    except (Py4JError, OSError) as silence:
        return f"it does not respond: {type(silence).__name__}"
    return "it is shutting down" if stopped else None


def forget() -> None:
    """Make pyspark forget a JVM that ended, so that the next `start` starts another one."""
    from pyspark import SparkContext  # noqa: PLC0415 - an extra: a receiver has no Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway  # noqa: SLF001 - it has no word for it
    if context is not None and (server := getattr(context, "_accumulatorServer", None)) is not None:
        server.shutdown()
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    if process is not None:  # it may be exiting
        process.kill()
        process.wait()
    with suppress(Exception):  # the JVM is gone
        gateway.shutdown()


def derive(spark: SparkSession) -> SparkSession:
    """A new session of the same Spark, with the same settings."""
    return apply_settings(spark.newSession())


@contextmanager
def temp_view(frame: DataFrame, name: str) -> Iterator[str]:
    """A temporary view of a frame for SQL in the frame's session, dropped at the end."""
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)


def apply_settings(spark: SparkSession) -> SparkSession:
    """The session, with the runtime settings applied."""
    for key, value in (RUNTIME_SETTINGS if on_cluster(spark) else RUNTIME_SETTINGS | _ON_ONE_MACHINE).items():
        spark.conf.set(key, value)
    return spark


def on_cluster(spark: SparkSession) -> bool:
    """Whether other machines run the tasks."""
    return not is_local(str(spark.conf.get("spark.master", "")))


def cluster_cores(spark: SparkSession) -> int | None:
    """The cores of the executors that are there now, None if tasks run on this machine."""
    return spark.sparkContext.defaultParallelism if on_cluster(spark) else None


def materialize(frame: DataFrame, *, large: bool = False) -> DataFrame:
    """A frame that is computed only once: on a cluster it survives the loss of executors. `large`: it is computed when
    it is first used, and does not stay in memory.
    """
    if on_cluster(frame.sparkSession):
        return frame.checkpoint(eager=not large)
    if not large:
        return frame.localCheckpoint()
    from pyspark import StorageLevel  # noqa: PLC0415 - an extra: a receiver has no Spark

    return frame.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)


def static_settings(project: Project) -> dict[str, str]:
    """Settings that must be set before the JVM starts."""
    trust = ""
    if (storage := project.storage) is not None and storage.ca_file is not None:
        trust = f" -Djavax.net.ssl.trustStore={_trust_store(project)} -Djavax.net.ssl.trustStorePassword={_PASSWORD}"
    return {
        **_master_settings(project),
        "spark.driver.memory": f"{project.pipeline.apply.driver_memory >> 20}m",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC {COLLECTOR} {HUGE_METHODS} {STACK}{trust}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Plans are formatted for the UI even if it is off: the default, the longest form, takes a 25th of the CPU time
        # of small merges (sampled).
        "spark.sql.ui.explainMode": "simple",
        # The default of 100 evicts the classes of one span before the next one uses them: all 30 classes of a small
        # span were compiled again, and ran cold (counted).
        "spark.sql.codegen.cache.maxEntries": "1000",
        # Of Hadoop's two interfaces to a folder the default one starts `readlink` four times for each renamed file: two
        # thirds of the processes of a commit to Delta, and most of those of a batch of the stream (counted).
        "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        # A checkpoint is only a hint here and needs no checksums.
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.jars.packages": ",".join(packages_of(project)),
        "spark.jars.excludes": ",".join(EXCLUDES),
        "spark.sql.extensions": ",".join(EXTENSIONS),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(project.lake / "spark"),
        # By default Python workers run `python3` from PATH instead of this environment (seen).
        "spark.pyspark.python": sys.executable,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Otherwise each function and operator of a column asks the JVM for its session and a setting, and passes it the
        # calling line for error messages: 27 calls instead of 7 for `col + lit` (measured).
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.redaction.regex": REDACTED,
        **secret_settings(project),
        **RUNTIME_SETTINGS,
    }


def _master_settings(project: Project) -> dict[str, str]:
    """Where tasks run, and what only a cluster needs."""
    master = project.pipeline.spark.master or f"local[{min(8, os.cpu_count() or 2)}]"
    if is_local(master):
        return {"spark.master": master, **_ON_ONE_MACHINE}
    scratch = project.scratch_address
    assert scratch is not None, "`validate` rejects a cluster with a lake on this machine"
    return {
        "spark.master": master,
        "spark.executor.extraJavaOptions": f"-Duser.timezone=UTC {HUGE_METHODS} {STACK}",
        "spark.checkpoint.dir": str(scratch / "checkpoints"),
        "spark.cleaner.referenceTracking.cleanCheckpoints": "true",
        "spark.scheduler.mode": "FAIR",
    }


def packages_of(project: Project) -> list[str]:
    """The Maven coordinates of the jars that a pipeline names or, by default, needs."""
    given = project.pipeline.spark.packages
    return _needed_packages(project) if given is None else given


def _needed_packages(project: Project) -> list[str]:
    of_store = () if (storage := project.storage) is None else STORE_PACKAGES[storage.provider]
    return list(dict.fromkeys((*PACKAGES, *catalog_packages(project), *of_store)))


def secret_settings(project: Project) -> dict[str, str]:
    """Settings of the pipeline file, the catalog and the object store, which may contain secrets."""
    given = {name: value.get_secret_value() for name, value in project.pipeline.spark.conf.items()}
    if (metastore := project.pipeline.lake.delta.hive) is not None:
        given |= {"spark.sql.catalogImplementation": "hive", "spark.hadoop.hive.metastore.uris": metastore}
    if (storage := project.storage) is None:
        return {**given, **catalog_settings(project)}
    scheme, log_store = _LOG_STORES[storage.provider]
    settings = {f"spark.delta.logStore.{scheme}.impl": log_store}
    if storage.provider == "s3":
        settings["spark.jars"] = str(LOG_STORE)
    return {**given, **catalog_settings(project), **hadoop_settings(storage), **settings}


def java_version() -> int | None:
    """The major version of the Java that Spark would start, None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return None
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    version_match = re.search(r'version "(\d+)', output.stderr + output.stdout)
    return int(version_match[1]) if version_match else None


def java_found(version: int | None) -> str:
    """Describes the available Java for an error: its version, or that none was found."""
    home = os.environ.get("JAVA_HOME")
    if version is not None:
        return f"Java {version} was found"
    return f"JAVA_HOME is {home}, which has no working bin/java" if home else "no Java was found"


def _trust_store(project: Project) -> Path:
    """The certificate authorities that Spark's driver trusts, if the object store has one of its own."""
    return project.scratch.with_name(f"{project.name}.truststore")


def _write_trust_store(ca_file: Path, file: Path) -> None:
    """Add the authorities of a PEM file to those of Java, which does not read PEM. Raises SparkNotStarted."""
    java = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin" if "JAVA_HOME" in os.environ else None)
    home = Path(java or "java").resolve().parents[1]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(home / "lib" / "security" / "cacerts", file)
        for number, certificate in enumerate(_CERTIFICATE.findall(ca_file.read_text())):
            options = ("-importcert", "-noprompt", "-alias", f"cdc_lake-{number}", "-storepass", _PASSWORD)
            command = [str(home / "bin" / "keytool"), *options, "-keystore", str(file)]
            subprocess.run(command, input=certificate, text=True, check=True, capture_output=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as cause:
        raise SparkNotStarted("Java's truststore with the authority of `ca_file` could not be written") from cause


def require_java() -> None:
    """Raise JavaMissing if Spark could not start."""
    version = java_version()
    if version not in JAVA_MAJORS:
        have, home = java_found(version), os.environ.get("JAVA_HOME")
        raise JavaMissing(f"Spark needs Java 17 or 21, {have}", where=f"JAVA_HOME={home}" if home else "PATH")


def _quiet_gateway() -> None:
    """Keep pyspark's own log output off the terminal: tracebacks of calls to a dead JVM, which is reported once, and
    errors of queries with the values on which they failed.
    """
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - an extra: a receiver has no Spark

    gateway = logging.getLogger("py4j")
    if all(isinstance(handler, logging.NullHandler) for handler in gateway.handlers):  # py4j adds one itself
        gateway.addHandler(logging.NullHandler())
        gateway.propagate = False
    logging.getLogger().addFilter(_not_of_py4j)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether a root logger's record is not from py4j, which logs there if a call finds no JVM."""
    return Path(record.pathname).parent.name != "py4j"


def _settle_jvm(spark: SparkSession) -> None:
    """Prevent the JVM from logging what may quote a row: Spark's errors contain values. Fatal errors are logged.

    Cache the classes that pyspark requests from the JVM by name with each column and call: Java would search all jars
    each time (a 20th of the CPU time of small merges, sampled).
    """
    spark.sparkContext.setLogLevel("OFF")
    # pyspark reads this setting only in `spark-submit` (4.1, seen)
    spark.sparkContext.pythonExec = str(spark.conf.get("spark.pyspark.python"))
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - pyspark has no other word for it
    assert jvm is not None, "it was just started"
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_ENDS_IT, log4j.Level.ERROR)
    for path in _LOOKED_UP:
        owner: object = jvm
        for name in path:
            member = getattr(owner, name)
            setattr(owner, name, member)
            owner = member


@contextmanager
def _settings_by_file(settings: Mapping[str, str]) -> Iterator[None]:
    """Let a JVM started inside the block read settings from a file that only the current user can read, instead of its
    command line, as pyspark does, which every user of the machine can read.
    """
    before = os.environ.get(_SUBMIT)
    with tempfile.NamedTemporaryFile("w", prefix="cdc_lake-", suffix=".properties", encoding="ascii") as file:
        file.writelines(f"{_property(key)}={_property(value)}\n" for key, value in settings.items())
        file.flush()
        named = f"--properties-file {shlex.quote(file.name)} --load-spark-defaults"
        os.environ[_SUBMIT] = f"{named} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SUBMIT]
            else:
                os.environ[_SUBMIT] = before


def _property(text: str) -> str:
    """A text escaped for a Java properties file, in ASCII."""
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[offset : offset + 2]) for offset in range(0, len(units), 2))
    return "".join(chr(code) if _PLAIN.fullmatch(chr(code)) else f"\\u{code:04x}" for code in codes)


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep our handler of Ctrl-C: pyspark installs its own, which cancels all jobs immediately."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _jvm_output_to(log: Path) -> Iterator[None]:
    """Let a JVM started inside the block inherit `log` as its standard error and output: Delta prints to both."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(stream) for stream in (1, 2)]
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for stream in (1, 2):
            os.dup2(target, stream)
        yield
    finally:
        for stream, own in enumerate(saved, 1):
            os.dup2(own, stream)
            os.close(own)
        os.close(target)
