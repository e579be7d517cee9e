"""Scripted answers: what a family server says of itself, and whatever a test declares.

Understood is the SQL a change-capture client sends: transactions, SHOW, and SELECT of expressions, optionally from
`pg_replication_slots` or from the slot functions. Anything else is looked up among the declared rules, first match
first, and refused with 0A000 where none fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cdc_lake.testing.gaussdb.family import family_answer, transaction_answer
from cdc_lake.testing.gaussdb.sql import Answer, Exported, Failed, SqlSession

Told: TypeAlias = Sequence[Answer] | Answer | Callable[[re.Match[str], SqlSession], Sequence[Answer] | Answer]


@dataclass(frozen=True, slots=True)
class Rule:
    """Statements in which `pattern` is found (any case, white space folded) get `told`."""

    pattern: str
    told: Told


class ScriptedAnswers:
    """Answers from rules, then from the server's own facts."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.rules = list(rules)

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

    def export(self, session: SqlSession, *, use: bool) -> Exported:  # noqa: ARG002 - there are no rows to see
        """See SqlAnswers."""
        ledger = session.server.ledger
        csn = ledger.next_csn
        return Exported(f"{csn:08X}-{session.pid & 0xFFFFFFFF:08X}-1", csn, ledger.end_lsn)

    def end(self, session: SqlSession) -> None:
        """See SqlAnswers."""

    def _told(self, statement: str, session: SqlSession) -> Sequence[Answer]:
        folded = " ".join(statement.split())
        for rule in self.rules:
            found = re.search(rule.pattern, folded, re.IGNORECASE)
            if found is not None:
                told = rule.told(found, session) if callable(rule.told) else rule.told
                return list(told) if isinstance(told, Sequence) else [told]
        answer = transaction_answer(folded, session) or family_answer(folded, session, self)
        if answer is not None:
            return [answer]
        return [Failed("0A000", f"no answer is scripted for: {folded[:200]}")]


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
