"""Upgrading: a lake that an older version left is brought to the form that this one writes.

Older forms are read as they are, so nothing waits for an upgrade; what other readers of the control tables see is
complete only behind it. A lake of a newer version is refused. Silver tables need nothing: what a new version asks of
one, its next run does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from cdc_lake.bronze.contract import CONTRACT_VERSION
from cdc_lake.bronze.open import bronze_table
from cdc_lake.config.project import Project
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.control_columns import ControlName, schema_of
from cdc_lake.lake.control_upgrade import CONTROL_VERSION, bring, check_version, needed, version_of
from cdc_lake.lake.lease import lease


@dataclass(frozen=True, slots=True)
class UpgradedTable:
    """A table of the lake: its version, that of this program, and what it takes to get there, in words."""

    table: str
    version: int
    to: int
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade takes; `done`: it was carried out."""

    pipeline: str
    done: bool
    tables: tuple[UpgradedTable, ...]

    @property
    def pending(self) -> tuple[UpgradedTable, ...]:
        """The tables that need something, or needed it."""
        return tuple(table for table in self.tables if table.steps)


def upgrade(project: Project, *, yes: bool = False) -> Upgrade:
    """What it takes, and with `yes` do it, while nothing applies. Tables that are not there yet are left out.

    Nothing is changed where one table is newer than this version. Raises BronzeUnknown, ControlNewer, AnotherApply,
    ControlNotWritten; the same call goes on where one ended.
    """
    found = _look(project)
    if yes and found.pending:
        control = control_tables(project)
        with lease(project.lease):
            for name in get_args(ControlName):
                if any(table.table == _label(name) for table in found.pending):
                    bring(control.place(name), name, schema_of(name))
    return Upgrade(found.pipeline, yes, found.tables)


def _look(project: Project) -> Upgrade:
    tables = []
    if bronze_table(project).look():  # refuses a newer contract
        tables.append(UpgradedTable("bronze", CONTRACT_VERSION, CONTRACT_VERSION, ()))
    control = control_tables(project)
    for name in get_args(ControlName):
        place = control.place(name)
        table = place.open()
        if table is None:
            continue
        version = version_of(table)
        check_version(version, name, place.name)
        tables.append(UpgradedTable(_label(name), version, CONTROL_VERSION, needed(table, schema_of(name))))
    return Upgrade(project.name, done=False, tables=tuple(tables))


def _label(name: str) -> str:
    return f"control/{name}"
