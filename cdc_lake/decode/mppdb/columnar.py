"""The columnar decoder of the GaussDB family."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.decode.mppdb.plain import tabulate_plain
from cdc_lake.decode.mppdb.raw import RecordTransaction


def tabulate(batch: Sequence[RecordTransaction], layouts: Layouts) -> ChangeColumns:
    """The changes of the transactions as columns, in order.

    Equal in every field to `tabulate_plain(batch, layouts)`, and raises the same DecodeError for the same bytes.
    """
    return tabulate_plain(batch, layouts)
