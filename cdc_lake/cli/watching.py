"""`status --watch`: a live view on a terminal, a line each time elsewhere, a document a line with `--json`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc_lake.cli.document import document
from cdc_lake.cli.render_error import error_text
from cdc_lake.cli.render_status import status_line, status_text
from cdc_lake.cli.view import View, error_document
from cdc_lake.errors import CdcLakeError, Retry
from cdc_lake.model.printable import printable

if TYPE_CHECKING:
    from cdc_lake.pipeline.status.standing import Status


def watch_status(view: View, look: Callable[[], Status], every: float) -> None:
    """Look and show until Ctrl-C. A source or lake that is away is shown as that, and looked for again.

    Raises what waiting does not heal.
    """
    live = sys.stdout.isatty() and not view.look.json
    while True:
        try:
            found = look()
        except CdcLakeError as error:
            if error.retry is Retry.NEVER:
                raise
            _away(view, error, live=live)
        else:
            _show(view, found, every, live=live)
        time.sleep(every)


def _show(view: View, found: Status, every: float, *, live: bool) -> None:
    if view.look.json:
        view.event(document(view.verb, found))
    elif live:
        text = status_text(found, view.width, colour=view.look.colour(sys.stdout))
        view.screen(f"{text}\n\nevery {every:g} s, Ctrl-C ends")
    else:
        view.raw(printable(status_line(found), keep=""))


def _away(view: View, error: CdcLakeError, *, live: bool) -> None:
    if view.look.json:
        view.event(error_document(error))
    elif live:
        view.screen(error_text(error, colour=view.look.colour(sys.stdout)))
    else:
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')}  {error.code}: {error.message}"
        view.raw(printable(line, keep=""))
