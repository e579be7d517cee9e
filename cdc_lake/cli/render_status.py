"""A status as text: what it is about, the flow with its lags, the slot, the tables, what is held."""

from __future__ import annotations

from collections import Counter

from cdc_lake.cli.render import GREEN, RED, YELLOW, seconds, size, table, tint, wrapped
from cdc_lake.model.counting import counted
from cdc_lake.model.printable import printable
from cdc_lake.pipeline.status.standing import Lag, Status
from cdc_lake.pipeline.wal.note import BudgetStatus

_COLOURS = {
    "live": GREEN,
    "held": YELLOW,
    "paused": YELLOW,
    "broken": RED,
    "active": GREEN,
    "lost": RED,
    "missing": RED,
}


def status_text(status: Status, width: int, *, colour: bool = False) -> str:
    """The whole status. On a narrow terminal the reasons go below their tables."""
    lines = [f"pipeline  {status.pipeline}  at {status.at.isoformat(timespec='seconds')}"]
    where = status.source if status.reachable else f"{status.source}  not reachable: {status.unreachable_because}"
    lines += wrapped("source    ", where, width)
    lines += _slot(status, width, colour=colour)
    lines += wrapped("budget    ", _budget(seen), width) if (seen := status.wal_budget) is not None else []
    lines += wrapped("prepared  ", _prepared(status), width) if status.prepared else []
    last = status.last_commit
    landed = "no commit landed yet" if last is None else f"commit landed {last.isoformat(timespec='milliseconds')}"
    lines.append(f"last      {landed}")
    if (waits := status.receiver_waits) is not None:
        since, tried = (when.isoformat(timespec="seconds") for when in (waits.since, waits.tried))
        what = f"the receiver waits since {since}: {waits.message} ({waits.code}) at {waits.where}"
        lines += wrapped("waiting   ", what, width)
        lines.append(f"          last tried {tried}; it goes on by itself; the server keeps what was not confirmed")
    lines += ["", *_flow(status), "", *_tables(status, width, colour=colour)]
    lines += _verified(status)
    if status.undecodable:
        one, more = status.undecodable[0], len(status.undecodable) - 1
        also = f", and {counted(more, 'transaction')} more" if more else ""
        what = f"silver stops before {one.position}, which could not be decoded ({one.code}){also}"
        lines += ["", *wrapped("stopped   ", what, width)]
        lines.append("          `cdc-lake held list` says more")
    if (kept := status.withheld) is not None:
        what = f"the cut at {kept.position} is not promised as {kept.name}: {kept.reason}"
        lines += ["", *wrapped("withheld  ", what, width)]
    if status.held:
        lines += ["", "held", *table([(h.table, h.rule, f"{h.rows:,}") for h in status.held], right=frozenset({2}))]
    return "\n".join(lines)


def status_line(status: Status) -> str:
    """A status on one line: when, how far silver is and how far behind, the slot, tables by state, what is held."""
    by_state = Counter(table.state for table in status.tables)
    tables = ", ".join(f"{number} {state}" for state, number in by_state.items()) or "no tables"
    lag = status.applied
    known = [text for text in (size(lag.bytes), seconds(lag.seconds)) if text != "-"]
    behind = f", {' and '.join(known)} behind" if known else ""
    parts = [
        status.at.isoformat(timespec="seconds"),
        status.pipeline,
        f"silver at {status.silver_position}{behind}" if status.silver_position else "silver is empty",
        f"slot {status.slot.state}" if status.reachable else "source not reachable",
        tables,
        *([f"{counted(sum(held.rows for held in status.held), 'row')} held"] if status.held else []),
        *(["receiver waits"] if status.receiver_waits is not None else []),
    ]
    return "  ".join(parts)


def _verified(status: Status) -> list[str]:
    """How far comparisons proved tables equal to the source, and which they found to differ since."""
    rows = []
    for one in status.tables:
        if one.verified_at is not None or one.different_at is not None:
            through = "never" if one.verified_at is None else f"through {one.verified_through}"
            differs = "" if one.different_at is None else f"different {one.different_at:%Y-%m-%dT%H:%MZ}"
            when = "" if one.verified_at is None else f"{one.verified_at:%Y-%m-%dT%H:%MZ}"
            rows.append((one.table, through, when, differs))
    return ["", "verified", *table(rows)] if rows else []


def _slot(status: Status, width: int, *, colour: bool) -> list[str]:
    slot = status.slot
    kept = f", {size(slot.retained_bytes)} of WAL kept" if slot.retained_bytes is not None else ""
    kept += f", {size(slot.safe_bytes)} until it is in danger" if slot.safe_bytes is not None else ""
    first, *more = wrapped("slot      ", f"{slot.name}  {slot.state}{kept}: {slot.reason}", width)
    tinted = tint(slot.state, _COLOURS.get(slot.state, ""), on=colour and slot.state in _COLOURS)
    return [first.replace(f"{slot.name}  {slot.state}", f"{slot.name}  {tinted}", 1), *more]


def _prepared(status: Status) -> str:
    first, held = status.prepared[0], sum(one.bytes for one in status.prepared)
    age = seconds((status.at - first.prepared_at).total_seconds())
    many = f"{counted(len(status.prepared), 'transaction')} kept until COMMIT PREPARED, {size(held)}"
    return f"{many}; the oldest, `{first.gid}` (xid {first.xid}), for {age}"


def _budget(seen: BudgetStatus) -> str:
    grows = f", {size(round(seen.growth))}/s more" if seen.growth is not None and seen.growth >= 1 else ""
    ends = f", used up in {seconds(seen.exceeded_in)}" if seen.exceeded_in else ""
    waits = "; apply waits" if seen.pauses_apply else ""
    return f"{seen.step}  {seen.used:.0%} of the WAL budget{grows}{ends}: {seen.reason}{waits}"


def _flow(status: Status) -> list[str]:
    def row(name: str, position: str | None, lag: Lag) -> tuple[str, ...]:
        # What is not in bronze has no known commit time: it is no older than the last transaction that is.
        time = f"≤ {seconds(lag.seconds)}" if lag.seconds and name != "applied" else seconds(lag.seconds)
        return name, position or "-", size(lag.bytes), time, _transactions(lag.transactions)

    rows = [
        ("lag", "position", "bytes", "time", "transactions"),
        row("received", None, status.received),
        row("landed", status.bronze_position, status.landed),
        row("applied", status.silver_position, status.applied),
    ]
    return table(rows, right=frozenset({2, 3, 4}), indent="")


def _transactions(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _tables(status: Status, width: int, *, colour: bool) -> list[str]:
    if not status.tables:
        return ["no tables yet: `cdc-lake run --once` takes the first copy"]
    rows = [("table", "format", "state", "position")]
    rows += [(t.table, t.format, t.state, t.position or "-") for t in status.tables]
    lines = table(rows, indent="")
    reasons = ["", *(printable(t.reason, keep="") for t in status.tables)]
    remedies = ["", *(printable(t.remedy, keep="") for t in status.tables)]
    longest = max(map(len, lines)) + 2
    out = []
    states = ["", *(t.state for t in status.tables)]
    for line, reason, remedy, state in zip(lines, reasons, remedies, states, strict=True):
        shown = (
            line.replace(f"  {state}  ", f"  {tint(state, _COLOURS[state], on=colour)}  ", 1)
            if state in _COLOURS
            else line
        )
        if not reason:
            out.append(shown)
        elif longest + len(reason) <= width:
            out.append(shown + " " * (longest - len(line)) + reason)
        else:
            out += [shown, f"  {reason}"]
        out += [f"  → {remedy}"] if remedy else []
    by_state = counted(len(status.tables), "table")
    return [*out, f"{by_state}, {sum(t.state == 'live' for t in status.tables)} live"]
