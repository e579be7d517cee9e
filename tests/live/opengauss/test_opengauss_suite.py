"""The suite itself, in every run: on the stand-in its tests do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.live.opengauss.conftest import place_on
from tests.live.opengauss.receiving import FAST, Place
from tests.live.opengauss.site import HOW, given, stand_in_site
from tests.live.opengauss.test_opengauss_errors import (
    test_a_wrong_password_and_an_unknown_database as wrong_credentials_are_refused,
)
from tests.live.opengauss.test_opengauss_receive import lands_whole

pytestmark = pytest.mark.live


@pytest.fixture
def stand_in(database: Database, tmp_path: Path) -> Iterator[Place]:
    """A place on the stand-in."""
    with stand_in_site(database) as site:
        yield from place_on(site, tmp_path)


def test_the_suite_runs_on_the_stand_in(stand_in: Place) -> None:
    wrong_credentials_are_refused(stand_in)
    lands_whole(stand_in, FAST, 20)


@pytest.mark.skipif(not given(), reason=HOW)
def test_the_server_is_of_the_family(place: Place) -> None:
    facts = place.site.facts()
    print(facts)
    assert facts.wal_level == "logical"
