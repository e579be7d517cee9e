"""Random walks: DDL of every kind among changes, with the receiver running in between, ends equal to the source.

Silver is folded from bronze without Spark (`cdc_lake_testing.folded`). A table that waits gets what its error prints:
`--allow` where that is offered, then rows must be the source's; `resync`, then they must be so too. Where the server's log
leaves a value open the question says so, and the columns that it is not about are right all the same.
"""

from __future__ import annotations

import os
import random
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from psycopg import sql

from cdc_lake.config.project import Project
from cdc_lake.errors import (
    CdcLakeError,
    DestructiveChange,
    KeylessDelete,
    KindChanged,
    LogUndecodable,
    NoKey,
    NoReplicaIdentity,
    Unconvertible,
)
from cdc_lake.model.relation import Column, TableName
from cdc_lake.runtime.restart import restart
from cdc_lake.runtime.resync import resync
from cdc_lake.source.sql_text import PRINTING
from cdc_lake_testing.altered import SETUP, Altered
from cdc_lake_testing.folded import Folded, Row
from tests.conftest import Database
from tests.live.test_receive_loop import once, project_of
from tests.seeds import seeds

pytestmark = pytest.mark.live

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
TABLES = 20
"""Walks side by side in one database: what connects and copies is paid once."""
ONLY = os.environ.get("CDC_LAKE_WALK")
"""The number of one walk of a round, to look at it alone."""
STEPS = 12
RECEIVED = "-- received"
"""In a walk's script: the receiver ran here."""
WAITS = (DestructiveChange, Unconvertible, NoKey, KeylessDelete, KindChanged)
QUESTIONS = {
    r"add column (\w+) .*unknown": r"ADD {0} ",
    r"take column": r"DROP [a-dx]\b|RENAME",  # where one column is in doubt, those beside it may be so too
    r"rename column (\w+) of \S+ to (\w+)": r"RENAME {0}\b|RENAME \w+ TO ({0}|{1})\b",
    r"drop column (\w+) of": r"DROP {0}\b|RENAME {0}\b|DROP TABLE|_new\d+ RENAME TO",
    r"(?:change|convert) column (\w+) of": r"ALTER \w+ TYPE|DROP \w+|_new\d+ RENAME TO",
    r"match updates": r"PRIMARY KEY|DROP CONSTRAINT|REPLICA IDENTITY",
    r"no primary key|identif": r"PRIMARY KEY \(|DROP CONSTRAINT|REPLICA IDENTITY",
}
"""What a table that waits asks of a column, and what some statement did to it where the question is a true one."""


class Silver(Protocol):
    """The silver table of a walk; `allowed`: operations in words."""

    allowed: set[str]

    @property
    def rows(self) -> list[Row]:
        """The rows by silver's names, as texts."""
        ...

    @property
    def whole(self) -> bool:
        """Whether rows have the source's values in all columns, not in `id` and `k` alone."""
        ...

    @property
    def columns(self) -> dict[str, str]:
        """The types of silver's columns by name."""
        ...

    def advance(self) -> CdcLakeError | None:
        """Apply what bronze has, up to what the table waits for."""
        ...


@dataclass
class Round:
    """Walks of one database. `outcomes`: how many ended in which way; `silver`: of a walk, folded where none is given.
    `spared`: what single walks do not draw; `copies`: copies tables again, where that takes more than a resync; `knows`:
    somebody here knows by what updates are matched.
    """

    conn: psycopg.Connection[Any]
    project: Project
    seed: int
    numbers: Sequence[int] = range(TABLES) if ONLY is None else (int(ONLY),)
    walks: list[Altered] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    texts: dict[tuple[str, Column, Column], str] = field(default_factory=dict)
    silver: Callable[[Altered], Silver] | None = None
    spared: Mapping[int, frozenset[str]] = field(default_factory=dict)
    copies: Callable[[list[Altered]], object] | None = None
    knows: bool = False

    def run(self, receive: Callable[[], object], without: frozenset[str] = frozenset()) -> None:
        """Walk, with the receiver running now and then, and check."""
        dice = random.Random(self.seed)
        self.conn.execute(SETUP)
        spared = {n: without | self.spared.get(n, frozenset()) for n in self.numbers}
        self.walks = [Altered(self.conn, f"t{n}", f"{self.seed} {n}", without=spared[n]) for n in self.numbers]
        received = self.restarting(receive)
        received()
        for _ in range(STEPS):
            for walk in self.walks:
                walk.step()
            if dice.random() < 0.3:
                received()
                for walk in self.walks:
                    walk.script.append(RECEIVED)
        for walk in self.walks:
            walk.finish()
        received()
        received()
        self.check(received)

    def restarting(self, receive: Callable[[], object]) -> Callable[[], None]:
        """Receive, on a new stream where the server cannot decode its log: no walk can keep PostgreSQL from that."""

        def received() -> None:
            try:
                receive()
            except LogUndecodable:
                self.outcomes["restarted"] += 1
                restart(self.project, yes=True)
                self.identified(receive)

        return received

    def identified(self, receive: Callable[[], object]) -> None:
        """Receive on a new stream, which asks for an identity that the one before went on without."""
        try:
            receive()
        except NoReplicaIdentity as bare:
            for statement in re.findall(r"ALTER TABLE [^;]+", bare.remedy):
                self.conn.execute(statement)
            receive()

    def direct(self, receive: Callable[[], object], form: str, script: str) -> None:
        """One walk, of table `t`, with a script's lines instead of what is drawn, and the same check."""
        self.conn.execute(SETUP)
        walk = Altered(self.conn, "t", self.seed, form=form)
        self.walks = [walk]
        for line in (*script.strip().split("\n"), RECEIVED, RECEIVED):
            if line.strip() == RECEIVED:
                receive()
                walk.script.append(RECEIVED)
            else:
                walk.follow(line.strip())
        self.check(receive)

    def check(self, receive: Callable[[], object]) -> None:
        """Each table equals the source, or waits for what mends it."""
        silver = self.silver or self.folded
        wrong, again = list[Exception](), list[Altered]()
        pending = {walk: self.settled(walk, silver(walk)) for walk in self.walks}
        while pending:
            for walk, steps in [*pending.items()]:
                try:
                    ended = next(steps)
                except Exception as one:  # noqa: BLE001 - all that fail are told
                    wrong.append(one)
                    ended = True
                if ended is not None:
                    del pending[walk]
                if ended is False:
                    again.append(walk)
        if wrong:
            raise ExceptionGroup(f"{len(wrong)} of {len(self.walks)} walks", wrong)
        if not again:
            return
        if self.copies is None:
            resync(self.project, [f"public.{walk.name}" for walk in again])
            receive()
        else:
            self.copies(again)
        for walk in again:
            copied = silver(walk)
            failed = copied.advance()
            with self.told(walk):
                assert failed is None, failed
                assert self.shown(walk, copied) == self.source(walk)

    def settled(self, walk: Altered, silver: Silver) -> Iterator[bool | None]:
        """Whether a table is the source's once all is allowed that may be; False: only another copy mends it. None
        each time that something was allowed, so that the tables of a round ask side by side.
        """
        doubted, waited = False, False
        with self.told(walk):
            while (failed := self.advanced(silver, doubted=doubted)) is not None:
                assert isinstance(failed, WAITS), failed
                assert doubted or true_question(failed, walk), failed
                waited = True
                words = allowed(failed)
                if words is None or (not self.knows and any(one.startswith("match updates") for one in words)):
                    assert re.search("cdc-lake (resync|restart)", failed.remedy), failed.remedy
                    self.outcomes[type(failed).__name__ if words is None else "unmatched"] += 1
                    yield False
                    return
                assert not words <= silver.allowed, failed
                silver.allowed |= words
                doubted |= "resync" in failed.remedy and not self.knows
                yield None
            ours, theirs = self.shown(walk, silver), self.source(walk)
            if doubted or not silver.whole:
                assert [row[:2] for row in ours] == [row[:2] for row in theirs]
            else:
                assert ours == theirs
        self.outcomes["doubted" if doubted else "allowed" if waited else "equal"] += 1
        yield not doubted

    @staticmethod
    def advanced(silver: Silver, *, doubted: bool) -> CdcLakeError | None:
        """What a table waits for; a column that was taken for another one may have values that cannot be converted."""
        try:
            return silver.advance()
        except (psycopg.DataError, psycopg.errors.CannotCoerce):
            if not doubted:
                raise
            return Unconvertible("values of a column that was taken for another one", hint="`cdc-lake resync`")

    def folded(self, walk: Altered) -> Folded:
        """Silver of a walk's table, from the beginning."""
        return Folded(self.project, TableName("public", walk.name), self.converted, random.Random(walk.name))

    def converted(self, text: str, old: Column, new: Column) -> str:
        """What the server makes of a value."""
        key = (text, old, new)
        if key not in self.texts:
            query = "SELECT format_type(%s::oid, %s), format_type(%s::oid, %s)"
            types = self.conn.execute(query, [old.type_oid, old.modifier, new.type_oid, new.modifier]).fetchone()
            assert types is not None
            cast = "SELECT format('%%s', %s::{}::{})".format(*types)
            [(self.texts[key],)] = self.conn.execute(cast, [text]).fetchall()
        return self.texts[key]

    def shown(self, walk: Altered, silver: Silver) -> list[tuple[str | None, ...]]:
        """Rows of silver as the source's columns have them, id and k first."""
        columns, kinds = self.columns(walk), silver.columns
        assert set(columns) <= set(kinds), f"silver has {list(kinds)}, the source {columns}"
        numbers = [kind.startswith("numeric(") for kind in map(walk.columns().__getitem__, columns)]
        rows = [[row.get(name) for name in columns] for row in silver.rows]
        return sorted((self.plain(row, numbers) for row in rows), key=repr)

    def source(self, walk: Altered) -> list[tuple[str | None, ...]]:
        """The same of the source."""
        columns = self.columns(walk)
        kinds = walk.columns()
        numbers = [kinds[name].startswith("numeric(") for name in columns]
        printed = sql.SQL("CASE num_nulls({0}) WHEN 0 THEN format('%s', {0}) END")
        listed = sql.SQL(", ").join(printed.format(sql.Identifier(name)) for name in columns)
        only = sql.SQL("ONLY " if walk.form == "heir" else "")
        rows = self.conn.execute(sql.SQL("SELECT {} FROM {}{}").format(listed, only, sql.Identifier(walk.name)))
        return sorted((self.plain(row, numbers) for row in rows.fetchall()), key=repr)

    @staticmethod
    def columns(walk: Altered) -> list[str]:
        return sorted(walk.columns(), key=lambda name: (name not in {"id", "k"}, name not in "id", name))

    @staticmethod
    def plain(row: Any, numbers: list[bool]) -> tuple[str | None, ...]:
        pairs = zip(row, numbers, strict=True)
        return tuple(str(Decimal(v).normalize()) if v is not None and is_number else v for v, is_number in pairs)

    @contextmanager
    def told(self, walk: Altered) -> Iterator[None]:
        """With the statements that led to a failure."""
        try:
            yield
        except Exception as failed:
            failed.add_note(
                f"CDC_LAKE_SEED={self.seed} CDC_LAKE_WALK={walk.name[1:]}\n"
                + "\n".join(line.encode("unicode_escape").decode() for line in walk.script)
            )
            raise


def true_question(failed: CdcLakeError, walk: Altered) -> bool:
    """Whether statements of a walk gave reason for what its table waits for."""
    statements = [one for one in walk.script if not one.startswith(("--", "CREATE TABLE"))]
    questions = str(failed).split(";")
    questions = [words for words in questions if "take column" in words] or questions  # the others follow from these
    needed = [
        done.format(*(former_names(name, statements) for name in found.groups()))
        for words in questions
        for asked, done in QUESTIONS.items()
        if (found := re.search(asked, words)) is not None
    ]
    return all(any(re.search(one, text) for text in statements) for one in needed)


def former_names(name: str, statements: Sequence[str]) -> str:
    """A pattern of the names that a column may have had: a renamed one is not new for that."""
    renamed = [found.groups() for text in statements for found in re.finditer(r"RENAME (\w+) TO (\w+)", text)]
    names = {name}
    while more := {old for old, new in renamed if new in names} - names:
        names |= more
    return f"({'|'.join(sorted(names))})"


def allowed(failed: CdcLakeError) -> set[str] | None:
    """The words that an error offers to allow; None where it offers none."""
    found = re.search(r"`cdc-lake run (--allow .+?)`", failed.remedy)
    return None if found is None else set(shlex.split(found[1])) - {"--allow"}


@contextmanager
def printing(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect() as conn:
        for name, value in PRINTING.items():
            conn.execute("SELECT set_config(%s, %s, false)", [name, value])
        yield conn


@pytest.mark.parametrize("seed", seeds(100 if BUDGET > 1 else 1))
def test_walks_over_pgoutput_end_equal_or_wait_for_what_mends_them(
    database: Database, tmp_path: Path, seed: int
) -> None:
    project = project_of(database, tmp_path)
    with printing(database) as conn:
        walks = Round(conn, project, seed)
        walks.run(lambda: once(project))
    print(walks.outcomes)
