"""The catalog as the family shows it: queries that stand for PostgreSQL's catalogs of the same names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from cdc_lake.model.relation import TableName
from cdc_lake.source.quoting import identifier, literal
from cdc_lake.testing.gaussdb.answers_relay import Relay
from cdc_lake.testing.gaussdb.live_rows import SCHEMA

_HIDDEN: Final = f"(SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = {literal(SCHEMA)})"
_KEY_COLUMNS: Final = {"indkey": "array_to_string((c.indkey::int2[])[0:c.indnkeyatts - 1], ' ')::int2vector"}
"""Of an index its key columns only: what PostgreSQL lists behind them, an index of the family has not."""


class ShownCatalog:
    """Partitions are no tables of their own, `keyless` tables have no identity, the stand-in's schema is not there."""

    def __init__(self, keyless: Collection[TableName]) -> None:
        tables = ", ".join(literal(f"{identifier(t.schema)}.{identifier(t.name)}") for t in keyless)
        self._of_class = {
            "relkind": "CASE c.relkind WHEN 'p' THEN 'r' ELSE c.relkind END::\"char\"",
            "relreplident": (
                f"CASE WHEN c.oid = ANY (ARRAY[{tables}]::regclass[]) THEN 'n' ELSE c.relreplident END::\"char\""
            ),
            "parttype": "CASE c.relkind WHEN 'p' THEN 'p' ELSE 'n' END::\"char\"",
        }
        self._columns: dict[str, list[str]] = {}

    def views(self, compatibility: str, relay: Relay) -> dict[str, Callable[[], str]]:
        """Queries by the name they stand for; `relay` looks up what columns PostgreSQL's own have."""
        return {
            "pg_database": lambda: (
                f"SELECT d.*, {literal(compatibility)}::name AS datcompatibility FROM pg_catalog.pg_database AS d"
            ),
            "pg_namespace": lambda: f"SELECT * FROM pg_catalog.pg_namespace WHERE nspname <> {literal(SCHEMA)}",
            "pg_class": lambda: (
                f"SELECT {self._listed(relay, 'pg_class', self._of_class)} FROM pg_catalog.pg_class AS c "
                f"WHERE NOT relispartition AND relnamespace <> ALL (ARRAY{_HIDDEN})"
            ),
            "pg_index": lambda: f"SELECT {self._listed(relay, 'pg_index', _KEY_COLUMNS)} FROM pg_catalog.pg_index AS c",
        }

    def _listed(self, relay: Relay, catalog: str, shown: Mapping[str, str]) -> str:
        """The columns of a catalog as a select list, some of them shown otherwise, new ones at the end."""
        if catalog not in self._columns:
            found = relay.rows(
                f"SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = 'pg_catalog.{catalog}'::regclass "
                "AND attnum > 0 ORDER BY attnum"
            )
            self._columns[catalog] = [str(name) for (name,) in found]
        names = dict.fromkeys([*self._columns[catalog], *shown])
        return ", ".join(f"{shown.get(name, f'c.{name}')} AS {name}" for name in names)
