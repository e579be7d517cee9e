"""Kinds of silver tables: what a table keeps of its source table, and how changes are merged into it.

`current` keeps the current rows, `history` every version of a row, `append` every change. A kind defines which columns
the table has, converts changes to what is written, and writes it in one statement. In the MERGE statements, `t` is the
silver table and `s` the net change of a span.

Metadata columns, which the source table does not have, start with an underscore, except those of history, which people
query. A source column of the same name is an error of the pipeline (`NameTaken`), and is never lost.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from cdc_lake.errors import NameTaken
from cdc_lake.model.change import Truncated
from cdc_lake.model.position import Span
from cdc_lake.silver.changes import OP
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.tables.types import SilverColumn, literal, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


LINEAGE: Final = {
    SilverColumn("_csn", "bigint"): "csn",
    SilverColumn("_lsn", "bigint"): "lsn",
    SilverColumn("_xid", "bigint"): "xid",
    SilverColumn("_ordinal", "bigint"): "ordinal",
    SilverColumn("_commit_ts", "timestamp"): "commit_ts",
}
"""Columns of lineage and the columns of bronze from which they come; those of the last change of a row."""

DELETED: Final = SilverColumn("_is_deleted", "boolean")
"""Soft deletes: the source no longer has the row, and its values are the last ones. (Iceberg reserves the name
`_deleted`.)"""

VALID_FROM: Final = (
    SilverColumn("valid_from_epoch", "int"),
    SilverColumn("valid_from", "bigint"),
    SilverColumn("valid_from_ts", "timestamp"),
)
VALID_TO: Final = (
    SilverColumn("valid_to_epoch", "int"),
    SilverColumn("valid_to", "bigint"),
    SilverColumn("valid_to_ts", "timestamp"),
)
IS_CURRENT: Final = SilverColumn("is_current", "boolean")
"""History: a version is valid from the transaction at `(valid_from_epoch, valid_from)`, committed at `valid_from_ts`,
until before the one at `(valid_to_epoch, valid_to)`, or until now if NULL. Rows of the initial copy have the copy's
position and no time."""

CHANGE: Final = {
    SilverColumn("_op", "string"): "op",
    SilverColumn("_epoch", "int"): "epoch",
    SilverColumn("_position", "bigint"): "position",
    SilverColumn("_ordinal", "bigint"): "ordinal",
    SilverColumn("_csn", "bigint"): "csn",
    SilverColumn("_lsn", "bigint"): "lsn",
    SilverColumn("_xid", "bigint"): "xid",
    SilverColumn("_commit_ts", "timestamp"): "commit_ts",
}
"""Append: the place of each change, from bronze."""

WORKING: Final = "_cdc_"
"""Prefix of columns that exist only while a span is applied."""

COPY: Final = SilverColumn("_copy", "bigint")
"""Rows of a table without a key: the number of this row among those with the same values, from 1 on."""

UNSENT: Final = SilverColumn("_unchanged", "array<string>")
"""Append: silver columns whose value was not sent, because it did not change; NULL if all were sent."""


def old_column(column: SilverColumn) -> SilverColumn:
    """Append: the value of a column before the change."""
    return SilverColumn(f"_old_{column.name}", column.type)


def with_own(shape: RelationMapping, own: Sequence[SilverColumn] = ()) -> tuple[SilverColumn, ...]:
    """The source's columns, then those that come with changes, then `own`. Raises NameTaken."""
    extra = (*shape.carried, *own)
    extra_names = {column.name.casefold() for column in extra}
    for column in shape.columns:
        if column.name.casefold() in extra_names or column.name.casefold().startswith(WORKING):
            raise NameTaken(
                f"{shape.relation.table} has a column `{column.name}`, which is also the name of a column that "
                "silver adds"
            )
    return (*shape.columns, *extra)


@dataclass(frozen=True, slots=True)
class TablePart:
    """A table's part of a span. `unsent`: positions of columns that some change did not send; `truncated`: the table's
    truncates in it, in order. `released`: it contains released changes, which no rule evaluates.
    """

    shape: RelationMapping
    unsent: frozenset[int]
    truncated: tuple[Truncated, ...]
    span: Span
    released: bool = False


@dataclass(frozen=True, slots=True)
class LivenessColumn:
    """A boolean column of a silver table, and its value in the rows that the source table has now."""

    column: SilverColumn
    value: bool


class RowIdentity(enum.Enum):
    """How a change identifies its row."""

    KEY = "key"
    """By its key: there is one row per key."""
    CONTENT = "content"
    """By all its values: there may be several such rows."""
    PLACE = "place"
    """Not at all: every change is a row of its own."""


class Kind(ABC):
    """A kind of silver table."""

    __slots__ = ()

    words: ClassVar[str]
    """The name of the kind in the pipeline file."""
    own: ClassVar[tuple[SilverColumn, ...]] = ()
    """The columns by which a table of this kind is recognized; none for the simplest one."""
    flag: ClassVar[LivenessColumn | None] = None
    """Marks the rows that the source table has now, which changes may concern; None: all rows."""
    identity: ClassVar[RowIdentity] = RowIdentity.KEY
    """How changes find their rows."""
    added: ClassVar[str] = "U"
    """The operation of rows in the result of `net` that are inserted if their key is not in the table."""

    def passthrough_columns(self, shape: RelationMapping) -> Mapping[SilverColumn, str]:
        """Columns of the table that come with each change, with the SQL over bronze's row for them."""
        del shape
        return {}

    def columns(self, shape: RelationMapping) -> tuple[SilverColumn, ...]:
        """All columns of the silver table: the source's, those that come with changes, its own. Raises NameTaken."""
        return with_own(shape, [column for column in self.own if column not in shape.carried])

    def names(self, shape: RelationMapping) -> list[str]:
        """The names of all columns, quoted. Raises NameTaken."""
        return [quote_identifier(column.name) for column in self.columns(shape)]

    @abstractmethod
    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Convert typed changes to what is written; `target`: the table's live rows before, None without any.

        `traced`: the changes have `_cdc_row` and `_cdc_origin` (`runtime.apply.key_following`).
        """

    @abstractmethod
    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """The SQL that merges view `view`, the result of `net`, into `table`.

        `within`: conditions that all affected rows of `t` meet; they let files be skipped.
        """

    def append_sql(self, table: str, view: str, part: TablePart) -> str:
        """The same as an append, if no key of view `view` is in `table`."""
        return insert(table, view, self.names(part.shape), self.added)

    def first(self, view: str, shape: RelationMapping) -> str:
        """The query of a table's whole content if it begins with a copy; `view` is the result of `net`."""
        return select(view, self.names(shape), self.added)


def same_key(part: TablePart, within: Sequence[str]) -> str:
    """The condition that rows have the same key. `within`, conditions that all of them meet, let files be skipped,
    except after a truncate, which concerns every row.

    `<=>` is used only for nullable parts of the key: only `=` lets files be skipped.
    """
    shape = part.shape
    names = [quote_identifier(column.name) for column in shape.key_columns]
    same = [
        f"{shape.row_key(index, f't.{name}')} {'<=>' if index in shape.nullable else '='} s.{name}"
        for index, name in enumerate(names)
    ]
    return " AND ".join([*same, *([] if part.truncated else within)])


def assignments(columns: Iterable[SilverColumn]) -> list[str]:
    """The assignments of an UPDATE that takes these columns from `s`."""
    return [f"{name} = s.{name}" for name in (quote_identifier(column.name) for column in columns)]


def insert(table: str, view: str, columns: Iterable[str], op: str) -> str:
    """Append the rows of a view with operation `op`; `columns`: as in `select`."""
    return f"INSERT INTO {table} BY NAME {select(view, columns, op)}"


def select(view: str, columns: Iterable[str], op: str) -> str:
    """The rows of a view with operation `op`; `columns`: names, or SQL over `s` AS a name."""
    return f"SELECT {', '.join(columns)} FROM {view} s WHERE s.{OP} = {literal(op)}"


def typed_literal(value: object, column: SilverColumn) -> str:
    """SQL for a value of a column, None for NULL."""
    return f"CAST({'NULL' if value is None else literal(str(value))} AS {column.type})"
