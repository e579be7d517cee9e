"""Reads from the catalog of a GaussDB family server what the rows of the stream do not contain about their tables.

Only columns that exist in the catalogs of PostgreSQL 9.2, the family's origin, are used.

A column added with a default is not written into existing rows: the default is in `pg_attribute.attinitdefval`, as the
bytes of a row value (`shouldUpdateAllTuples` of openGauss's tablecmds.cpp), for a list of types and constants below 128
bytes; otherwise the server rewrites the table and keeps nothing.

Parallel decoders print values by the settings of the server and the database, whatever the session or its role sets;
serial decoding uses the session's settings (seen on openGauss 6.0.2). Floats are always exact: both force
`extra_float_digits`. Under DateStyle ISO a time has its zone, and silver accepts any.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Final, TypeAlias

import numpy as np

from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata, Storage
from cdc_lake.decode.historic_catalog import Attribute
from cdc_lake.errors import NoReplicaIdentity, ServerSettings
from cdc_lake.model.relation import Missing, ReplicaIdentity, TableName
from cdc_lake.source.base import VERSION, left_out
from cdc_lake.source.gaussdb.wire.protocol import SETTINGS
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.sql_text import PRINTING, identifier, literal, quote_table

Decode: TypeAlias = Callable[[bytes], str | None]
"""Decodes bytes in the database's encoding; None if they are not valid text."""

Print: TypeAlias = Callable[[str], str | None]
"""Prints a numeric as this server does: with or without the zero before the decimal point, by a setting."""

_EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - the server's epoch has no time zone
_TEXTS: Final = frozenset({"text", "varchar", "bpchar"})


def missing_of(
    type_name: str, stored: str | None, *, has_default: bool, decode: Decode, printed: Print
) -> Missing | None:
    """The value of a column in rows older than the column, from `stored`, the catalog's bytes in hexadecimal digits.

    Without them NULL, unless the column has a default (`has_default`): the rows may have been rewritten with it, or it
    was set later, so the value is unknown.
    """
    if stored is None:
        return Missing(None) if has_default else None
    image = bytes.fromhex(stored)
    if type_name in _TEXTS:
        return Missing(decode(_payload(image)))
    text = read(image) if (read := _READ.get(type_name)) is not None else None
    if type_name == "numeric" and text is not None and text.lstrip("-").startswith("0."):
        text = printed(text)
    return Missing(text)


def _payload(image: bytes) -> bytes:
    """The payload of a variable-length value after its length: one byte with its lowest bit set, or four."""
    return image[1:] if image[0] & 1 else image[4:]


def _number(form: str) -> Callable[[bytes], str]:
    return lambda image: str(struct.unpack(form, image)[0])


def _float(form: str) -> Callable[[bytes], str]:
    def format_float(image: bytes) -> str:
        value = np.frombuffer(image, form)[0]
        if np.isnan(value):
            return "NaN"
        return "-" * bool(value < 0) + "Infinity" if np.isinf(value) else str(value)

    return format_float


def _numeric(image: bytes) -> str | None:
    """A numeric: sign, scale and weight in one or two headers of 2 bytes, then base-10,000 digits (`numeric.cpp`)."""
    data = _payload(image)
    (header,) = struct.unpack_from("<H", data)
    if header >> 14 == 3:  # not a number, or a special form for columnar tables
        return "NaN" if header == 0xC000 else None
    if header >> 14 == 2:
        negative, scale, weight, offset = header & 0x2000, header >> 7 & 0x3F, (header & 0x3F) - (header & 0x40), 2
    else:
        negative, scale, weight, offset = header & 0x4000, header & 0x3FFF, struct.unpack_from("<h", data, 2)[0], 4
    digits = struct.unpack_from(f"<{(len(data) - offset) // 2}H", data, offset)
    value = 0
    for digit in digits:
        value = value * 10_000 + digit
    shift = 4 * (weight + 1 - len(digits)) + scale
    unscaled = str(value * 10**shift if shift >= 0 else value // 10**-shift).rjust(scale + 1, "0")
    integer, fraction = unscaled[: len(unscaled) - scale], unscaled[len(unscaled) - scale :]
    return ("-" if negative else "") + integer + (f".{fraction}" if fraction else "")


def _moment(zone: str) -> Callable[[bytes], str | None]:
    def format_moment(image: bytes) -> str | None:
        """A timestamp from microseconds since the year 2000; None outside the years 1 to 9999."""
        try:
            moment = _EPOCH + timedelta(microseconds=struct.unpack("<q", image)[0])
        except OverflowError:
            return None
        text = moment.isoformat(" ")
        return (text.rstrip("0") if "." in text else text) + zone

    return format_moment


def _day(image: bytes) -> str | None:
    try:
        return (_EPOCH + timedelta(days=struct.unpack("<i", image)[0])).date().isoformat()
    except OverflowError:
        return None


_READ: Final[Mapping[str, Callable[[bytes], str | None]]] = {
    "bool": lambda image: "f" if image == b"\0" else "t",
    "int1": _number("<B"),
    "int2": _number("<h"),
    "int4": _number("<i"),
    "int8": _number("<q"),
    "float4": _float("<f4"),
    "float8": _float("<f8"),
    "numeric": _numeric,
    "bytea": lambda image: f"\\x{_payload(image).hex()}",
    "date": _day,
    "timestamp": _moment(""),
    "smalldatetime": _moment(""),
    "timestamptz": _moment("+00"),
}
"""By type: the server's text of a value, None for an unsupported value. Other types are unsupported."""


_FIRST_OF_USERS = 16384
"""Lower OIDs are reserved for the system: the family has many schemas besides pg_catalog."""

_TABLES = (
    "SELECT n.nspname, c.relname, c.reloptions, c.oid "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    f"WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= {_FIRST_OF_USERS} "
    "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'cstore')"
)
_TABLE = (
    f"SELECT c.oid, c.relreplident, c.reloptions, c.relfilenode, c.parttype, {VERSION} "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p')"
)
_COLUMNS = (
    "SELECT a.attnum, a.attname, tn.nspname, t.typname, a.atttypid, a.atttypmod, format_type(a.atttypid, NULL), "
    "encode(a.attinitdefval, 'hex'), a.atthasdef OR t.typdefault IS NOT NULL AS atthasdef, a.attnotnull, "
    "a.attisdropped, a.xmin "
    "FROM pg_attribute AS a LEFT JOIN pg_type AS t ON t.oid = a.atttypid "
    "LEFT JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
    "WHERE a.attrelid = {oid} AND a.attnum > 0 ORDER BY a.attnum"
)
_INDEXES = (
    "SELECT i.indkey, i.indisprimary, i.indisreplident, i.indisvalid, i.indimmediate, i.xmin FROM pg_index AS i "
    "WHERE i.indrelid = {oid} AND (i.indisprimary OR i.indisreplident)"
)
_PARTITIONS = (
    "SELECT p.oid, p.relfilenode FROM pg_partition AS p WHERE p.parttype IN ('p', 's') AND (p.parentid = {oid} "
    "OR p.parentid IN (SELECT q.oid FROM pg_partition AS q WHERE q.parentid = {oid})) ORDER BY p.oid"
)
_VERSIONS = (
    f"SELECT n.nspname, c.relname, c.oid, {VERSION} "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) IN ({names})"
)
_GENERATED = (
    "SELECT a.attname FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum "
    "WHERE d.adrelid = {oid} AND d.adgencol = 's'"
)
"""Servers that can omit generated columns have `adgencol`."""


@dataclass(frozen=True, slots=True)
class _Index:
    """An index that may be the primary key or the replica identity; `columns` in key order."""

    columns: tuple[str, ...]
    primary: bool
    identity: bool
    logged: bool  # valid and not deferrable: usable as replica identity
    changed: int  # the transaction that wrote its row


def tables_in_database(session: WireSession) -> dict[TableName, int]:
    """OIDs of the tables that logical decoding supports: persistent row tables of users. Raises SourceError."""
    rows = session.query(_TABLES, doing="listing the tables").rows
    return {
        TableName(schema or "", name or ""): int(oid or 0)
        for schema, name, options, oid in rows
        if "orientation=column" not in _options(options)
    }


def facts_of(session: WireSession, table: TableName, *, skips_generated: bool = False) -> GaussDbTableMetadata | None:
    """The current catalog facts of a table; None if there is none of that name. Raises SourceError.

    `skips_generated`: generated columns are omitted from new rows (`skip-generated-columns`), and so from the table.
    """
    doing = f"looking up {table} in the catalog"
    sql = _TABLE.format(schema=literal(table.schema), name=literal(table.name))
    rows = session.query(sql, doing=doing).rows
    if not rows:
        return None
    oid, identity, options, file, parted, version = rows[0]
    columns, attributes = [], []
    decode, print_numeric = (partial(ask, session, doing=doing) for ask in (_decode_text, _print_numeric))
    for row in session.query(_COLUMNS.format(oid=oid), doing=doing).rows:
        number, name, schema, kind, type_oid, modifier, printed, stored, has_default, filled, dropped, changed = row
        if dropped == "t":
            attributes.append(Attribute(int(number or 0), changed=int(changed or 0)))
            continue
        type_name, type_numbers = _type_name(schema, kind), (int(type_oid or 0), int(modifier or -1))
        filled_later = has_default == "t"
        missing = missing_of(type_name, stored, has_default=filled_later, decode=decode, printed=print_numeric)
        place = int(number or 0)
        columns.append(GaussDbColumn(name or "", type_name, *type_numbers, printed, place, missing, filled == "t"))
        attributes.append(Attribute(place, name, *type_numbers, missing, changed=int(changed or 0)))
    names = {str(column.number): column.name for column in columns}
    indexes = [_index(row, names) for row in session.query(_INDEXES.format(oid=oid), doing=doing).rows]
    skipped: set[str] = set()
    if skips_generated:
        skipped = {name or "" for (name,) in session.query(_GENERATED.format(oid=oid), doing=doing).rows}
    how, primary = ReplicaIdentity(identity or "d"), next((i for i in indexes if i.primary), None)
    return GaussDbTableMetadata(
        columns=tuple(column for column in columns if column.name not in skipped),
        primary_key=() if primary is None else primary.columns,
        identity=how,
        identity_columns=_identity_columns(how, indexes),
        storage=Storage.USTORE if "storage_type=ustore" in _options(options) else Storage.ASTORE,
        type_names=_TypeNames(session),
        oid=int(oid or 0),
        attributes=tuple(attribute for attribute in attributes if attribute.name not in skipped),
        key_changed=None if primary is None else primary.changed,
        file=_files(session, oid or "", doing) if parted != "n" else None if file in ("0", oid) else int(file or 0),
        skipped=frozenset(skipped),
        printed_types=cache(partial(_printed_type, session)),
        version=version or "",
    )


def versions_of(session: WireSession, tables: Collection[TableName]) -> dict[TableName, tuple[int, str]]:
    """OID and version of each existing table; the version changes if the table is altered."""
    names = ", ".join(f"({literal(table.schema)}, {literal(table.name)})" for table in tables)
    rows = session.query(_VERSIONS.format(names=names), doing="checking which tables were altered").rows
    return {TableName(schema or "", name or ""): (int(oid or 0), version or "") for schema, name, oid, version in rows}


def _files(session: WireSession, oid: str, doing: str) -> int | None:
    """Detects rewritten partitions, like `source.postgres.catalog` for PostgreSQL."""
    rows = session.query(_PARTITIONS.format(oid=oid), doing=doing).rows
    rewritten = ",".join(f"{part}:{file}" for part, file in rows if file not in ("0", part))
    return int.from_bytes(hashlib.sha256(rewritten.encode()).digest()[:8], "big") >> 1 if rewritten else None


def _decode_text(session: WireSession, image: bytes, *, doing: str) -> str | None:
    """Bytes in the database's encoding as text; None if they are not valid."""
    if image.isascii():
        return image.decode("ascii")
    text = f"convert_from(decode({literal(image.hex())}, 'hex'), getdatabaseencoding())"
    sql = f"SELECT CASE WHEN getdatabaseencoding() <> 'SQL_ASCII' THEN {text} END"
    return session.query(sql, doing=doing).rows[0][0]


def _print_numeric(session: WireSession, number: str, *, doing: str) -> str | None:
    """A numeric as the server prints it."""
    return session.query(f"SELECT CAST({literal(number)} AS numeric)", doing=doing).rows[0][0]


def _printed_type(session: WireSession, printed: str) -> tuple[int, str] | None:
    """OID and name of the type with this printed name in text rows; None if it does not exist any more."""
    sql = (
        "SELECT t.oid, n.nspname, t.typname FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace "
        f"WHERE format_type(t.oid, NULL) = {literal(printed)}"
    )
    rows = session.query(sql, doing=f"looking up type {printed} in the catalog").rows
    if len(rows) != 1:
        return None
    [(oid, schema, name)] = rows
    return int(oid or 0), _type_name(schema, name)


def _type_name(schema: str | None, name: str | None) -> str:
    return (name or "") if schema == "pg_catalog" else f"{schema}.{name}"


class _TypeNames(Mapping[int, str]):
    """Type names by OID, queried one by one: for columns that were dropped or changed their type."""

    def __init__(self, session: WireSession) -> None:
        self._session = session
        self._names: dict[int, str] = {}

    def __getitem__(self, oid: int) -> str:
        if oid not in self._names:
            sql = (
                "SELECT n.nspname, t.typname FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace "
                f"WHERE t.oid = {oid}"
            )
            rows = self._session.query(sql, doing=f"looking up type {oid} in the catalog").rows
            if not rows:
                raise KeyError(oid)
            self._names[oid] = _type_name(*rows[0])
        return self._names[oid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class GaussDbCatalog:
    """Answers the decoder from its own session (`decode.gaussdb.catalog_facts.FamilyCatalog`)."""

    def __init__(self, session: WireSession, *, skips_generated: bool = False) -> None:
        """`skips_generated`: see `facts_of`."""
        self._session = session
        self._skips_generated = skips_generated
        self.type_names: Mapping[int, str] = _TypeNames(session)

    def __call__(self, table: TableName) -> GaussDbTableMetadata | None:
        """The current facts of a table; raises SourceError."""
        return facts_of(self._session, table, skips_generated=self._skips_generated)

    def versions(self, tables: Collection[TableName]) -> dict[TableName, tuple[int, str]]:
        """OID and version of each existing table (`versions_of`)."""
        return versions_of(self._session, tables)


def check_identities(facts: Mapping[TableName, GaussDbTableMetadata], place: str) -> None:
    """Raise NoReplicaIdentity for all tables whose updates and deletes would not identify their row."""
    if bare := [table for table, known in facts.items() if not known.identity_columns and not known.logs_full_rows]:
        statements = "; ".join(f"ALTER TABLE {quote_table(table)} REPLICA IDENTITY FULL" for table in bare)
        text = f"no primary key and no replica identity: {', '.join(map(str, bare))}"
        hint = f"add primary keys, or run: {statements}; or leave them out: {left_out(bare)}"
        raise NoReplicaIdentity(text, where=place, hint=hint)


def _index(row: Sequence[str | None], names: Mapping[str, str]) -> _Index:
    numbers, primary, identity, valid, immediate, changed = row
    columns = tuple(names[number] for number in (numbers or "").split() if number in names)
    return _Index(columns, primary == "t", identity == "t", valid == "t" and immediate == "t", int(changed or 0))


def _identity_columns(identity: ReplicaIdentity, indexes: Sequence[_Index]) -> tuple[str, ...]:
    match identity:
        case ReplicaIdentity.DEFAULT:
            return next((i.columns for i in indexes if i.primary and i.logged), ())
        case ReplicaIdentity.INDEX:
            return next((i.columns for i in indexes if i.identity and i.logged), ())
        case ReplicaIdentity.FULL | ReplicaIdentity.NOTHING:
            return ()


def _options(text: str | None) -> set[str]:
    """A table's options, from the array text: `{orientation=row,storage_type=USTORE}`."""
    return {option.strip('"').lower() for option in (text or "").strip("{}").split(",")}


_READ_BY = ("DateStyle", "bytea_output")
_COPIED_BY = "IntervalStyle"


def check_printing(bare: WireSession) -> None:
    """Raise ServerSettings if parallel decoders print values in an unreadable form.

    `bare` is a session without settings of its own, which shows those that the decoders use.
    """
    settings = _settings(bare)
    wrong = [name for name in _READ_BY if not settings.get(name, PRINTING[name]).startswith(PRINTING[name])]
    if wrong:
        stated = ", ".join(f"{name} = {settings[name]}" for name in wrong)
        statements = "; ".join(_statement(bare, name) for name in wrong)
        text = (
            f"parallel decoding formats values according to the database's settings, and cannot be read with {stated}"
        )
        raise ServerSettings(text, where=bare.place, hint=f"run: {statements}; or read with `parallel-decode-num: 1`")


def interval_hint(bare: WireSession) -> tuple[str, str] | None:
    """If intervals of the stream differ from those of a copy: a description, and the statement that helps."""
    actual, expected = _settings(bare).get(_COPIED_BY), SETTINGS[_COPIED_BY]
    if actual in {None, expected}:
        return None
    text = f"parallel decoding formats intervals by the database's {_COPIED_BY} = {actual}"
    return f"{text}, the initial copy by {expected}", _statement(bare, _COPIED_BY)


def _statement(bare: WireSession, name: str) -> str:
    value = SETTINGS[name]
    return f"ALTER DATABASE {identifier(bare.target.database)} SET {name} = '{value}'"


def _settings(bare: WireSession) -> dict[str, str]:
    names = ", ".join(f"'{name}'" for name in (*_READ_BY, _COPIED_BY))
    sql = f"SELECT name, setting FROM pg_settings WHERE name IN ({names})"
    return {name or "": value or "" for name, value in bare.query(sql, doing="reading how values are formatted").rows}
