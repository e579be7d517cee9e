"""What every error knows."""

from __future__ import annotations

import pytest

from cdc_lake.config.project import Target
from cdc_lake.errors import CdcLakeError, Unconvertible
from cdc_lake.errors.base import kinds, without_table_copies
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.schema_changes import copied_again


def test_a_remedy_names_the_table_as_a_shell_takes_it():
    assert "`cdc-lake resync 'public.My Orders'` copies" in Unconvertible("m").for_table("public.My Orders").remedy


@pytest.mark.parametrize(
    "kind", [kind for kind in kinds(CdcLakeError) if "cdc-lake resync TABLE`" in (kind.hint or "")]
)
def test_no_remedy_copies_one_table_where_its_stream_takes_no_copy_of_one(kind: type[CdcLakeError]) -> None:
    remedy = without_table_copies(kind("it waits").for_table("public.loans").remedy)
    assert "cdc-lake resync" not in remedy
    assert "`cdc-lake restart` copies every table again" in remedy


def test_of_a_table_that_keeps_no_past_the_new_copy_is_one_of_every_table_in_such_a_stream() -> None:
    target = Target(TableName("public", "loans"), "silver", "loans", "delta", (), ())
    again = without_table_copies(copied_again(target))
    assert again == (
        "`cdc-lake restart` copies every table again (this stream takes no copy of one table); until then the table waits"
    )
