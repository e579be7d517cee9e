"""Every error of cdc_lake, drawn as a tree.

::

    CdcLakeError
    ├─ ConfigError      CFG1xx  a pipeline file, an environment, a reference
    ├─ SourceError      SRC2xx  the database: connection, slot, publication, snapshot
    ├─ DecodeError      DEC3xx  bytes of the stream
    ├─ LakeError        LAK4xx  tables: bronze, silver, control; Spark; catalogs
    ├─ QualityError     QUA5xx  rules and reports
    ├─ StateError       STA6xx  watermarks, fences, order
    └─ DeployError      DEP7xx  bundles, jobs, metrics

The message says what failed and where, the hint what to do, `retry` whether waiting helps. The cause is chained,
never pasted into the message; no message holds a row value or a secret. Each code has a page in `docs/errors/`.
"""

from __future__ import annotations

from cdc_lake.errors.base import *
from cdc_lake.errors.decode import *
from cdc_lake.errors.lake import *
from cdc_lake.errors.runtime import *
from cdc_lake.errors.source import *
