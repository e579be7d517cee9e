"""Files of tables, read without Spark: types and statistics, lines of the Delta log, compression of columns."""

from __future__ import annotations

import ast
import base64
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from cdc_lake.model.relation import TableName
from cdc_lake.ops.report_data import Evidence
from cdc_lake.ops.status import status
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.delta_log import changed_by, json_lines, mend, note_in
from cdc_lake.tables.files import write_parquet
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.histories import LINE_BREAKS
from tests.cut_lake import CutLake
from tests.pipeline_file import make_project

TYPES = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "array<string>": pa.list_(pa.string()),
    "array<int>": pa.list_(pa.int32()),
}


@pytest.mark.parametrize("fmt", ["delta", "iceberg"])
def test_types_are_named_as_spark_names_them(tmp_path: Path, fmt: str) -> None:
    project = make_project(tmp_path, "p", silver={"defaults": {"format": fmt}})
    target = project.target(TableName("public", "t"))
    assert table_log(project, target).columns() is None
    fields = {f"c{n}": kind for n, kind in enumerate(TYPES.values())}
    if fmt == "delta":
        fields["small"] = pa.int16()
        rows = pa.table({name: pa.array([], kind) for name, kind in fields.items()})
        write_deltalake(str(project.silver_path(target)), rows)
    else:
        project.lake.mkdir(parents=True)
        catalog = open_catalog(catalog_address(project))
        catalog.create_namespace_if_not_exists("silver")
        catalog.create_table("silver.t", pa.schema(list(fields.items())))
    wanted = [*TYPES, *(["smallint"] if fmt == "delta" else [])]
    assert [column.type for column in table_log(project, target).columns() or ()] == wanted


@pytest.mark.parametrize("fmt", ["delta", "iceberg"])
@pytest.mark.parametrize(("kind", "live"), [("soft", 2), ("history", 1), ("current", 3)])
def test_a_report_counts_the_rows_that_the_source_has_and_all_that_are_stored(
    tmp_path: Path, fmt: str, kind: str, live: int
) -> None:
    lake = CutLake(tmp_path, fmt)
    columns: dict[str, list[object]] = {"id": [1, 2, 3]}
    if kind == "soft":
        columns["_is_deleted"] = [False, True, False]
    if kind == "history":
        columns |= {name: [None] * 3 for name in ("valid_from_epoch", "valid_from", "valid_to_epoch", "valid_to")}
        columns |= {"valid_from_ts": [None] * 3, "valid_to_ts": [None] * 3, "is_current": [False, False, True]}
    fields = {"id": pa.int64(), "_is_deleted": pa.bool_(), "is_current": pa.bool_()}
    schema = pa.schema([(name, fields.get(name, pa.int64())) for name in columns])
    lake.land(105)
    version = lake.write("t", pa.table(columns, schema=schema))
    lake.cut(105, 1, t=lake.state("t", version, 105))
    (found,) = Evidence(lake.project, lake.control, status(lake.project)).collect().tables
    assert (found.rows, found.stored) == (live, None if kind == "current" else 3)
    assert table_log(lake.project, lake.project.target(TableName("public", "t"))).count_rows() == 3


PACKAGE = Path(__file__).parents[2] / "cdc_lake"
TEXTS = "".join(LINE_BREAKS)
ADDED = {"add": {"path": "a.parquet", "dataChange": True, "stats": json.dumps({"maxValues": {"b": TEXTS}})}}
OF_LINES = frozenset({
    ("cli/output.py", "_printable"),
    ("cli/text.py", "fix"),
    ("config/yaml_tree.py", "text"),
    ("devtools/replay.py", "payload"),
    ("quality/great_expectations.py", "strip"),
    ("silver/transforms.py", "strip"),
    ("source/refusals.py", "strip"),
})  # fmt: skip
"""Where a text is cut at every line break: what a person reads, in the first line of a message or line by line, a file
of YAML, whose lines are such, and a bytes payload, which is cut at line feed and carriage return.
"""


def test_every_line_break_of_unicode_may_stand_in_a_string_of_a_line() -> None:
    entry = "\n".join(json.dumps(one, ensure_ascii=False) for one in ({"commitInfo": {"operation": "MERGE"}}, ADDED))
    assert json_lines(entry) == json_lines(entry.encode()) == [{"commitInfo": {"operation": "MERGE"}}, ADDED]
    assert json_lines(f"{entry}\n") == json_lines(entry)
    assert json_lines("") == []


def test_a_log_entry_with_line_breaks_in_its_statistics_is_read_like_any_other(tmp_path: Path) -> None:
    written = json.dumps({"commitInfo": {"operation": "WRITE", "cdc_lake": {"commit": "1", "lines": 2}}})
    entry = f"{json.dumps(ADDED, ensure_ascii=False)}\n{written}"
    assert note_in(entry) == {"commit": "1", "lines": 2}
    assert changed_by([(3, entry)]) is not None
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text(entry, encoding="utf-8")
    assert mend(tmp_path) == []


def test_nothing_else_cuts_a_text_at_every_line_break() -> None:
    assert set(_splitting()) == OF_LINES


def _splitting() -> Iterator[tuple[str, str]]:
    """Modules that call `splitlines`, with the name of what they call it of."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "splitlines":
                of = node.value.value if isinstance(node.value, ast.Subscript) else node.value
                of = of.func if isinstance(of, ast.Call) else of
                yield str(file.relative_to(PACKAGE)), of.attr if isinstance(of, ast.Attribute) else ast.unparse(of)


LARGE = 68_000_000
SMALL = base64.b64encode(random.Random(5).randbytes(750)).decode()
LOOSE, DENSE = "loose", "dense"  # of large values, which are made where they are asked for


def value(of: str | None) -> str | None:
    if of == LOOSE:
        return SMALL * (LARGE // len(SMALL))
    return dense(LARGE) if of == DENSE else of


def dense(size: int) -> str:
    """What compresses to three quarters."""
    return base64.b64encode(random.Random(5).randbytes(size * 3 // 4)).decode()


def packed(*values: str | None) -> dict[str, bool]:
    """Of a file with these as lists and as they are: whether each column is compressed; what was written is read."""
    values = tuple(map(value, values))
    rows = pa.table({"n": pa.array(range(len(values))), "new": pa.array([["a", one] for one in values]), "one": values})
    sink = io.BytesIO()
    write_parquet(rows, sink, stats=["n"], plain=["new", "one"])
    assert pq.read_table(sink).equals(rows)
    group = pq.read_metadata(sink).row_group(0)
    columns = [group.column(nth) for nth in range(group.num_columns)]
    return {one.path_in_schema.split(".")[0]: one.compression == "ZSTD" for one in columns}


@pytest.mark.parametrize(
    ("values", "worth"),
    [((SMALL, None, ""), True), ((LOOSE,), True), ((DENSE,), False), ((SMALL, DENSE, None, SMALL), False)],
    ids=["small", "loose", "dense", "dense among small ones"],
)
def test_a_very_large_value_is_compressed_where_that_is_worth_a_copy(
    values: tuple[str | None, ...], worth: bool
) -> None:
    assert packed(*values) == {"n": True, "new": worth, "one": worth}


def test_many_values_are_compressed_however_much_they_are_together() -> None:
    some = dense(LARGE // 8)
    assert packed(*[some] * 9) == {"n": True, "new": True, "one": True}
