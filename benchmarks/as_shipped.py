"""Imported first: Arrow is loaded as `cdc-lake run --only receive` loads it, for benchmarks whose child receives.

`tell` tells nobody, and gives memory back behind commits as that command does.
"""

from cdc_lake.cli import arrow_memory
from cdc_lake.observability.events import silent

arrow_memory.load()
tell = arrow_memory.giving_back(silent)
