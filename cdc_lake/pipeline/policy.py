"""The policy for what cannot be decoded, `bronze.undecodable`: stop, or land its bytes."""

from __future__ import annotations

from typing import Any

from cdc_lake.bronze.port import Tabulate
from cdc_lake.config.project import Project
from cdc_lake.decode.undecodable import Format, Keeping


def lands(project: Project) -> bool:
    """Whether a transaction that cannot be decoded lands as its bytes."""
    return project.pipeline.bronze.undecodable == "land"


def by_policy(project: Project, form: Format[Any]) -> Tabulate:
    """Makes columns of a format's transactions, as the pipeline wants those that cannot be decoded."""
    return Keeping(form) if lands(project) else form.tabulate
