"""Passes the SQL of one client session to PostgreSQL over its own connection, and returns the results as text."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Final

from psycopg import OperationalError, pq
from psycopg.pq import DiagnosticField as Diagnostic
from psycopg.pq import ExecStatus, TransactionStatus

from cdc_lake_testing.gaussdb.sql import Answer, CopyOut, Done, Failed, ResultColumn, ResultSet, SqlSession, Status

_STATUS: Final[dict[TransactionStatus, Status]] = {
    TransactionStatus.IDLE: "I",
    TransactionStatus.ACTIVE: "T",
    TransactionStatus.INTRANS: "T",
    TransactionStatus.INERROR: "E",
    TransactionStatus.UNKNOWN: "I",
}


class Relay:
    """One connection by `dsn`, for one client `session`, whose status it keeps."""

    def __init__(self, dsn: str, session: SqlSession) -> None:
        self._session = session
        self._pgconn = pq.PGconn.connect(dsn.encode())
        if self._pgconn.status != pq.ConnStatus.OK:
            msg = self._pgconn.get_error_message()
            self._pgconn.finish()
            raise ConnectionError(msg)

    def run(self, statement: str) -> list[Answer]:
        """The answers of a simple query. A COPY is read while it is sent on."""
        self._pgconn.send_query(statement.encode())
        answers: list[Answer] = []
        while (result := self._result()) is not None:
            if result.status == ExecStatus.COPY_OUT:
                # what stands behind a COPY in one query is read and left out: the family's clients send one statement
                answers.append(CopyOut(self._copied(), result.nfields))
                self._session.status = "T" if self._in_transaction else "I"
                return answers
            if result.status == ExecStatus.COPY_IN:
                self._pgconn.put_copy_end(b"the stand-in takes no COPY FROM STDIN")
                continue
            answers.append(_answer(result))
        self._follow()
        return answers

    def rows(self, statement: str) -> list[list[str | None]]:
        """The rows of one query; raises RuntimeError with the server's words."""
        match self.run(statement):
            case [ResultSet() as found]:
                return [list(row) for row in found.rows]
            case [*_, Failed(message=message)]:
                raise RuntimeError(message)
            case _:
                return []

    def close(self) -> None:
        """Close the connection; what was open is rolled back."""
        self._pgconn.finish()

    @property
    def _in_transaction(self) -> bool:
        return self._session.status == "T"

    def _follow(self) -> None:
        self._session.status = _STATUS[TransactionStatus(self._pgconn.transaction_status)]

    def _result(self) -> pq.abc.PGresult | None:
        while self._pgconn.is_busy() and self._consume():
            pass
        return self._pgconn.get_result()

    def _consume(self) -> bool:
        """Wait for more, by `select`: libpq's own calls hold the interpreter's lock, and the process stands still.
        False: the connection is over, and a result says so.
        """
        select.select([self._pgconn.socket], [], [])
        try:
            self._pgconn.consume_input()
        except OperationalError:
            return False
        return True

    def _copied(self) -> Iterator[bytes]:
        while True:
            size, data = self._pgconn.get_copy_data(1)
            if size < 0 or (size == 0 and not self._consume()):
                break
            if size:
                yield bytes(data)
        failure = None
        while (result := self._result()) is not None:
            if result.status == ExecStatus.FATAL_ERROR:
                failure = _text(result.error_field(Diagnostic.MESSAGE_PRIMARY))
        self._follow()
        if failure is not None:
            raise RuntimeError(failure)


def _answer(result: pq.abc.PGresult) -> Answer:
    match result.status:
        case ExecStatus.TUPLES_OK:
            columns = [
                ResultColumn(_text(result.fname(at)) or "", result.ftype(at), result.fsize(at))
                for at in range(result.nfields)
            ]
            rows = [[_text(result.get_value(row, at)) for at in range(result.nfields)] for row in range(result.ntuples)]
            return ResultSet(columns, rows, _text(result.command_status))
        case ExecStatus.COMMAND_OK | ExecStatus.EMPTY_QUERY:
            return Done(_text(result.command_status) or "")
        case _:
            severity = _text(result.error_field(Diagnostic.SEVERITY_NONLOCALIZED))
            return Failed(
                _text(result.error_field(Diagnostic.SQLSTATE)) or "XX000",
                _text(result.error_field(Diagnostic.MESSAGE_PRIMARY)) or result.error_message.decode(errors="replace"),
                _text(result.error_field(Diagnostic.MESSAGE_DETAIL)),
                _text(result.error_field(Diagnostic.MESSAGE_HINT)),
                "FATAL" if severity in {"FATAL", "PANIC"} else "ERROR",
            )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
