"""What a rebuild made, and how it differs from what was there, as text."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.lake.marker import FIRST
from cdc_lake.model.counting import counted
from cdc_lake.pipeline.applying.rebuild import Rebuilt
from cdc_lake.silver.difference import Difference


def rebuilt_text(done: Rebuilt) -> str:
    """A line for the table, then one for each thing that differs."""
    what = f"{done.table} at {done.position} from {done.source}"
    if done.version is None:
        head = f"{what}: built and set beside the table, which was left as it is"
    else:
        head = f"{what}: generation {done.generation}, version {done.version}"
    lines = [head, *_rows(done.difference), *_columns(done.difference), *_keys(done.difference)]
    lines += [f"done on the way: {operation}" for operation in done.operations]
    if done.operations and done.version is not None and done.generation > FIRST:
        shows = f"`cdc-lake compare {done.source}` shows it"
        lines.append(f"what the server did to rows with them and did not send is not in bronze: {shows}")
    if done.held:
        lines.append(f"{counted(done.held, 'change')} held by rules: `cdc-lake held list`")
    return "\n".join(lines)


def _rows(found: Difference) -> Iterator[str]:
    if found.before is None:
        yield counted(found.after, "row")
    elif found.added is None:
        yield f"{counted(found.after, 'row')}, {found.before:,} before; they cannot be set beside each other one by one"
    else:
        yield (
            f"{counted(found.after, 'row')}, {found.before:,} before: "
            f"{found.added:,} added, {found.removed:,} removed, {found.changed:,} changed"
        )


def _columns(found: Difference) -> Iterator[str]:
    columns = found.columns
    parts = (("new", columns.added), ("gone", columns.gone), ("of another type", columns.changed))
    yield from (f"columns {word}: {', '.join(names)}" for word, names in parts if names)


def _keys(found: Difference) -> Iterator[str]:
    for what, keys in found.keys.items():
        shown = ", ".join("(" + ", ".join("NULL" if part is None else part for part in key) + ")" for key in keys)
        yield f"{what}: {shown}"
