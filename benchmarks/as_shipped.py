"""Imported first: Arrow is loaded as `cdc-lake run --only receive` loads it, for benchmarks whose child receives.

`tell` tells nobody, and gives memory back behind commits as that command does.
"""

from cdc_lake.cli import lean_arrow
from cdc_lake.observe.progress import silent

lean_arrow.load()
tell = lean_arrow.giving_back(silent)
