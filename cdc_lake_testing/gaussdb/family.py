"""SQL that all servers of the family answer alike: transactions, settings, identification, slots and snapshots.

Parses small SELECTs: expressions (functions without a table, columns, literals, casts), at most one source (a view or a
function), and a WHERE of equalities. `family_answer` returns None for everything else, so that the caller can ask
another source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from cdc_lake_testing.gaussdb.commands import lsn_text
from cdc_lake_testing.gaussdb.slot_functions import (
    Arguments,
    Exporter,
    FunctionError,
    Table,
    advance_slot,
    columns,
    create_slot,
    drop_slot,
    export_with_csn,
    read_changes,
    slots_view,
)
from cdc_lake_testing.gaussdb.sql import Answer, Done, Failed, ResultColumn, ResultSet, SqlSession

_SELECT: Final = re.compile(
    r"select (?P<list>.+?)(?: from (?P<source>[a-z_.]+(?: ?\(.*?\))?)(?: (?:as )?(?P<alias>(?!where\b)[a-z_]+))?)?"
    r"(?: where (?P<where>.+?))?(?: order by .+| limit \d+)*",
    re.IGNORECASE,
)
_CALL: Final = re.compile(r"(?:pg_catalog\.)?([a-z_]+) ?\((.*)\)", re.IGNORECASE)
_AMONG: Final = re.compile(r"([a-z_]+) in \((.+)\)", re.IGNORECASE)
_EQUAL: Final = re.compile(r"(?:[a-z_]+\.)?([a-z_]+)(?:::[a-z_]+)? ?= ?(.+)", re.IGNORECASE)
_MISSING: Final = "current transaction is aborted, commands ignored until end of transaction block"


class _Unknown(Exception):
    """Nothing this module knows."""


def transaction_answer(sql: str, session: SqlSession) -> Answer | None:
    """BEGIN, COMMIT, ROLLBACK, SET; None for anything else. Keeps the session's status."""
    words = sql.lower().split()
    head = words[0] if words else ""
    if head in {"begin", "start"}:
        session.status = "T"
        return Done("BEGIN" if head == "begin" else "START TRANSACTION")
    if head in {"commit", "end"}:
        tag = "ROLLBACK" if session.status == "E" else "COMMIT"
        session.status = "I"
        return Done(tag)
    if head in {"rollback", "abort"}:
        session.status = "I"
        return Done("ROLLBACK")
    if session.status == "E":
        return Failed("25P02", _MISSING)
    tags = {"set": "SET", "reset": "RESET", "lock": "LOCK TABLE"}
    return Done(tags[head]) if head in tags else None


def family_answer(sql: str, session: SqlSession, exporter: Exporter) -> Answer | None:
    """The answer to a statement this module understands, otherwise None; an error of the server comes as Failed."""
    folded = " ".join(sql.rstrip("; ").split())
    if folded.lower().startswith("show "):
        return _shown(folded[5:].strip('" ').lower(), session)
    found = _SELECT.fullmatch(folded)
    if found is None:
        return None
    try:
        return _select(found, session, exporter)
    except _Unknown:
        return None
    except FunctionError as refused:
        return refused.failed
    except ValueError as wrong:
        return Failed("22P02", f"invalid input syntax: {wrong}")


def _shown(name: str, session: SqlSession) -> Answer:
    value = session.server.setting(name)
    if value is None:
        return Failed("42704", f'unrecognized configuration parameter "{name}"')
    return ResultSet((ResultColumn(name),), [(value,)], "SHOW")


def _select(found: re.Match[str], session: SqlSession, exporter: Exporter) -> ResultSet:
    table = _source(found["source"], session, exporter)
    names = [column.name for column in table.columns]
    for condition in re.split(r" and ", found["where"] or "", flags=re.IGNORECASE):
        if condition:
            table = _where(table, names, condition, session, exporter)
    out: list[ResultColumn] = []
    picks: list[Callable[[tuple[str | None, ...]], str | None]] = []
    for item in split(found["list"]):
        if item == "*" or item.endswith(".*"):
            out += table.columns
            picks += [_picker(at) for at in range(len(names))]
            continue
        expression, _, alias = _aliased(item)
        name, oid, pick = _expression(expression, table, names, session, exporter)
        out.append(ResultColumn(alias or name, oid))
        picks.append(pick)
    return ResultSet(out, [[pick(row) for pick in picks] for row in table.rows])


def _picker(at: int) -> Callable[[tuple[str | None, ...]], str | None]:
    return lambda row: row[at]


def _aliased(item: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"(.+?) as \"?([A-Za-z_0-9]+)\"?", item, re.IGNORECASE)
    return (item, "", "") if found is None else (found[1], "as", found[2])


def _where(table: Table, names: list[str], condition: str, session: SqlSession, exporter: Exporter) -> Table:
    found = _AMONG.fullmatch(condition.strip()) or _EQUAL.fullmatch(condition.strip())
    if found is None or found[1].lower() not in names:
        raise _Unknown
    at = names.index(found[1].lower())
    items = split(found[2]) if found.re is _AMONG else [found[2].strip()]
    wanted = {_expression(item, Table((), [()]), [], session, exporter)[2](()) for item in items}
    return Table(table.columns, [row for row in table.rows if row[at] in wanted])


def _expression(
    text: str, table: Table, names: list[str], session: SqlSession, exporter: Exporter
) -> tuple[str, int, Callable[[tuple[str | None, ...]], str | None]]:
    whole = re.fullmatch(r"int8in\(xidout\((.+)\)\)", text.strip(), re.IGNORECASE)
    if whole is not None:  # how an xid becomes a bigint in 9.2
        _, _, pick = _expression(whole[1], table, names, session, exporter)
        return "int8in", 20, pick
    bare = re.sub(r"(::[a-z_ ]+(\[\])?)+$", "", text.strip(), flags=re.IGNORECASE)
    oid = {"bigint": 20, "int8": 20, "int": 23, "int4": 23, "integer": 23}.get(text[len(bare) + 2 :].lower(), 25)
    column = bare.rpartition(".")[2].lower()
    if column in names:
        at = names.index(column)
        return column, table.columns[at].type_oid if bare == text else oid, _picker(at)
    if re.fullmatch(r"'(?:[^']|'')*'|-?\d+|null|true|false", bare, re.IGNORECASE):
        value = _literal(bare)
        return "?column?", 23 if bare.isdigit() else 25, lambda _: value
    name, kind, scalar = _scalar(bare, session, exporter)
    return name, kind if bare == text else oid, lambda _: scalar


def _literal(text: str) -> str | None:
    if text.lower() == "null":
        return None
    if text.lower() in {"true", "false"}:
        return text.lower()[0]
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def _scalar(text: str, session: SqlSession, exporter: Exporter) -> tuple[str, int, str | None]:
    state = session.server
    constants = {
        "version": state.version_text,
        "current_database": session.database,
        "current_catalog": session.database,
        "current_user": session.user,
        "session_user": session.user,
        "user": session.user,
        "getdatabaseencoding": state.encoding,
        "pg_current_xlog_location": lsn_text(state.ledger.end_lsn),
        "pg_current_xlog_insert_location": lsn_text(state.ledger.end_lsn),
        "pg_last_xlog_replay_location": lsn_text(state.ledger.end_lsn) if state.in_recovery else None,
        "pg_backend_pid": str(session.pid),
        "pg_postmaster_start_time": state.started,
        "current_schema": "public",
    }
    found = _CALL.fullmatch(text)
    name, arguments = (text.lower(), "") if found is None else (found[1].lower(), found[2])
    if name == "pg_is_in_recovery":
        return name, 16, "t" if state.in_recovery else "f"
    if name in constants and not arguments.strip():
        return name, 25, constants[name]
    if name == "txid_current":  # outside of a transaction: one that does nothing else
        return name, 20, str(state.ledger.commit((), database=session.database).xid)
    if name == "current_setting":
        setting = _literal(split(arguments)[0]) or ""
        value = state.setting(setting)
        if value is None and len(split(arguments)) < 2:
            raise FunctionError(Failed("42704", f'unrecognized configuration parameter "{setting}"'))
        return name, 25, value
    if found is not None:
        table = _source(text, session, exporter)
        if len(table.columns) == 1 and table.rows:
            return name, table.columns[0].type_oid, table.rows[0][0]
        if table.rows:  # a composite, as its output text
            return name, 2249, "(" + ",".join("" if v is None else v for v in table.rows[0]) + ")"
    raise _Unknown


def _source(text: str | None, session: SqlSession, exporter: Exporter) -> Table:
    if text is None:
        return Table((), [()])
    name = text.lower().removeprefix("pg_catalog.")
    if (view := _VIEWS.get(name)) is not None:
        return view(session)
    found = _CALL.fullmatch(text)
    function = None if found is None else _FUNCTIONS.get(found[1].lower())
    if found is None or function is None:
        raise _Unknown
    raw = [re.sub(r"^variadic ", "", part, flags=re.IGNORECASE) for part in split(found[2])]
    return function(_arguments(raw), session, exporter)


def _settings(session: SqlSession) -> Table:
    state = session.server
    known = state.all_settings()
    known["logical_sender_timeout"] = str(round(state.sender_timeout * 1000))  # in its unit, milliseconds
    known |= {"wal_sender_timeout": "6000", "wal_writer_delay": "200", "max_process_memory": str(12 << 20)}
    return Table(columns(("name", 25), ("setting", 25)), list(known.items()))


def _database(session: SqlSession) -> Table:
    state, name = session.server, session.database
    row = (str(state.database_oid(name)), name, state.compatibility)
    return Table(columns(("oid", 26), ("datname", 19), ("datcompatibility", 19)), [row])


def _next_numbers(arguments: Arguments, session: SqlSession, exporter: Exporter) -> Table:  # noqa: ARG001
    csn = str(session.server.ledger.next_csn)
    return Table(columns(("node_name", 25), ("next_xid", 28), ("next_csn", 28)), [("node1", csn, csn)])


def control_system(session: SqlSession) -> Table:
    """What `pg_control_system()` tells."""
    names = columns(("pg_control_version", 23), ("catalog_version_no", 23), ("system_identifier", 28))
    return Table(names, [("923", "201611171", session.server.system)])


def _snapshot(arguments: Arguments, session: SqlSession, exporter: Exporter) -> Table:  # noqa: ARG001
    return Table(columns(("pg_export_snapshot", 25)), [(exporter.export(session, use=False).name,)])


_VIEWS: Final[dict[str, Callable[[SqlSession], Table]]] = {
    "pg_replication_slots": slots_view,
    "pg_get_replication_slots()": slots_view,
    "pg_settings": _settings,
    "pg_database": _database,
}
_FUNCTIONS: Final[dict[str, Callable[[Arguments, SqlSession, Exporter], Table]]] = {
    "pg_export_snapshot_and_csn": lambda _, session, exporter: export_with_csn(session, exporter),
    "pg_export_snapshot": _snapshot,
    "gs_get_next_xid_csn": _next_numbers,
    "pg_control_system": lambda _, session, __: control_system(session),
    "pg_create_logical_replication_slot": create_slot,
    "pg_drop_replication_slot": lambda arguments, session, _: drop_slot(arguments, session),
    "pg_replication_slot_advance": lambda arguments, session, _: advance_slot(arguments, session),
    "pg_logical_slot_peek_changes": lambda arguments, session, _: read_changes(arguments, session, consume=False),
    "pg_logical_slot_get_changes": lambda arguments, session, _: read_changes(arguments, session, consume=True),
}


def _arguments(raw: list[str]) -> Arguments:
    arguments: list[str | None] = []
    for part in raw:
        bare = re.sub(r"(::[a-z_ ]+(\[\])?)+$", "", part, flags=re.IGNORECASE)
        array = re.fullmatch(r"array ?\[(.*)\]", bare, re.IGNORECASE)
        if array is not None:
            arguments += _arguments(split(array[1]))
        elif re.fullmatch(r"'(?:[^']|'')*'|-?\d+|null|true|false", bare, re.IGNORECASE):
            arguments.append(_literal(bare))
        else:
            raise _Unknown
    return arguments


def split(text: str) -> list[str]:
    """The parts of a list, parted at commas outside quotes and brackets."""
    parts, part, quote, depth = [], "", "", 0
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
            continue
        part += char
    return [*parts, part.strip()] if part.strip() else parts
