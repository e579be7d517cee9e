"""Sources of the GaussDB family: what is accepted, what is sent, what editors and people are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cdc_lake.cli.project_template import scaffold
from cdc_lake.config.effective import effective
from cdc_lake.config.fields import parse_release, white_list
from cdc_lake.config.gaussdb_options import OPTIONS, Mode, as_boolean
from cdc_lake.config.loader import load_project, validate
from cdc_lake.config.project import effective_options
from cdc_lake.config.schema import json_schema
from cdc_lake.config.source import Address, FamilySource, host_and_port
from cdc_lake.config.validation.gaussdb import Rule, judge
from cdc_lake.errors import NotForThisSource
from cdc_lake.model.diagnostic import Severity
from tools.docs.decoding_options import options_page

ROOT = Path(__file__).parents[2]
ALWAYS = {"include-xids": "on", "include-timestamp": "on", "skip-empty-xacts": "off"}
PARALLEL = {"parallel-decode-num": "4", "decode-style": "b", "sending-batch": "1", **ALWAYS}
SERIAL = {"parallel-decode-num": "1", **ALWAYS}

# name: (type, settings, options that are sent)
ACCEPTED: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "nothing said": ("opengauss", {}, PARALLEL),
    "parallel, every option of the open source": (
        "opengauss",
        {
            "decoding": {
                "parallel-decode-num": 20, "decode-style": "json", "sending-batch": 0, "parallel-queue-size": 1024,
                "include-xids": False, "include-timestamp": "off", "skip-empty-xacts": 0, "only-local": "N",
                "include-originid": "t", "max-txn-in-memory": 100, "max-reorderbuffer-in-memory": "0",
                "standby-connection": "false", "sender-timeout": 0, "white-table-list": "*.*",
            },
            "version": "6.0.2",
        },
        {
            "parallel-decode-num": "20", "decode-style": "j", "sending-batch": "0", "parallel-queue-size": "1024",
            "include-xids": "off", "include-timestamp": "off", "skip-empty-xacts": "off", "only-local": "off",
            "include-originid": "on", "max-txn-in-memory": "100", "max-reorderbuffer-in-memory": "0",
            "standby-connection": "off", "sender-timeout": "0", "white-table-list": "*.*",
        },
    ),
    "text in batches on the 3.0 line": (
        "mogdb", {"version": "3.0.4", "decoding": {"decode-style": "text"}}, {**PARALLEL, "decode-style": "t"},
    ),
    "serial": ("mogdb", {"decoding": {"parallel-decode-num": 1}}, SERIAL),
    "serial, with what only it has": (
        "gaussdb", {"decoding": {"parallel-decode-num": "1", "force-binary": 0}}, {**SERIAL, "force-binary": "off"},
    ),
    "serial in CSN order on a slot in CSN order": (
        "gaussdb", {"slot": {"output_order": "csn"}, "order": "csn", "decoding": {"parallel-decode-num": 1}},
        {**SERIAL, "output-order": "1"},
    ),
    "SQL functions": ("opengauss", {"mode": "polling"}, ALWAYS),
    "SQL functions that are said to be serial": (
        "opengauss", {"mode": "polling", "order": "lsn", "decoding": {"parallel-decode-num": 1}}, ALWAYS,
    ),
    "test_decoding in parallel": ("opengauss", {"slot": {"plugin": "test_decoding"}}, PARALLEL),
    "a plugin of GaussDB in its style": (
        "gaussdb", {"slot": {"plugin": "parallel_json_decoding"}, "decoding": {"decode-style": "j"}},
        {**PARALLEL, "decode-style": "j"},
    ),
    "GaussDB's own options": (
        "gaussdb",
        {
            "decoding": {
                "include-user": True, "exclude-userids": "10,16384", "exclude-users": "anna,bert",
                "dynamic-resolution": 0, "enable-heartbeat": "on", "auto-advance": False, "output-order": 0,
                "skip-generated-columns": "no", "max-txn-in-memory": 4096,
            }
        },
        {
            **PARALLEL, "include-user": "on", "exclude-userids": "10,16384", "exclude-users": "anna,bert",
            "dynamic-resolution": "off", "enable-heartbeat": "on", "auto-advance": "off", "output-order": "0",
            "skip-generated-columns": "off", "max-txn-in-memory": "4096",
        },
    ),
    "a coordinator": (
        "gaussdb", {"node": "coordinator", "decoding": {"logical-receiver-num": 4}},
        {**PARALLEL, "logical-receiver-num": "4"},
    ),
    "a data node with a slot in CSN order": (
        "gaussdb", {"node": "data_node", "slot": {"output_order": "csn"}, "decoding": {"slice-id": 0}},
        {**PARALLEL, "slice-id": "0", "output-order": "1"},
    ),
    "a slice where the node is not said": (
        "gaussdb", {"slot": {"output_order": "csn"}, "decoding": {"slice-id": 7}},
        {**PARALLEL, "slice-id": "7", "output-order": "1"},
    ),
    "an option nobody knows": (
        "mogdb", {"allow_unknown_options": True, "decoding": {"brand-new": True, "other": 5}},
        {**PARALLEL, "brand-new": "on", "other": "5"},
    ),
    "an option no document describes": (
        "gaussdb", {"allow_unknown_options": True, "decoding": {"decode-sequence": "off"}},
        {**PARALLEL, "decode-sequence": "off"},
    ),
}  # fmt: skip


def source(kind: str = "opengauss", **settings: Any) -> FamilySource:
    given = {"host": "h", "port": 5432, "database": "d", "user": "u", "tables": ["*.*"], **settings}
    if "hosts" in settings:
        del given["host"]
    return FamilySource.model_validate({"type": kind, **given})


def project_file(folder: Path, kind: str, **settings: Any) -> Path:
    given = {"host": "h", "port": 5432, "database": "d", "user": "u", "tables": ["*.*"], **settings}
    file = folder / "p.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "pipeline": "shop", "source": {"type": kind, **given}}))
    return file


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_goes_together_is_accepted_and_sent(name: str, tmp_path: Path) -> None:
    kind, settings, sent = ACCEPTED[name]
    file = project_file(tmp_path, kind, **settings)
    said = {one.severity for one in validate([file])}
    assert said == ({Severity.WARNING} if settings.get("node") == "data_node" else set())
    assert effective_options(load_project(file).family) == sent


def test_options_are_sent_in_one_order_and_unknown_ones_last() -> None:
    given = source(allow_unknown_options=True, decoding={"zz": 1, "white-table-list": "a.b", "parallel-decode-num": 2})
    names = list(effective_options(given))
    assert names[:3] == ["parallel-decode-num", "decode-style", "sending-batch"]
    assert names[-2:] == ["white-table-list", "zz"]


def test_options_for_another_way_of_reading_leave_out_what_it_does_not_know() -> None:
    given = source(decoding={"decode-style": "j", "sender-timeout": 60000, "include-xids": "off"})
    assert effective_options(given, Mode.SQL) == {**ALWAYS, "include-xids": "off"}
    assert effective_options(given, Mode.SERIAL) == {**SERIAL, "include-xids": "off", "sender-timeout": "60000"}
    serial = source(decoding={"parallel-decode-num": 1})
    assert effective_options(serial, Mode.PARALLEL) == PARALLEL


def test_the_release_that_the_server_names_is_judged_like_a_declared_one() -> None:
    given = source("mogdb", decoding={"decode-style": "t", "sending-batch": 0})
    assert judge(given) == []
    assert [r.rule for r in judge(given, parse_release("3.0.4"))] == [Rule.UNBATCHED]
    assert judge(given, parse_release("5.0.8")) == judge(given, (5,)) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("6.0.2", (6, 0, 2)), ("5", (5, 0, 0)), ("505.2.1.SPC0800", (505, 2, 1)), ("6.0.0-RC1", (6, 0, 0))],
)
def test_releases_are_read(text: str, numbers: tuple[int, int, int]) -> None:
    assert parse_release(text) == numbers


@pytest.mark.parametrize(
    ("patterns", "listed"),
    [
        (["*.*"], None),
        (["public.*"], "public.*"),
        (["public.orders", "public.Order Items"], "public.orders,public.Order Items"),
        (["public.*", "!public.tmp_*"], "public.*"),
        (["public.*", "public.orders", "stock.*"], "public.*,stock.*"),
        (["public.ord*", "*.audit"], "public.*,*.audit"),
        (["s?.t"], "*.t"),
        (["a\\.b.t", "x.a,b"], "*.t,x.*"),
        (["x.o'neill", "x.größe"], "x.*"),
        (["*.*", "public.t"], None),
        (["a\\.b.c\\.d"], None),
    ],
)
def test_the_white_list_is_the_narrowest_that_lets_through_what_is_captured(
    patterns: list[str], listed: str | None
) -> None:
    assert white_list(patterns) == listed


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("db1", "db1", None), ("db1:8000", "db1", 8000), ("10.0.0.1:1", "10.0.0.1", 1), ("fe80::1", "fe80::1", None),
     ("[fe80::1]:26000", "fe80::1", 26000), ("[fe80::1]", "fe80::1", None)],
)  # fmt: skip
def test_hosts_may_name_their_port(text: str, host: str, port: int | None) -> None:
    assert host_and_port(text) == (host, port)


@pytest.mark.parametrize("text", ["db1:", "db1:http", "db1:0", "db1:65536", ":8000", "[fe80::1", "[]:1"])
def test_a_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|port"):
        host_and_port(text)


def test_addresses_have_the_ha_port_next_to_their_own() -> None:
    many = source(hosts=["a:8000", "b"], port=26000)
    assert many.addresses == (Address("a", 8000, 8001), Address("b", 26000, 26001))
    assert many.place == "a:8000,b:26000/d"
    assert source(replication_port=7000).addresses == (Address("h", 5432, 7000),)


def test_replies_come_in_a_third_of_the_servers_patience() -> None:
    assert source().reply_interval == 10_000
    assert source(decoding={"sender-timeout": 6000}).reply_interval == 2_000
    assert source(decoding={"sender-timeout": 0}).reply_interval == 10_000


@pytest.mark.parametrize(
    ("text", "truth"),
    [("on", True), ("ON", True), ("tr", True), ("y", True), ("1", True), ("of", False), ("F", False), ("n", False),
     ("0", False), ("o", None), ("", None), ("2", None), ("onn", None), (1, True), (0, False), (2, None)],
)  # fmt: skip
def test_booleans_are_read_as_the_server_reads_them(text: str | int, truth: bool | None) -> None:
    assert as_boolean(text) is truth


def test_a_stream_without_empty_transactions_is_warned_about(tmp_path: Path) -> None:
    file = project_file(tmp_path, "opengauss", decoding={"skip-empty-xacts": "on"})
    (warned,) = validate([file])
    assert (warned.code, warned.severity.value) == ("CFG128", "warning")
    assert load_project(file).family.decoding == {"skip-empty-xacts": "on"}
    assert validate([project_file(tmp_path, "opengauss", order="lsn", decoding={"skip-empty-xacts": "on"})]) == []


def test_settings_in_force_show_what_is_sent_and_hide_the_password(tmp_path: Path) -> None:
    file = project_file(tmp_path, "gaussdb", password="hunter2", decoding={"decode-style": "text"}, tables=["public.*"])
    settings = {s.path: s for s in effective(load_project(file))}
    assert settings["source.decoding.decode-style"].text == "t"
    assert settings["source.decoding.decode-style"].origin is not None
    assert settings["source.decoding.parallel-decode-num"].source == "default"
    assert settings["source.decoding.white-table-list"].text == "public.*"
    assert settings["source.replication_port"].text == "5433"
    assert settings["source.slot.output_order"].text == "lsn"
    assert "hunter2" not in repr(settings)


def test_a_verb_of_postgresql_says_that_it_does_not_read_here(tmp_path: Path) -> None:
    project = load_project(project_file(tmp_path, "mogdb"))
    assert project.slot == "shop"
    with pytest.raises(NotForThisSource, match="mogdb"):
        _ = project.postgres
    with pytest.raises(NotForThisSource):
        _ = project.publication


# ── schema, pages, files ─────────────────────────────────────────────────────────────────────────────────────────

NAMED = """include-xids include-timestamp skip-empty-xacts only-local include-originid force-binary white-table-list
max-txn-in-memory max-reorderbuffer-in-memory standby-connection sender-timeout parallel-decode-num decode-style
sending-batch parallel-queue-size include-user exclude-userids exclude-users dynamic-resolution enable-heartbeat
output-order auto-advance skip-generated-columns logical-receiver-num slice-id start-position decode-sequence
enable-ddl-decoding enable-ddl-json-format desc-memory-limit enable-cn-decode""".split()  # noqa: SIM905  # thirty lines otherwise
"""Every option that a parser of the open source or a document of a vendor has."""


def test_every_option_is_in_the_table_on_the_page_and_in_the_schema() -> None:
    page = options_page()
    assert sorted(OPTIONS) == sorted(NAMED)
    assert all(f"| `{name}` |" in page for name in NAMED)
    assert all(f"| `{rule.label}` |" in page for rule in Rule)
    decoding = json_schema()["$defs"]["FamilySource"]["properties"]["decoding"]["properties"]
    assert sorted(decoding) == sorted(NAMED)
    assert all(option["description"] for option in decoding.values())


def complaints(document: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(json_schema())
    return [error.message for error in validator.iter_errors(document)]


@pytest.mark.parametrize("name", ["shop", "gaussdb", "opengauss", "mogdb"])
def test_the_schema_accepts_the_pipelines_of_the_repository(name: str) -> None:
    assert complaints(yaml.safe_load((ROOT / "pipelines" / f"{name}.yaml").read_text())) == []


def test_the_schema_knows_options_and_lets_unknown_ones_through_where_they_are_allowed() -> None:
    document = yaml.safe_load((ROOT / "pipelines" / "opengauss.yaml").read_text())
    document["source"]["decoding"] = {"parallel-decode-num": 21}
    assert complaints(document)
    document["source"]["decoding"] = {"brand-new": 1}
    assert complaints(document)
    document["source"]["allow_unknown_options"] = True
    assert complaints(document) == []
    json.dumps(json_schema())


@pytest.mark.parametrize("name", ["gaussdb", "opengauss", "mogdb"])
def test_the_pipelines_of_the_repository_are_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENGAUSS_PASSWORD", "x")
    monkeypatch.setenv("MOGDB_PASSWORD", "x")
    text = (ROOT / "pipelines" / f"{name}.yaml").read_text()
    (tmp_path / "pipelines").mkdir()
    (tmp_path / ".demo").mkdir()
    for reference in ("port", "ha-port", "password"):
        (tmp_path / ".demo" / f"gaussdb-{reference}").write_text("5000")
    file = tmp_path / "pipelines" / f"{name}.yaml"
    file.write_text(text)
    assert validate([file]) == []
    namespace = load_project(file).pipeline.silver.defaults.namespace
    assert namespace == f"silver_{name}", "tables of several pipelines must not meet in one folder of the lake"


def test_a_fresh_project_says_what_to_edit(tmp_path: Path) -> None:
    made = scaffold("gaussdb", tmp_path / "shop")
    assert validate([tmp_path / "shop" / "pipelines" / "shop.yaml"]) == []
    readme = (tmp_path / "shop" / "README.md").read_text()
    assert "pipelines/shop.yaml" in readme
    assert all(f"`{key}`" in readme for key in ("host", "port", "replication_port", "password", "tables", "version"))
    assert "cdc-lake validate" in made.next
