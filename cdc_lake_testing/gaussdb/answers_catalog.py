"""The family's catalog: queries that replace PostgreSQL's catalogs of the same names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from cdc_lake.model.relation import TableName
from cdc_lake.source.sql_text import identifier, literal
from cdc_lake_testing.gaussdb.answers_relay import Relay
from cdc_lake_testing.gaussdb.live_rows import SCHEMA

_HIDDEN: Final = f"(SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = {literal(SCHEMA)})"
_KEY_COLUMNS: Final = {
    "xmin": "c.xmin",
    "indkey": "array_to_string((c.indkey::int2[])[0:c.indnkeyatts - 1], ' ')::int2vector",
}
"""Of an index its key columns only: what PostgreSQL lists behind them, an index of the family has not."""


def _turned(value: str, width: int = 0) -> str:
    """SQL of the bytes of `value` from the last to the first, or of each `width` of them."""
    step = width or "length(x)"
    part = "substr(encode(x, 'hex'), 2 * n - 1, 2)"
    turned = f"string_agg({part}, '' ORDER BY (n - 1) / {step}, n DESC)"
    return (
        f"(SELECT decode(coalesce({turned}, ''), 'hex') "
        f"FROM (SELECT {value} AS x) AS given, generate_series(1, length(x)) AS n)"
    )


def _with_length(value: str) -> str:
    return f"{_turned(f'int4send((length({value}) + 4) << 2)')} || {value}"


_SENT: Final = "numeric_send(v::numeric)"
_SIGN_AND_SCALE: Final = (
    f"substr(int4send(256 * (get_byte({_SENT}, 4) + get_byte({_SENT}, 6)) + get_byte({_SENT}, 7)), 3)"
)
_NUMERIC: Final = f"({_turned(f'{_SIGN_AND_SCALE} || substr({_SENT}, 3, 2) || substr({_SENT}, 9)', 2)})"
_KEPT: Final = {
    "bool": "CASE WHEN v::bool THEN '\\x01'::bytea ELSE '\\x00'::bytea END",
    "int2": _turned("int2send(v::int2)"),
    "int4": _turned("int4send(v::int4)"),
    "int8": _turned("int8send(v::int8)"),
    "float4": _turned("float4send(v::float4)"),
    "float8": _turned("float8send(v::float8)"),
    "timestamp": _turned("timestamp_send(v::timestamp)"),
    "timestamptz": _turned("timestamptz_send(v::timestamptz)"),
    "date": _turned("date_send(v::date)"),
    **dict.fromkeys(("text", "varchar", "bpchar"), _with_length("convert_to(v, getdatabaseencoding())")),
    "bytea": _with_length("v::bytea"),
    "numeric": _with_length(_NUMERIC),
}
"""What `pg_attribute.attinitdefval` holds, by type: SQL over the text `v` that PostgreSQL keeps of a default."""

_KEPT_BELOW: Final = 128
"""Bytes: the server writes rows anew with a longer default."""

_INITIAL: Final = (
    f"(SELECT CASE WHEN length(kept) < {_KEPT_BELOW} THEN kept END "
    f"FROM (SELECT CASE t.typname {' '.join(f'WHEN {literal(name)} THEN {kept}' for name, kept in _KEPT.items())} END "
    "AS kept FROM pg_catalog.pg_type AS t, (SELECT (c.attmissingval::text::text[])[1] AS v) AS missing "
    "WHERE t.oid = c.atttypid AND c.atthasmissing) AS given)"
)

_FILE: Final = (
    "(c.relfilenode::bigint + 1000000 * (SELECT count(*) FROM (SELECT c.oid AS of) AS one, LATERAL (SELECT FROM "
    "pg_catalog.pg_attribute AS c WHERE c.attrelid = one.of AND c.atthasmissing "
    f"AND {_INITIAL} IS NULL) AS unkept))::oid"
)
"""The server writes the rows anew where it does not keep a default; PostgreSQL keeps those of all types."""


class ShownCatalog:
    """Partitions are no tables of their own, `keyless` tables have no identity, the stand-in's schema is not there."""

    def __init__(self, keyless: Collection[TableName]) -> None:
        tables = ", ".join(literal(f"{identifier(t.schema)}.{identifier(t.name)}") for t in keyless)
        self._of_class = {
            "xmin": "c.xmin",
            "relkind": "CASE c.relkind WHEN 'p' THEN 'r' ELSE c.relkind END::\"char\"",
            "relreplident": (
                f"CASE WHEN c.oid = ANY (ARRAY[{tables}]::regclass[]) THEN 'n' ELSE c.relreplident END::\"char\""
            ),
            "relfilenode": _FILE,
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
            "pg_attribute": lambda: (
                f"SELECT c.*, c.xmin, {_INITIAL} AS attinitdefval FROM pg_catalog.pg_attribute AS c"
            ),
            "pg_partition": lambda: (
                "SELECT c.oid, 'p'::\"char\" AS parttype, pg_partition_root(c.oid)::oid AS parentid, c.relfilenode "
                "FROM pg_catalog.pg_class AS c WHERE c.relispartition AND c.relkind = 'r'"
            ),
            "pg_attrdef": lambda: (
                "SELECT c.*, CASE WHEN a.attgenerated = 's' THEN 's' ELSE '' END::\"char\" AS adgencol "
                "FROM pg_catalog.pg_attrdef AS c JOIN pg_catalog.pg_attribute AS a "
                "ON a.attrelid = c.adrelid AND a.attnum = c.adnum"
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
