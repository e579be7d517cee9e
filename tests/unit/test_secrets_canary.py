"""No secret in what anybody is shown: every mistake beside one, every verb that fails while it holds some.

The commands run in this process as `cdc-lake` runs them; looked at is all they write, with tracebacks and logs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from cdc_lake_testing.gaussdb.authentication import Credentials, Method
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.server import GaussServer
from tests.canary import CANARY, Told, leaks
from tests.tally import tally

HEAD = "version: 1\npipeline: shop\n"
PLAIN = "type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, connect_timeout: 1 s, tables: ['public.*']"


def block(password: str) -> str:
    """A source in lines of its own, with this in the line of the password."""
    lines = (part.strip() for part in PLAIN.replace("['public.*']", "[public.t]").split(", "))
    return f"{HEAD}source:\n" + "".join(f"  {line}\n" for line in (*lines, password))


def flow(more: str) -> str:
    return f"{HEAD}source: {{{PLAIN}, {more}}}\n"


BESIDE = {
    "an alias": block(f"password: *{CANARY}"),
    "an anchor": block(f"password: &{CANARY}"),
    "an anchor before a value": block(f"password: &{CANARY} x"),
    "a tag": block(f"password: !{CANARY}"),
    "a tag of a handle": block(f"password: !{CANARY}!x"),
    "a tag in brackets": block(f"password: !<{CANARY}"),
    "a quote that is not closed": block(f'password: "{CANARY}'),
    "a single quote that is not closed": block(f"password: '{CANARY}"),
    "an escape that is none": block(f'password: "{CANARY}\\q"'),
    "text behind a quote": block(f'password: "x" {CANARY}'),
    "a bracket that is not closed": block(f"password: [{CANARY}"),
    "a brace that is not closed": block(f"password: {{{CANARY}"),
    "a list": block(f"password: [{CANARY}]"),
    "a mapping": block(f"password: {{{CANARY}: {CANARY}}}"),
    "a second colon": block(f"password: a: {CANARY}"),
    "a second colon behind the secret": block(f"password: {CANARY}: b"),
    "no blank behind the colon": block(f"password:{CANARY}"),
    "no blank behind the colon, in braces": flow(f"password:{CANARY}"),
    "an equals sign": flow(f"password={CANARY}"),
    "no colon": flow(f"password {CANARY}"),
    "a wrong key": block(f"pasword: {CANARY}"),
    "a key twice": block(f"password: {CANARY}1\n  password: {CANARY}2"),
    "a per cent sign": block(f"password: %{CANARY}"),
    "an at sign": block(f"password: @{CANARY}"),
    "a back quote": block(f"password: `{CANARY}`"),
    "a block scalar": block(f"password: |{CANARY}"),
    "a folded scalar": block(f"password: >{CANARY}"),
    "a dash": block(f"password: - {CANARY}"),
    "a question mark": block(f"password: ? {CANARY}"),
    "an unknown reference": block(f"password: a${{{CANARY}}}"),
    "an unknown kind of reference": block(f"password: ${{envv:{CANARY}}}"),
    "a reference that is not closed": block(f"password: a${{{CANARY}"),
    "a reference without quotes": flow(f"password: a${{{CANARY}}}"),
    "the secret for its variable": block(f"password: ${{env:{CANARY}!}}"),
    "the secret for its place": block(f"password: ${{secret:{CANARY}}}"),
    "a default of a reference": block(f"password: ${{env:NOT!SET:-{CANARY}}}"),
    "a control character": block(f"password: {CANARY}\x01"),
    "a tab": block(f"\tpassword: {CANARY}"),
    "another indentation": block(f"   password: {CANARY}"),
    "a document behind it": block(f"password: {CANARY}\n---\nversion: 1"),
    "a wrong type of its neighbour": flow(f"password: {CANARY}, wal_budget: x, slot: y"),
    "a missing neighbour": f"{HEAD}source: {{type: postgres, password: {CANARY}}}\n",
    "another type of source": f"{HEAD}source: {{type: mysql, password: {CANARY}}}\n",
    "a host with all of it": flow("x: y").replace("127.0.0.1", f'"postgresql://u:{CANARY}@h/d"'),
    "hosts with all of it": flow("x: y").replace("host: 127.0.0.1", f'hosts: ["u:{CANARY}@h:x"]'),
    "keys of a store": flow("password: x") + f"lake: {{storage: {{access_key_id: [{CANARY}], region: {{}}}}}}\n",
    "keys of a store that have one too many": flow("password: x")
    + f"lake: {{storage: {{region: r, access_key_id: {CANARY}, secret_acces_key: {CANARY}, session_token:{CANARY}}}}}\n",
    "an endpoint with all of it": flow("password: x")
    + f"lake: {{storage: {{region: r, access_key_id: a, secret_access_key: b, endpoint: 'https://u:{CANARY}@s'}}}}\n",
    "a catalog's address": flow("password: x") + f"lake: {{iceberg: {{uri: 'mysql://u:{CANARY}@h/d'}}}}\n",
    "a catalog's address of another type": flow("password: x")
    + f"lake: {{iceberg: {{type: rest, uri: 'postgresql://u:{CANARY}@h/d'}}}}\n",
    "properties of a catalog": flow("password: x") + f"lake: {{iceberg: {{properties: {{token: [{CANARY}]}}}}}}\n",
    "properties of a catalog as one text": flow("password: x") + f"lake: {{iceberg: {{properties: {CANARY}}}}}\n",
    "a key of redaction": flow("password: x") + f"bronze: {{redact_key: {CANARY}}}\n",
    "a key of redaction with rules": flow("password: x")
    + f"bronze: {{redact_key: {CANARY}, redact: [{{columns: [public.t.a], strategy: sha256}}]}}\n",
}


@pytest.mark.parametrize("mistake", BESIDE)
def test_a_mistake_beside_a_secret_is_told_without_it(told: Told, mistake: str) -> None:
    for arguments in (["validate"], ["--json", "validate"], ["--debug", "plan", "--show-config"]):
        code, said = told(BESIDE[mistake], *arguments)
        assert code in {0, 3}, said
        assert CANARY not in said, arguments
    assert said


RECEIVING: Final = ("run", "--once", "--only", "receive")
SECRETS = {
    "password": "CANARY_PASSWORD", "access_key_id": "CANARY_KEY_ID", "secret_access_key": "CANARY_KEY",
    "session_token": "CANARY_SESSION", "token": "CANARY_TOKEN", "uri": "CANARY_URI", "redact_key": "CANARY_REDACT",
}  # fmt: skip
FAILING = (
    ["validate"], ["check"], ["check", "--sql"], ["plan"], ["plan", "--show-config"], ["status"], ["compare"],
    [*RECEIVING], ["inspect", "span"], ["inspect", "tx", "0/1"], ["inspect", "chain"], ["inspect", "chain", "--against", "source"],
    ["inspect", "row", "public.t", "1"], ["quarantine", "list"], ["quarantine", "retry"], ["cuts", "list"],
    ["cuts", "show"], ["cuts", "pin", "x"], ["maintain"], ["report"], ["record", "pipelines/shop.yaml", "r"], ["rebuild", "public.t"],
    ["bundle", "--out", "deploy"],
)  # fmt: skip


class Echo(BaseHTTPRequestHandler):
    """A server that refuses, and says back what it was sent."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        said = json.dumps({"error": {"message": f"no: {self.headers}", "type": "NotAuthorizedException", "code": 401}})
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - as the library names them

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def pipelines(refusing: str) -> dict[str, str]:
    source = PLAIN + ', password: "${env:CANARY_PASSWORD}"'
    family = source.replace("postgres", "gaussdb")
    keys = ", ".join(f'{key}: "${{env:{SECRETS[key]}}}"' for key in ("access_key_id", "secret_access_key"))
    store = f'{{region: r, {keys}, session_token: "${{env:CANARY_SESSION}}", patience: 100 ms, allow_http: true, '
    rest = f'{{type: rest, uri: "{refusing}", properties: {{token: "${{env:CANARY_TOKEN}}"}}}}'
    away = (
        '{type: rest, uri: "http://u:${env:CANARY_TOKEN}@127.0.0.1:1", properties: {credential: "u:${env:CANARY_KEY}"}}'
    )
    redact = '{redact_key: "${env:CANARY_REDACT}", redact: [{columns: [public.t.a], strategy: sha256}]}'
    made = {
        "postgres": f"source: {{{source}}}\nbronze: {redact}\n",
        "gaussdb": f"source: {{{family}}}\n",
        "json logs and lineage": f"source: {{{source}}}\nobserve: {{log: json, openlineage: {{to: {refusing or 'http://h'},"
        ' api_key: "${env:CANARY_TOKEN}"}}\n',
        "tls": f"source: {{{source}, tls: {{mode: verify-full, root_cert: secret.pem, key: secret.pem}}}}\n",
        "store": f'source: {{{source}}}\nbronze: {{path: "s3://lake/bronze"}}\n'
        f'lake: {{storage: {store} endpoint: "{refusing}"}}}}\n',
        "store that is away": f'source: {{{source}}}\nbronze: {{path: "s3://lake/bronze"}}\n'
        f'lake: {{storage: {store} endpoint: "http://127.0.0.1:1"}}}}\n',
        "rest catalog": f"source: {{{source}}}\nbronze: {{format: iceberg}}\nlake: {{iceberg: {rest}}}\n",
        "rest catalog that is away": f"source: {{{source}}}\nbronze: {{format: iceberg}}\nlake: {{iceberg: {away}}}\n",
        "sql catalog": f'source: {{{source}}}\nbronze: {{format: iceberg}}\nlake: {{iceberg: {{uri: "${{env:CANARY_URI}}"}}}}\n',
    }
    misplaced = 'snapshot: {mode: "${env:CANARY_TOKEN}"}\napply: {idle: "${env:CANARY_KEY}"}\n'
    made["secrets where they do not belong"] = f"source: {{{source}}}\n{misplaced}".replace(
        "port: 1", 'port: "${env:CANARY_PASSWORD}"'
    )
    return {name: HEAD + text for name, text in made.items()}


ENDS_WITH = {
    "postgres": "SRC201", "gaussdb": "SRC201", "json logs and lineage": "SRC201", "tls": "SRC201", "store": "LAK436", "store that is away": "LAK435",
    "rest catalog": "LAK430", "rest catalog that is away": "LAK430", "sql catalog": "LAK430",
    "secrets where they do not belong": "CFG107",
}  # fmt: skip
"""How receiving ends: it got as far as to what fails."""


@pytest.mark.parametrize("pipeline", pipelines(""))
def test_a_verb_that_fails_shows_no_secret(
    told: Told, refusing: str, pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS.values():
        monkeypatch.setenv(name, f"{CANARY}-{name}/@%x y'z\\w-and-32-characters-of-it")
    monkeypatch.setenv("CANARY_URI", f"postgresql+psycopg://u:{CANARY}@127.0.0.1:1/catalog")
    (tmp_path / "secret.pem").write_text(f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n")
    (tmp_path / "secret.pem").chmod(0o600)
    (tmp_path / "conf").mkdir()
    for target in ("dev", "prod"):
        (tmp_path / "conf" / f"{target}.yaml").write_text("snapshot: {}\n")
    failed = 0
    for arguments in FAILING:
        # errors are told on standard error too, with their traceback
        code, said = told(pipelines(refusing)[pipeline], "--json", "--debug", *arguments)
        if code == 0:
            code, more = told(pipelines(refusing)[pipeline], "-v", *arguments)
            said += more
        assert CANARY not in said, (arguments, said)
        assert code in {0, 1, 2, 3, 4}, (arguments, said)
        failed += code != 0
        if arguments == [*RECEIVING]:
            assert f'"{ENDS_WITH[pipeline]}"' in said
            assert "Traceback" in said, "what is asked for is everything"
    (tmp_path / "secret.pem").unlink()
    assert leaks(tmp_path, [CANARY]) == []
    tally("R20", {pipeline}, paths=failed)


@pytest.mark.parametrize("method", [Method.PASSWORD, Method.MD5, Method.SHA256, Method.SM3, Method.REJECT])
@pytest.mark.parametrize("password", [CANARY, f"the server's {CANARY}"], ids=["wrong", "right"])
def test_a_server_of_the_gaussdb_family_that_refuses_shows_no_secret(
    told: Told, method: Method, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password of the server too: with the right one the login is done, and the server, which has no SQL, refuses."""
    monkeypatch.setenv("CANARY_PASSWORD", password)
    users = {"u": Credentials(f"the server's {CANARY}")}
    with GaussServer(Ledger(), users=users, method=method) as server:
        at = f"port: {server.port}, replication_port: {server.replication_port}, tls: {{mode: disable}}"
        source = flow('password: "${env:CANARY_PASSWORD}"').replace("postgres", "opengauss").replace("port: 1", at)
        failed = 0
        for arguments in (["check"], ["plan"], ["run", "--once", "--only", "receive"], ["status"]):
            code, said = told(source, "--json", "--debug", *arguments)
            assert CANARY not in said, (arguments, said)
            assert code in {0, 1, 4}, (arguments, said)
            failed += code != 0
    assert failed >= 2
    tally("R20", {f"the family's login, {method.name.lower()}"}, paths=failed)
