"""Wrong combinations of a GaussDB-family source: each is refused by `validate`, with the rule, at its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdc_lake.config.loader import load_project, validate
from cdc_lake.config.validation.gaussdb import Rule
from cdc_lake.model.diagnostic import ConfigInvalid, Severity

D = "decoding: {%s}"
SERIAL = "parallel-decode-num: 1, "
POLLING = "mode: polling\n"
CSN_SLOT = "slot: {output_order: csn}\n"

# (type, lines of the section, rule, text of the file that the place points at)
CASES: dict[str, tuple[str, str, Rule, str]] = {
    "a misspelt option": ("opengauss", D % "sending_batch: 1", Rule.UNKNOWN, "sending_batch"),
    "the option as one document spells it": ("mogdb", D % "batch-sending: 1", Rule.UNKNOWN, "batch-sending"),
    "an option of PostgreSQL": ("gaussdb", D % "proto_version: 4", Rule.UNKNOWN, "proto_version"),
    "an option that breaks the quotes": (
        "gaussdb", 'allow_unknown_options: true\ndecoding: {"a\\" x": 1}', Rule.UNKNOWN, '"a\\" x"',
    ),
    "an option without records to read": (
        "gaussdb", D % "enable-ddl-decoding: true", Rule.UNDOCUMENTED, "enable-ddl-decoding",
    ),
    "user names on openGauss": ("opengauss", D % "include-user: true", Rule.GAUSSDB_ONLY, "include-user"),
    "heartbeats on MogDB": ("mogdb", D % "enable-heartbeat: on", Rule.GAUSSDB_ONLY, "enable-heartbeat"),
    "excluded users on openGauss": ("opengauss", D % "exclude-users: anna", Rule.GAUSSDB_ONLY, "exclude-users"),
    "an order for openGauss": ("opengauss", D % "output-order: 1", Rule.GAUSSDB_ONLY, "output-order"),
    "a start position on openGauss": ("opengauss", D % "start-position: 1/2", Rule.GAUSSDB_ONLY, "start-position"),
    "a slice on MogDB": ("mogdb", D % "slice-id: 0", Rule.GAUSSDB_ONLY, "slice-id"),
    "the origin on GaussDB": ("gaussdb", D % "include-originid: on", Rule.OPEN_SOURCE_ONLY, "include-originid"),
    "the origin before 5.0": (
        "opengauss", 'version: "3.0.0"\n' + D % "include-originid: on", Rule.SINCE, "include-originid",
    ),
    "parallel decoding before 3.0": (
        "opengauss", 'version: "2.1.0"\n' + D % "parallel-decode-num: 4", Rule.SINCE, "4",
    ),
    "parallel decoding before 3.0, by our default": ("opengauss", 'version: "2.1.0"', Rule.SINCE, "SECTION"),
    "a boolean that is none": ("opengauss", D % "include-xids: maybe", Rule.BOOLEAN, "maybe"),
    "a boolean that is empty": ("opengauss", D % 'include-timestamp: ""', Rule.BOOLEAN, '""'),
    "a beginning of two booleans": ("gaussdb", D % "only-local: o", Rule.BOOLEAN, "o}"),
    "no decoder": ("opengauss", D % "parallel-decode-num: 0", Rule.RANGE, "0"),
    "too many decoders": ("opengauss", D % "parallel-decode-num: 21", Rule.RANGE, "21"),
    "decoders in words": ("gaussdb", D % "parallel-decode-num: four", Rule.RANGE, "four"),
    "a batch of two": ("mogdb", D % "sending-batch: 2", Rule.RANGE, "2"),
    "a queue beyond its range": ("opengauss", D % "parallel-queue-size: 2048", Rule.RANGE, "2048"),
    "a queue that is no power of two": ("opengauss", D % "parallel-queue-size: 100", Rule.POWER_OF_TWO, "100"),
    "a transaction of 101 MB": ("opengauss", D % "max-txn-in-memory: 101", Rule.RANGE, "101"),
    "101 GB in serial decoding of GaussDB": (
        "gaussdb", D % (SERIAL + "max-reorderbuffer-in-memory: 101"), Rule.RANGE, "101",
    ),
    "a time before now": ("opengauss", D % "sender-timeout: -1", Rule.RANGE, "-1"),
    "a receiver too many": (
        "gaussdb", "node: coordinator\n" + D % "logical-receiver-num: 21", Rule.RANGE, "21",
    ),
    "a slice that is not set": ("gaussdb", CSN_SLOT + D % "slice-id: -1", Rule.RANGE, "-1"),
    "a third order": ("gaussdb", D % "output-order: 2", Rule.RANGE, "2"),
    "a style nobody has": ("opengauss", D % "decode-style: xml", Rule.STYLE_LETTER, "xml"),
    "a style in capitals": ("opengauss", D % "decode-style: B", Rule.STYLE_LETTER, "B}"),
    "a table without schema": ("opengauss", D % "white-table-list: orders", Rule.WHITE_LIST, "orders"),
    "a list that goes on": ("gaussdb", D % 'white-table-list: "public.*,"', Rule.WHITE_LIST, '"public.*,"'),
    "a list with blanks": (
        "opengauss", D % 'white-table-list: "public.*, a.b"', Rule.WHITE_LIST, '"public.*, a.b"',
    ),
    "half a name": ("opengauss", D % 'white-table-list: "public.ord*"', Rule.WHITE_LIST, '"public.ord*"'),
    "a name with a dot": ("opengauss", D % "white-table-list: public.a.b", Rule.WHITE_LIST, "public.a.b"),
    "OIDs that are names": ("gaussdb", D % "exclude-userids: anna", Rule.COMMA_LIST, "anna"),
    "users with blanks": ("gaussdb", D % 'exclude-users: "anna, bert"', Rule.COMMA_LIST, '"anna, bert"'),
    "a quote in an SQL function": (
        "gaussdb", POLLING + D % 'exclude-users: "o\'neill"', Rule.SQL_CHARACTERS, '"o\'neill"',
    ),
    "a style in serial decoding": ("opengauss", D % (SERIAL + "decode-style: b"), Rule.PARALLEL_ONLY, "decode-style"),
    "batches in serial decoding": ("mogdb", D % (SERIAL + "sending-batch: 0"), Rule.PARALLEL_ONLY, "sending-batch"),
    "a queue in serial decoding": (
        "gaussdb", D % (SERIAL + "parallel-queue-size: 128"), Rule.PARALLEL_ONLY, "parallel-queue-size",
    ),
    "binary text in parallel decoding": ("opengauss", D % "force-binary: off", Rule.SERIAL_ONLY, "force-binary"),
    "binary text in serial decoding": ("opengauss", D % (SERIAL + "force-binary: on"), Rule.NO_BINARY, "on}"),
    "decoders in SQL functions": (
        "opengauss", POLLING + D % "parallel-decode-num: 4", Rule.STREAM_ONLY, "parallel-decode-num",
    ),
    "a style in SQL functions": ("mogdb", POLLING + D % "decode-style: t", Rule.STREAM_ONLY, "decode-style"),
    "a timeout in SQL functions": ("opengauss", POLLING + D % "sender-timeout: 60000", Rule.STREAM_ONLY, "sender-"),
    "heartbeats in SQL functions": ("gaussdb", POLLING + D % "enable-heartbeat: on", Rule.STREAM_ONLY, "enable-"),
    "a standby in SQL functions": ("opengauss", POLLING + D % "standby-connection: on", Rule.STREAM_ONLY, "standby-"),
    "a start position": (
        "gaussdb", "node: data_node\n" + CSN_SLOT + D % 'start-position: "20/0"', Rule.NO_START_POSITION, "start-",
    ),
    "a slot that moves by itself": ("gaussdb", D % "auto-advance: yes", Rule.BRONZE_CONFIRMS, "yes"),
    "receivers on an LSN slot": ("gaussdb", D % "logical-receiver-num: 2", Rule.CSN_SLOT_OPTION, "logical-"),
    "a slice on an LSN slot": (
        "gaussdb", "node: data_node\n" + D % "slice-id: 3", Rule.CSN_SLOT_OPTION, "slice-id",
    ),
    "receivers on a data node": (
        "gaussdb", "node: data_node\n" + CSN_SLOT + D % "logical-receiver-num: 2", Rule.NODE_OPTION, "logical-",
    ),
    "a slice through a coordinator": ("gaussdb", "node: coordinator\n" + D % "slice-id: 3", Rule.NODE_OPTION, "slice"),
    "receivers and a slice": (
        "gaussdb", CSN_SLOT + D % "logical-receiver-num: 2, slice-id: 3", Rule.NODE_OPTION, "slice-id",
    ),
    "CSN order of an LSN slot": ("gaussdb", D % "output-order: 1", Rule.ORDER_OF_SLOT, "1"),
    "LSN order of a CSN slot": ("gaussdb", CSN_SLOT + D % "output-order: 0", Rule.ORDER_OF_SLOT, "0"),
    "LSN order through a coordinator": (
        "gaussdb", "node: coordinator\n" + D % "output-order: 0", Rule.ORDER_OF_SLOT, "0",
    ),
    "CSN order without empty transactions": (
        "opengauss", "order: csn\n" + D % "skip-empty-xacts: true", Rule.DENSITY, "true}",
    ),
    "a standby without its primary": ("opengauss", D % "standby-connection: true", Rule.STANDBY, "true}"),
    "a standby behind a coordinator": (
        "gaussdb", "node: coordinator\n" + D % "standby-connection: on", Rule.STANDBY, "on}",
    ),
    "users by number through a coordinator": (
        "gaussdb", "node: coordinator\n" + D % "exclude-userids: 10", Rule.USERS_BY_NAME, "exclude-userids",
    ),
    "text one by one on 3.0": (
        "opengauss", 'version: "3.0.0"\n' + D % "decode-style: t, sending-batch: 0", Rule.UNBATCHED, "0}",
    ),
    "JSON one by one on 3.0": (
        "mogdb", 'version: "3.0.4"\n' + D % "decode-style: json, sending-batch: 0", Rule.UNBATCHED, "0}",
    ),
    "a list narrower than the tables": (
        "opengauss", D % "white-table-list: public.orders", Rule.LIST_COVERS, "public.orders",
    ),
    "no time to reply": ("opengauss", D % "sender-timeout: 200", Rule.REPLY_IN_TIME, "200"),
    "a host and hosts": ("gaussdb", "host: h\nhosts: [a, b]", Rule.ONE_HOST, "hosts"),
    "no host": ("gaussdb", "host: NONE", Rule.ONE_HOST, "SECTION"),
    "a host without port": ("opengauss", 'port: NONE\nhosts: ["a:1", b]', Rule.HOST_PORT, "SECTION"),
    "a host with a wrong port": ("opengauss", 'hosts: ["a:http", b]', Rule.HOST_PORT, '"a:http"'),
    "a slot of the server's own": ("opengauss", "slot: {name: gs_roach_1}", Rule.SLOT_NAME, "gs_roach_1"),
    "a coordinator of openGauss": ("opengauss", "node: coordinator", Rule.NODE, "coordinator"),
    "a parallel plugin on MogDB": (
        "mogdb", "slot: {plugin: parallel_binary_decoding}", Rule.PLUGIN_PRODUCT, "parallel_binary",
    ),
    "a plugin of another style": (
        "gaussdb", "slot: {plugin: parallel_json_decoding}", Rule.PLUGIN_STYLE, "parallel_json",
    ),
    "a parallel plugin in serial decoding": (
        "gaussdb", "slot: {plugin: parallel_text_decoding}\n" + D % "parallel-decode-num: 1", Rule.PLUGIN_STYLE,
        "parallel_text",
    ),
    "a slot in CSN order on openGauss": ("opengauss", CSN_SLOT, Rule.CSN_SLOT_PRODUCT, "csn}"),
    "a slot in LSN order through a coordinator": (
        "gaussdb", "node: coordinator\nslot: {output_order: lsn}", Rule.COORDINATOR_ORDER, "lsn}",
    ),
    "LSN order of a slot in CSN order": ("gaussdb", "order: lsn\n" + CSN_SLOT, Rule.CSN_SLOT_ORDER, "lsn"),
    "LSN order of a coordinator": ("gaussdb", "order: lsn\nnode: coordinator", Rule.CSN_SLOT_ORDER, "lsn"),
    "CSN order of serial decoding": ("opengauss", "order: csn\n" + D % "parallel-decode-num: 1", Rule.SERIAL_ORDER, "csn"),
    "CSN order of SQL functions": ("mogdb", "order: csn\n" + POLLING, Rule.SERIAL_ORDER, "csn"),
    "CSN order of one data node": ("gaussdb", "order: csn\nnode: data_node", Rule.NODE_ORDER, "csn"),
    "SQL functions on a slot in CSN order": ("gaussdb", POLLING + CSN_SLOT, Rule.POLLING_SLOT, "csn}"),
    "SQL functions of a coordinator": ("gaussdb", POLLING + "node: coordinator", Rule.POLLING_SLOT, "coordinator"),
}  # fmt: skip


def written(kind: str, lines: str) -> str:
    """A pipeline file with a good source, but for these lines."""
    fields = {"host": "h", "port": "5432", "database": "d", "user": "u", "tables": '["public.*"]'}
    for line in lines.strip().splitlines():
        key, _, value = line.partition(": ")
        fields[key] = value
        if key == "hosts" and "host: " not in lines.replace("hosts: ", ""):
            del fields["host"]
    body = "".join(f"  {key}: {value}\n" for key, value in fields.items() if value != "NONE")
    return f"version: 1\npipeline: shop\nsource:\n  type: {kind}\n{body}"


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_combination_is_refused_with_its_rule_at_its_place(name: str, tmp_path: Path) -> None:
    kind, lines, rule, at = CASES[name]
    file = tmp_path / "p.yaml"
    text = written(kind, lines)
    file.write_text(text)
    found = [problem for problem in validate([file]) if problem.severity is Severity.ERROR]  # a data node is warned of
    assert [d.code for d in found] == [rule.problem], found
    (one,) = found
    assert re.search(rf".+ \(rule {re.escape(rule.label)}\)$", one.hint)
    assert one.location is not None
    rest = text.splitlines()[one.location.line - 1][one.location.column - 1 :]
    assert rest.startswith("type:" if at == "SECTION" else at)
    with pytest.raises(ConfigInvalid):
        load_project(file)


def test_every_rule_has_a_case() -> None:
    assert {rule for _, _, rule, _ in CASES.values()} == set(Rule)
    assert len(CASES) >= 40


def test_all_broken_rules_are_told_together_once_the_fields_fit(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    lines = "node: coordinator\n" + D % "parallel-decode-num: 0, include-xids: 1.5, x: 1"
    file.write_text(written("mogdb", "ordr: csn\nport: http\n" + lines))
    assert sorted(d.code for d in validate([file])) == ["CFG104", "CFG107", "CFG107"]
    file.write_text(written("mogdb", "port: NONE\n" + lines.replace("1.5", "2")))
    codes = sorted(d.code for d in validate([file]))
    assert codes == ["CFG126", "CFG127", "CFG127", "CFG129", "CFG129"]


def test_no_value_of_the_file_is_in_a_refusal_of_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(written("gaussdb", "password: [hunter2]\nhosts: [a, b]\nhost: c"))
    assert "hunter2" not in repr(validate([file]))
