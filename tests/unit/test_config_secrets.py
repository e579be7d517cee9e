"""Secrets that are written in a file, and files with secrets that others on the machine can read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, SecretStr

from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake.config.loader import load_project, validate
from cdc_lake.config.model import Pipeline
from cdc_lake.config.schema import models_in
from cdc_lake.config.secrets import MAPPINGS, PATHS, secret_values

HEAD = "version: 1\npipeline: shop\n"
SOURCE = "type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, connect_timeout: 1 s, tables: ['public.*']"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that others can enter, as pytest's own cannot be."""
    made = Path(tempfile.mkdtemp(prefix="cdc_test_", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def project_file(folder: Path, more: str, lake: str = "", *, mode: int = 0o600) -> Path:
    file = folder / "shop.yaml"
    file.write_text(f"{HEAD}source: {{{SOURCE}{more}}}\n{lake}")
    file.chmod(mode)
    return file


def told(file: Path) -> list[str]:
    assert all(d.severity.value == "warning" for d in validate([file]))
    return [f"{d.code} {d.location.path if d.location else ''}" for d in validate([file])]


def test_a_password_file_that_everyone_can_read_is_told(folder: Path) -> None:
    (folder / "pw").write_text("x")
    file = project_file(folder, ', password: "${file:pw}"', mode=0o644)
    for mode, expected in {0o644: ["CFG146 source.password"], 0o604: ["CFG146 source.password"], 0o640: []}.items():
        (folder / "pw").chmod(mode)
        assert told(file) == expected
    (folder / "pw").chmod(0o644)
    (found,) = validate([file])
    assert f"chmod 600 {folder / 'pw'}" in found.hint


def test_a_file_below_a_folder_that_others_cannot_enter_is_well_kept(folder: Path) -> None:
    (folder / "kept").mkdir(mode=0o750)
    (folder / "kept" / "pw").write_text("x")
    (folder / "kept" / "pw").chmod(0o644)
    assert told(project_file(folder, ', password: "${file:kept/pw}"')) == []


def test_a_pipeline_file_with_a_secret_that_everyone_can_read_is_told_once(folder: Path) -> None:
    lake = "lake: {storage: {region: r, access_key_id: a, secret_access_key: b}}\n"
    written = ["CFG125 source.password", "CFG125 lake.storage.access_key_id", "CFG125 lake.storage.secret_access_key"]
    assert told(project_file(folder, ", password: x", lake)) == written
    assert told(project_file(folder, ", password: x", lake, mode=0o644)) == [
        written[0],
        "CFG146 source.password",
        *written[1:],
    ]
    assert told(project_file(folder, ', password: "${env:PATH}"', mode=0o644)) == []


def test_an_environment_with_a_secret_is_looked_at_too(folder: Path) -> None:
    (folder / "conf").mkdir()
    (folder / "conf" / "prod.yaml").write_text("source: {password: x}\n")
    (folder / "conf" / "prod.yaml").chmod(0o644)
    found = validate([project_file(folder, "")], environment="prod")
    assert [d.code for d in found] == ["CFG125", "CFG146"]
    assert "prod.yaml" in found[1].summary


def test_a_private_key_that_everyone_can_read_is_told(folder: Path) -> None:
    (folder / "key.pem").write_text("x")
    (folder / "key.pem").chmod(0o644)
    file = project_file(folder, ", tls: {mode: verify-full, cert: cert.pem, key: key.pem}")
    assert told(file) == ["CFG146 source.tls.key"]


def test_secrets_of_a_catalog_in_the_file_are_told(folder: Path) -> None:
    with_password = 'lake: {iceberg: {uri: "postgresql+psycopg://u:x@h/d"}}\n'
    assert told(project_file(folder, "", with_password)) == ["CFG125 lake.iceberg.uri"]
    assert told(project_file(folder, "", with_password.replace(":x@", "@"))) == []
    rest = "lake: {iceberg: {type: rest, uri: 'https://h', properties: {token: x, s3.region: y}}}\n"
    assert told(project_file(folder, "", rest)) == [f"CFG125 {MAPPINGS[0]}.token"]


def test_check_says_what_validate_warns_of(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    project_file(folder, ", password: x", mode=0o644)
    run_command(app, ["check", "-p", "shop.yaml"])
    said = " ".join(capsys.readouterr().out.split())
    assert "the password is written in plain text" in said
    assert "chmod 600" in said


def secrets_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        at = f"{path}.{name}" if path else name
        if SecretStr in {info.annotation, *get_args(info.annotation)}:
            yield at
        for inner in models_in(info.annotation):
            yield from secrets_of(inner, at)


def test_every_secret_of_the_model_is_looked_at() -> None:
    assert set(secrets_of(Pipeline)) <= {*PATHS, *MAPPINGS}
    assert len(set(secrets_of(Pipeline))) >= 5


def test_a_loaded_pipeline_shows_no_secret_and_knows_them_all(tmp_path: Path) -> None:
    lake = (
        'lake: {iceberg: {uri: "postgresql+psycopg://u:p%40ss@h/d", properties: {token: "to/ken"}},\n'
        "  storage: {region: r, access_key_id: some, secret_access_key: thing, session_token: else}}\n"
    )
    project = load_project(project_file(tmp_path, ", password: my word", lake))
    shown = repr(project) + str(project.pipeline)
    secrets = secret_values(project.pipeline)
    assert secrets >= {"p%40ss", "p@ss", "to/ken", "to%2Fken", "some", "thing", "else", "my word", "my%20word"}
    assert not [secret for secret in secrets if secret in shown]
