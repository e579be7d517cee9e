"""No secret is in a line of output or of a log, whatever fails and however much is asked for (`--debug`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from tests.canary import leaks

SECRETS = {
    "PASSWORD": r"Canary-1/@%x y'z\w",
    "CATALOG": "canary-of-the-catalog",
    "TOKEN": "canary-of-a-token",
    "ACCESS": "CANARYACCESSKEY",
    "SECRET": "canary-of-the-store",
    "REDACT": "canary-of-redaction",
}
POSTGRES = """version: 1
pipeline: shop
source: {type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, password: "${env:PASSWORD}",
  tables: ["public.*"], connect_timeout: 1 s}
"""
FAMILY = POSTGRES.replace("postgres", "gaussdb").replace("port: 1", 'version: "505.2", port: 1, replication_port: 2')
CASES = {
    "a server that is away": (POSTGRES, "SRC201"),
    "a server of the family that is away": (FAMILY, "SRC201"),
    "a catalog in a database that is away": (
        POSTGRES + "bronze: {format: iceberg}\n"
        'lake: {iceberg: {uri: "postgresql+psycopg://u:${env:CATALOG}@127.0.0.1:1/cat", warehouse: w}}\n',
        "LAK430",
    ),
    "a catalog server that is away": (
        POSTGRES + "bronze: {format: iceberg}\n"
        'lake: {iceberg: {type: rest, uri: "http://u:${env:CATALOG}@127.0.0.1:1",\n'
        '  properties: {token: "${env:TOKEN}", credential: "u:${env:SECRET}"}}}\n',
        "LAK430",
    ),
    "a store that is away, beside redaction": (
        POSTGRES + 'bronze: {path: "s3://lake/bronze", redact_key: "${env:REDACT}",\n'
        "  redact: [{columns: [public.a.b], strategy: sha256}]}\n"
        'lake: {storage: {endpoint: "http://127.0.0.1:1", allow_http: true, region: r, patience: 0 s,\n'
        '  access_key_id: "${env:ACCESS}", secret_access_key: "${env:SECRET}", session_token: "${env:TOKEN}"}}\n',
        "LAK435",
    ),
    "secrets where they do not belong": (
        POSTGRES.replace("port: 1", 'port: "${env:PASSWORD}"') + 'snapshot: {mode: "${env:TOKEN}"}\n'
        'apply: {idle: "${env:SECRET}"}\nobserve: {metrics: "${env:CATALOG}", textfile: "${env:REDACT}"}\n',
        "CFG107",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_fails_shows_no_secret_in_output_traceback_or_log(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text, code = CASES[case]
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "shop.yaml").write_text(text)
    assert run_command(app, ["run", "--once", "--only", "receive", "--json", "--debug"]) in (3, 4)
    said = "".join(capfd.readouterr())
    assert f"error[{code}]" in said
    assert "Traceback" in said, "what is asked for is everything"
    assert [name for name, secret in SECRETS.items() if secret.lower() in said.lower()] == []
    assert leaks(tmp_path / "lake", SECRETS.values()) == []
