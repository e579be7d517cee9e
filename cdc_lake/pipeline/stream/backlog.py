"""The backlog: how much of the way to a known end is done."""

from __future__ import annotations

from cdc_lake.model.position import OrderDomain, format_position
from cdc_lake.observe.progress import Progress


def backlog(what: str, position: int, begins: int, end: int, domain: OrderDomain) -> Progress:
    """What was `received` or `applied` up to a position, on the way from where it began to its end."""
    unit = "CSNs" if domain is OrderDomain.CSN else "bytes of WAL"
    shown, done = format_position(position, domain), min(position, end) - begins
    return Progress("backlog", f"{what} up to {shown}", done, end - begins, unit, {"position": shown})
