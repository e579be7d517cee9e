"""The places to break a pipeline at, as text: the crash points in their order, then the failpoints beyond them."""

from __future__ import annotations

from cdc_lake.cli.render import table
from cdc_lake.observe.crash_points import FailpointList


def failpoints_text(found: FailpointList) -> str:
    """Each crash point with its failpoints under it, and how one is armed."""
    says = {one.name: one.says for one in found.failpoints}
    rows = table([(name, says[name]) for name in says], indent="     ")
    lines = dict(zip(says, rows, strict=True))
    told = [
        f"{found.variable}=NAME kills the process that comes there (SIGKILL), NAME:3 the third time it does.",
        "Whatever died there, the next start ends at the same state.",
        "",
    ]
    for point in found.points:
        told += [f"{point.number:>3}  {point.says}", *(lines[name] for name in point.failpoints)]
        told += [f"     {point.besides}"] if point.besides else []
    beyond = [lines[one.name] for one in found.failpoints if not one.points]
    return "\n".join([*told, "", "beyond these", *beyond])
