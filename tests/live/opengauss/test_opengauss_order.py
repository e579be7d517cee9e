"""What the order of a real server's stream rests on: no CSN missing, a snapshot exactly what is below its CSN."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest

from cdc_lake.model.relation import TableName
from cdc_lake.source.gaussdb.server import snapshot_and_csn
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.sql_text import literal
from cdc_lake_testing.oracle import Oracle
from tests.live.opengauss.receiving import KINDS, Kind, Place, decoded, read_until

pytestmark = pytest.mark.live

ACCOUNTS, WRITERS, TRANSFERS, SNAPSHOTS = 50, 4, 60, 8


def tables(session: WireSession, place: Place) -> dict[str, dict[str, str]]:
    """What the session sees of both tables of accounts."""
    out = {}
    for name in ("here", "there"):
        rows = session.query(f"SELECT id, amount FROM {place.table(name)}").rows
        out[name] = {str(key): str(amount) for key, amount in rows}
    return out


def transfer(place: Place, seed: int) -> None:
    """One writer: money moves between two tables, each time in one transaction, some of which are rolled back."""
    dice = random.Random(seed)
    with place.site.sql() as session:
        for _ in range(TRANSFERS):
            giver, taker = sorted(dice.sample(range(ACCOUNTS), 2))
            amount = dice.randint(1, 9)
            session.query("BEGIN")
            session.query(f"UPDATE {place.table('here')} SET amount = amount - {amount} WHERE id = {giver}")
            session.query(f"UPDATE {place.table('there')} SET amount = amount + {amount} WHERE id = {taker}")
            session.query("COMMIT" if dice.random() < 0.9 else "ROLLBACK")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.batch or kind.serial], ids=str)
def test_a_snapshot_holds_exactly_the_transactions_below_its_csn(place: Place, kind: Kind) -> None:
    seed = random.getrandbits(32)
    print("seed", seed)
    site, schema = place.site, place.name
    with site.sql() as session:
        session.query(f"CREATE SCHEMA {schema}")
        for name in ("here", "there"):
            session.query(f"CREATE TABLE {place.table(name)} (id int PRIMARY KEY, amount int)")
        session.query(f"CREATE TABLE {place.table('the_marker')} (id int PRIMARY KEY)")
        place.slot()
        for name in ("here", "there"):
            rows = ", ".join(f"({n}, 1000)" for n in range(ACCOUNTS))
            session.query(f"INSERT INTO {place.table(name)} VALUES {rows}")
        writers = [threading.Thread(target=transfer, args=(place, seed + n)) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        taken = [snapshot_of(place) for _ in range(SNAPSHOTS)]
        for writer in writers:
            writer.join()
        session.query(f"INSERT INTO {place.table('the_marker')} VALUES (1)")
        last = tables(session, place)
    raws = read_until(place, kind, TableName(schema, "the_marker"))
    csns = sorted(raw.bounds.position for raw in raws)
    if not kind.serial:  # serial decoding leaves other databases' transactions out
        assert all(later == sooner + 1 for sooner, later in pairwise(csns)), csns
    transactions = decoded(place, raws)
    for csn, seen in [*taken, (csns[-1] + 1, last)]:
        oracle = Oracle()
        oracle.run([one for one in transactions if one.bounds.position < csn])
        found = {
            name: {
                str(row["id"]): str(row["amount"]) for row in oracle.tables.get(TableName(schema, name), {}).values()
            }
            for name in ("here", "there")
        }
        assert found == seen, csn
        assert sum(int(amount) for rows in found.values() for amount in rows.values()) == 2 * ACCOUNTS * 1000


def snapshot_of(place: Place) -> tuple[int, dict[str, dict[str, str]]]:
    """An exported snapshot's CSN, and what it and a session that takes it over see; they see the same."""
    names = [place.table(name) for name in ("here", "there")]
    with place.site.sql() as exporter, place.site.sql() as importer:
        taken = snapshot_and_csn(exporter, names)
        importer.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
        importer.query(f"SET TRANSACTION SNAPSHOT {literal(taken.name)}")
        seen = tables(importer, place)
        assert tables(exporter, place) == seen
    return taken.csn.value, seen
