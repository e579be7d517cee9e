"""Where the time of a span goes, step by step."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.runtime.apply import merge, schema_changes, span_planning, table_planner, table_schema, table_span
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.delta_silver import DeltaSilver
from cdc_lake.tables.delta_table_log import DeltaTableLog
from cdc_lake.tables.iceberg_silver import IcebergSilver
from cdc_lake.tables.iceberg_table_log import IcebergTableLog


class Phases:
    """Where the time of `Advance.run` goes: seconds of our steps, each without what it calls of the others.

    With one table all steps run one after the other, so they add up to the whole.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: dict[int, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        inner = self._running[threading.get_ident()]
        inner.append(0.0)
        begun = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - begun
            with self._lock:
                self.seconds[name] += took - inner.pop()
            if inner:
                inner[-1] += took

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def around(*given: Any, **named: Any) -> Any:
            with self.of(name):
                return call(*given, **named)

        return around

    def _commit(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def around(silver: Any, *arguments: Any) -> Any:
            spark = silver._spark  # noqa: SLF001  # its session is shared
            run, merge = spark.sql, self.timed(spark.sql, "merge")

            def sql(text: str, *more: Any, **named: Any) -> Any:
                return (merge if text.lstrip().startswith(("MERGE", "INSERT")) else run)(text, *more, **named)

            with self.of("commit: branch, marker"), patch.object(spark, "sql", sql):
                return call(silver, *arguments)

        return around

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure inside."""
        places: list[tuple[Any, str, str]] = [
            (DeltaTableLog, "marker", "read markers"),
            (IcebergTableLog, "marker", "read markers"),
            (table_planner, "record", "holds"),
            (table_planner, "outline", "outline"),
            (span_planning, "outline", "outline"),
            (table_span, "survey", "survey"),
            (schema_changes, "evolve", "look up columns"),
            (table_schema, "mark_when_large", "weigh the table"),
            (merge, "strategy_of", "weigh the table"),
            (DeltaTableLog, "commit_metrics", "read what was written"),
            (IcebergTableLog, "commit_metrics", "read what was written"),
            (table_span, "read_changes", "open bronze files"),
            (table_span, "fold", "build the plan"),
            (DeltaSilver, "marker", "read markers"),
            (IcebergSilver, "marker", "read markers"),
            (IcebergSilver, "_publish", "publish the branch"),
            (ControlTables, "read", "holds"),
            (ControlTables, "last_cut", "cut"),
            (ControlTables, "record", "cut"),
            (BronzeReader, "_commits", "bronze log"),
            (BronzeReader, "state", "bronze log"),
            (BronzeReader, "files", "bronze log"),
            (BronzeReader, "layouts", "bronze log"),
        ]
        with ExitStack() as patched:
            for owner, name, phase in places:
                patched.enter_context(patch.object(owner, name, self.timed(getattr(owner, name), phase)))
            for silver in (DeltaSilver, IcebergSilver):
                patched.enter_context(patch.object(silver, "commit", self._commit(silver.commit)))
            begun = time.perf_counter()
            before = dict(self.seconds)
            yield
            took = time.perf_counter() - begun
            inside = sum(seconds - before.get(name, 0.0) for name, seconds in self.seconds.items())
            self.seconds["everything else"] += took - inside
