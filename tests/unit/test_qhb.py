"""Which server answers, and what a QHB of a release is read as."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.config.fields import parse_release
from cdc_lake.config.loader import validate
from cdc_lake.config.source import Pgoutput, PostgresSource, protocol_of, read_as
from cdc_lake.devtools.recording import RecordingHeader
from cdc_lake.errors import ServerSettings
from cdc_lake.model.position import Lsn
from cdc_lake.ops.check.postgres import qhb_lines
from cdc_lake.source.gaussdb.server import parse_version
from cdc_lake.source.postgres.plugins import chosen
from cdc_lake.source.postgres.server import ServerFacts, decodes, product_of
from cdc_lake_testing.recordings import confirms_by_keepalive

POSTGRES_16 = "PostgreSQL 16.10 on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0, 64-bit"


def source(kind: str = "qhb", version: str | None = None) -> PostgresSource:
    return PostgresSource.model_validate(
        {"type": kind, "version": version, "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    )


@pytest.mark.parametrize(
    ("release", "protocol", "major"),
    [
        ("1.4.9", 1, 12),
        ("1.5", 2, 14),
        ("1.5.0", 2, 14),
        ("1.5.1", 2, 14),
        ("1.5.2", 3, 15),
        ("1.5.3", 4, 16),
        ("1.6", 4, 16),
    ],
)
def test_a_release_is_read_as_the_postgresql_that_speaks_its_protocol(release: str, protocol: int, major: int) -> None:
    numbers = parse_release(release)
    assert (protocol_of(numbers), read_as(numbers)) == (protocol, major)
    if major >= 14:
        assert chosen(major, Pgoutput())["proto_version"] == str(protocol)


@pytest.mark.parametrize(
    ("says", "number", "called", "major"),
    [
        ("QHB 1.5.3 on x86_64-pc-linux-gnu, compiled by gcc 12.2.0, 64-bit", 160002, "QHB 1.5.3", 16),
        ("QHB 1.5.2 on x86_64-pc-linux-gnu", 10502, "QHB 1.5.2", 15),
        ("PostgreSQL 14.5 (QHB 1.5.1) on x86_64-pc-linux-gnu", 140005, "QHB 1.5.1", 14),
        ("qhb (Quantum Hybrid Base) version 1.5.3, 64-bit", 120004, "QHB 1.5.3", 16),
        ("QHB, compiled by gcc 8.3.0", 10503, "QHB 1.5.3", 16),
        ("QHB, compiled by gcc 8.3.0", 150004, "PostgreSQL 15", 15),
        (POSTGRES_16, 10502, "QHB 1.5.2", 15),
        (POSTGRES_16, 160010, "PostgreSQL 16", 16),
        ("QHB 1.4.1 on x86_64-pc-linux-gnu", 120004, "QHB 1.4.1", 12),
    ],
)
def test_a_release_is_found_wherever_the_server_says_it(says: str, number: int, called: str, major: int) -> None:
    found = product_of(source(), says, number)
    assert (str(found), found.major, found.names_qhb) == (called, major, "QHB" in says.upper())


def test_a_release_that_the_server_does_not_tell_is_the_one_that_is_written_down() -> None:
    with pytest.raises(ServerSettings, match="the release of QHB") as untold:
        product_of(source(), "QHB on Linux", 120004)
    assert "source.version" in untold.value.remedy
    assert str(product_of(source(version="1.5.2"), "QHB on Linux", 120004)) == "QHB 1.5.2"
    assert str(product_of(source(version="1.5.2"), "QHB 1.5.2 on Linux", 120004)) == "QHB 1.5.2"
    with pytest.raises(ServerSettings, match=r"QHB 1\.5\.3, but `source.version` says 1\.5\.2"):
        product_of(source(version="1.5.2"), "QHB 1.5.3 on Linux", 120004)


def test_who_takes_a_qhb_for_another_server_is_told() -> None:
    with pytest.raises(ServerSettings, match="is a QHB") as taken:
        product_of(source("postgres"), "QHB 1.5.3 on Linux", 160000)
    assert taken.value.remedy == "set `source.type: qhb`"
    assert str(product_of(source("postgres"), POSTGRES_16, 160010)) == "PostgreSQL 16"
    with pytest.raises(ServerSettings, match="GaussDB family") as family:
        parse_version("QHB 1.5.3 on Linux")
    assert "qhb" in family.value.remedy


def test_check_says_what_a_qhb_is_taken_to_have_and_that_none_was_seen() -> None:
    def told(says: str, number: int, kind: str = "qhb") -> list[tuple[bool | None, str]]:
        given = source(kind)
        return [(line.ok, line.text) for line in qhb_lines(given, product_of(given, says, number))]

    first, last = told("QHB 1.5.1 on Linux", 10501)
    assert first == (True, "read as PostgreSQL 14: pgoutput's protocol up to version 2, no slots on standbys")
    assert last[0] is None
    assert "never been run against a QHB" in last[1]
    unnamed, _ = told(POSTGRES_16, 160010)
    assert unnamed == (None, f"version() does not name QHB: {POSTGRES_16}")
    assert told(POSTGRES_16, 160010, "postgres") == []


def test_a_recording_of_a_qhb_is_one_of_a_postgresql() -> None:
    assert confirms_by_keepalive(RecordingHeader("qhb", "pgoutput"))


def test_two_phase_by_test_decoding_is_taken_by_every_release_that_is_read(tmp_path: Path) -> None:
    """It came with PostgreSQL 14, as which QHB 1.5.0 is read; pgoutput has it from 15 on."""
    file = tmp_path / "q.yaml"
    source = "type: qhb, version: {0}, host: h, database: d, user: u, decoding: {{two_phase: true}}, tables: [t.a]"
    for plugin, taken in (("test_decoding", True), ("pgoutput", False)):
        text = source.format('"1.5.0"') + f", slot: {{plugin: {plugin}}}"
        file.write_text(f"version: 1\npipeline: q\nsource: {{{text}}}\n", encoding="utf-8")
        assert ("CFG129" not in {found.code for found in validate([file])}) == taken


@pytest.mark.parametrize(
    ("number", "level", "decoded"),
    [(180000, "replica", False), (180000, "logical", True), (190000, "replica", True), (190000, "minimal", False)],
)
def test_from_postgresql_19_on_a_slot_switches_decoding_on(number: int, level: str, *, decoded: bool) -> None:
    """`effective_wal_level` of PostgreSQL 19, which was not to be had here: by its documentation."""
    facts = ServerFacts(product_of(source("postgres"), "PostgreSQL", number), level, False, "1", 1, Lsn(0), "d", 0)
    assert decodes(facts) is decoded
