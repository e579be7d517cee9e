"""Redaction: changes values before they reach any file.

A pure step between the decoder's columns and bronze's rows. The values of a column are dropped together with the column
(`drop`), become NULL (`null`), or become the hexadecimal HMAC-SHA-256 of their text under the pipeline's key
(`sha256`): equal texts give equal hashes in every table, so keys can still be joined. NULL stays NULL, and unchanged
values stay unchanged. Layouts state the strategy of each column, but not the key; digests are those of the redacted
changes, so that the chain can be recomputed from bronze. Logical messages are dropped, because their content is
unknown. Tables without a rule cost one look-up per batch.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from cdc_lake.decode.change_batch import ChangeColumns, Numbering
from cdc_lake.decode.columnar_reader import lists
from cdc_lake.decode.digests import digests_anew
from cdc_lake.decode.pgoutput.columnar import POSITIONS, TUPLES, refuse_oversize
from cdc_lake.errors import RedactionUnfit
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName

TEXT_OID: Final = 25
"""PostgreSQL's type text: the type of a hashed column, regardless of its type at the source."""

HASH_SIZE: Final = 64
"""Characters of a hash."""

_MESSAGE: Final = ord("M")
_BLOCK: Final = 64  # bytes of a block of SHA-256 (FIPS 180-4)


class Strategy(enum.Enum):
    """What happens to the values of a column."""

    DROP = "drop"
    NULL = "null"
    SHA256 = "sha256"


Rules: TypeAlias = Callable[[TableName, str], Strategy | None]
"""The strategy of a table's column, None if it is not redacted."""
Keys: TypeAlias = Callable[[TableName], Sequence[str] | None]
"""The configured key columns of a table, None if the source determines them."""


class Hasher:
    """HMAC-SHA-256 (RFC 2104) of many short texts under one key, which it does not reveal."""

    def __init__(self, key: bytes) -> None:
        block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def text(self, value: bytes) -> str:
        """The hash of one text."""
        return self._texts([value])[0]

    def array(self, values: pa.Array) -> pa.Array:
        """The hashes of a string or large_string array, of the same type, keeping NULL; each distinct text once."""
        encoded = values.dictionary_encode()
        raw = pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary()
        hashed = self._texts(encoded.dictionary.cast(raw).to_pylist())
        return pa.array(hashed, values.type).take(encoded.indices)

    def _texts(self, values: Iterable[bytes]) -> list[str]:
        """In one loop: a call per text costs a fifth more (measured)."""
        inside, outside, hashes = self._inner.copy, self._outer.copy, []
        for value in values:
            inner, outer = inside(), outside()
            inner.update(value)
            outer.update(inner.digest())
            hashes.append(outer.hexdigest())
        return hashes


@dataclass(frozen=True, slots=True)
class _Plan:
    """The redaction of one layout: the new layout, and positions by strategy. `places`: a kept column's new
    position.
    """

    relation: Relation
    dropped: tuple[int, ...]
    nulled: tuple[int, ...]
    hashed: tuple[int, ...]
    places: Any  # int32 ndarray, one entry per source column: -1 if it can no longer be unchanged

    @property
    def touches(self) -> bool:
        """Whether anything is redacted."""
        return bool(self.dropped or self.nulled or self.hashed)


class Redaction:
    """Applies a pipeline's rules. One instance per run; thread-safe.

    `rules`: the strategy of each column, None: no redaction. `keys`: columns that must not be lost, besides the
    source's own; `key`: required for hashes. `configuration`: the number of these rules in COMMIT rows.
    """

    def __init__(
        self, rules: Rules | None, *, key: bytes | None = None, keys: Keys = lambda _: None, configuration: int = 1
    ) -> None:
        self._rules = rules
        self._keys = keys
        self._hasher = Hasher(key) if key is not None else None
        self._configuration = configuration
        self._plans: dict[Relation, _Plan] = {}

    def relation(self, relation: Relation) -> Relation:
        """The layout in bronze. Raises RedactionUnfit if a column that identifies rows would be lost."""
        return self._plan(relation).relation

    def changes(self, changes: ChangeColumns) -> ChangeColumns:
        """Redact changes, whose arrays are not chunked. Raises RedactionUnfit, BatchTooLarge."""
        changes = replace(changes, configuration=self._configuration)
        if self._rules is None:
            return changes
        if (messages := changes.op == _MESSAGE).any():
            changes = changes.take(np.flatnonzero(~messages))
        plans = [self._plan(relation) for relation in changes.relations]
        touched = np.array([plan.touches for plan in plans], bool)
        if not touched.any():
            return changes
        rows = np.flatnonzero((changes.relation >= 0) & touched[changes.relation])
        redacted = _renumber_relations(
            replace(
                changes,
                new=self._tuples(changes.new, changes.relation, rows, plans),
                old=self._tuples(changes.old, changes.relation, rows, plans),
                unchanged=_unchanged_positions(changes.unchanged, changes.relation, plans),
            ),
            [plan.relation for plan in plans],
        )
        return replace(redacted, digests=digests_anew(redacted, rows))

    def rows(self, relation: Relation, rows: Any) -> tuple[Relation, Any]:
        """Redact snapshot rows (a list<string> array by position in the layout) and their layout."""
        plan = self._plan(relation)
        if not plan.touches:
            return relation, rows
        if isinstance(rows, pa.ChunkedArray):
            rows = rows.combine_chunks()
        numbers = np.zeros(len(rows), np.int32)
        return plan.relation, self._tuples(rows.cast(TUPLES), numbers, np.arange(len(rows)), [plan])

    def table(self, relation: Relation, rows: pa.Table) -> pa.Table:
        """Redact rows as text columns by name, as a comparison reads them from the source."""
        plan = self._plan(relation)
        if not plan.touches:
            return rows
        columns = {name: rows[name] for name in plan.relation.names}
        for column in plan.relation.columns:
            values = columns[column.name]
            if column.redacted == Strategy.NULL.value:
                columns[column.name] = pa.nulls(len(values), values.type)
            elif column.redacted == Strategy.SHA256.value:
                hashed = [self._hash(chunk) for chunk in values.chunks]
                columns[column.name] = pa.chunked_array(hashed, values.type)
        return pa.table(columns)

    def _hash(self, values: pa.Array) -> pa.Array:
        assert self._hasher is not None, "a rule hashes, but no key was given"
        return self._hasher.array(values)

    def _plan(self, relation: Relation) -> _Plan:
        plan = self._plans.get(relation)
        if plan is None:
            rules = self._rules or (lambda *_: None)
            plan = self._plans[relation] = _plan_redaction(relation, rules, self._keys, self._hasher)
        return plan

    def _tuples(self, tuples: Any, relation: Any, rows: Any, plans: Sequence[_Plan]) -> Any:
        """The tuples, with those at `rows` redacted."""
        if tuples.null_count == len(tuples):
            return tuples
        if tuples.null_count and np.diff(tuples.offsets)[np.asarray(tuples.is_null())].any():
            tuples = tuples.take(pa.array(np.arange(len(tuples))))  # Arrow allows a NULL to have values
        offsets, valid = np.asarray(tuples.offsets).astype(np.int64), np.asarray(tuples.is_valid())
        values, lengths = tuples.values, np.diff(offsets)
        rows = rows[valid[rows]]
        gone, empty, hashed = [], [], []
        for number in np.unique(relation[rows]).tolist():
            plan, own_rows = plans[number], rows[relation[rows] == number]
            first = offsets[own_rows][:, None]
            gone.append((first + np.array(plan.dropped, np.int64)).ravel())
            empty.append((first + np.array(plan.nulled, np.int64)).ravel())
            hashed.append((first + np.array(plan.hashed, np.int64)).ravel())
            lengths[own_rows] -= len(plan.dropped)
        values = self._values(values, offsets, *(np.concatenate([_NOTHING, *part]) for part in (gone, empty, hashed)))
        return lists(TUPLES, lengths, valid, values)

    def _values(self, values: pa.Array, offsets: Any, gone: Any, empty: Any, hashed: Any) -> pa.Array:
        """The values between the first and the last offset without those `gone`, NULL at `empty`, and hashed."""
        first, end = int(offsets[0]), int(offsets[-1])
        source, absent = np.arange(first, end), None
        if len(hashed):
            size = sum(buffer.size for buffer in values.buffers() if buffer is not None)
            refuse_oversize(size + HASH_SIZE * len(hashed))
            source[hashed - first] = len(values) + np.arange(len(hashed))
            values = pa.concat_arrays([values, self._hash(values.take(pa.array(hashed)))])
        if len(empty):
            absent = np.zeros(end - first, bool)
            absent[empty - first] = True
        if len(gone):
            remaining = np.ones(end - first, bool)
            remaining[gone - first] = False
            source, absent = source[remaining], None if absent is None else absent[remaining]
        return values.take(pa.array(source, mask=absent))


_NOTHING: Final = np.zeros(0, np.int64)


def _plan_redaction(relation: Relation, rules: Rules, keys: Keys, hasher: Hasher | None) -> _Plan:
    strategies = [rules(relation.table, name) for name in relation.names]
    lost = (Strategy.DROP, Strategy.NULL)
    needed = {*relation.primary_key, *(keys(relation.table) or ())}
    if relation.identity is not ReplicaIdentity.FULL:
        needed |= {column.name for column in relation.columns if column.key}
    for name, strategy in zip(relation.names, strategies, strict=True):
        if strategy in lost and name in needed:
            raise RedactionUnfit(
                f"column `{name}` of {relation.table} identifies its rows: it cannot be redacted by `{strategy.value}`",
                hint="redact it by `sha256`, which keeps rows distinct and keys joinable, or do not redact it",
            )
    positions = {kind: tuple(i for i, candidate in enumerate(strategies) if candidate is kind) for kind in Strategy}
    remaining = [i for i, candidate in enumerate(strategies) if candidate is not Strategy.DROP]
    places = np.full(len(strategies), -1, np.int32)
    places[remaining] = np.arange(len(remaining))
    places[list(positions[Strategy.NULL])] = -1
    columns = tuple(_column(relation.columns[i], strategies[i], hasher) for i in remaining)
    redacted = replace(relation, columns=columns) if columns != relation.columns else relation
    return _Plan(redacted, positions[Strategy.DROP], positions[Strategy.NULL], positions[Strategy.SHA256], places)


def _column(column: Column, strategy: Strategy | None, hasher: Hasher | None) -> Column:
    """The column in bronze; its default for old rows is a value too."""
    missing = column.missing
    match strategy:
        case Strategy.SHA256:
            if missing is not None and missing.text is not None:
                assert hasher is not None, "a rule hashes, but no key was given"
                missing = Missing(hasher.text(missing.text.encode()))
            return replace(
                column, type_name="text", type_oid=TEXT_OID, modifier=-1, redacted=strategy.value, missing=missing
            )
        case Strategy.NULL:
            return replace(column, redacted=strategy.value, missing=None)
        case _:
            return column


def _unchanged_positions(unchanged: Any, relation: Any, plans: Sequence[_Plan]) -> Any:
    """Unchanged positions after redaction; a column that is always NULL is never unchanged."""
    if unchanged.null_count == len(unchanged) or all((plan.places >= 0).all() for plan in plans):
        return unchanged
    # so that the values are those of these lists, from the first one
    unchanged = unchanged.take(pa.array(np.arange(len(unchanged))))
    lengths = np.diff(np.asarray(unchanged.offsets))
    owner = np.repeat(np.arange(len(unchanged)), lengths)
    places = np.full((len(plans), max(len(plan.places) for plan in plans)), -1, np.int32)
    for number, plan in enumerate(plans):
        places[number, : len(plan.places)] = plan.places
    moved = places[relation[owner], np.asarray(unchanged.values)]
    remaining = moved >= 0
    lengths = np.bincount(owner[remaining], minlength=len(unchanged))
    return lists(POSITIONS, lengths, lengths > 0, pa.array(moved[remaining], pa.int32()))


def _renumber_relations(changes: ChangeColumns, relations: Sequence[Relation]) -> ChangeColumns:
    """The changes with these relations instead; two that have become equal are merged."""
    numbering = Numbering()
    numbers = np.array([numbering.number(relation) for relation in relations], np.int32)
    relation = np.where(changes.relation < 0, changes.relation, numbers[changes.relation]).astype(np.int32)
    return replace(changes, relations=numbering.relations, relation=relation)
