"""Prepared transactions of a server that sends COMMIT PREPARED of those that only locked rows without their PREPARE.

The others of `test_two_phase_live.py` run on such ones by `make test-long`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc_lake_testing.server import EmbeddedServer
from tests.conftest import make_role, start_server
from tests.live.test_large_transactions import streaming
from tests.live.test_two_phase_live import (
    phased,
    test_a_lost_or_damaged_file_is_an_error_and_no_change_is_lost_unseen,
    test_a_parked_transaction_outlives_its_receiver_and_lands_where_it_commits,
    test_the_server_is_asked_whether_one_whose_prepare_nobody_has_changed_anything,
    test_without_the_file_the_server_still_sends_it_whole,
)

pytestmark = pytest.mark.live

__all__ = [
    "phased",
    "streaming",
    "test_a_lost_or_damaged_file_is_an_error_and_no_change_is_lost_unseen",
    "test_a_parked_transaction_outlives_its_receiver_and_lands_where_it_commits",
    "test_the_server_is_asked_whether_one_whose_prepare_nobody_has_changed_anything",
    "test_without_the_file_the_server_still_sends_it_whole",
]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """The wheel's other one."""
    embedded = start_server(version=16)
    make_role(embedded)
    yield embedded
    embedded.remove()
