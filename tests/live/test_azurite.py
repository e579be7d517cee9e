"""A lake in ADLS, over Azurite's sockets: the suites of bronze, control tables, their files, leases, and the fence."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.errors import StoreRefused, StoreUnfenced
from cdc_lake.tables import object_store
from cdc_lake.tables.control_files import ControlFiles, StoredControlFiles
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake_testing.azurite import ACCOUNT, KEY, Azurite, NoAzurite, sas_token
from cdc_lake_testing.faulty_store import Fault, FaultyStore
from tests.bronze_object_stores import BUCKET, FORMATS, Stored, stored
from tests.pipeline_file import make_project
from tests.unit.test_bronze_object_store import (
    bronze,
    landed,
    reader,
    test_a_commit_whose_reply_is_lost_each_time_lands_once,
    test_a_replayed_batch_changes_nothing,
    test_a_store_that_checks_a_condition_before_it_writes_is_refused,
    test_a_store_that_ignores_conditions_is_refused_before_anything_is_in_it,
    test_changes_of_a_table_come_in_order,
    test_of_two_receivers_at_the_same_moment_one_lands_and_one_is_fenced,
    test_the_second_of_two_writers_is_refused_and_stays_refused,
    test_what_was_landed_holds,
    transaction,
)
from tests.unit.test_control_tables import stored as stored_tables
from tests.unit.test_control_tables import test_writers_that_append_to_a_store_at_the_same_time_lose_nothing
from tests.unit.test_lease import (
    test_a_holder_on_another_machine_that_renews_is_left_alone_and_one_that_does_not_is_replaced,
    test_a_put_whose_reply_was_lost_counts,
    test_a_store_that_cannot_keep_a_lease_is_refused,
)
from tests.unit.test_pgoutput_two_phase import (
    test_a_file_is_there_whole_is_replaced_and_goes,
    test_more_than_a_file_has_asks_for_no_memory,
)

# suites of S3, collected here too: their fixtures ask for `store`, `place` and `parked_at`
__all__ = [
    "bronze",
    "landed",
    "reader",
    "test_a_commit_whose_reply_is_lost_each_time_lands_once",
    "test_a_file_is_there_whole_is_replaced_and_goes",
    "test_a_holder_on_another_machine_that_renews_is_left_alone_and_one_that_does_not_is_replaced",
    "test_a_put_whose_reply_was_lost_counts",
    "test_a_replayed_batch_changes_nothing",
    "test_a_store_that_cannot_keep_a_lease_is_refused",
    "test_a_store_that_checks_a_condition_before_it_writes_is_refused",
    "test_a_store_that_ignores_conditions_is_refused_before_anything_is_in_it",
    "test_changes_of_a_table_come_in_order",
    "test_more_than_a_file_has_asks_for_no_memory",
    "test_of_two_receivers_at_the_same_moment_one_lands_and_one_is_fenced",
    "test_the_second_of_two_writers_is_refused_and_stays_refused",
    "test_what_was_landed_holds",
    "test_writers_that_append_to_a_store_at_the_same_time_lose_nothing",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    try:
        running = Azurite(tmp_path_factory.mktemp("azurite"))
    except NoAzurite as missing:
        if os.environ.get("CDC_LAKE_REQUIRE_AZURITE"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    with running:
        for name in (BUCKET, "leases"):
            running.bucket(name)
        yield running


@pytest.fixture(autouse=True)
def shorter_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """A race takes Azurite a tenth of a second; one test runs all of them."""
    monkeypatch.setattr(object_store, "_ROUNDS", 2)


@pytest.fixture(params=FORMATS)
def place(request: pytest.FixtureRequest, store: Azurite, tmp_path: Path) -> Stored:
    return stored(request.param, store, tmp_path, patience=900)


@pytest.fixture
def parked_at(store: Azurite) -> ControlFiles:
    return StoredControlFiles(ObjectStore(store.storage()), store.address(BUCKET, f"parked/{uuid4().hex}"))


@pytest.fixture
def opened(store: Azurite) -> Callable[[], ControlTables]:
    return partial(stored_tables, store, uuid4().hex)


@pytest.mark.parametrize("keys", ["account_key", "sas_token"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_pipeline_file_with_addresses_of_adls_lands(kind: str, keys: str, store: Azurite, tmp_path: Path) -> None:
    secret = KEY if keys == "account_key" else sas_token()
    lake = {
        "path": str(store.address(BUCKET, f"lake_{kind}_{keys}")),
        "storage": {"endpoint": store.endpoint, "allow_http": True, keys: secret},
        "iceberg": {"uri": f"sqlite:///{tmp_path}/catalog.db"},
    }
    project = make_project(tmp_path, bronze={"format": kind}, lake=lake)
    writer = bronze_writer(project)
    writer.begin_stream("s", 100)
    writer.append([transaction(200)])
    state = bronze_reader(project).state()
    assert state is not None
    assert state.upto == 200
    addresses = bronze_reader(project).files().for_spark(bronze_reader(project).files().paths)
    assert all(address.startswith(f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net/lake_") for address in addresses)


def test_a_put_is_conditional_on_what_was_read(store: Azurite) -> None:
    there, path = ObjectStore(store.storage()), f"{BUCKET}/{uuid4().hex}"
    first = there.put_if(path, "one", "here", tag=None)
    assert first is not None
    assert there.read_tagged(path, "here") == ("one", first)
    second = there.put_if(path, "two", "here", tag=first)
    assert second is not None
    assert there.put_if(path, "three", "here", tag=first) is None
    assert there.read_tagged(path, "here") == ("two", second)


def test_a_store_that_proves_its_fence_is_asked_once(store: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with FaultyStore(store) as proxy:
        there = ObjectStore(store.storage(proxy.endpoint))
        for replaces in (False, True, False, True):
            there.prove_fence(f"{BUCKET}/{uuid4().hex}", "here", replaces=replaces)
        conditional = [request for request in proxy.requests if request.conditional]
    assert len(conditional) == 2 * 20 * 8
    with FaultyStore(store, lambda r: Fault.UNFENCED if r.conditional else None) as proxy, pytest.raises(StoreUnfenced):
        ObjectStore(store.storage(proxy.endpoint)).prove_fence(f"{BUCKET}/x", "here", replaces=True)


@pytest.mark.obeys("LAK436")
def test_a_container_that_does_not_exist_is_said_and_creating_it_helps(store: Azurite) -> None:
    there, path = ObjectStore(store.storage()), "missing/lease"
    for call in (partial(there.read_tagged, path, "here"), partial(there.put_if, path, "text", "here", tag=None)):
        with pytest.raises(StoreRefused, match="container does not exist") as refused:
            call()
        assert refused.value.remedy == "create it, or correct its name in the address"
    store.bucket("missing")
    assert there.put_if(path, "text", "here", tag=None) is not None


def test_a_wrong_key_is_refused_at_once(store: Azurite) -> None:
    wrong = store.storage().model_copy(update={"account_key": SecretStr(base64.b64encode(b"wrong").decode())})
    with pytest.raises(StoreRefused):
        ObjectStore(wrong).read_tagged(f"{BUCKET}/x", "here")
    with pytest.raises(StoreRefused):
        StoredControlFiles(ObjectStore(wrong), store.address(BUCKET, "x")).put("x", lambda: [b"x"])
