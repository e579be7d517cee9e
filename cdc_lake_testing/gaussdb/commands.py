"""Replication commands: their grammar, as the server's own parser reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc_lake_testing.gaussdb.sql import Failed

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<lsn>[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})|(?P<word>[A-Za-z_][A-Za-z0-9_$]*)"""
    r"""|"(?P<quoted>(?:[^"]|"")*)"|'(?P<text>(?:[^']|'')*)'|(?P<mark>[(),;])|(?P<number>\d+))"""
)
WORDS: Final = frozenset(
    [
        "IDENTIFY_SYSTEM",
        "IDENTIFY_VERSION",
        "IDENTIFY_MODE",
        "CREATE_REPLICATION_SLOT",
        "DROP_REPLICATION_SLOT",
        "ADVANCE_REPLICATION_SLOT",
        "ADVANCE_REPLICATION",
        "START_REPLICATION",
    ]
)
"""First words of the commands; recognised in upper case only. ADVANCE_REPLICATION is none, but taken for one."""

_SQL: Final = frozenset(
    """
    abort alter analyze begin call close comment commit copy create declare delete discard drop end execute explain
    fetch grant insert lock merge move prepare release reset revoke rollback savepoint select set show start table
    truncate update vacuum values with
    """.split()  # noqa: SIM905
)
"""First words of SQL statements."""


@dataclass(frozen=True, slots=True)
class Identify:
    """IDENTIFY_SYSTEM, IDENTIFY_VERSION or IDENTIFY_MODE."""

    what: str


@dataclass(frozen=True, slots=True)
class CreateSlot:
    """CREATE_REPLICATION_SLOT name LOGICAL plugin [USE_SNAPSHOT]."""

    name: str
    plugin: str
    use_snapshot: bool


@dataclass(frozen=True, slots=True)
class DropSlot:
    """DROP_REPLICATION_SLOT name [WAIT]."""

    name: str


@dataclass(frozen=True, slots=True)
class AdvanceSlot:
    """ADVANCE_REPLICATION_SLOT name LOGICAL restart confirmed."""

    name: str
    restart: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class StartStream:
    """START_REPLICATION SLOT name LOGICAL lsn [(options)]."""

    slot: str
    start: int
    options: tuple[tuple[str, str | None], ...]


Command: TypeAlias = Identify | CreateSlot | DropSlot | AdvanceSlot | StartStream


class BadCommand(Exception):
    """A command the server's parser refuses."""

    def __init__(self) -> None:
        self.failed = Failed("42601", "replication command parser returned 1", severity="FATAL")
        super().__init__(self.failed.message)


def is_command(sql: str) -> bool:
    """True if the text is a replication command, well-formed or not."""
    return (words := sql.split(None, 1)) != [] and words[0].rstrip(";") in WORDS


def stranger(sql: str) -> Failed | None:
    """The syntax error of a text that is neither a command nor SQL; None if it may be either."""
    words = sql.split(None, 1)
    if not words or is_command(sql) or words[0].lower().strip("(;") in _SQL:
        return None
    return Failed("42601", f'syntax error at or near "{words[0]}"', severity="FATAL")


def parse_lsn(text: str) -> int:
    """`X/X` as a number; raises ValueError."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(lsn: int) -> str:
    """A number as `X/X`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse(sql: str) -> Command:
    """Read a command; raises BadCommand."""
    parser = _Parser(sql)
    command = parser.command()
    parser.end()
    return command


class _Parser:
    def __init__(self, sql: str) -> None:
        self._tokens = list(_tokens(sql))
        self._at = 0

    def command(self) -> Command:
        word = self._word()
        if word in {"IDENTIFY_SYSTEM", "IDENTIFY_VERSION", "IDENTIFY_MODE"}:
            return Identify(word)
        if word == "START_REPLICATION":
            self._keyword("SLOT")
            slot = self._name()
            self._keyword("LOGICAL")
            return StartStream(slot, self._lsn(), self._options())
        name = self._name()
        if word == "DROP_REPLICATION_SLOT":
            self._optional("WAIT")
            return DropSlot(name)
        self._keyword("LOGICAL")
        if word == "CREATE_REPLICATION_SLOT":
            return CreateSlot(name, self._name(), self._optional("USE_SNAPSHOT"))
        return AdvanceSlot(name, self._lsn(), self._lsn())

    def end(self) -> None:
        if self._peek() == ("mark", ";"):
            self._at += 1
        if self._at < len(self._tokens):
            raise BadCommand

    def _peek(self) -> tuple[str, str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, *kinds: str) -> tuple[str, str]:
        token = self._peek()
        if token is None or token[0] not in kinds:
            raise BadCommand
        self._at += 1
        return token

    def _word(self) -> str:
        return self._next("word")[1]

    def _keyword(self, word: str) -> None:
        if self._word() != word:
            raise BadCommand

    def _optional(self, word: str) -> bool:
        if self._peek() == ("word", word):
            self._at += 1
            return True
        return False

    def _name(self) -> str:
        kind, name = self._next("word", "quoted")
        return name if kind == "quoted" else name.lower()  # unquoted names are folded

    def _lsn(self) -> int:
        return parse_lsn(self._next("lsn")[1])

    def _options(self) -> tuple[tuple[str, str | None], ...]:
        if self._peek() != ("mark", "("):
            return ()
        self._at += 1
        options: list[tuple[str, str | None]] = []
        while True:
            name = self._name()
            token = self._peek()
            value = self._next("text")[1] if token is not None and token[0] == "text" else None
            options.append((name, value))
            if self._next("mark")[1] == ")":
                return tuple(options)


def _tokens(sql: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    sql = sql.rstrip()
    while at < len(sql):
        found = _TOKEN.match(sql, at)
        if found is None or found.lastgroup is None:
            raise BadCommand
        kind, value = found.lastgroup, found[found.lastgroup]
        doubled = {"quoted": '"', "text": "'"}.get(kind)
        tokens.append((kind, value if doubled is None else value.replace(doubled * 2, doubled)))
        at = found.end()
    return tokens
