"""What a source was lost by, counted where a test lived through it: the promises R12 and R20 (`tests.tally`)."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from cdc_lake.errors import CdcLakeError
from cdc_lake.observability.events import ProgressEvent
from tests.canary import leaks
from tests.conftest import CDC_PASSWORD
from tests.tally import tally


def lived_through(
    what: str, root: Path, told: Sequence[ProgressEvent], error: BaseException | None = None, secret: str = CDC_PASSWORD
) -> None:
    """A loss that ended by an `error` of its own, or was recovered from; below `root` is all that was written.

    Nothing that was said or written holds the password.
    """
    if error is not None:
        assert isinstance(error, CdcLakeError)
        assert error.remedy, "it says what to do"
    said = "".join(traceback.format_exception(error)) if error is not None else ""
    assert secret not in said + repr(told)
    assert leaks(root, [secret]) == []
    tally("R12", {what}, losses=1)
    tally("R20", {what}, paths=1)
