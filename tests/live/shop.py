"""A table `t` of a live source, received into bronze as runs do it; silver's side is played by hand."""

from __future__ import annotations

import json
import threading
from typing import Any

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.tables.control_tables import ControlTables
from tests.conftest import Database

T = TableName("public", "t")
ODD = 'it\'s \\ "odd"'
"""A text in a key that every statement has to quote."""


class Shop:
    """A source, and the lake that is fed from it."""

    def __init__(self, database: Database, project: Project) -> None:
        self.project = project
        self.database = database
        self.control = ControlTables(project.control)
        self.bronze = bronze_reader(project)

    def sql(self, *statements: str) -> None:
        with self.database.connect() as conn:
            for statement in statements:
                conn.execute(statement)

    def receive(self) -> None:
        receive(self.project, bronze_writer(self.project), once=True, stop=threading.Event(), report=silent)

    @property
    def state(self) -> StreamCheckpoint:
        state = self.bronze.state()
        assert state is not None
        return state

    @property
    def layout(self) -> int:
        """The newest layout of the table."""
        *_, layout = self.bronze.layouts([T])
        return layout

    def reread(self) -> list[dict[str, Any]]:
        """What the control tables say of rows that were read again."""
        return [json.loads(row.tables) for row in self.control.snapshots() if row.state == "reread"]

    def reread_rows(self) -> list[tuple[int, list[str | None] | None, list[str | None] | None]]:
        """Position, new and old tuple of those that are in force."""
        rows = [row for row in self.bronze.history_rows(T).to_pylist() if row["op"] == "S" and row["ordinal"] < 0]
        whole = [range(one["first"], one["first"] + one["rows"]) for one in self.reread()]
        found = [
            (row["position"], row["new"], row["old"]) for row in rows if any(row["ordinal"] in one for one in whole)
        ]
        return sorted(found, key=repr)
