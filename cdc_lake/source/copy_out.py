"""COPY … TO STDOUT over libpq's own calls: psycopg's copy costs more for each row than the row does.

PostgreSQL docs, libpq: Functions for Receiving COPY Data. The server sends one row a message.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import pq

from cdc_lake.source.connection import Session, lost, next_result, result_error


def copy_out(session: Session, statement: str, doing: str) -> Iterator[Any]:
    """The rows of a COPY as the server sends them, views of bytes with their line feed. Raises SourceError.

    Who does not take all of them closes the session by it.
    """
    pgconn = session.pgconn
    _begin(pgconn, statement, doing)
    done = False
    try:
        yield from _rows(pgconn, doing)
        done = True
    finally:
        if not done:
            session.close()


def _begin(pgconn: pq.abc.PGconn, statement: str, doing: str) -> None:
    result = pgconn.exec_(statement.encode())
    if result.status != pq.ExecStatus.COPY_OUT:
        raise result_error(result, pgconn, doing)


def _rows(pgconn: pq.abc.PGconn, doing: str) -> Iterator[Any]:
    take = pgconn.get_copy_data
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    try:
        while True:
            length, row = take(1)
            if length > 0:
                yield row
            elif length == 0:
                readable.poll()
                pgconn.consume_input()
            else:
                break
        while (result := next_result(pgconn)) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise result_error(result, pgconn, doing)
    except psycopg.OperationalError as broken:
        raise lost(pgconn, doing) from broken
