"""Imported first: Arrow is loaded as `cdc-lake run --only receive` loads it, for benchmarks whose child receives."""

from cdc_lake.cli import lean_arrow

lean_arrow.load()
