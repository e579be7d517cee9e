"""Redaction that changed in the middle of a stream: a silver table cannot hold values of both kinds.

Bronze goes on under the new rules. Silver would mix old and new without a word: a hash beside the value, or one row
twice, under the hash of its key by the old key and by the new one. So when a configuration begins it is noted which
columns that bronze holds are redacted otherwise from there on, and their tables wait there, like those whose columns
change destructively. Columns and tables that come later are not of this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from cdc_lake.config.capture import compile_columns
from cdc_lake.config.project import Target
from cdc_lake.errors import DestructiveChange
from cdc_lake.lake.control_rows import ConfigurationRow
from cdc_lake.model.relation import Relation
from cdc_lake.model.span import Span

NOTHING: Final[Mapping[str, Any]] = {"redact": [], "key": None}
"""Settings under which nothing is redacted."""


def changed_columns(
    before: Mapping[str, Any], after: Mapping[str, Any], held: Callable[[], Iterable[Relation]]
) -> list[str]:
    """Columns of layouts that bronze holds whose fate is another one under other settings: `schema.table.column`."""
    if (before["redact"], before["key"]) == (after["redact"], after["key"]):
        return []
    names = {(r.table, column) for r in held() for column in r.names}
    full = (table.column(column) for table, column in names)
    return sorted(name for name in full if _fate(before, name) != _fate(after, name))


def check_unchanged(rows: Sequence[ConfigurationRow], target: Target, span: Span, since: Callable[[], int]) -> None:
    """Raise DestructiveChange where a column of the table is redacted otherwise from somewhere below the span's end.

    `since`: the position of the copy that the table's rows begin with: what changed before it is of no row.
    """
    for row in rows:
        if row.epoch == span.epoch and row.position is not None and row.position < span.upto:
            column = next((name for name in json.loads(row.changed) if name.startswith(f"{target.source}.")), None)
            if column is not None and row.position >= since():
                hint = f"copy the table again, as it is redacted now: `cdc-lake resync {target.source}`"
                if target.keeps_past:
                    hint = f"`cdc-lake restart` copies all tables again; the past of {target.label} stays as it is"
                raise DestructiveChange(f"column `{column}` is redacted otherwise than before", hint=hint)


def _fate(settings: Mapping[str, Any], name: str) -> tuple[str, str | None] | None:
    """What becomes of a column's values: the strategy, and of hashes which key."""
    for pattern, strategy in settings["redact"]:
        if compile_columns(pattern).fullmatch(name):
            return strategy, settings["key"] if strategy == "sha256" else None
    return None
