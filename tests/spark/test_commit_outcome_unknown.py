"""Commits of apply whose call fails, before, in the middle, or made all the same: the next run goes on where the tables say.

On Iceberg it is the catalog's server that does it, to any commit that it is asked for; on Delta it is the call of the
statement, which is in the middle where it has written a file and is cancelled.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JNetworkError

from cdc_lake.tables.catalog import catalog_settings
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.spark_session import RUNTIME_SETTINGS
from cdc_lake_testing.doubted import Doubts, torn_metadata
from cdc_lake_testing.rest_catalog import Limit, RestCatalogServer
from tests.seeds import one_seed
from tests.tally import tally

from .conftest import BUDGET
from .interrupted_pipeline import TABLES, World, world

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

COMMITS = 3 if BUDGET == 1 else 50
"""How many are hit at least, on each format."""
Doubted: TypeAlias = tuple[World, Doubts]


def files_of(folders: Sequence[Path]) -> set[Path]:
    return {file for folder in folders for file in folder.glob("*.parquet")}


@contextmanager
def on_delta(root: Path, spark: Any, seed: int, patched: pytest.MonkeyPatch) -> Iterator[Doubted]:
    there = world(root, spark, "delta", seed, random.Random(seed))
    doubts = Doubts(seed, failure=Py4JNetworkError)

    @contextmanager
    def torn() -> Iterator[None]:
        """Spark's jobs are cancelled as soon as a table has a new file."""
        folders = [there.project.silver_path(there.project.target(name)) for name in TABLES]
        before, over = files_of(folders), threading.Event()

        def cancel() -> None:
            while not over.wait(0.002):
                if files_of(folders) - before:
                    spark.sparkContext.cancelAllJobs()

        beside = threading.Thread(target=cancel)
        beside.start()
        try:
            yield
        finally:
            over.set()
            beside.join()

    sql = type(spark).sql
    failing = doubts.failing(sql, torn)

    def doubted(session: Any, query: str, *given: Any, **more: Any) -> Any:
        return (failing if query.startswith(("MERGE", "INSERT")) else sql)(session, query, *given, **more)

    patched.setattr(type(spark), "sql", doubted)
    yield there, doubts


@contextmanager
def on_iceberg(
    root: Path, spark: Any, seed: int, patched: pytest.MonkeyPatch, limits: Collection[Limit] = ()
) -> Iterator[Doubted]:
    doubts = Doubts(seed, share=0.15, failure=ConnectionAbortedError)
    name = f"doubted_{len(limits)}"
    with RestCatalogServer(root / f"{name}_{seed}", limits=limits) as server:
        lake = {"iceberg": {"catalog": name, "type": "rest", "uri": server.uri}}
        there = world(root, spark, "iceberg", seed, random.Random(seed), lake=lake)
        for name, value in catalog_settings(there.project).items():
            patched.setitem(RUNTIME_SETTINGS, name, value)
        patched.setattr(server.catalog, "commit_table", doubts.failing(server.catalog.commit_table, torn_metadata))
        yield there, doubts


HOW: dict[str, Callable[..., AbstractContextManager[Doubted]]] = {
    "delta": on_delta,
    "iceberg": on_iceberg,
    "iceberg by drafts": partial(on_iceberg, limits={Limit.REFS}),
}


@pytest.mark.parametrize("fmt", HOW)
def test_commits_to_silver_that_fail_and_lie_lose_and_double_nothing(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    seed = one_seed() + 1  # another lake than that of the crash points
    print(f"CDC_LAKE_SEED={seed - 1}")
    with HOW[fmt](lake_root, spark, seed, monkeypatch) as (there, doubts):
        while doubts.done.total() < COMMITS:
            there.land(there.dice.randint(2, 5))
            hit = doubts.done.total()
            waits = there.tried()
            assert not waits or doubts.done.total() > hit, f"only what was hit fails: {waits}"
            there.watch.look()
        doubts.over = True
        there.judge()
        there.land(3)
        there.advance()
        there.judge(applied=True)
        for name in TABLES:
            assert not gone(there, name), "files of a version that is there are not"
    tally("R10", [f"{one} to silver, {fmt}" for one in doubts.done], **{"commits to silver hit": doubts.done.total()})


def gone(there: World, name: Any) -> set[str]:
    """Files that versions of a table name and that are not there."""
    target = there.project.target(name)
    if target.format == "delta":
        table = DeltaTable(str(there.project.silver_path(target)))
        return {file for file in table.file_uris() if not Path(urlsplit(file).path).exists()}
    found = iceberg_table(there.project, target)
    assert found is not None
    files = set[str]()
    for version in found.metadata.snapshots:
        files.add(version.manifest_list)
        for manifest in version.manifests(found.io):
            files.add(manifest.manifest_path)
            files.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(found.io))
    return {file for file in files if not Path(urlsplit(file).path).exists()}
