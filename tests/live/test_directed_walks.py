"""Directed walks: a script's statements instead of drawn ones, each of which finds a cause that was mended, if it is planted again.

They are the negative controls of the random walks, whose checks they share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from cdc_lake.connectors.table_sync import Member
from cdc_lake.decode.historic_catalog import Attribute, Identified, Named
from cdc_lake.decode.pgoutput.relations import RelationCache
from cdc_lake_testing.altered import MADE
from tests.conftest import Database
from tests.live.test_random_walks import Round, printing
from tests.live.test_receive_loop import once, project_of
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture

pytestmark = pytest.mark.live

AS_PARTITIONS_LOG: Final = RelationCache._as_partitions_log


def by_name(announced: Sequence[Named], attributes: Sequence[Attribute], *_: object) -> Identified | None:
    """Columns of a message are those that have their names now."""
    numbers = {one.name: one.number for one in attributes}
    known = all(one.name in numbers for one in announced)
    return Identified(tuple(numbers[one.name] for one in announced)) if known else None


def key_of_now(_: object, now: Sequence[int], __: object, there: Collection[int], **___: object) -> tuple[int, ...]:
    """The primary key of a change is the one that the table has now."""
    return tuple(now) if set(now) <= set(there) else ()


def by_entry(known: Member, entry: int | str | None, _: object) -> bool:
    """A table is the one that has its name, if no publication tells."""
    return isinstance(entry, str) or entry == known.entry


def with_partitions_of_now(self: RelationCache, message: Any, relation: Any, now: Any, _: object) -> Any:
    """What the catalog of now does not call a partition is none."""
    return AS_PARTITIONS_LOG(self, message, relation, now, None)


def nothing(*_: object, **__: object) -> None:
    """Nothing is known."""


def unchanged(relation: object, *_: object) -> object:
    """A layout is as its root announces it."""
    return relation


ROWS = "INSERT INTO t SELECT id, 1000 + id, 10, 'x' FROM generate_series(11, 14) AS id"
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"
KEY = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY"
OUT_OF_LINE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) AS n)"


@dataclass(frozen=True)
class Cause:
    """A cause that was mended: what is planted to have it again, by the name that it takes, and a script that finds it."""

    name: str
    plants: Mapping[str, Callable[..., object]]
    script: str
    form: str = "plain"
    plugin: str = "pgoutput"


CAUSES = [
    Cause(
        "columns by the names of now",
        {"cdc_lake.decode.pgoutput.relations.identify": by_name},
        f"""{ROWS}
        ALTER TABLE t ADD c text
        -- received
        UPDATE t SET b = 'y' WHERE id = 12
        ALTER TABLE t RENAME b TO d
        ALTER TABLE t RENAME c TO b
        ALTER TABLE t RENAME d TO c
        UPDATE t SET a = 1 WHERE id = 13""",
    ),
    Cause(
        "nothing in old rows of an added column",
        {"cdc_lake.decode.pgoutput.relations.missing_then": nothing},
        f"""{ROWS}
        -- received
        ALTER TABLE t ADD c int DEFAULT 5
        UPDATE t SET c = 1 WHERE id = 12""",
    ),
    Cause(
        "columns of silver by name",
        {"cdc_lake.model.relation.has_common_numbering": lambda *_: False},
        f"""{ROWS}
        ALTER TABLE t ADD c text
        UPDATE t SET c = 'c'
        -- received
        ALTER TABLE t RENAME b TO d
        ALTER TABLE t RENAME c TO b
        UPDATE t SET a = 1 WHERE id = 12""",
    ),
    Cause(
        "the key of now under identity FULL",
        {"cdc_lake.decode.pgoutput.relations.key_then": key_of_now},
        f"""{ROWS}
        {FULL}
        -- received
        UPDATE t SET k = 7 WHERE id IN (12, 13)
        UPDATE t SET a = 9 WHERE id = 12
        UPDATE t SET k = 8 WHERE id = 12
        {KEY} (k)""",
    ),
    Cause(
        "the key of now under identity DEFAULT",
        {"cdc_lake.decode.pgoutput.relations.key_then": key_of_now},
        f"""{ROWS}
        -- received
        {KEY} (id, k)
        INSERT INTO t VALUES (12, 7)
        UPDATE t SET a = 9 WHERE k = 1012
        DELETE FROM t WHERE k = 7
        {KEY} (id)""",
    ),
    Cause(
        "the identity of now for rows without an old one",
        {"cdc_lake.decode.gaussdb.relations.identity_then": nothing},
        f"""{ROWS}
        -- received
        UPDATE t SET k = 7 WHERE id = 12
        CREATE UNIQUE INDEX t_by_k ON t (k)
        ALTER TABLE t REPLICA IDENTITY USING INDEX t_by_k
        UPDATE t SET a = 1 WHERE id = 13""",
        plugin="test_decoding",
    ),
    Cause(
        "old rows of each partition as the root logs them",
        {
            "cdc_lake.decode.pgoutput.relations.as_logged": unchanged,
            "cdc_lake.source.postgres.catalog.as_logged": unchanged,
        },
        f"""{ROWS}
        -- received
        {FULL}
        UPDATE t SET b = {OUT_OF_LINE}
        UPDATE t SET id = 22 WHERE id = 12""",
        form="parts",
    ),
    Cause(
        "partitions by the catalog of now",
        {"cdc_lake.decode.pgoutput.relations.RelationCache._as_partitions_log": with_partitions_of_now},
        f"""{ROWS}
        {FULL}
        {FULL.replace(" t ", " t_1_0 ")}
        {FULL.replace(" t ", " t_1_1 ")}
        -- received
        UPDATE t SET b = {OUT_OF_LINE}
        UPDATE t SET id = 22 WHERE id = 12
        ALTER TABLE t DETACH PARTITION t_1_2
        -- received
        ALTER TABLE t ATTACH PARTITION t_1_2 DEFAULT
        UPDATE t SET a = 1 WHERE id = 13""",
        form="parts",
    ),
    Cause(
        "tables by name",
        {"cdc_lake.connectors.table_sync._is_same_member": by_entry},
        f"""{ROWS}
        -- received
        ALTER TABLE t RENAME TO away
        CREATE TABLE t ({MADE})""",
        plugin="test_decoding",
    ),
    Cause(
        "a type that rewrites values is the same one",
        {"cdc_lake.tables.schema_evolution.rewriting": nothing, "cdc_lake_testing.folded.rewriting": nothing},
        f"""{ROWS}
        ALTER TABLE t ADD c char(5)
        UPDATE t SET c = 'x'
        -- received
        ALTER TABLE t ALTER c TYPE varchar(20)
        UPDATE t SET a = 1 WHERE id = 12""",
    ),
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
@pytest.mark.parametrize("planted", [False, True], ids=["mended", "planted"])
def test_a_cause_that_was_mended_is_found_when_it_is_planted_again(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Cause, *, planted: bool
) -> None:
    for name, plant in cause.plants.items() if planted else ():
        monkeypatch.setattr(name, plant)
    project = project_of(database, tmp_path, source={"slot": {"plugin": cause.plugin}})
    found = pytest.raises(ExceptionGroup, match="1 of 1 walks") if planted else nullcontext()
    with printing(database) as conn, found:
        Round(conn, project, 1).direct(lambda: once(project), cause.form, cause.script)
