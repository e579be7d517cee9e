"""What a QHB of a release that is written down cannot do, and what only a QHB has.

The rules of `source.row_filters`, told at their places in the file; what the server says of one is asked later.

The rules of what cannot be decoded: `bronze.undecodable`, `source.encoding_errors`, at their places in the file.

Rules about tables in an object store, judged on the tree of nodes like those of `checks`.

Spark is given no client of object stores, so what it writes (silver, checkpoints) stays in a folder; bronze and the
control tables are written and read without Spark and may be there.

Rules across fields, judged on the tree of nodes so that they are told together with all other problems.

Every check is total: a node of the wrong kind is somebody else's problem (`schema.py`) and is passed over here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cdc_lake.config.fields import captures, compile_columns, compile_pattern, exact_column, parse_release
from cdc_lake.config.model import ObjectAddress
from cdc_lake.config.project import default_name
from cdc_lake.config.source import OLDEST_QHB, PARALLEL, POSTGRES_TYPES, TWO_PHASE, host_and_port, protocol_of
from cdc_lake.config.validation.gaussdb import family_rules
from cdc_lake.config.validation.redaction import redact_rules
from cdc_lake.config.validation.silver import group_rules, kind_rules, quality_rules, transform_rules
from cdc_lake.config.yaml_tree import (
    MappingNode,
    Mark,
    Node,
    ScalarNode,
    SequenceNode,
    check_captured,
    fault,
    is_true,
    items_of,
    join,
    node_at,
    table_named,
    text_of,
    texts_of,
)
from cdc_lake.model.diagnostic import Diagnostic, Problem, Severity
from cdc_lake.model.relation import TableName

_SINCE_PARALLEL = {
    "streaming": ("parallel", "write `on`: it carries the same changes"),
    "origin": ("none", "take it out"),
}
"""Options of pgoutput that came with version 4 of its protocol: the value, and what to do without it."""


def qhb_rules(source: Node | None) -> Iterator[Diagnostic]:
    """Everything wrong with `source.version` and what goes with it."""
    kind, version = text_of(node_at(source, "type")), node_at(source, "version")
    written = text_of(version)
    if version is None or written is None or kind not in POSTGRES_TYPES:
        return
    where = "source.version"
    if kind == "postgres":
        hint = "remove it: a PostgreSQL tells its own; or write `type: qhb`"
        yield fault(Problem.SOURCE_COMBINATION, "`version` is the release of a QHB", version.mark, where, hint)
        return
    try:
        release = parse_release(written)
    except ValueError:
        return  # told by its pattern
    if release < parse_release(OLDEST_QHB):
        summary = f"QHB {written} is not read; {OLDEST_QHB} is the oldest that is supported"
        yield fault(Problem.SOURCE_COMBINATION, summary, version.mark, where, "upgrade the server")
        return
    yield from _options(source, written, protocol_of(release))


def _options(source: Node | None, written: str, newest: int) -> Iterator[Diagnostic]:
    decoding, where = node_at(source, "decoding"), "source.decoding"
    pinned = node_at(decoding, "proto_version")
    if isinstance(pinned, ScalarNode) and isinstance(pinned.value, int) and pinned.value > newest:
        summary = f"QHB {written} speaks versions 1 to {newest} of pgoutput's protocol"
        path = f"{where}.proto_version"
        yield fault(Problem.SOURCE_COMBINATION, summary, pinned.mark, path, "take `proto_version` out")
    for name, (value, hint) in _SINCE_PARALLEL.items():
        option = node_at(decoding, name)
        if option is not None and text_of(option) == value and newest < PARALLEL:
            summary = f"QHB {written} has no `{name}: {value}`"
            yield fault(Problem.SOURCE_COMBINATION, summary, option.mark, f"{where}.{name}", hint)
    two_phase, by_lines = node_at(decoding, "two_phase"), text_of(node_at(source, "slot", "plugin")) == "test_decoding"
    if is_true(two_phase) and newest < TWO_PHASE and not by_lines:  # test_decoding has it in every release that is read
        summary = f"QHB {written} has no `two_phase`"
        hint = "take it out: prepared transactions then arrive whole at COMMIT PREPARED; or use `plugin: test_decoding`"
        yield fault(Problem.SOURCE_COMBINATION, summary, two_phase.mark, f"{where}.two_phase", hint)
    failover = node_at(source, "slot", "failover")
    if is_true(failover):
        summary, hint = f"standbys of QHB {written} keep no copies of slots", "take it out"
        yield fault(Problem.SOURCE_COMBINATION, summary, failover.mark, "source.slot.failover", hint)


def row_filter_rules(root: MappingNode, patterns: Sequence[str] | None) -> Iterator[Diagnostic]:
    """Everything wrong with filters of rows; `patterns` are those of `source.tables`, None where they are wrong."""
    filters = node_at(root, "source", "row_filters")
    if not isinstance(filters, MappingNode):
        return
    where = "source.row_filters"
    if filters.entries and text_of(node_at(root, "source", "slot", "plugin")) == "test_decoding":
        hint = "use `plugin: pgoutput`, or leave rows out of silver by `where` of its table"
        summary = "the plugin test_decoding takes no publication, so it filters no rows"
        yield fault(Problem.SOURCE_COMBINATION, summary, filters.mark, where, hint)
    for name, mark in filters.keys.items():
        table = table_named(name, mark, where)
        if isinstance(table, Diagnostic):
            yield table
        else:
            yield from check_captured(patterns, table, mark, where)


def undecodable_rules(root: MappingNode, tables: Sequence[str] | None) -> Iterator[Diagnostic]:
    """Everything wrong with them; `tables` are the patterns of `source.tables`, None where they are wrong."""
    bronze, source = _mapping(root.entries.get("bronze")), _mapping(root.entries.get("source"))
    policy, redact = bronze.get("undecodable"), bronze.get("redact")
    if isinstance(policy, ScalarNode) and policy.value == "land" and isinstance(redact, SequenceNode) and redact.items:
        summary = "`undecodable: land` would write bytes of columns that are redacted"
        hint = "set it to `stop`: what cannot be decoded cannot be redacted either"
        yield _undecodable_error(Problem.UNDECODABLE_REDACTED, summary, policy, "bronze.undecodable", hint)
    columns = source.get("hex_columns")
    for i, node in enumerate(columns.items if isinstance(columns, SequenceNode) else ()):
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            continue
        path = f"source.hex_columns[{i}]"
        try:
            compile_columns(node.value)
        except ValueError:
            summary = f"`{node.value}` is not a column pattern"
            hint = 'write schema.table.column, for example "public.notes.*"; a dot inside a name is written `\\.`'
            yield _undecodable_error(Problem.HEX_COLUMN, summary, node, path, hint)
            continue
        exact = exact_column(node.value)
        if exact is not None and tables and not captures(tables, exact[0]):
            hint = f"add `{exact[0]}` to `source.tables`, or correct the name"
            yield _undecodable_error(
                Problem.NOT_CAPTURED, f"`source.tables` does not take in `{exact[0]}`", node, path, hint
            )
    errors = source.get("encoding_errors")
    if isinstance(errors, ScalarNode) and errors.value == "hex" and columns is not None:
        summary = "`encoding_errors: hex` means every column already"
        hint = "remove one of them: `hex_columns` names the columns where the others are to stop"
        yield _undecodable_error(Problem.HEX_COLUMN, summary, columns, "source.hex_columns", hint)


def _mapping(node: Node | None) -> dict[str, Node]:
    return dict(node.entries) if isinstance(node, MappingNode) else {}


def _undecodable_error(problem: Problem, summary: str, node: Node, path: str, hint: str) -> Diagnostic:
    return Diagnostic(Severity.ERROR, problem, summary, node.mark.location(path), hint)


def storage_rules(root: MappingNode) -> Iterator[Diagnostic]:
    """Everything that is wrong with addresses and with `lake.storage`."""
    storage = node_at(root, "lake", "storage")
    iceberg = text_of(node_at(root, "bronze", "format")) == "iceberg"
    yield from _lake_path(root)
    if (control := node_at(root, "lake", "control")) is not None:
        yield from _address(control, "lake.control", storage)
    path, warehouse = node_at(root, "bronze", "path"), node_at(root, "lake", "iceberg", "warehouse")
    if not iceberg and _is_address(path):
        yield from _address(path, "bronze.path", storage)
        yield from _durability(root)
    if _is_address(warehouse) and text_of(node_at(root, "lake", "iceberg", "type")) != "rest":
        text = text_of(warehouse) or ""
        if not text.startswith("file://"):
            yield from _address(warehouse, "lake.iceberg.warehouse", storage)
            yield from _silver_storage(root)
            if iceberg:
                yield from _durability(root)
    if isinstance(storage, MappingNode):
        yield from _section(storage)


def _lake_path(root: MappingNode) -> Iterator[Diagnostic]:
    node = node_at(root, "lake", "path")
    if _is_address(node):
        hint = "silver and checkpoints are in a folder; `bronze.path` and `lake.control` can be in an object store"
        yield _storage_error("a folder is expected, not an address", node, "lake.path", hint)


def _address(node: Node | None, path: str, storage: Node | None) -> Iterator[Diagnostic]:
    if isinstance(node, ScalarNode) and node.broken:
        return
    try:
        ObjectAddress.parse(text_of(node) or "")
    except ValueError:
        hint = "write s3://bucket/folder, or a folder of this machine; in names: letters, digits, `.`, `_`, `-`"
        yield _storage_error("this is no address in an object store that is known", node, path, hint)
        return
    if storage is None:
        hint = "add `lake.storage` with `region`, `access_key_id`, `secret_access_key` and the store's `endpoint`"
        yield _storage_error("an object store needs `lake.storage`", node, path, hint)


def _durability(root: MappingNode) -> Iterator[Diagnostic]:
    node = node_at(root, "bronze", "durability")
    if node is not None:
        hint = "remove it: what the store says it has taken is durable there, and nothing less is confirmed"
        yield _storage_error("bronze in an object store has no durability to choose", node, "bronze.durability", hint)


def _silver_storage(root: MappingNode) -> Iterator[Diagnostic]:
    hint = "use `format: delta` for silver, or a warehouse on this machine"
    summary = "silver tables of format iceberg cannot be in an object store: Spark is given no client for it"
    node = node_at(root, "silver", "defaults", "format")
    if text_of(node) == "iceberg":
        yield _storage_error(summary, node, "silver.defaults.format", hint)
    tables = node_at(root, "silver", "tables")
    for i, table in enumerate(items_of(tables)):
        node = node_at(table, "format")
        if text_of(node) == "iceberg":
            yield _storage_error(summary, node, f"silver.tables[{i}].format", hint)


def _section(storage: MappingNode) -> Iterator[Diagnostic]:
    endpoint = node_at(storage, "endpoint")
    if (text_of(endpoint) or "").startswith("http://") and not is_true(node_at(storage, "allow_http")):
        hint = "use https://, or say `allow_http: true` where nobody else can reach the network between"
        yield _storage_error("the endpoint has no TLS", endpoint, "lake.storage.endpoint", hint)


def _storage_error(summary: str, node: Node | None, path: str, hint: str) -> Diagnostic:
    place = node.mark.location(path) if node is not None else None
    return Diagnostic(Severity.ERROR, Problem.LAKE_LAYOUT, summary, place, hint)


def _is_address(node: Node | None) -> bool:
    return "://" in (text_of(node) or "")


RESERVED = frozenset({"bronze", "control", "checkpoints", "reports", "scratch", "warehouse"})
"""Folders of a lake that are not namespaces of silver tables."""

_SQL_ADDRESS = r"(sqlite:///|postgresql(\+psycopg)?://)"
_REST_ADDRESS = r"https?://"


@dataclass(slots=True)
class _Findings:
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def error(self, problem: Problem, summary: str, mark: Mark, path: str, hint: str = "") -> None:
        self.diagnostics.append(Diagnostic(Severity.ERROR, problem, summary, mark.location(path), hint))


def cross_field(root: MappingNode) -> list[Diagnostic]:
    """Everything that is wrong between fields of one pipeline."""
    findings = _Findings()
    patterns = _patterns(root, findings)
    entries = _silver_tables(root, patterns, findings)
    _lake(root, findings)
    findings.diagnostics += undecodable_rules(root, patterns)
    _hosts(root, findings)
    _tls(root, findings)
    _plugin(root, findings)
    _pgoutput(root, findings)
    findings.diagnostics += row_filter_rules(root, patterns)
    findings.diagnostics += qhb_rules(root.entries.get("source"))
    findings.diagnostics += kind_rules(root)
    findings.diagnostics += transform_rules(root)
    findings.diagnostics += quality_rules(root, patterns)
    findings.diagnostics += group_rules(root, patterns, entries)
    return [
        *findings.diagnostics,
        *storage_rules(root),
        *family_rules(root.entries.get("source")),
        *redact_rules(root, patterns),
    ]


def _patterns(root: MappingNode, findings: _Findings) -> list[str] | None:
    node = node_at(root, "source", "tables")
    good: list[str] = []
    clean = isinstance(node, SequenceNode)
    for i, item, text in texts_of(node):
        try:
            compile_pattern(text.removeprefix("!"))
        except ValueError:
            clean = False
            hint = 'write schema.table, for example "public.*"; a dot inside a name is written `\\.`'
            findings.error(
                Problem.TABLE_NAME, f"`{text}` is not a table pattern", item.mark, f"source.tables[{i}]", hint
            )
        else:
            good.append(text)
    if clean and good and isinstance(node, SequenceNode) and all(p.startswith("!") for p in good):
        hint = 'add the tables to take in, for example "public.*"'
        findings.error(Problem.NOTHING_CAPTURED, "`tables` only takes tables out", node.mark, "source.tables", hint)
        clean = False
    return good if clean else None


def _silver_tables(root: MappingNode, patterns: list[str] | None, findings: _Findings) -> dict[TableName, MappingNode]:
    """The first entry of each table in `silver.tables`."""
    entries: dict[TableName, MappingNode] = {}
    targets: dict[str, tuple[str, Mark]] = {}
    for i, item in enumerate(items_of(node_at(root, "silver", "tables"))):
        if isinstance(item, MappingNode):
            path = f"silver.tables[{i}]"
            _source(item, path, patterns, entries, findings)
            _target(item, path, targets, findings)
            _keys(item, path, findings)
    return entries


def _source(
    item: MappingNode, path: str, patterns: list[str] | None, entries: dict[TableName, MappingNode], findings: _Findings
) -> None:
    node, text = item.entries.get("from"), text_of(item.entries.get("from"))
    if node is None or text is None:
        return
    where = join(path, "from")
    table = table_named(text, node.mark, where)
    if isinstance(table, Diagnostic):
        findings.diagnostics.append(table)
        return
    if table in entries:
        line = entries[table].entries["from"].mark.line
        hint = f"put everything of the table into one entry; the first stands in line {line}"
        findings.error(Problem.TABLE_TWICE, f"table `{table}` stands twice in `silver.tables`", node.mark, where, hint)
    entries.setdefault(table, item)
    findings.diagnostics += check_captured(patterns, table, node.mark, where)


def _target(item: MappingNode, path: str, targets: dict[str, tuple[str, Mark]], findings: _Findings) -> None:
    source, target = text_of(item.entries.get("from")), item.entries.get("to")
    try:
        name = text_of(target) if target is not None else default_name(TableName.parse(source or ""))
    except ValueError:
        return
    if name is None:
        return
    node, where = (target, join(path, "to")) if target is not None else (item, path)
    if name in targets and targets[name][0] != source:
        hint = f"give one of them another name with `to:`; the first stands in line {targets[name][1].line}"
        findings.error(Problem.TARGET_TWICE, f"two tables go to the silver table `{name}`", node.mark, where, hint)
    targets.setdefault(name, (source or "", node.mark))


def _keys(item: MappingNode, path: str, findings: _Findings) -> None:
    names: set[str] = set()
    for i, node, text in texts_of(item.entries.get("keys")):
        if text in names:
            where = f"{path}.keys[{i}]"
            findings.error(
                Problem.COLUMN_TWICE, f"column `{text}` stands twice in `keys`", node.mark, where, "remove one"
            )
        names.add(text)


def _lake(root: MappingNode, findings: _Findings) -> None:
    node = node_at(root, "silver", "defaults", "namespace")
    if node is not None and text_of(node) in RESERVED:
        hint = "choose another name, for example `silver`"
        summary = f"namespace `{text_of(node)}` is a folder of the lake itself"
        findings.error(Problem.LAKE_LAYOUT, summary, node.mark, "silver.defaults.namespace", hint)
    _iceberg(root, findings)


def _iceberg(root: MappingNode, findings: _Findings) -> None:
    path, catalog = node_at(root, "bronze", "path"), node_at(root, "lake", "iceberg")
    if path is not None and text_of(node_at(root, "bronze", "format")) == "iceberg":
        hint = "remove `path`; `lake.iceberg.warehouse` says where the tables of the catalog are"
        summary = "an Iceberg table has its place from its catalog"
        findings.error(Problem.LAKE_LAYOUT, summary, path.mark, "bronze.path", hint)
    kind, uri = text_of(node_at(catalog, "type")), node_at(catalog, "uri")
    if kind == "rest" and uri is None and catalog is not None:
        hint = "give the server's address, for example `uri: https://catalog.example.com/api`"
        findings.error(Problem.LAKE_LAYOUT, "a REST catalog needs its address", catalog.mark, "lake.iceberg", hint)
    text = text_of(uri)
    if text is None or uri is None:
        return
    wanted = _REST_ADDRESS if kind == "rest" else _SQL_ADDRESS
    if re.match(wanted, text) is None:
        hint = "of `type: sql` it is `postgresql+psycopg://…` or `sqlite:////…`, of `type: rest` `https://…`"
        summary = f"this is no address of a catalog of `type: {kind or 'sql'}`"
        findings.error(Problem.LAKE_LAYOUT, summary, uri.mark, "lake.iceberg.uri", hint)


def _hosts(root: MappingNode, findings: _Findings) -> None:
    """Where a PostgreSQL is; of the GaussDB family `family_rules` tells it."""
    source = root.entries.get("source")
    if not isinstance(source, MappingNode) or text_of(source.entries.get("type")) not in POSTGRES_TYPES:
        return
    host, hosts = source.entries.get("host"), source.entries.get("hosts")
    if host is not None and hosts is not None:
        summary = "`host` and `hosts` are both given"
        findings.error(Problem.SOURCE_COMBINATION, summary, source.keys["hosts"], "source.hosts", "keep one of them")
    if host is None and hosts is None:
        hint = "add `host: …`, or `hosts: […]` for several"
        findings.error(Problem.MISSING_KEY, "`host` is missing", source.mark, "source.host", hint)
    for i, node, text in texts_of(hosts):
        try:
            host_and_port(text)
        except ValueError as bad:
            summary = f"this is no host: {bad}"
            findings.error(
                Problem.SOURCE_COMBINATION, summary, node.mark, f"source.hosts[{i}]", "write db1 or db1:5432"
            )


def _tls(root: MappingNode, findings: _Findings) -> None:
    """Authorities that no mode asks: libpq goes on without encryption where the server's certificate is not theirs."""
    trusted, mode = (
        node_at(root, "source", "tls", "root_cert"),
        text_of(node_at(root, "source", "tls", "mode")) or "prefer",
    )
    if trusted is not None and mode in {"disable", "prefer"}:
        hint = "set `mode: verify-full`, or verify-ca where the certificate does not name the host"
        summary = f"with `mode: {mode}` a server that `root_cert` does not vouch for is connected to all the same"
        findings.error(Problem.SOURCE_COMBINATION, summary, trusted.mark, "source.tls.root_cert", hint)


def _plugin(root: MappingNode, findings: _Findings) -> None:
    """What does not go with a plugin, or with SQL functions, of a PostgreSQL."""
    source = root.entries.get("source")
    if not isinstance(source, MappingNode) or text_of(source.entries.get("type")) not in POSTGRES_TYPES:
        return
    failover = node_at(source, "slot", "failover")
    if is_true(failover) and text_of(source.entries.get("mode")) == "polling":
        hint = "remove it, or use `mode: stream`: only a replication connection can make such a slot"
        summary = "a slot that SQL functions make has no copies on standbys"
        findings.error(Problem.SOURCE_COMBINATION, summary, failover.mark, "source.slot.failover", hint)
    publication = node_at(root, "source", "publication")
    if publication is not None and text_of(node_at(root, "source", "slot", "plugin")) == "test_decoding":
        hint = "remove `publication`: `tables` says what is captured; or use `plugin: pgoutput`"
        summary = "the plugin test_decoding takes no publication"
        findings.error(Problem.SOURCE_COMBINATION, summary, publication.mark, "source.publication", hint)


def _pgoutput(root: MappingNode, findings: _Findings) -> None:
    """Options of a plugin that the slot does not have, and streaming that a pinned version does not have."""
    source = root.entries.get("source")
    decoding, kind = node_at(source, "decoding"), text_of(node_at(source, "type"))
    if not isinstance(source, MappingNode) or kind not in POSTGRES_TYPES or decoding is None:
        return
    if text_of(node_at(source, "slot", "plugin")) == "test_decoding":
        others = [name for name in decoding.entries if name != "two_phase"] if isinstance(decoding, MappingNode) else []
        if others:
            hint = "keep nothing but `two_phase`, which test_decoding has too; or use `plugin: pgoutput`"
            summary = f"`{others[0]}` is an option of pgoutput, and the slot's plugin is test_decoding"
            findings.error(Problem.SOURCE_COMBINATION, summary, decoding.mark, "source.decoding", hint)
    pinned, streaming = node_at(decoding, "proto_version"), node_at(decoding, "streaming")
    version = pinned.value if isinstance(pinned, ScalarNode) else None
    needed = {"on": 2, "parallel": 4}.get(text_of(streaming) or "", 0)
    if streaming is not None and needed and text_of(source.entries.get("mode")) == "polling":
        hint = "remove `streaming`; or use `mode: stream`"
        summary = "SQL functions would give what is under way again at every look"
        findings.error(Problem.SOURCE_COMBINATION, summary, streaming.mark, "source.decoding.streaming", hint)
    if streaming is not None and isinstance(version, int) and version < needed:
        summary = f"version {version} of pgoutput's protocol has no `streaming: {text_of(streaming)}`"
        hint = f"take `proto_version` out, or set it to {needed} or more"
        findings.error(Problem.SOURCE_COMBINATION, summary, streaming.mark, "source.decoding.streaming", hint)
    two_phase = node_at(decoding, "two_phase")
    if not is_true(two_phase):
        return
    if isinstance(version, int) and version < 3:
        summary = f"version {version} of pgoutput's protocol has no `two_phase`"
        hint = "take `proto_version` out, or set it to 3 or more"
        findings.error(Problem.SOURCE_COMBINATION, summary, two_phase.mark, "source.decoding.two_phase", hint)
    if node_at(root, "bronze", "redact") is not None:
        summary = "`two_phase` would write columns that are redacted: a prepared transaction is kept as it came"
        hint = "remove it: prepared transactions arrive whole at their COMMIT PREPARED then"
        findings.error(Problem.SOURCE_COMBINATION, summary, two_phase.mark, "source.decoding.two_phase", hint)
