"""Columns of a silver table that its source table does not have: which change made a row, since when it is one.

Their names start with an underscore, but for those of history, which people query by: a source column of the same name
is an error of the pipeline (`NameTaken`), never a column that is lost.

Kinds: what a silver table keeps of its source table, as what the apply loop merges through.

`current` keeps the rows as they are now, `history` every version of a row, `append` every change. A kind says which
columns the table has, turns changes into what is to be written, and writes it in one statement.

SQL that the MERGEs of several kinds share: `t` is the silver table, `s` what a span amounts to.
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
"""Which column of bronze each column of lineage is; those of the last change of a row."""

DELETED: Final = SilverColumn("_is_deleted", "boolean")
"""Soft deletes: the source does not have the row any more. Its values are the last ones. (Iceberg keeps the name
`_deleted` for itself.)"""

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
"""History: a version holds from the transaction at `(valid_from_epoch, valid_from)`, committed at `valid_from_ts`,
until before the one at `(valid_to_epoch, valid_to)`; NULL there: until now. Rows of the initial copy have the copy's
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
"""What the names of columns begin with that exist only while a span is applied."""

COPY: Final = SilverColumn("_copy", "bigint")
"""Rows of a table that has no key: the number of this row among those with the same values, from 1 on."""

UNSENT: Final = SilverColumn("_unchanged", "array<string>")
"""Append: silver columns whose value was not sent, because it did not change; NULL where all were."""


def old_column(column: SilverColumn) -> SilverColumn:
    """Append: what the server said of a column of the row as it was before."""
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
    """A table's part of a span. `unsent`: positions of columns that some change did not send; `truncated`: the
    table's truncates in it, in order. `released`: held changes are let through in it, which no rule judges.
    """

    shape: RelationMapping
    unsent: frozenset[int]
    truncated: tuple[Truncated, ...]
    span: Span
    released: bool = False


@dataclass(frozen=True, slots=True)
class LivenessColumn:
    """A boolean column of a silver table, and its value in the rows that the source's table has now."""

    column: SilverColumn
    value: bool


class RowIdentity(enum.Enum):
    """What a change says of the row it is of."""

    KEY = "key"
    """Its key: there is one row a key."""
    CONTENT = "content"
    """All its values: there may be several such rows."""
    PLACE = "place"
    """Nothing: every change is a row of its own."""


class Kind(ABC):
    """One kind of table."""

    __slots__ = ()

    words: ClassVar[str]
    """The kind as the pipeline file says it."""
    own: ClassVar[tuple[SilverColumn, ...]] = ()
    """The columns by which a table is known to be of this kind; none of the plainest."""
    flag: ClassVar[LivenessColumn | None] = None
    """Which rows the source's table has now, and changes may refer to; None: all."""
    identity: ClassVar[RowIdentity] = RowIdentity.KEY
    """By what changes find their rows."""

    def passthrough_columns(self, shape: RelationMapping) -> Mapping[SilverColumn, str]:
        """Columns of the table that come with each change, by the SQL over bronze's row that gives them."""
        del shape
        return {}

    def columns(self, shape: RelationMapping) -> tuple[SilverColumn, ...]:
        """All columns of the silver table: the source's, those that come with changes, its own. Raises NameTaken."""
        return with_own(shape, [column for column in self.own if column not in shape.carried])

    @abstractmethod
    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """What is to be written, from typed changes; `target`: its live rows before, None: none.

        `traced`: the changes carry `_cdc_row` and `_cdc_origin` (`runtime.apply.key_following`).
        """

    @abstractmethod
    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """The SQL that makes view `view`, which holds what `net` gave, part of `table`.

        `within`: conditions that every row of `t` meets which a net change can be of; they let files be skipped.
        """

    @abstractmethod
    def append_sql(self, table: str, view: str, part: TablePart) -> str:
        """The same where no key of view `view` is in `table`: its rows are put behind those that are there."""

    @abstractmethod
    def first(self, view: str, shape: RelationMapping) -> str:
        """The query of a table's whole content where it begins with a copy; `view` holds what `net` gave."""


def same_key(part: TablePart, within: Sequence[str]) -> str:
    """The rows of one key. `within`, conditions that all of them meet, let files be skipped, but behind a truncate
    every row of the table is concerned.

    `<=>` only where a part of the key may be NULL: files are skipped by `=` alone.
    """
    shape = part.shape
    names = [quote_identifier(column.name) for column in shape.key_columns]
    same = [
        f"{shape.row_key(index, f't.{name}')} {'<=>' if index in shape.nullable else '='} s.{name}"
        for index, name in enumerate(names)
    ]
    return " AND ".join([*same, *([] if part.truncated else within)])


def insert(table: str, view: str, columns: Iterable[str], op: str) -> str:
    """The rows of a view that are to `op`, put behind those of the table; `columns`: as `select` has them."""
    return f"INSERT INTO {table} BY NAME {select(view, columns, op)}"


def select(view: str, columns: Iterable[str], op: str) -> str:
    """The rows of a view that are to `op`; `columns`: names, or SQL over `s` AS a name."""
    return f"SELECT {', '.join(columns)} FROM {view} s WHERE s.{OP} = {literal(op)}"


def typed_literal(value: object, column: SilverColumn) -> str:
    """A value of a column, None for NULL."""
    return f"CAST({'NULL' if value is None else literal(str(value))} AS {column.type})"
