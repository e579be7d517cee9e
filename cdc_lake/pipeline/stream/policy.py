"""The policy for what cannot be decoded, `bronze.undecodable`: stop, or land its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdc_lake.bronze.port import Tabulate
from cdc_lake.config.project import Project
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.undecodable import Format, Keeping, Stopping
from cdc_lake.observe.progress import Progress, Tell


def lands(project: Project) -> bool:
    """Whether a transaction that cannot be decoded lands as its bytes."""
    return project.pipeline.bronze.undecodable == "land"


def by_policy(project: Project, form: Format[Any], tell: Tell) -> Tabulate:
    """Makes columns of a format's transactions, as the pipeline wants those that cannot be decoded."""
    if not lands(project):
        return Stopping(form)
    keeping = Keeping(form)

    def columns(batch: Sequence[Any]) -> ChangeColumns:
        found = keeping(batch)
        for why in found.undecoded.values():
            text = f"a transaction lands as bytes, it could not be decoded: {why.message}, in {why.where}"
            tell(Progress("receive", text, facts={"code": why.code, "tables": list(why.tables)}))
        return found

    return columns
