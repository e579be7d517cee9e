"""Source tables that would be written to one silver table: their names differ only in what silver's names do not have.

A silver table's name is the source's in lower case with `_` for what is not a letter or digit of ASCII, so `orders` and
`Orders`, or two names in another alphabet, may have one (`config.project.default_name`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cdc_lake.config.project import Project
from cdc_lake.errors import SilverNameShared
from cdc_lake.lake.owner import read_owner
from cdc_lake.model.relation import TableName


def shared_names(project: Project, tables: Iterable[TableName]) -> dict[TableName, SilverNameShared]:
    """Of the tables that have no silver table to themselves, why."""
    by_name: defaultdict[str, list[TableName]] = defaultdict(list)
    for table in sorted(set(tables)):
        by_name[project.target(table).label.casefold()].append(table)
    out: dict[TableName, SilverNameShared] = {}
    for several in by_name.values():
        if len(several) > 1:
            listed = ", ".join(f"`{table}`" for table in several[:-1])
            label = project.target(several[0]).label
            text = f"{listed} and `{several[-1]}` would both be written to {label}"
            out |= {
                table: SilverNameShared(text, where=project.written(project.target(table), "to")) for table in several
            }
    return out


def refused_names(project: Project, tables: Iterable[TableName]) -> dict[TableName, SilverNameShared]:
    """The same without those that are merged all the same: the silver table was made for the rows of theirs."""
    shared = shared_names(project, tables)
    return {table: error for table, error in shared.items() if not _is_of(project, table)}


def _is_of(project: Project, table: TableName) -> bool:
    owner = read_owner(project, project.target(table))
    return owner is not None and owner.source == str(table)


def check_names(project: Project, tables: Iterable[TableName]) -> None:
    """Raise SilverNameShared for the first of them."""
    for error in shared_names(project, tables).values():
        raise error
