"""The page of PostgreSQL's versions names the behaviours that are tested, and what each version has."""

from __future__ import annotations

from tests.live.test_postgres_versions import BEHAVIOURS
from tests.postgres_matrix import HEAD, PAGE, VERSIONS, page


def test_the_page_is_of_these_behaviours() -> None:
    text = PAGE.read_text()
    assert text.startswith(HEAD)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.removeprefix(HEAD).splitlines()]
    head, _, *rows = lines
    assert tuple(int(version.partition(".")[0]) for version in head[1:]) == VERSIONS
    assert [row[0] for row in rows] == [one.title for one in BEHAVIOURS]
    for one, row in zip(BEHAVIOURS, rows, strict=True):
        for version, cell in zip(VERSIONS, row[1:], strict=True):
            assert cell == ("yes" if version >= one.since else "")
    found = {
        version: {"version": head[nth], **{row[0]: row[nth] for row in rows}} for nth, version in enumerate(VERSIONS, 1)
    }
    assert page(found, [row[0] for row in rows]) == text
