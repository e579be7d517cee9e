"""Versions of the GaussDB family: product and release, read from what `version()` answers."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from cdc_lake.config.release import Release, pad_release, parse_release
from cdc_lake.errors import ServerSettings

_KNOWN = re.compile(r"(openGauss|MogDB|GaussDB)(?:[ -](?:Kernel|lite))?\s+v?(\d[\w.-]*)", re.IGNORECASE)
_BASE = re.compile(r"openGauss(?:-lite)?\s+v?(\d[\w.-]*)", re.IGNORECASE)


class Product(enum.StrEnum):
    """Whose server it is."""

    OPENGAUSS = "openGauss"
    MOGDB = "MogDB"
    GAUSSDB = "GaussDB"


@dataclass(frozen=True, slots=True)
class FamilyVersion:
    """A product and its release. `base` is the openGauss release it behaves like; None for GaussDB's own kernels.

    A release candidate counts as its release.
    """

    product: Product
    release: str
    base: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"{self.product} {self.release}"


def parse_version(text: str) -> FamilyVersion:
    """Read the answer of `version()`. Raises ServerSettings where it is no server of the family."""
    if (found := _KNOWN.search(text)) is None:
        raise ServerSettings(
            "the server is not of the GaussDB family: its version() names none of openGauss, MogDB, GaussDB",
            hint="for PostgreSQL and what is like it: `source.type: postgres` or `qhb`",
        )
    product = next(known for known in Product if known.lower() == found[1].lower())
    if product is Product.GAUSSDB:
        return FamilyVersion(product, found[2], None)
    base = _BASE.search(text)
    # MogDB counts like the openGauss it is made from, and mostly does not name it
    return FamilyVersion(product, found[2], _numbers(base[1] if base else found[2]))


def check_product(version: FamilyVersion, stated: str, place: str) -> None:
    """Raise ServerSettings where the server is another product than `source.type` says: rules of options differ."""
    known = version.product.lower()
    if known != stated:
        raise ServerSettings(
            f"the server is {version}, and `source.type` says {stated}",
            where=place,
            hint=f"set `source.type: {known}`, or connect to the server that is meant",
        )


def release_of(version: FamilyVersion) -> Release:
    """The release that rules of options compare: the openGauss it is made from, or GaussDB's own."""
    return parse_release(version.release) if version.base is None else pad_release(version.base)


def _numbers(release: str) -> tuple[int, ...]:
    head = re.match(r"\d+(?:\.\d+)*", release)
    return tuple(int(part) for part in head[0].split(".")) if head else ()
