"""Strangers: what other programs do to a silver table, and how it is taken back."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from typing import Any

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import last_cut
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.open_silver_table import store, table_log
from cdc_lake.tables.spark_session import derive
from tests.silver_rows import silver_rows

HARMLESS = {
    "delta": {
        "compaction": "OPTIMIZE {name}",
        "purge": "REORG TABLE {name} APPLY (PURGE)",
        "vacuum": "VACUUM {name}",
        "property": "ALTER TABLE {name} SET TBLPROPERTIES ('whose' = 'a stranger')",
    },
    "iceberg": {
        "compaction": "CALL {catalog}.system.rewrite_data_files(table => '{label}', options => map('rewrite-all', 'true'))",
        "expiry": "CALL {catalog}.system.expire_snapshots(table => '{label}', older_than => now(), retain_last => 1)",
        "property": "ALTER TABLE {name} SET TBLPROPERTIES ('whose' = 'a stranger')",
    },
}
"""Statements that leave the rows as they are."""
WRITES = {
    "append": "INSERT INTO {name} SELECT * FROM {name} LIMIT 1",
    "update": "UPDATE {name} SET k = k + 1 WHERE id % 2 = 0",
    "delete": "DELETE FROM {name} WHERE id % 2 = 0",
    "overwrite": "INSERT OVERWRITE {name} SELECT * FROM {name} WHERE id % 2 = 0",
}
WIDENS = {"column": "ALTER TABLE {name} ADD COLUMNS (whose STRING)"}
"""What a table does not notice until rows of it change."""
OTHERS = ("put back", "replaced", "gone", "moved")


@dataclass
class Stranger:
    """Another program at a table that holds rows of a pipeline. `changed`: whether rows are others than before;
    `content`: what it came upon.
    """

    spark: Any
    project: Project
    target: Target
    what: str
    changed: bool = False
    version: int = 0
    content: tuple[str, int, int | None] | None = None

    @classmethod
    def drawn(cls, dice: random.Random, spark: Any, project: Project, target: Target) -> Stranger:
        """One that does one of all that they do."""
        kinds = (HARMLESS[target.format], WRITES, (*OTHERS, *WIDENS))
        return cls(spark, project, target, dice.choice(list(dice.choice(kinds))))

    @property
    def harmless(self) -> bool:
        """Whether nothing of it is to be seen."""
        return self.what in HARMLESS[self.target.format]

    @property
    def latent(self) -> bool:
        """Whether only changes of the table's rows bring it to light."""
        return self.what in WIDENS

    def standing(self) -> tuple[str, int, int | None] | None:
        """The content that the table has now: its stream, its generation and the copy that it begins with; None where
        no cut lists one, as of a table that was left until it is copied again.
        """
        state = bronze_reader(self.project).state()
        cut = None if state is None else last_cut(control_tables(self.project), state.stream)
        listed = None if cut is None else cut.tables.get(str(self.target.source))
        if state is None or listed is None or listed.version is None:
            return None
        return state.stream, listed.generation, listed.copied

    def acts(self) -> bool:
        """Do it, once a run made the table and where there is something to do it to."""
        self.content = self.standing()
        if self.content is None:
            return False
        rows, before = self._rows(), table_log(self.project, self.target).marker(self.content[0])
        assert before.version is not None
        self.version = before.version
        match self.what:
            case "put back":
                if (older := self._older()) is None:
                    return False
                self._put(older)
            case "replaced":
                self._sql(
                    f"CREATE OR REPLACE TABLE {{name}} USING {self.target.format} AS SELECT 7 AS id, 'x' AS whose"
                )
            case "gone" if self.target.format == "delta":
                shutil.rmtree(self.project.silver_path(self.target))
            case "gone":
                self._sql("DROP TABLE {name}")
            case "moved":
                self._move("", "_moved")
            case statement:
                self._sql({**HARMLESS[self.target.format], **WRITES, **WIDENS}[statement])
        self.changed = self.what in OTHERS[1:] or self._rows() != rows
        assert not (self.harmless and self.changed)
        return True

    def takes_back(self) -> bool:
        """Put the table where it was, where that can be done."""
        match self.what:
            case "gone" | "column":
                return False  # a commit of ours may have come behind a column
            case "replaced" if self.target.format == "iceberg":
                return False  # a snapshot has no columns
            case "moved":
                self._move("_moved", "")
            case _:
                self._put(self.version)
        return True

    def _rows(self) -> list[str]:
        return sorted(map(repr, silver_rows(self.project, self.target)))

    def _sql(self, statement: str) -> None:
        session = derive(self.spark)
        name = store(session, self.project, self.target).name
        catalog = self.project.pipeline.lake.iceberg.catalog
        session.sql(statement.format(name=name, label=self.target.label, catalog=catalog)).collect()

    def _older(self) -> int | None:
        if self.target.format == "delta":
            return self.version - 1 if self.version > 0 else None
        table = iceberg_table(self.project, self.target)
        head = None if table is None else table.current_snapshot()
        older = None if head is None else head.parent_snapshot_id
        return older if table is not None and older is not None and table.snapshot_by_id(older) else None

    def _put(self, version: int) -> None:
        if self.target.format == "delta":
            self._sql(f"RESTORE TABLE {{name}} TO VERSION AS OF {version}")
        else:
            self._sql(f"CALL {{catalog}}.system.set_current_snapshot('{{label}}', {version})")

    def _move(self, now: str, then: str) -> None:
        if self.target.format == "delta":
            folder = self.project.silver_path(self.target)
            folder.with_name(f"{folder.name}{now}").rename(folder.with_name(f"{folder.name}{then}"))
        else:
            name = "{catalog}." + self.target.label
            self._sql(f"ALTER TABLE {name}{now} RENAME TO {self.target.label}{then}")
