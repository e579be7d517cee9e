"""The doctor's look at a QHB: which release it is, and what of PostgreSQL it is taken to have."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.qhb import protocol_of
from cdc_lake.config.release import parse_release
from cdc_lake.config.source import PostgresSource
from cdc_lake.pipeline.check.line import CheckLine
from cdc_lake.source.product import Product


def qhb_lines(source: PostgresSource, server: Product) -> Iterator[CheckLine]:
    """What differs from a PostgreSQL, where the pipeline says that the server is a QHB."""
    if source.type != "qhb":
        return
    if server.name == "QHB":
        newest = protocol_of(parse_release(server.release))
        text = f"read as PostgreSQL {server.major}: pgoutput's protocol up to version {newest}, no slots on standbys"
        yield CheckLine(ok=True, subject="release", text=text)
    if not server.names_qhb:
        text = f"version() does not name QHB: {server.says}"
        fix = "is it the server that is meant? for PostgreSQL: `source.type: postgres`"
        yield CheckLine(ok=None, subject="release", text=text, fix=fix)
    text = "cdc_lake was never run against a QHB: nothing but its manual says that this works"
    yield CheckLine(
        ok=None, subject="proof", text=text, fix="cdc-lake compare  after the first run: it proves the rows"
    )
