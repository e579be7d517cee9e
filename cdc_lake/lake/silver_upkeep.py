"""Upkeep of silver tables, whatever their format: small files together, then what nobody needs any more goes.

Rows stay as they are. Each step is a commit of its own, or removes what no commit names: wherever the process dies, the
next upkeep goes on. A step that meets a commit of apply loses, changes nothing and is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, TypeVar

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import SilverBusy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Part: TypeAlias = Literal["compaction", "expiry", "removal"]
_R = TypeVar("_R")

FULL_FILE: Final = 256 << 20
"""Bytes that small files are put together to."""

SMALL_FILE: Final = 128 << 20
"""Bytes below which a file is small. A larger one is not written again for a few small ones beside it."""

_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Upkept:
    """One step: what was done in words, and in numbers."""

    part: Part
    text: str
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays readable: the versions in `versions`, and every one that was made after `since`."""

    versions: frozenset[int]
    since: datetime


class SilverUpkeep(Protocol):
    """One table. Both raise SilverBusy where apply always came first."""

    def planned(self, keep: Keep, now: datetime) -> Iterator[Upkept]:
        """What would be done."""
        ...

    def worked(self, keep: Keep, now: datetime) -> Iterator[Upkept]:
        """Do it, step by step."""
        ...


def silver_upkeep(spark: SparkSession, project: Project, target: Target) -> SilverUpkeep:
    """The upkeep of a table's format; `spark` is used for nothing else meanwhile."""
    if target.format == "delta":
        from cdc_lake.lake.delta_silver_upkeep import DeltaSilverUpkeep  # noqa: PLC0415 - formats know the port

        return DeltaSilverUpkeep(spark, project, target)
    from cdc_lake.lake.iceberg_silver_upkeep import IcebergSilverUpkeep  # noqa: PLC0415 - as above

    return IcebergSilverUpkeep(spark, project, target)


def tried(work: Callable[[], _R], target: Target, lost: Callable[[Exception], bool]) -> _R:
    """The result of `work`, which is done again where it lost against another commit. Raises SilverBusy."""
    for turn in range(_TRIES):
        try:
            return work()
        except Exception as cause:
            if not lost(cause):
                raise
            if turn == _TRIES - 1:
                text = f"upkeep of {target.label} met a commit of apply {_TRIES} times"
                raise SilverBusy(text) from cause
    raise AssertionError


def stored(folder: Path) -> tuple[int, int]:
    """Data files below a folder, and their bytes."""
    files = [
        f for kind in ("*.parquet", "*.bin", "*.puffin") for f in folder.rglob(kind) if "_delta_log" not in f.parts
    ]
    sizes = [size for f in files if (size := _size(f)) is not None]
    return len(sizes), sum(sizes)


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # apply goes on meanwhile
        return None


def megabytes(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 1e6:,.1f} MB"
