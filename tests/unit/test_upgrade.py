"""Upgrading a lake that an older version left, and refusing one of a newer version."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_lake.api import Pipeline
from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.control.coordination import apply_lease
from cdc_lake.control.cuts import FAILED, RESYNCING, Cut, TableState, parse_cut, write_cut
from cdc_lake.control.table_pauses import paused_tables
from cdc_lake.errors import AnotherApply, BronzeUnknown, ControlNewer
from cdc_lake.model.position import Latest, Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.observability.failpoints import COMMIT_WRITTEN, CONTROL_STEP
from cdc_lake.runtime.cut_retention import show_cut
from cdc_lake.runtime.maintain import upgrade
from cdc_lake.runtime.quarantine import list_quarantine
from cdc_lake.tables.control_schema import (
    CONTROL_PROPERTY,
    CONTROL_VERSION,
    FORMER_COLUMNS,
    ControlName,
    CutRow,
    PinRow,
    StreamRow,
    bring,
    needed_upgrades,
    schema_of,
    utc_now,
    version_of,
)
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.broken_off import broken_off
from tests.data import make_lake
from tests.shell import output_of
from tests.tarballs import unpack

DATA = Path(__file__).parents[1] / "data" / "lake_0_2_0.tar.xz"
YAML = """\
version: 1
pipeline: old_delta
source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}
"""
LACKING = ("columns dense, last_position, last_hash", "version 2 in its properties")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The lake that 0.2.0 left."""
    with tarfile.open(DATA) as archive:
        unpack(archive, tmp_path)
    (tmp_path / "old.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    return load_project(tmp_path / "old.yaml")


def control(project: Project, name: str) -> DeltaTable:
    return DeltaTable(str(project.control / name))


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    return output_of(capsys, "upgrade", *arguments, code=code)


def test_without_yes_it_says_what_it_takes_and_changes_nothing(old: Project, capsys: Any) -> None:
    before = {name: control(old, name).version() for name in ("streams", "held", "cuts")}
    lines = said(capsys).splitlines()
    assert lines[0].split(maxsplit=4) == ["control/streams", "0", "→", "2", "; ".join(LACKING)]
    assert lines[-1] == "3 tables to upgrade: stop the runs, then `cdc-lake upgrade --yes`"
    document = json.loads(said(capsys, "--json"))
    assert document["schema"] == "cdc-lake/upgrade/1"
    assert [one["table"] for one in document["tables"]] == [
        "bronze",
        "control/streams",
        "control/cuts",
        "control/quarantine",
    ]
    assert {name: control(old, name).version() for name in before} == before


def test_with_yes_other_readers_see_every_column_and_rows_stay_as_they_are(old: Project, capsys: Any) -> None:
    streams, quarantined = (
        ControlTables(old.control).streams(),
        ControlTables(old.control).read("quarantine").to_pylist(),
    )
    assert said(capsys, "--yes").endswith("upgraded 3 tables\n")
    for name in ("streams", "held", "cuts"):
        columns = schema_of("quarantine" if name == "held" else name).names
        assert [field.name for field in control(old, name).schema().fields] == columns
        assert version_of(control(old, name)) == CONTROL_VERSION
    assert ControlTables(old.control).streams() == streams
    assert ControlTables(old.control).read("quarantine").to_pylist() == quarantined
    ControlTables(old.control).record(StreamRow(2, "new", 1, "s", "i", "d", "lsn", utc_now(), True, 150, "ab"))
    seen = control(old, "streams").to_pyarrow_table().sort_by("epoch").select(["epoch", "last_position"])
    assert seen.to_pylist() == [{"epoch": 1, "last_position": None}, {"epoch": 2, "last_position": 150}]
    assert said(capsys) == "nothing to upgrade: old_delta has the format of this version\n"
    assert said(capsys, "--yes").startswith("nothing to upgrade")


@pytest.mark.parametrize("point", [f"{CONTROL_STEP}:1", *(f"{COMMIT_WRITTEN}:{n}" for n in (1, 2))])
def test_broken_off_anywhere_the_same_call_ends_it(old: Project, point: str) -> None:
    with broken_off(point) as reached:
        upgrade(old, yes=True)
    assert reached
    assert upgrade(old).pending, "it is not said to be done"
    upgrade(old, yes=True)
    assert upgrade(old).pending == ()
    assert [field.name for field in control(old, "streams").schema().fields] == schema_of("streams").names


def test_a_lake_of_a_newer_version_is_refused_before_anything_is_changed(old: Project, capsys: Any) -> None:
    newer = control(old, "held")
    newer.alter.set_table_properties({CONTROL_PROPERTY: "3"}, raise_if_not_exists=False)
    before = control(old, "streams").version()
    assert "error[LAK490]: the control table `quarantine` has version 3, but this version knows only 2" in said(
        capsys, "--yes", code=1
    )
    with pytest.raises(ControlNewer):
        ControlTables(old.control).read("quarantine")
    assert control(old, "streams").version() == before
    bronze = DeltaTable(str(old.bronze))
    bronze.alter.set_table_properties({"cdc_lake.contract": "2"}, raise_if_not_exists=False)
    with pytest.raises(BronzeUnknown, match="the table has bronze contract 2"):
        upgrade(old)


def test_nothing_is_changed_while_a_run_applies(old: Project) -> None:
    with apply_lease(old), pytest.raises(AnotherApply):
        upgrade(old, yes=True)
    assert upgrade(old).pending


def test_new_tables_are_of_this_version(tmp_path: Path) -> None:
    tables = ControlTables(tmp_path)
    tables.record(StreamRow(1, "s", 1, "s", "i", "d", "lsn", utc_now()))
    assert version_of(DeltaTable(str(tmp_path / "streams"))) == CONTROL_VERSION


@pytest.mark.parametrize("name", FORMER_COLUMNS)
def test_a_table_of_version_1_keeps_the_names_of_its_columns(tmp_path: Path, name: ControlName) -> None:
    former = FORMER_COLUMNS[name]
    stored = pa.schema([field.with_name(former.get(field.name, field.name)) for field in schema_of(name)])
    LocalDeltaStorage(tmp_path / name, durable=False).create(stored, {CONTROL_PROPERTY: "1"})
    rows = pa.Table.from_pylist([dict.fromkeys(stored.names)] * 2, schema=schema_of(name))
    for column in former:
        field = schema_of(name).field(column)
        values = pa.array(["7", "8"]).cast(field.type)
        rows = rows.set_column(rows.schema.get_field_index(column), field, values)
    tables = ControlTables(tmp_path)
    for row in range(2):
        assert tables.append(name, rows.slice(row, 1))
    assert tables.compact(name, 1)
    seen = DeltaTable(str(tmp_path / name)).to_pyarrow_table()
    for column, before in former.items():
        assert sorted(str(value) for value in seen[before].to_pylist()) == ["7", "8"], "an older version reads it"
        assert column not in seen.column_names
        assert sorted(map(str, ControlTables(tmp_path).read(name, columns=[column])[column].to_pylist())) == ["7", "8"]
    assert needed_upgrades(DeltaTable(str(tmp_path / name)), name) == ("version 2 in its properties",)
    bring(tables.place(name), name)
    assert ControlTables(tmp_path).read(name).num_rows == 2


def test_a_lake_keeps_the_names_of_its_tables_and_a_new_one_has_the_new_names(tmp_path: Path) -> None:
    pin = PinRow("p", False, 1, "s", 10, None, "{}", utc_now(), None, utc_now())
    ControlTables(tmp_path / "new").record(pin)
    LocalDeltaStorage(tmp_path / "of_1" / "streams", durable=False).create(
        schema_of("streams"), {CONTROL_PROPERTY: "1"}
    )
    ControlTables(tmp_path / "of_1").record(pin)  # an older version would look for it there
    LocalDeltaStorage(tmp_path / "upgraded" / "promises", durable=False).create(
        schema_of("pins"), {CONTROL_PROPERTY: "2"}
    )
    ControlTables(tmp_path / "upgraded").record(pin)
    for lake, name in (("new", "pins"), ("of_1", "promises"), ("upgraded", "promises")):
        tables = ControlTables(tmp_path / lake)
        assert [row["name"] for row in tables.read("pins").to_pylist()] == ["p"]
        folders = {folder.name for folder in (tmp_path / lake).iterdir()} - {"streams"}
        assert (folders, DeltaTable(str(tmp_path / lake / name)).to_pyarrow_table().num_rows) == ({name}, 1)


# ── a lake of this contract, for later versions ──


@pytest.fixture
def kept() -> Iterator[Path]:
    with make_lake.unpacked() as root:
        yield root


def record_cut(control: ControlTables, row: CutRow, table: TableState) -> None:
    state = StreamCheckpoint(row.stream, row.epoch, row.position, row.position, b"")
    write_cut(control, state, Cut(row.position, {"public.now": table}), None, silent)


def last_state(control: ControlTables) -> tuple[str, str]:
    """The state of a table in the last cut as it is stored, and as it is read."""
    row = control.last_cut()
    assert row is not None
    return json.loads(row.tables)["public.now"]["state"], parse_cut(row).tables["public.now"].state


@pytest.mark.parametrize("fmt", ["delta", "iceberg"])
def test_a_lake_of_bronze_contract_1_and_control_version_1_is_read(kept: Path, fmt: str) -> None:
    project = make_lake.project(fmt)
    assert project.lake.is_relative_to(kept)
    found = verify(bronze_reader(project))
    assert (found.holds, found.transactions) == (True, 2)
    changes = bronze_reader(project).changes(TableName("public", "now"), Span(1, 200, 300))
    assert changes["op"].to_pylist() == ["U", "D", "I"]
    now, first = (Pipeline(project).cut(at, allow_behind=True) for at in ("latest", "first"))
    assert (now.position, first.position) == ("0/12C", "0/C8")
    amounts = {name: set(now.read(name)["amount"].to_pylist()) for name in ("now", "then", "log", "off")}
    assert amounts == {"now": {3, 7}, "then": {3, 7}, "log": {None, 1, 2, 3}, "off": {1, 2, 3}}
    assert sorted(first.read("now")["amount"].to_pylist()) == [1, 2, 3]
    (quarantined,) = list_quarantine(project).changes
    assert (quarantined.table, quarantined.rules, quarantined.key) == (f"silver_{fmt}.now", ("between_amount",), ("4",))
    assert list(paused_tables(ControlTables(project.control))) == ["public.off"]
    assert [row.epoch for row in ControlTables(project.control).streams()] == [1]
    assert ControlTables(project.control).read("runs").num_rows == 2
    control, states = (
        ControlTables(project.control),
        dict.fromkeys(["now", "then", "log"], "active") | {"off": "paused"},
    )
    shown = {table.source.removeprefix("public."): table.state for table in show_cut(project, Latest(), None).tables}
    assert shown == states
    row = control.last_cut()
    assert row is not None
    assert {table["state"] for table in json.loads(row.tables).values()} == {"in", "paused"}
    record_cut(control, row, replace(now.cut.tables["public.now"], state=RESYNCING))
    assert last_state(control) == ("renewing", RESYNCING), "an older version reads the table, in its own words"
    upgrade(project, yes=True)
    assert upgrade(project).pending == ()
    record_cut(control, row, replace(now.cut.tables["public.now"], state=FAILED))
    assert last_state(control) == ("failed", FAILED), "an older version refuses the table"
    assert [row.epoch for row in ControlTables(project.control).streams()] == [1]
