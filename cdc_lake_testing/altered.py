"""Random transactions on a table of a live PostgreSQL, with DDL of every kind between the changes.

The same seed gives the same statements, which `script` records. What a server refuses is rolled back. Tables are plain,
partitioned, or parents of an inheriting table; partitions log other old columns than their root.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from cdc_lake_testing.histories import AT_LIMITS, LINE_BREAKS

NAMES = "abcd"
MADE = "id int PRIMARY KEY, k int NOT NULL, a int DEFAULT 1, b text"
TYPES = (
    "int", "bigint", "text", "varchar(20)", "char(5)", "numeric(10,2)", "numeric(12,4)", "json", "jsonb", "timestamp",
    "timestamp(0)", "date", "boolean", "sevens",
)  # fmt: skip
BECOMES = {
    "integer": ("bigint", "text", "numeric(12,4)"),
    "bigint": ("int", "text"),
    "text": ("varchar(20)", "char(9)"),
    "character varying(20)": ("text", "varchar(40)", "char(5)"),
    "character(5)": ("varchar(20)", "char(9)", "text"),
    "numeric(10,2)": ("numeric(12,4)", "numeric(10,1)", "text"),
    "numeric(12,4)": ("numeric(10,2)", "int"),
    "json": ("jsonb", "text"),
    "jsonb": ("json", "text"),
    "timestamp without time zone": ("timestamp(0)", "date", "text"),
    "timestamp(0) without time zone": ("timestamp", "timestamp(3)"),
    "date": ("timestamp", "text"),
    "boolean": ("text", "int USING 7"),
    "sevens": ("bigint", "text"),
}
WIDE = 200
"""Hashes in a value that is stored out of line: an update that leaves it alone does not send it."""

SETUP = "CREATE DOMAIN sevens AS int DEFAULT 7"


class Altered:
    """Commands on table `name` through a connection in autocommit.

    Args:
        conn: In autocommit.
        name: Of the table that is created.
        seed: What is drawn depends on it alone.
        form: `plain`, `parts` (partitioned) or `heir` (a table inherits from it); None: drawn.
        without: What is not drawn, of `truncates`, `renames` (names that come to mean other tables), `parts`
            (partitions), `nothing` (REPLICA IDENTITY NOTHING), `rekeys` (other columns identify rows).
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        name: str,
        seed: object,
        *,
        form: str | None = None,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.name, self.script = name, list[str]()
        self.dice = random.Random(str(seed))
        self._without = without
        forms = ["plain", "plain", "plain", "parts", "heir"]
        self.form = form or self.dice.choice([one for one in forms if one not in without])
        self._conn, self._rows = conn, 0
        self._fresh, self._often = 0, self.dice.choice((1, 2, 6))
        for statement in self._creation(name):
            self.run(statement)
        for _ in range(self.dice.randint(1, 3)):
            self._insert()

    def step(self) -> None:
        """A transaction, of which parts may be rolled back."""
        with self._transaction(rolled_back=self.dice.random() < 0.05):
            for _ in range(self.dice.choice((1, 1, 2, 3, 5))):
                if self.dice.random() < 0.1:
                    with self._transaction(rolled_back=True):
                        self._any()
                self._any()

    def follow(self, statement: str) -> None:
        """A statement that is given instead of drawn; the server must take it."""
        assert self.run(statement), self.script[-1]

    def finish(self) -> None:
        """Changes that the last layout comes with: of a table that logs what identifies a row."""
        leaves = [self._identity(leaf) for leaf in self._leaves()]
        if self._key() is None or self._identity(self.name) == "n" or {"n", "i"}.intersection(leaves):
            self.run(f"ALTER TABLE {self.name} REPLICA IDENTITY FULL", leaves=True)
        if not self._insert():
            rest = [name for name in self.columns() if name not in {"id", "k"}]
            values = [str(self._rows), str(1000 + self._rows), *("NULL" for _ in rest)]
            self.run(f"INSERT INTO {self.name} ({', '.join(['id', 'k', *rest])}) VALUES ({', '.join(values)})")
        self._update()

    def run(self, statement: str, *, leaves: bool = False) -> bool:
        """Run a statement, if the server takes it; `leaves`: on the partitions too."""
        names = [self.name, *(self._leaves() if leaves else ())]
        try:
            with self._conn.transaction():
                for name in names:
                    text = statement.replace(f"ALTER TABLE {self.name} ", f"ALTER TABLE {name} ")
                    self._conn.execute(text)
        except psycopg.Error as refused:
            self.script.append(f"-- refused: {statement!r}: {refused.diag.message_primary}")
            return False
        self.script.append(f"{statement}; -- and its partitions" if leaves else f"{statement};")
        return True

    @contextmanager
    def _transaction(self, *, rolled_back: bool) -> Iterator[None]:
        form = self.form
        self.script.append("BEGIN")
        with self._conn.transaction(force_rollback=rolled_back):
            yield
        self.script.append("ROLLBACK" if rolled_back else "COMMIT")
        self.form = form if rolled_back else self.form

    def _any(self) -> None:
        ways = [self._insert] * 4 + [self._update] * 4 + [self._delete, self._move] + [self._alter] * self._often
        ways += [self._identify, self._rewrite] * (self._often > 1)
        ways += [self._rekey] if self._often > 1 and "rekeys" not in self._without else []
        ways += [self._truncate] if "truncates" not in self._without else []
        ways += [self._part] * 2 if self.form == "parts" else []
        ways += [self._swap] if "renames" not in self._without else []
        self.dice.choice(ways)()

    # ── what there is ──

    def columns(self) -> dict[str, str]:
        """Types by name."""
        query = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '{self.name}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return {str(name): str(kind) for name, kind in self._conn.execute(query)}

    def _key(self) -> list[str] | None:
        query = (
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY "
            f"(i.indkey) WHERE i.indrelid = '{self.name}'::regclass AND i.indisprimary"
        )
        found = [str(name) for (name,) in self._conn.execute(query)]
        return found or None

    def _identity(self, name: str) -> str:
        query = f"SELECT relreplident FROM pg_class WHERE oid = '{name}'::regclass"
        ((found,),) = self._conn.execute(query)
        return str(found)

    def _leaves(self) -> list[str]:
        if self.form != "parts":
            return []
        query = f"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '{self.name}'::regclass ORDER BY 1"
        return [str(name) for (name,) in self._conn.execute(query)]

    def _creation(self, name: str) -> list[str]:
        self._fresh += 1
        if self.form == "heir":
            return [
                f"CREATE TABLE {name} ({MADE})",
                f"CREATE TABLE {name}_heir{self._fresh} (h int, PRIMARY KEY (id)) INHERITS ({name})",
            ]
        if self.form == "plain":
            return [f"CREATE TABLE {name} ({MADE})"]
        parts = [
            f"CREATE TABLE {name}_{self._fresh}_{n} PARTITION OF {name} {where}"
            for n, where in enumerate(("FOR VALUES FROM (0) TO (4)", "FOR VALUES FROM (4) TO (9)", "DEFAULT"))
        ]
        return [f"CREATE TABLE {name} ({MADE}) PARTITION BY RANGE (id)", *parts]

    # ── changes ──

    def value(self, kind: str) -> str:  # noqa: PLR0911 - one a type
        """A literal of a type."""
        dice = self.dice
        if dice.random() < 0.12:
            return "NULL"
        number, fraction = dice.randint(0, 99), dice.randint(0, 99)
        match kind.split("(", maxsplit=1)[0].removesuffix(" without time zone"):
            case "json" | "jsonb":
                return f"""'{{"b": {number},  "a": 1}}'"""
            case "timestamp" | "date":
                return f"'2026-01-{1 + number % 28:02} 12:34:56.{fraction:02}5'"
            case "boolean":
                return dice.choice(("true", "false"))
            case "numeric":
                return f"{number}.{fraction:02}"
            case "text":
                some = dice.choice((*LINE_BREAKS, *AT_LIMITS, "", "NULL", f"{number}", f"x{number} "))
                if dice.random() < 0.2:
                    return f"(SELECT string_agg(md5(n::text), chr(8232)) FROM generate_series(1, {WIDE + number}) n)"
                return "'" + some + "'"
            case "character" | "character varying":
                return "'" + dice.choice((*LINE_BREAKS, "", "x ", f"{number}")) + "'"
            case _:
                return str(number)

    def _insert(self) -> bool:
        self._rows += 1
        given = {n: self.value(k) for n, k in self.columns().items() if n in NAMES and self.dice.random() < 0.7}
        given = {"id": str(self._rows), "k": str(1000 + self._rows), **given}
        return self.run(f"INSERT INTO {self.name} ({', '.join(given)}) VALUES ({', '.join(given.values())})")

    def _some(self) -> str:
        return f"WHERE id % {self.dice.randint(1, 3)} = 0"

    def _update(self) -> None:
        there = [(n, k) for n, k in self.columns().items() if n in NAMES]
        if there:
            name, kind = self.dice.choice(there)
            self.run(f"UPDATE {self.name} SET {name} = {self.value(kind)} {self._some()}")

    def _delete(self) -> None:
        self.run(f"DELETE FROM {self.name} WHERE id = {self.dice.randint(1, self._rows + 1)}")

    def _move(self) -> None:
        self._rows += 1
        one = self.dice.choice(("id", "k"))
        new = self._rows + (1000 if one == "k" else 0)
        self.run(f"UPDATE {self.name} SET {one} = {new} WHERE id = {self.dice.randint(1, self._rows)}")

    def _truncate(self) -> None:
        if self.dice.random() < 0.3:
            self.run(f"TRUNCATE {self.name} CASCADE" if self.form == "heir" else f"TRUNCATE {self.name}")

    # ── DDL ──

    def _alter(self) -> None:
        columns = {n: k for n, k in self.columns().items() if n in NAMES}
        free = [name for name in NAMES if name not in columns]
        dice, table = self.dice, f"ALTER TABLE {self.name}"
        if not free or (columns and dice.random() < 0.55):
            one, more = dice.choice(list(columns)), dice.choice(list(columns))
            new = dice.choice(free) if free else None
            kind = dice.choice(BECOMES.get(columns[one], ("text",)))
            ways = [
                [f"{table} DROP {one}"],
                [f"{table} DROP {one}, ADD {one} {dice.choice(TYPES)}"],
                [f"{table} ALTER {one} TYPE {kind}"],
                [f"{table} ALTER {one} TYPE {kind}"],
                [f"{table} ALTER {one} SET DEFAULT {self.value(columns[one])}"],
                [f"{table} ALTER {one} DROP DEFAULT"],
            ]
            if new is not None:
                added = dice.choice((columns[one], "bigint"))
                ways += [
                    [f"{table} RENAME {one} TO {new}"],
                    [  # replaced
                        f"{table} ADD x {added}",
                        f"UPDATE {self.name} SET x = {self.value(added)}",
                        f"{table} RENAME {one} TO {new}",
                        f"{table} RENAME x TO {one}",
                    ],
                ]
            if more != one:
                ways.append(
                    [f"{table} RENAME {one} TO x", f"{table} RENAME {more} TO {one}", f"{table} RENAME x TO {more}"]
                )
            self._together(dice.choice(ways))
            return
        name, kind = dice.choice(free), dice.choice(TYPES)
        value = self.value(kind)
        drop = f"{table} ALTER {name} DROP DEFAULT"
        self._together(
            dice.choice(
                [
                    [f"{table} ADD {name} {kind}"],
                    [f"{table} ADD {name} {kind} DEFAULT {value}"],
                    [
                        f"{table} ADD {name} {kind} NOT NULL DEFAULT {value}",
                        drop,
                        f"{table} ALTER {name} DROP NOT NULL",
                    ],
                    [f"{table} ADD {name} int DEFAULT (random() * 99)::int", drop],
                    [f"{table} ADD {name} {kind}", f"{table} ALTER {name} SET DEFAULT {value}"],
                    [f"{table} ADD {name} sevens"],
                    [f"{table} ADD {name} {kind} DEFAULT {value}", f"UPDATE {self.name} SET {name} = NULL"],
                ]
            )
        )

    def _together(self, statements: list[str]) -> bool:
        """All of them, or none where the server refuses one."""
        done = False
        with self._conn.transaction():
            done = all(self.run(statement) for statement in statements)
            if not done:
                self.script.append("-- rolled back, with what was together with it")
                raise psycopg.Rollback
        return done

    def _identify(self) -> None:
        leaves = self._leaves()
        name = self.dice.choice([self.name, *leaves])
        wanted = self.dice.choice(("FULL", "DEFAULT") * 4 + ("NOTHING",))
        if wanted.lower() not in self._without:
            self.run(f"ALTER TABLE {name} REPLICA IDENTITY {wanted}")

    def _rekey(self) -> None:
        """The primary key moves, or the identity goes by an index."""
        constraint = self._conn.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", [self.name]
        ).fetchone()
        key = self.dice.choice(("(id)", "(id, k)") if self.form == "parts" else ("(k)", "(id)", "(id, k)"))
        if constraint is not None and self.dice.random() < 0.8:
            more = f", ADD PRIMARY KEY {key}" if self.dice.random() < 0.9 else ""
            self.run(f"ALTER TABLE {self.name} DROP CONSTRAINT {constraint[0]}{more}")
        elif constraint is None:
            self.run(f"ALTER TABLE {self.name} ADD PRIMARY KEY {key}")
        else:
            self._fresh += 1
            index, name = f"{self.name}_by_{self._fresh}", self.dice.choice(self._leaves() or [self.name])
            identity = f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}"
            self._together([f"CREATE UNIQUE INDEX {index} ON {name} (k)", identity])

    def _rewrite(self) -> None:
        name = self.dice.choice(self._leaves() or [self.name])
        if self._conn.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            self._conn.execute(f"VACUUM FULL {name}")
            self.script.append(f"VACUUM FULL {name};")

    def _part(self) -> None:
        """A partition without rows goes, another one comes; rows that come or go with one are no part of the log."""
        self._fresh += 1
        leaves = self._leaves()
        one, other = self.dice.choice(leaves) if leaves else None, f"{self.name}_{self._fresh}_x"
        if one is None:
            return
        bound = self._conn.execute(
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = %s::regclass", [one]
        )
        where = str(bound.fetchone()[0])  # type: ignore[index]
        self._together(
            [
                f"DELETE FROM {self.name} WHERE tableoid = '{one}'::regclass",
                *([f"TRUNCATE {one}"] if "truncates" not in self._without else []),
                f"ALTER TABLE {self.name} DETACH PARTITION {one}",
                f"CREATE TABLE {other} (LIKE {self.name} INCLUDING DEFAULTS)",
                f"ALTER TABLE {self.name} ATTACH PARTITION {other} {where}",
            ]
        )

    def _swap(self) -> None:
        """Blue and green: another table, with some rows of this one, takes the name; or the table is made again. Or it
        has another name for a while, under which it is changed.
        """
        if self.dice.random() > 0.2:
            return
        self._fresh += 1
        new, away = f"{self.name}_new{self._fresh}", f"{self.name}_away{self._fresh}"
        way = self.dice.random()
        if way < 0.3:
            back = f"ALTER TABLE {away} RENAME TO {self.name}"
            self._together(
                [f"ALTER TABLE {self.name} RENAME TO {away}", f"UPDATE {away} SET k = k + 1 {self._some()}", back]
            )
            return
        if way < 0.7:
            done = self._together(
                [
                    f"CREATE TABLE {new} ({MADE})",
                    f"INSERT INTO {new} (id, k) SELECT id, k FROM {self.name}",
                    f"ALTER TABLE {self.name} RENAME TO {away}",
                    f"ALTER TABLE {new} RENAME TO {self.name}",
                ]
            )
        else:
            done = self._together([f"DROP TABLE {self.name} CASCADE", f"CREATE TABLE {self.name} ({MADE})"])
        self.form = "plain" if done else self.form
