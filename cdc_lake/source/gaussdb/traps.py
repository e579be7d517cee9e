"""Traps: what servers of the GaussDB family are known to withhold, repeat or break, by version and kind of decoding.

Recorded from openGauss 3.0.0, 5.0.3 and 6.0.2 and read in the sources between. GaussDB's own kernels are closed: for
them every trap of the newest open source counts as possible. Data only: `check` prints it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.source.gaussdb.version import FamilyVersion

_PARALLEL = frozenset({Mode.PARALLEL})
_ALL = frozenset(Mode)
_SERIAL = _ALL - _PARALLEL


class Effect(enum.StrEnum):
    """What a trap does to us."""

    LOST = "changes do not arrive"
    CRASH = "the server goes down"
    HANDLED = "handled here"


@dataclass(frozen=True, slots=True)
class Trap:
    """One trap, in openGauss releases from `since` to before `before`; where there are several spans, several traps.

    `compatibility`: only in databases of one of these, `plugin`: only of slots with this one; empty: of every kind.
    """

    name: str
    effect: Effect
    modes: frozenset[Mode]
    about: str
    remedy: str
    since: tuple[int, ...] = (0,)
    before: tuple[int, ...] | None = None
    compatibility: frozenset[str] = frozenset()
    plugin: str = ""

    def concerns(self, version: FamilyVersion, mode: Mode, *, compatibility: str, plugin: str) -> bool:
        """Whether a server decoding a database of this compatibility like this has it."""
        if mode not in self.modes or self.plugin not in {"", plugin}:
            return False
        if self.compatibility and compatibility.upper() not in self.compatibility:
            return False
        if version.base is None:
            return self.before is None
        return self.since <= version.base and (self.before is None or version.base < self.before)


def traps(version: FamilyVersion, mode: Mode, *, compatibility: str, plugin: str) -> list[Trap]:
    """The traps of a server, a database and a slot, the worst first."""
    order = (Effect.CRASH, Effect.LOST, Effect.HANDLED)
    known = (trap for trap in TRAPS if trap.concerns(version, mode, compatibility=compatibility, plugin=plugin))
    return sorted(known, key=lambda trap: order.index(trap.effect))


_TRUNCATE = "TRUNCATE is not sent: the rows stay in silver"
_TRUNCATE_REMEDY = "use DELETE at the source, or resync the table afterwards; `compare` finds it"
_DDL = "rows that a transaction changes after DDL in it (also TRUNCATE, CREATE TABLE AS) are not sent, of any table"
_DDL_REMEDY = "keep DDL in transactions of its own; `compare` finds what is missing"
_NULLS = "NULL columns of old rows are left out: with REPLICA IDENTITY FULL an old row names only what was not NULL"
_KEYLESS = "a DELETE of a table without key is not sent"
_KEYLESS_REMEDY = "add a primary key, or ALTER TABLE … REPLICA IDENTITY FULL"
_SPECULATIVE = "INSERT … ON DUPLICATE KEY UPDATE and REPLACE INTO send an INSERT that did not last"

TRAPS: tuple[Trap, ...] = (
    Trap(
        "crash",
        Effect.CRASH,
        _PARALLEL,
        "a composite column, or an unchanged large value of a USTORE table, crashes the whole server",
        "upgrade to 3.0.3 or later, or read with `parallel-decode-num: 1`",
        since=(3, 0, 0),
        before=(3, 0, 3),
    ),
    Trap("truncate", Effect.LOST, _PARALLEL, _TRUNCATE, f"{_TRUNCATE_REMEDY}; or serial decoding from 6.0 on"),
    Trap("truncate", Effect.LOST, _SERIAL, _TRUNCATE, _TRUNCATE_REMEDY, before=(6,)),
    Trap("ddl-then-rows", Effect.LOST, _PARALLEL, _DDL, f"{_DDL_REMEDY}; or serial decoding from 6.0 on"),
    Trap("ddl-then-rows", Effect.LOST, _SERIAL, _DDL, _DDL_REMEDY, before=(6,)),
    Trap("keyless-delete", Effect.LOST, _PARALLEL, _KEYLESS, _KEYLESS_REMEDY, since=(3, 0, 0), before=(3, 0, 3)),
    Trap("keyless-delete", Effect.LOST, _PARALLEL, _KEYLESS, _KEYLESS_REMEDY, since=(3, 1), before=(5,)),
    Trap(
        "rows-without-columns",
        Effect.LOST,
        _SERIAL,
        "test_decoding prints rows of USTORE tables without their columns: the stream stops at the first one",
        "a slot with the plugin mppdb_decoding",
        since=(3, 0, 0),
        before=(5,),
        plugin="test_decoding",
    ),
    Trap("old-nulls", Effect.HANDLED, _ALL, _NULLS, "none needed", since=(3, 0, 0), before=(3, 0, 3)),
    Trap("old-nulls", Effect.HANDLED, _ALL, _NULLS, "none needed", since=(3, 1), before=(5,)),
    Trap("speculative", Effect.HANDLED, _PARALLEL, _SPECULATIVE, "none needed: a later change of the row replaces it"),
    Trap(
        "speculative",
        Effect.HANDLED,
        _SERIAL,
        f"{_SPECULATIVE} (from 6.0 on of USTORE tables only)",
        "none needed: a later change of the row replaces it",
    ),
    Trap(
        "neighbours",
        Effect.HANDLED,
        _PARALLEL,
        "transactions of other databases arrive empty: most of the traffic of a quiet database",
        "none needed: they move the slot and prove that no CSN is missing; skip-empty-xacts takes both away",
    ),
    Trap(
        "garbage-lsn",
        Effect.HANDLED,
        _PARALLEL,
        "the position in the BEGIN of an empty transaction is whatever stood in memory",
        "none needed: nothing reads it",
        since=(3, 0, 0),
        before=(3, 0, 3),
    ),
    Trap(
        "confirm-rule",
        Effect.HANDLED,
        _PARALLEL,
        "confirming the end of a commit loses the next transaction on 3.0, confirming its start repeats it on all",
        "none needed: the position before the end is confirmed, which does neither on any release",
    ),
    Trap(
        "leading-zero",
        Effect.HANDLED,
        _ALL,
        "numbers come without a leading zero: `.1`, `-.5`",
        "none needed: they are the same numbers in silver and in `compare`",
    ),
    Trap(
        "compatibility-a",
        Effect.HANDLED,
        _ALL,
        "in a database of compatibility A an empty string is NULL, and `date` is a timestamp",
        "none needed: both come as the database keeps them",
        compatibility=frozenset({"A", "ORA"}),
    ),
)
"""Every trap known."""
