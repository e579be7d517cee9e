"""Types of a real server of the family: its ledger, and silver equal to the source but for what is held.

With `compatibility=A` in CDC_LAKE_OPENGAUSS the same for a database in which an empty text is NULL and a date a timestamp.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from cdc_lake.comparison.compare import compare
from cdc_lake.ops.plan import type_ledger
from cdc_lake.tables.types import Loss
from tests.live.opengauss.receiving import FAST, SERIAL, Kind, Place, once

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(900)]

# column: (type, declared, values that fit, values that do not), as SQL
TYPES: dict[str, tuple[str, str | None, tuple[str, ...], tuple[str, ...]]] = {
    "t": ("tinyint", None, ("0", "255"), ()),
    "n": ("number(10,2)", None, (".05", "-.05", "99999999.99"), ()),
    "exact": ("number", "decimal(38,9)", ("1.50", ".5", "-.000000001"), ("1e-10", "'NaN'")),
    "both_ways": ("number", "both(12,2)", ("1.50", ".5", "'NaN'", "1e40"), ()),
    "f": ("float4", None, (".1", "'NaN'", "'-Infinity'"), ()),
    "d": ("float8", None, (".1", "1e-300", "'Infinity'"), ()),
    "c": ("char(5)", None, ("'ab'", "''"), ()),
    "v": ("varchar2(20)", None, ("'ab'", "''", "'ä€'"), ()),
    "nv": ("nvarchar2(10)", None, ("'ä€'", "''"), ()),
    "cl": ("clob", None, ("'ä clob'", "''", "repeat('x', 5000)"), ()),
    "bl": ("blob", None, ("hextoraw('dead00')", "empty_blob()"), ()),
    "r": ("raw", None, ("hextoraw('DEAD00')",), ()),
    "kept": ("raw", "string", ("hextoraw('DEAD00')",), ()),
    "b": ("bytea", None, ("'\\x00ff'",), ()),
    "day": ("date", None, ("'2024-02-29'", "'9999-12-31'"), ("'infinity'", "'0044-03-15 BC'")),
    "sd": ("smalldatetime", None, ("'2024-02-29 13:14:31'",), ("'infinity'",)),
    "ts": ("timestamp", None, ("'2024-02-29 13:14:15.123456'",), ("'-infinity'",)),
    "tz": ("timestamptz", None, ("'2024-02-29 13:14:15.5+08'", "'1900-01-01 00:00:00+00'"), ("'infinity'",)),
    "tm": ("time", None, ("'24:00:00'",), ()),
    "iv": ("interval", None, ("'1 year 2 days 03:04:05.5'",), ()),
    "m": ("money", None, ("-1234.5",), ()),
    "count": ("positive", "int", ("7",), ()),
    "ids": ("int[]", "array<int>", ("'{1,NULL,3}'",), ("'{{1,2},{3,4}}'", "'[0:1]={1,2}'")),
    "tags": ("text[]", "array<string>", ('\'{"a b",NULL,"NULL","","q\\"\\\\\\\\"}\'',), ()),
    "j": ("json", None, ("' {\"a\" : 1.0}'",), ()),
    "jb": ("jsonb", None, ("'{\"b\":1e2}'",), ()),
    "u": ("uuid", None, ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",), ()),
    "bi": ("bit(3)", None, ("B'101'",), ()),
    "tv": ("tsvector", None, ("'a:1 b'",), ()),
    "h": ("hash16", None, ("'e697da2eaa3a775b'",), ()),
}


def rows() -> list[tuple[bool, dict[str, str]]]:
    """Values that fit side by side, then each that does not alone."""
    depth = max(len(fit) for _, _, fit, _ in TYPES.values())
    together = [(True, {c: fit[at] for c, (_, _, fit, _) in TYPES.items() if at < len(fit)}) for at in range(depth)]
    return [*together, *((False, {c: value}) for c, (*_, misfit) in TYPES.items() for value in misfit)]


def insert(session: Any, table: str, half: int) -> None:
    for at, (fits, values) in enumerate(rows()):
        if at % 2 == half:
            names = ", ".join(["id", "note", *(f'"{column}"' for column in values)])
            given = ", ".join([str(at), "'fits'" if fits else "'held'", *values.values()])
            session.query(f"INSERT INTO {table} ({names}) VALUES ({given})")


def applied(place: Place) -> None:
    command = [sys.executable, "-c", "from cdc_lake.cli.app import main; main()", "run", "--once", "--only", "apply"]
    done = subprocess.run(
        [*command, "-p", "p.yaml"], cwd=place.root, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", [FAST, SERIAL], ids=str)
def test_types_of_the_server_end_equal_but_for_what_does_not_fit(place: Place, kind: Kind) -> None:
    if not place.site.real:
        pytest.skip("a stand-in has PostgreSQL's types: tests/live/test_gaussdb_types_live.py")
    declared = {column: text for column, (_, text, *_) in TYPES.items() if text is not None}
    tables = [
        {"from": f"{place.name}.types_{letter}", "format": made, "types": {"columns": declared}}
        for letter, made in (("d", "delta"), ("i", "iceberg"))
    ]
    silver = {"defaults": {"namespace": place.name}, "tables": tables}
    project = place.project(kind, silver=silver)
    (place.root / "p.yaml").write_text(json.dumps(place.document(kind, silver=silver)))  # JSON is YAML
    with place.site.sql() as session:
        session.query(f"CREATE SCHEMA {place.name}")
        session.query(f"SET search_path = {place.name}")
        session.query("CREATE DOMAIN positive AS int4 CHECK (VALUE > 0)")
        columns = ", ".join(f'"{column}" {kind}' for column, (kind, *_) in TYPES.items())
        for letter in "di":
            session.query(f"CREATE TABLE types_{letter} (id int PRIMARY KEY, note varchar(9), {columns})")
        for half in (0, 1):
            for letter in "di":
                insert(session, f"types_{letter}", half)
            once(project)
            applied(place)
        held = sum(not fits for fits, _ in rows())
    found = {table.table: (table.text, table.reason) for table in compare(project, (), lambda _: None).tables}
    said = f"equal but for {held} quarantined keys"
    assert found == {f"{place.name}.types_{letter}": (said, "") for letter in "di"}
    for ledger in type_ledger(project):
        losses = {column.column: (column.source_type, column.silver_type, column.loss) for column in ledger.columns}
        assert losses["t"] == ("int1", "smallint", Loss.LOSSLESS)
        assert losses["bl"] == ("blob", "binary", Loss.LOSSLESS)
        assert losses["sd"] == ("smalldatetime", "timestamp_ntz", Loss.LOSSLESS)
        assert losses["cl"] == ("clob", "string", Loss.LOSSLESS)
        day = ("timestamp", "timestamp_ntz") if place.site.compatibility == "A" else ("date", "date")
        assert losses["day"] == (*day, Loss.LOSSLESS)
