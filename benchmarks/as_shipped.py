"""Imported first: Arrow is loaded as `cdc-lake run --only receive` loads it, for benchmarks whose child receives.

`tell` tells nobody, and gives memory back behind commits as that command does.
"""

import sys

from cdc_lake.cli import lean_arrow
from cdc_lake.observe.progress import silent

if "pyarrow" in sys.modules:
    raise ImportError("what is measured would not be what is shipped: Arrow was loaded before `as_shipped`")
lean_arrow.load()
tell = lean_arrow.giving_back(silent)
