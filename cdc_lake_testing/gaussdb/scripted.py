"""Scripted answers: what a server of the family says about itself, and whatever a test declares.

It supports the SQL of a capture client: transactions, SHOW, and SELECT of expressions, optionally from
`pg_replication_slots` or from slot functions; queries about declared tables, and copies of them. Rules of the test are
tried first, in order; unknown statements are refused with 0A000.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc_lake_testing.gaussdb.declared import DeclaredTable, DeclaredTables
from cdc_lake_testing.gaussdb.family import family_answer, transaction_answer
from cdc_lake_testing.gaussdb.sql import Answer, Done, Exported, Failed, SqlSession

_SNAPSHOT: Final = "snapshot"
"""Where a session keeps the CSN its transaction reads by."""

Told: TypeAlias = Sequence[Answer] | Answer | Callable[[re.Match[str], SqlSession], Sequence[Answer] | Answer]


@dataclass(frozen=True, slots=True)
class Rule:
    """Statements in which `pattern` is found (any case, white space folded) get `told`."""

    pattern: str
    told: Told


class ScriptedAnswers:
    """Answers from rules, then from declared tables, then from the server's own facts."""

    def __init__(self, rules: Sequence[Rule] = (), tables: Sequence[DeclaredTable] = ()) -> None:
        self.rules = list(rules)
        self._tables = DeclaredTables(tables)

    def answer(self, sql: str, session: SqlSession) -> Sequence[Answer]:
        """See SqlAnswers."""
        answers: list[Answer] = []
        for statement in statements(sql):
            told = self._told(statement, session)
            answers += told
            if any(isinstance(a, Failed) for a in told):
                if session.status == "T":
                    session.status = "E"
                break
        return answers

    def export(self, session: SqlSession, *, use: bool) -> Exported:
        """See SqlAnswers."""
        csn, end = session.server.ledger.snapshot()
        held = session.own.get(_SNAPSHOT)
        if isinstance(held, int) and session.status == "T":
            csn = held  # a transaction has one snapshot
        if use or session.status == "T":
            session.own[_SNAPSHOT] = csn
        return Exported(f"{csn:08X}-{session.pid & 0xFFFFFFFF:08X}-1", csn, end)

    def end(self, session: SqlSession) -> None:
        """See SqlAnswers."""

    def _told(self, statement: str, session: SqlSession) -> Sequence[Answer]:
        folded = " ".join(statement.split())
        for rule in self.rules:
            found = re.search(rule.pattern, folded, re.IGNORECASE)
            if found is not None:
                told = rule.told(found, session) if callable(rule.told) else rule.told
                return list(told) if isinstance(told, Sequence) else [told]
        answer = _imported(folded, session) or transaction_answer(folded, session)
        if session.status == "I":
            session.own.pop(_SNAPSHOT, None)
        if answer is None:
            csn = session.own.get(_SNAPSHOT, session.server.ledger.next_csn)
            assert isinstance(csn, int)
            answer = self._tables.answer(folded, session, csn) or family_answer(folded, session, self)
        if answer is not None:
            return [answer]
        return [Failed("0A000", f"no answer is scripted for: {folded[:200]}")]


def _imported(folded: str, session: SqlSession) -> Answer | None:
    """`SET TRANSACTION SNAPSHOT`: the names of snapshots begin with their CSN."""
    found = re.fullmatch(r"set transaction snapshot '([0-9A-F]+)-[0-9A-F]+-\d+'", folded, re.IGNORECASE)
    if found is None:
        return None
    session.own[_SNAPSHOT] = int(found[1], 16)
    return Done("SET")


def statements(sql: str) -> list[str]:
    """The statements of a simple query, parted at semicolons outside quotes."""
    parts, part, quote = [], "", ""
    for char in sql:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == ";":
            parts.append(part)
            part = ""
            continue
        part += char
    return [p.strip() for p in [*parts, part] if p.strip()]
