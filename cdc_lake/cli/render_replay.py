"""What a replay or a recording amounts to, as text."""

from __future__ import annotations

from cdc_lake.cli.render import seconds, size
from cdc_lake.model.counting import counted
from cdc_lake.pipeline.inspect.record import Recorded
from cdc_lake.pipeline.inspect.replay import Replayed


def replayed_text(found: Replayed) -> str:
    """A recording: its stream, then one line a table."""
    csns = "" if found.first_csn is None else f", CSN {found.first_csn} to {found.last_csn}"
    messages = f"{counted(found.messages, 'message')}, {size(found.bytes)}, {counted(found.keepalives, 'keepalive')}"
    lines = [
        f"{found.file}: {found.plugin}, {messages}",
        f"{counted(found.transactions, 'transaction')}, {found.empty:,} of them empty{csns}",
    ]
    for table, kinds in found.changes.items():
        lines.append(f"  {table}: " + ", ".join(counted(number, kind) for kind, number in kinds.items()))
    if found.others:
        lines.append("also: " + ", ".join(counted(number, kind) for kind, number in found.others.items()))
    if found.open_changes:
        lines.append(f"it ends inside a transaction, after {counted(found.open_changes, 'change')} of it")
    return "\n".join(lines)


def _unreadable(found: Recorded) -> str:
    number = found.unreadable
    return f", and {counted(number, 'message')} as a whole: not to be read" if number else ""


def recorded_text(found: Recorded) -> str:
    """What was recorded, and what to do with it."""
    transactions = "" if found.transactions is None else f"{counted(found.transactions, 'transaction')}, "
    messages = f"{counted(found.messages, 'message')} and {counted(found.keepalives, 'keepalive')}"
    return "\n".join(
        [
            f"recorded {transactions}{messages}, {size(found.bytes)} in {seconds(found.seconds)}, into {found.file}",
            *([f"every value is overwritten{_unreadable(found)}"] if found.redacted else []),
            f"next: cdc-lake replay {found.file}",
        ]
    )
