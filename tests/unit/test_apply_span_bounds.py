"""Where spans end: at a transaction, by changes and by bytes, whichever is reached first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.position import Span
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake_testing.messages import boundaries, raw_transaction, table

T = table("public.t", id="int8", body="text")


def spans(root: Path, sizes: list[tuple[int, int]], **apply: Any) -> list[int]:
    """How many transactions each span takes; `sizes`: changes, and bytes of each change's text."""
    document = {
        "version": 1,
        "pipeline": "shop",
        "source": {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]},
        "apply": apply,
    }
    project = Project(Pipeline.model_validate(document), root / "shop.yaml", root)
    bronze = DeltaBronze(project.bronze, durability="os")
    state = bronze.begin_stream("s", 10)
    for number, (changes, text) in enumerate(sizes):
        rows = tuple(Insert(T, (str(n), "x" * text)) for n in range(changes))
        bronze.append([raw_transaction(Transaction(boundaries(100 + 10 * number), rows))])
    top, position, found = 100 + 10 * len(sizes), 10, []
    advance: Any = SpanLoop(project, None, silent)  # type: ignore[arg-type] # choosing a span needs no Spark
    while commits := advance._next_transactions(state, Span(1, position, top)):
        found.append(len(commits))
        position = commits[-1].position
    return found


@pytest.mark.parametrize(
    ("sizes", "bounds", "want"),
    [
        ([(10, 1)] * 7, {"span_rows": 30}, [3, 3, 1]),
        ([(10, 1)] * 7, {"span_rows": 35}, [3, 3, 1]),
        ([(1, 1000)] * 7, {"span_bytes": "3500 B"}, [3, 3, 1]),
        ([(1, 1), (100, 1000), (1, 1), (1, 1)], {"span_bytes": "2 KiB"}, [1, 1, 2]),
        ([(1, 1), (100, 1), (1, 1), (1, 1)], {"span_rows": 10}, [1, 1, 2]),
    ],
)
def test_a_span_is_closed_by_changes_or_bytes_and_never_inside_a_transaction(
    tmp_path: Path, sizes: list[tuple[int, int]], bounds: dict[str, Any], want: list[int]
) -> None:
    assert spans(tmp_path, sizes, **bounds) == want
