"""The logs of silver tables in ADLS, over Azurite's sockets; written by delta-rs and pyiceberg, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.model.relation import TableName
from cdc_lake_testing.azurite import KEY, Azurite
from tests.bronze_object_stores import BUCKET
from tests.live.test_azurite import store
from tests.pipeline_file import make_project
from tests.table_log_contract import *  # noqa: F403 - the tests of the contract
from tests.table_log_contract import MakePlace, Place

__all__ = ["store"]


@pytest.fixture
def place(store: Azurite, tmp_path: Path) -> MakePlace:
    lake = {
        "path": str(store.address(BUCKET, tmp_path.name)),
        "storage": {"endpoint": store.endpoint, "allow_http": True, "account_key": KEY},
        "iceberg": {"uri": f"sqlite:///{tmp_path}/catalog.db"},
    }

    def make_place(fmt: str) -> Place:
        project = make_project(tmp_path, lake=lake, silver={"defaults": {"format": fmt}})
        return Place(project, project.target(TableName("public", "t")))

    return make_place
