"""Source tables whose names are one name in silver are refused with both names."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.errors import SilverNameShared
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.schema_changes import check_names, shared_names


def test_names_that_fold_to_one_are_told_with_both(tmp_path: Path) -> None:
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    given = {"version": 1, "pipeline": "shop", "source": source}
    project = Project(Pipeline.model_validate(given), tmp_path / "shop.yaml", tmp_path)
    names = [TableName("public", name) for name in ("orders", "Orders", "строки", "поля__", "items", "a b", "a_b")]
    shared = shared_names(project, names)
    assert {str(table) for table in shared} == {
        "public.orders",
        "public.Orders",
        "public.строки",
        "public.поля__",
        "public.a b",
        "public.a_b",
    }
    assert "`public.Orders` and `public.orders` would both be written to silver.orders" in shared[names[0]].message
    with pytest.raises(SilverNameShared):
        check_names(project, names)
    check_names(project, [TableName("public", "items"), TableName("other", "items")])
