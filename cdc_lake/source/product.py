"""Which server answers: PostgreSQL, or QHB, which is built on it; and the version of PostgreSQL that it is read as.

How a QHB answers `version()`, and what it gives as `server_version`, no manual says that could be had: its release is
looked for in both. Where neither has it, `source.version` says it, or the server has to be a PostgreSQL by its number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cdc_lake.config.qhb import OLDEST_QHB, read_as
from cdc_lake.config.release import Release, parse_release, show_release
from cdc_lake.config.source import PostgresSource
from cdc_lake.errors import ServerSettings

OLDEST: Final = 14
"""First version whose pgoutput and publications we rely on and test."""
_NAMES_QHB: Final = re.compile(
    r"\bQHB\b(?:[\s-]*(?:\([^()0-9]{0,40}\)\s*)?(?:version|release|v)?\s*([0-9]{1,4}(?:\.[0-9]{1,4}){1,3}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Product:
    """A server as people are told: its name, its release, the oldest one that is read.

    `major`: of the PostgreSQL that it is read as. `says`: its `version()`.
    """

    name: str
    release: str
    oldest: str
    major: int
    says: str

    def __str__(self) -> str:
        return f"{self.name} {self.release}"

    @property
    def names_qhb(self) -> bool:
        """Whether its `version()` names QHB."""
        return _NAMES_QHB.search(self.says) is not None


def product_of(source: PostgresSource, says: str, number: int) -> Product:
    """The product of a server that answers `version()` with `says` and counts itself as `number` (libpq's count).

    Raises ServerSettings where it is another than `source.type` and `source.version` say, or cannot be told.
    """
    named = _NAMES_QHB.search(says)
    if source.type == "qhb":
        return _qhb(source, says, number, named[1] if named else None)
    if named is not None:
        words, hint = "the server is a QHB, and `source.type` says postgres", "set `source.type: qhb`"
        raise ServerSettings(words, where=source.place, hint=hint)
    return _postgres(says, number)


def _postgres(says: str, number: int) -> Product:
    return Product("PostgreSQL", str(number // 10000), str(OLDEST), number // 10000, says)


def _qhb(source: PostgresSource, says: str, number: int, named: str | None) -> Product:
    told, stated = _told(named, number), None if source.version is None else parse_release(source.version)
    if told is not None and stated is not None and told != stated:
        words = f"the server is QHB {show_release(told)}, and `source.version` says {source.version}"
        raise ServerSettings(words, where=source.place, hint="correct `source.version`, or take it out")
    if (release := told or stated) is not None:
        return Product("QHB", show_release(release), OLDEST_QHB, read_as(release), says)
    if number // 10000 >= OLDEST:
        return _postgres(says, number)
    words = "neither version() nor server_version tells which release of QHB the server is"
    hint = 'write it down, for example `source.version: "1.5.3"`; for PostgreSQL: `source.type: postgres`'
    raise ServerSettings(words, where=source.place, hint=hint)


def _told(named: str | None, number: int) -> Release | None:
    """The release by `version()`, or by a number of the first line of releases: libpq counts 1.5.3 as 10503."""
    if named is not None:
        return parse_release(named)
    line, rest = divmod(number, 10000)
    return (line, *divmod(rest, 100)) if line == 1 else None
