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

import warnings
from typing import TYPE_CHECKING, Any, Final

from cdc_lake.errors.base import *
from cdc_lake.errors.decode import *
from cdc_lake.errors.lake import *
from cdc_lake.errors.runtime import *
from cdc_lake.errors.source import *

_FORMER: Final = {
    "HeldLost": "QuarantineLost", "HoldStays": "QuarantineRemains", "MergeRefused": "BaseRowMissing",
    "NotHeld": "NotQuarantined", "NotPromised": "NotPinned", "PositionNotHeld": "PositionUnavailable",
    "RepeatDiffers": "DuplicateMismatch", "ShapeForeign": "UnexpectedColumn", "SilverPutBack": "SilverRestored",
    "StoreBehind": "StaleObjectListing", "TableChangedMeanwhile": "ConcurrentModification",
    "TruncateHeld": "TruncateQuarantined",
}  # fmt: skip
"""Name in 0.3 → name. 0.5 will not know the former ones."""

if not TYPE_CHECKING:  # mypy would take every name for one that the module has

    def __getattr__(name: str) -> Any:
        """PEP 562: an error under its name of 0.3, with a warning."""
        if name not in _FORMER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        words = f"`{__name__}.{name}` is now `{_FORMER[name]}`; 0.5 will not know `{name}`"
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        return globals()[_FORMER[name]]
