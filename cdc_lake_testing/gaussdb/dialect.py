"""Dialects: how versions differ in what they print and where they restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Version: TypeAlias = Literal["6.0.2", "5.0.3", "3.0.0"]
Product: TypeAlias = Literal["openGauss", "GaussDB", "MogDB"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one version does.

    `label`: of the LSN in a parallel BEGIN. `begin_xid`: parallel BEGIN carries the xid. `origins`: include-originid
    is known. `null_in_old`: NULL columns of old rows are sent. `keyless_delete`: a parallel DELETE without an old row
    is sent. `truncate_lines`: serial decoding prints TRUNCATE, and rows behind a change of the catalog. `at_start`:
    a transaction whose commit record starts at the confirmed position is sent again. `running_header`: parallel
    headers carry the highest LSN so far; otherwise the commit start of the message's first transaction, and no time.
    `upper_commit`: parallel text prints `COMMIT XID: n` (GaussDB's documents).
    """

    label: Literal["first_lsn", "commit_lsn"]
    begin_xid: bool
    origins: bool
    null_in_old: bool
    keyless_delete: bool
    truncate_lines: bool
    at_start: bool
    running_header: bool
    upper_commit: bool = False
    extensions: bool = False

    @property
    def garbage_lsn(self) -> bool:
        """The first_lsn of an empty transaction is memory nobody wrote (3.0)."""
        return self.label == "commit_lsn"


DIALECTS: Final[dict[Version, Dialect]] = {
    "6.0.2": Dialect("first_lsn", True, True, True, True, True, True, True),
    "5.0.3": Dialect("first_lsn", False, True, True, True, False, True, True),
    "3.0.0": Dialect("commit_lsn", False, False, False, False, False, False, False),
}
"""By version, from the recordings of these three."""


def dialect_of(version: Version, product: Product) -> Dialect:
    """The dialect; GaussDB adds its own options and the upper-case COMMIT of its documents."""
    base = DIALECTS[version]
    if product != "GaussDB":
        return base
    return Dialect(
        base.label,
        base.begin_xid,
        base.origins,
        base.null_in_old,
        base.keyless_delete,
        base.truncate_lines,
        base.at_start,
        base.running_header,
        upper_commit=True,
        extensions=True,
    )


def version_text(version: Version, product: Product) -> str:
    """What `version()` answers."""
    tail = "compiled at 2024-01-01 00:00:00 commit 0 last mr  on x86_64-unknown-linux-gnu, compiled by g++, 64-bit"
    match product:
        case "openGauss":
            return f"(openGauss {version} build 00000000) {tail}"
        case "MogDB":
            return f"(MogDB {version} build 00000000) {tail}"
        case "GaussDB":
            return f"gaussdb (GaussDB Kernel 505.1.0 build 00000000) {tail}"
