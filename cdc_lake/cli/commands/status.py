"""Text of the command `status`: source, slot, flow with lags, tables, quarantine; and the type ledger of `check`.

`status --watch` is a live view on a terminal, otherwise one line each time, or one document per line with `--json`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc_lake.cli.output import CommandOutput, document, error_document
from cdc_lake.cli.text import GREEN, RED, YELLOW, error_text, format_count, seconds, table, tint, wrap_line
from cdc_lake.errors import CdcLakeError, Retry
from cdc_lake.model.diagnostic import pluralize, printable, size

if TYPE_CHECKING:
    from cdc_lake.connectors.wal_budget import BudgetStatus
    from cdc_lake.ops.plan import ColumnLedger, TableLedger
    from cdc_lake.ops.status import Lag, Status


_COLOURS = {
    "live": GREEN,
    "quarantined": YELLOW,
    "paused": YELLOW,
    "failed": RED,
    "active": GREEN,
    "lost": RED,
    "missing": RED,
}


def status_text(status: Status, width: int, *, colour: bool = False) -> str:
    """The whole status. On a narrow terminal the reasons are below their tables."""
    lines = [f"pipeline  {status.pipeline}  at {status.at.isoformat(timespec='seconds')}"]
    where = status.source if status.reachable else f"{status.source}  not reachable: {status.unreachable_because}"
    lines += wrap_line("source    ", where, width)
    lines += _slot(status, width, colour=colour)
    lines += wrap_line("budget    ", _budget(budget), width) if (budget := status.wal_budget) is not None else []
    lines += wrap_line("prepared  ", _prepared_text(status), width) if status.prepared else []
    last = status.last_commit
    landed = "no commit landed yet" if last is None else f"commit landed {last.isoformat(timespec='milliseconds')}"
    lines.append(f"last      {landed}")
    if (waits := status.receiver_waits) is not None:
        since, tried = (when.isoformat(timespec="seconds") for when in (waits.since, waits.tried))
        what = f"the receiver waits since {since}: {waits.message} ({waits.code}) at {waits.where}"
        lines += wrap_line("waiting   ", what, width)
        lines.append(
            f"          last tried {tried}; it continues by itself; the server keeps what was not acknowledged"
        )
    lines += ["", *_flow(status), "", *_tables(status, width, colour=colour)]
    lines += _verified_lines(status)
    if status.undecodable:
        transaction, more = status.undecodable[0], len(status.undecodable) - 1
        also = f", and {pluralize(more, 'transaction')} more" if more else ""
        what = f"silver stops before {transaction.position}, which could not be decoded ({transaction.code}){also}"
        lines += ["", *wrap_line("stopped   ", what, width)]
        lines.append("          `cdc-lake quarantine list` shows more")
    if (withheld := status.withheld) is not None:
        what = f"the cut at {withheld.position} is not pinned as {withheld.name}: {withheld.reason}"
        lines += ["", *wrap_line("withheld  ", what, width)]
    if status.quarantined:
        rows = [(h.table, h.rule, f"{h.rows:,}") for h in status.quarantined]
        lines += ["", "quarantine", *table(rows, right=frozenset({2}))]
    return "\n".join(lines)


def status_line(status: Status) -> str:
    """A status in one line: time, silver's position and lag, the slot, tables by state, quarantined changes."""
    by_state = Counter(table.state for table in status.tables)
    tables = ", ".join(f"{number} {state}" for state, number in by_state.items()) or "no tables"
    lag = status.applied
    lags = [text for text in (size(lag.bytes), seconds(lag.seconds)) if text != "-"]
    lag_text = f", {' and '.join(lags)} behind" if lags else ""
    parts = [
        status.at.isoformat(timespec="seconds"),
        status.pipeline,
        f"silver at {status.silver_position}{lag_text}" if status.silver_position else "silver is empty",
        f"slot {status.slot.state}" if status.reachable else "source not reachable",
        tables,
    ]
    if status.quarantined:
        parts.append(f"{pluralize(sum(row.rows for row in status.quarantined), 'row')} in quarantine")
    if status.receiver_waits is not None:
        parts.append("receiver waits")
    return "  ".join(parts)


def _verified_lines(status: Status) -> list[str]:
    """Up to where comparisons proved tables equal to the source, and tables found to differ since."""
    rows = []
    for table_status in status.tables:
        if table_status.verified_at is not None or table_status.different_at is not None:
            through = "never" if table_status.verified_at is None else f"through {table_status.verified_through}"
            differs = (
                "" if table_status.different_at is None else f"different {table_status.different_at:%Y-%m-%dT%H:%MZ}"
            )
            when = "" if table_status.verified_at is None else f"{table_status.verified_at:%Y-%m-%dT%H:%MZ}"
            rows.append((table_status.table, through, when, differs))
    return ["", "verified", *table(rows)] if rows else []


def _slot(status: Status, width: int, *, colour: bool) -> list[str]:
    slot = status.slot
    retained = f", {size(slot.retained_bytes)} of WAL kept" if slot.retained_bytes is not None else ""
    retained += f", {size(slot.safe_bytes)} until it is at risk" if slot.safe_bytes is not None else ""
    first, *more = wrap_line("slot      ", f"{slot.name}  {slot.state}{retained}: {slot.reason}", width)
    tinted = tint(slot.state, _COLOURS.get(slot.state, ""), on=colour and slot.state in _COLOURS)
    return [first.replace(f"{slot.name}  {slot.state}", f"{slot.name}  {tinted}", 1), *more]


def _prepared_text(status: Status) -> str:
    first, held = status.prepared[0], sum(transaction.bytes for transaction in status.prepared)
    age = seconds((status.at - first.prepared_at).total_seconds())
    many = f"{pluralize(len(status.prepared), 'transaction')} kept until COMMIT PREPARED, {size(held)}"
    return f"{many}; the oldest, `{first.gid}` (xid {first.xid}), for {age}"


def _budget(budget: BudgetStatus) -> str:
    grows = f", {size(round(budget.growth))}/s more" if budget.growth is not None and budget.growth >= 1 else ""
    ends = f", used up in {seconds(budget.exceeded_in)}" if budget.exceeded_in else ""
    waits = "; apply waits" if budget.pauses_apply else ""
    return f"{budget.step}  {budget.used:.0%} of the WAL budget{grows}{ends}: {budget.reason}{waits}"


def _flow(status: Status) -> list[str]:
    def row(name: str, position: str | None, lag: Lag) -> tuple[str, ...]:
        # A commit time is known only in bronze: later changes are not older than its last transaction.
        time = f"≤ {seconds(lag.seconds)}" if lag.seconds and name != "applied" else seconds(lag.seconds)
        return name, position or "-", size(lag.bytes), time, format_count(lag.transactions)

    rows = [
        ("lag", "position", "bytes", "time", "transactions"),
        row("received", None, status.received),
        row("landed", status.bronze_position, status.landed),
        row("applied", status.silver_position, status.applied),
    ]
    return table(rows, right=frozenset({2, 3, 4}), indent="")


def _tables(status: Status, width: int, *, colour: bool) -> list[str]:
    """A line per table; its reason at the end of the line, or below if it does not fit, then its remedy."""
    if not status.tables:
        return ["no tables yet: `cdc-lake run --once` takes the initial snapshot"]
    rows = [("table", "format", "state", "position")]
    rows += [(t.table, t.format, t.state, t.position or "-") for t in status.tables]
    head, *lines = table(rows, indent="")
    longest = max(map(len, [head, *lines])) + 2
    parts = [head]
    for line, entry in zip(lines, status.tables, strict=True):
        state, reason = entry.state, printable(entry.reason, keep="")
        tinted = tint(state, _COLOURS.get(state, ""), on=colour and state in _COLOURS)
        shown = line.replace(f"  {state}  ", f"  {tinted}  ", 1)
        if reason and longest + len(reason) <= width:
            shown, reason = shown + " " * (longest - len(line)) + reason, ""
        parts += [shown, *([f"  {reason}"] if reason else [])]
        parts += [f"  → {printable(entry.remedy, keep='')}"] if entry.remedy else []
    by_state = pluralize(len(status.tables), "table")
    return [*parts, f"{by_state}, {sum(t.state == 'live' for t in status.tables)} live"]


def watch_status(view: CommandOutput, load_status: Callable[[], Status], every: float) -> None:
    """Show the status repeatedly until Ctrl-C. An unreachable source or lake is shown as such, and retried.

    Raises permanent errors.
    """
    live = sys.stdout.isatty() and not view.options.json
    while True:
        try:
            current = load_status()
        except CdcLakeError as error:
            if error.retry is Retry.NEVER:
                raise
            _show_error(view, error, live=live)
        else:
            _show(view, current, every, live=live)
        time.sleep(every)


def _show(view: CommandOutput, status: Status, every: float, *, live: bool) -> None:
    if view.options.json:
        view.event(document(view.verb, status))
    elif live:
        text = status_text(status, view.width, colour=view.options.colour(sys.stdout))
        view.screen(f"{text}\n\nevery {every:g} s, Ctrl-C ends")
    else:
        view.raw(printable(status_line(status), keep=""))


def _show_error(view: CommandOutput, error: CdcLakeError, *, live: bool) -> None:
    if view.options.json:
        view.event(error_document(error))
    elif live:
        view.screen(error_text(error, colour=view.options.colour(sys.stdout)))
    else:
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')}  {error.code}: {error.message}"
        view.raw(printable(line, keep=""))


_TYPE_COLOURS = {"converted": YELLOW, "refused": RED}


FEW = 5
"""Number of tables whose columns are shown by default."""


def ledger_text(ledger: Sequence[TableLedger], *, colour: bool, verb: str = "check", verbose: bool = True) -> str:
    """The mapping of every captured column, a blank line after each table; empty if nothing is captured.

    Without `verbose`, of many tables only the first few with refused columns.
    """
    parts, left = [], 0
    if not verbose and len(ledger) > FEW:
        wrong = [
            table_ledger
            for table_ledger in ledger
            if table_ledger.problem or any(c.loss.value == "refused" for c in table_ledger.columns)
        ][:FEW]
        left, ledger = len(ledger) - len(wrong), wrong
    for table_ledger in ledger:
        parts.append(f"types of {table_ledger.table} → {table_ledger.silver}")
        misfit = "held" if table_ledger.misfit == "quarantine" else "stops"
        rows = table([_row(column, misfit) for column in table_ledger.columns])
        for line, column in zip(rows, table_ledger.columns, strict=True):
            tone = _TYPE_COLOURS.get(column.loss.value)
            parts.append(tint(line, tone, on=colour) if tone else line)
        if table_ledger.identity:
            unsent = f": {table_ledger.unsent}" if table_ledger.unsent else ": nothing of a change is lost"
            parts.append(f"  replica identity {table_ledger.identity}{unsent}")
        if table_ledger.problem:
            parts.append(tint(f"  {table_ledger.problem}", RED, on=colour))
        parts.append("")
    if left:
        parts += [f"types of {left} more tables: `cdc-lake {verb} -v`", ""]
    return "\n".join([*parts, ""]) if parts else ""


def _row(column: ColumnLedger, misfit: str) -> tuple[str, ...]:
    renamed = "" if column.silver_column == column.column else column.silver_column
    becomes = " ".join(filter(None, ("→", renamed, column.silver_type)))
    remarks = [column.how, f"{misfit}: {column.held}" if column.held else ""]
    return column.column, column.source_type, becomes, column.loss.value, "; ".join(filter(None, remarks))
