"""Every way into the lake redacts: transactions, copies, what came too late."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lake.bronze.chain import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.redaction import Redaction, Strategy
from cdc_lake.errors import RedactionUnfit
from cdc_lake.model.change import Insert, Message
from cdc_lake.model.transaction import Transaction
from cdc_lake.pipeline.gaps import keep_late
from cdc_lake.pipeline.redaction import RedactedBronze, redacted, redaction_of
from cdc_lake.testing.messages import boundaries, raw_transaction, table
from tests.canary import leaks

CANARY = "kanari3n"
USERS = table("public.users", id="int8", email="text", ssn="text", note="text")
ONE = raw_transaction(
    Transaction(boundaries(100), (Insert(USERS, ("1", CANARY, CANARY, "plain")), Message(CANARY, CANARY.encode())))
)


def redaction(**strategies: Strategy) -> Redaction:
    return Redaction(lambda _, name: strategies.get(name), key=b"k" * 16)


def test_transactions_copies_and_what_came_too_late_hold_no_canary(tmp_path: Path):
    one = redaction(email=Strategy.SHA256, ssn=Strategy.DROP)
    bronze = RedactedBronze(DeltaBronze(tmp_path / "bronze", durability="os"), one)
    state = bronze.begin_stream("s", 50)
    bronze.append_snapshot("i", 0, USERS, pa.array([["1", CANARY, CANARY, "plain"]]), 0, 50)
    bronze.append([ONE])
    kept = keep_late(tmp_path / "control", state, ONE, redacted(tabulate, one))
    assert kept.exists()
    assert leaks(tmp_path, [CANARY]) == []
    assert leaks(tmp_path, ["plain"])
    assert verify(BronzeReader(tmp_path / "bronze")).transactions == 1


@pytest.mark.parametrize("strategy", [Strategy.DROP, Strategy.NULL])
def test_a_column_that_becomes_part_of_the_key_stops_the_receiver(tmp_path: Path, strategy: Strategy):
    bronze = RedactedBronze(DeltaBronze(tmp_path, durability="os"), redaction(ssn=strategy))
    bronze.begin_stream("s", 50)
    bronze.append([ONE])
    keyed = table("public.users", key=["id", "ssn"], id="int8", ssn="text")
    with pytest.raises(RedactionUnfit, match=r"`ssn` of .* identifies its rows"):
        bronze.append([raw_transaction(Transaction(boundaries(200), (Insert(keyed, ("1", CANARY)),)))])
    assert leaks(tmp_path, [CANARY]), "what has no rule is landed as it is"


def test_columns_that_the_pipeline_keys_by_cannot_be_lost():
    rules = Redaction(
        lambda _, name: Strategy.NULL if name == "note" else None, keys=lambda _: ("id", "note"), key=None
    )
    with pytest.raises(RedactionUnfit, match="`note`"):
        rules.relation(USERS)


@pytest.mark.parametrize("bronze", [{"undecodable": "land", "redact_key": "k" * 16}, {}])
def test_nothing_gets_past_a_pipeline_that_was_made_without_a_file(tmp_path: Path, bronze: dict[str, str]):
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    rules = [{"columns": ["public.*.email"], "strategy": "sha256"}]
    document = {"version": 1, "pipeline": "shop", "source": source, "bronze": {"redact": rules, **bronze}}
    with pytest.raises(RedactionUnfit):
        redaction_of(Project(Pipeline.model_validate(document), tmp_path / "shop.yaml", tmp_path))
