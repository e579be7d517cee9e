"""Which fence keeps the commits of silver from overwriting another writer's: found out by asking the catalog.

Catalogs differ in what they keep of a table's metadata: some drop branches and tags without an error, and some keep
only the newest version. So the pipeline's catalog is probed on a scratch table, once in a process. A catalog of type
`sql` is not: Spark and pyiceberg write the metadata files themselves and swap them by a condition on the former one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from cdc_lake.config.project import Project
from cdc_lake.errors import (
    CatalogKeepsNoVersions,
    CatalogNotConditional,
    CatalogReadOnly,
    CatalogWithoutFence,
    LakeError,
)
from cdc_lake.tables.catalog import CatalogAddress, catalog_address, open_catalog, reaching, refusal_errors, unreachable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


class Fence(StrEnum):
    """How a statement's version becomes the table's, or is refused."""

    BRANCH = "branch"
    """The statement runs on a branch at the base version; a fast-forward publishes it."""
    DRAFT = "draft"
    """It runs on a staged copy of the table; a commit that requires the base version publishes it."""


@dataclass(frozen=True, slots=True)
class CatalogAbilities:
    """What a catalog did on the scratch table. `refusal`: why it could not be written at all, None if it was."""

    branches: bool = False
    tags: bool = False
    versions: bool = False
    """Whether a version can be read after the next commit."""
    conditional: bool = False
    """Whether a commit that requires a former version is refused, also while others commit."""
    registers: bool = False
    """Whether a second entry of the same metadata can be created and dropped, and the table stays."""
    refusal: str | None = None


def choose_fence(abilities: CatalogAbilities, catalog: str) -> Fence | LakeError:
    """The fence of the catalog's silver tables, or why there is none."""
    name = f"the Iceberg catalog `{catalog}`"
    if abilities.refusal is not None:
        return CatalogReadOnly(f"{name} cannot be written: {abilities.refusal}", where="lake.iceberg")
    if not abilities.conditional:
        message = f"{name} accepts a commit that requires a former version of the table"
        return CatalogNotConditional(message, where="lake.iceberg")
    if not abilities.versions:
        message = f"{name} keeps only the newest version of a table"
        return CatalogKeepsNoVersions(message, where="lake.iceberg")
    if abilities.branches:
        return Fence.BRANCH
    if abilities.registers:
        return Fence.DRAFT
    message = f"{name} keeps no branches, and `registerTable` does not work"
    return CatalogWithoutFence(message, where="lake.iceberg")


def silver_fence(project: Project) -> Fence:
    """The fence of the pipeline's Iceberg tables. Raises CatalogUnreachable, or the reason why there is none."""
    abilities = catalog_abilities(project)
    fence = Fence.BRANCH if abilities is None else choose_fence(abilities, project.pipeline.lake.iceberg.catalog)
    if isinstance(fence, LakeError):
        raise fence
    return fence


def catalog_abilities(project: Project) -> CatalogAbilities | None:
    """What the pipeline's catalog can do, None for one that is not probed. Raises CatalogUnreachable."""
    address = catalog_address(project)
    if address.kind == "sql":
        return None
    with _PROBING:
        return _probe_once(address, project.pipeline.silver.defaults.namespace)


_PROBING = threading.Lock()
"""The tables of a pipeline are opened at once, and one probe is enough."""


_found: dict[tuple[CatalogAddress, str], CatalogAbilities] = {}
"""Of the catalogs that can be used: others are probed again."""


def _probe_once(address: CatalogAddress, namespace: str) -> CatalogAbilities:
    if (found := _found.get((address, namespace))) is None:
        with reaching(address):
            found = probe(open_catalog(address), namespace)
        if isinstance(choose_fence(found, address.name), Fence):
            _found[address, namespace] = found
    return found


_BRANCH = "cdc_lake_probe"
_TAG = "cdc_lake_probe_tag"


def probe(catalog: Catalog, namespace: str) -> CatalogAbilities:
    """Find out what a catalog can do, on a scratch table in a namespace, which is created if missing."""
    from requests import RequestException  # noqa: PLC0415 - comes with pyiceberg

    entry = (namespace, f"cdc_lake_probe_{uuid4().hex[:12]}")
    rows = pa.table({"n": pa.array([1], pa.int64())})
    properties = {"format-version": "2", "commit.retry.num-retries": "0"}
    refusals: tuple[type[Exception], ...] = (OSError, *refusal_errors())
    with _removed_at_end(catalog, entry):
        try:
            catalog.create_namespace_if_not_exists(namespace)
            table = catalog.create_table(entry, rows.schema, properties=properties)
            table.append(rows)
        except RequestException:  # an OSError too, but no answer
            raise
        except refusals as cause:
            return CatalogAbilities(refusal=f"it refuses a table with a row ({type(cause).__name__})")
        return _abilities(catalog, table, rows)


def _abilities(catalog: Catalog, table: Table, rows: pa.Table) -> CatalogAbilities:
    first = table.metadata.current_snapshot_id
    entry: tuple[str, str] = table.name()

    def reload() -> Table:
        return catalog.load_table(entry)

    def has_ref(name: str) -> bool:
        refs = reload().metadata.refs
        return name in refs and refs["main"].snapshot_id == first

    def register() -> None:
        copy = (entry[0], f"{entry[1]}_copy")
        catalog.register_table(copy, reload().metadata_location)
        catalog.drop_table(copy)

    tags = _accepts(lambda: reload().manage_snapshots().create_tag(first, _TAG).commit()) and has_ref(_TAG)
    branches = _accepts(lambda: reload().manage_snapshots().create_branch(first, _BRANCH).commit()) and has_ref(_BRANCH)
    if branches:
        reload().append(rows, branch=_BRANCH)
        branches = has_ref(_BRANCH) and reload().metadata.refs[_BRANCH].snapshot_id != first
    reload().append(rows)
    newest = reload()
    return CatalogAbilities(
        branches=branches,
        tags=tags,
        versions=_reads(newest, first),
        registers=_accepts(register) and _reads(reload(), newest.metadata.current_snapshot_id),
        conditional=_refuses_stale(catalog, newest, first),
    )


def _accepts(request: Callable[[], object]) -> bool:
    """Whether the catalog takes a request; False only if it says that it cannot."""
    try:
        request()
    except refusal_errors():
        return False
    return True


def _reads(table: Table, version: int | None) -> bool:
    """Whether the rows of a version can be read."""
    if version is None or table.snapshot_by_id(version) is None:
        return False
    try:
        return bool(table.scan(snapshot_id=version).to_arrow().num_rows)
    except FileNotFoundError:
        return False


_RIVALS = 4


def _refuses_stale(catalog: Catalog, table: Table, former: int | None) -> bool:
    """Whether a commit that requires a former version is refused, and of several at a time all but one.

    Asked in turn, pyiceberg refuses itself in place of a Hive metastore or Glue.
    """
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra
    from pyiceberg.table import update as u  # noqa: PLC0415 - an extra

    head = table.current_snapshot()
    assert head is not None, "rows were appended"
    barrier = threading.Barrier(_RIVALS)

    def commits(required: int | None, rivals: threading.Barrier | None = None) -> bool:
        """Whether a version with the same rows is committed if `required` is the newest one."""
        version = head.model_copy(
            update={
                "snapshot_id": table.metadata.new_snapshot_id(),
                "parent_snapshot_id": head.snapshot_id,
                "sequence_number": table.metadata.last_sequence_number + 1,
                "timestamp_ms": time.time_ns() // 1_000_000,
            }
        )
        updates = (
            u.AddSnapshotUpdate(snapshot=version),
            u.SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=version.snapshot_id),
        )
        if rivals is not None:
            rivals.wait()
        with suppress(CommitFailedException):
            catalog.commit_table(table, (u.AssertRefSnapshotId(ref="main", snapshot_id=required),), updates)
            return True
        return False

    def commits_first(_: int) -> bool:
        with suppress(*unreachable()):  # unknown: not acknowledged
            return commits(head.snapshot_id, barrier)
        return False

    if commits(former):
        return False
    with ThreadPoolExecutor(_RIVALS) as threads:
        return sum(threads.map(commits_first, range(_RIVALS))) < 2


@contextmanager
def _removed_at_end(catalog: Catalog, entry: tuple[str, str]) -> Iterator[None]:
    """Drop the scratch table and its files at the end; a file that stays is harmless."""
    from pyiceberg.catalog import MetastoreCatalog  # noqa: PLC0415 - an extra
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

    try:
        yield
    finally:
        with suppress(NoSuchTableError, FileNotFoundError):
            MetastoreCatalog.purge_table(catalog, entry)  # of itself, a server may keep the files
