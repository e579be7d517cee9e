"""Rules across fields, judged on the tree of nodes so that they are told together with all other problems.

Every check is total: a node of the wrong kind is somebody else's problem (`schema.py`) and is passed over here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cdc_lake.config.capture import compile_pattern
from cdc_lake.config.family_checks import family_rules
from cdc_lake.config.group_checks import group_rules
from cdc_lake.config.kind_checks import kind_rules
from cdc_lake.config.node_values import at, is_true, items_of, table_named, text_of, texts_of, uncaptured
from cdc_lake.config.problems import Problem
from cdc_lake.config.project import default_name
from cdc_lake.config.qhb_checks import qhb_rules
from cdc_lake.config.redact_checks import redact_rules
from cdc_lake.config.row_filter_checks import row_filter_rules
from cdc_lake.config.rule_checks import quality_rules
from cdc_lake.config.source import POSTGRES_TYPES, host_and_port
from cdc_lake.config.storage_checks import storage_rules
from cdc_lake.config.transform_checks import transform_rules
from cdc_lake.config.undecodable_checks import undecodable_rules
from cdc_lake.config.yaml_nodes import MappingNode, Mark, ScalarNode, SequenceNode, join
from cdc_lake.model.diagnostic import Diagnostic, Severity
from cdc_lake.model.relation import TableName

RESERVED = frozenset({"bronze", "control", "checkpoints", "reports", "scratch", "warehouse"})
"""Folders of a lake that are not namespaces of silver tables."""

_SQL_ADDRESS = r"(sqlite:///|postgresql(\+psycopg)?://)"
_REST_ADDRESS = r"https?://"


@dataclass(slots=True)
class _Findings:
    found: list[Diagnostic] = field(default_factory=list)

    def error(self, problem: Problem, summary: str, mark: Mark, path: str, hint: str = "") -> None:
        self.found.append(Diagnostic(Severity.ERROR, problem, summary, mark.location(path), hint))


def cross_field(root: MappingNode) -> list[Diagnostic]:
    """Everything that is wrong between fields of one pipeline."""
    out = _Findings()
    patterns = _patterns(root, out)
    entries = _silver(root, patterns, out)
    _lake(root, out)
    out.found += undecodable_rules(root, patterns)
    _hosts(root, out)
    _tls(root, out)
    _plugin(root, out)
    _pgoutput(root, out)
    out.found += row_filter_rules(root, patterns)
    out.found += qhb_rules(root.entries.get("source"))
    out.found += kind_rules(root)
    out.found += transform_rules(root)
    out.found += quality_rules(root, patterns)
    out.found += group_rules(root, patterns, entries)
    return [*out.found, *storage_rules(root), *family_rules(root.entries.get("source")), *redact_rules(root, patterns)]


def _patterns(root: MappingNode, out: _Findings) -> list[str] | None:
    node = at(root, "source", "tables")
    good: list[str] = []
    clean = isinstance(node, SequenceNode)
    for i, item, text in texts_of(node):
        try:
            compile_pattern(text.removeprefix("!"))
        except ValueError:
            clean = False
            hint = 'write schema.table, for example "public.*"; a dot inside a name is written `\\.`'
            out.error(Problem.TABLE_NAME, f"`{text}` is not a table pattern", item.mark, f"source.tables[{i}]", hint)
        else:
            good.append(text)
    if clean and good and isinstance(node, SequenceNode) and all(p.startswith("!") for p in good):
        hint = 'add the tables to take in, for example "public.*"'
        out.error(Problem.NOTHING_CAPTURED, "`tables` only takes tables out", node.mark, "source.tables", hint)
        clean = False
    return good if clean else None


def _silver(root: MappingNode, patterns: list[str] | None, out: _Findings) -> dict[TableName, MappingNode]:
    """The first entry of each table in `silver.tables`."""
    entries: dict[TableName, MappingNode] = {}
    targets: dict[str, tuple[str, Mark]] = {}
    for i, item in enumerate(items_of(at(root, "silver", "tables"))):
        if isinstance(item, MappingNode):
            path = f"silver.tables[{i}]"
            _source(item, path, patterns, entries, out)
            _target(item, path, targets, out)
            _keys(item, path, out)
    return entries


def _source(
    item: MappingNode, path: str, patterns: list[str] | None, seen: dict[TableName, MappingNode], out: _Findings
) -> None:
    node, text = item.entries.get("from"), text_of(item.entries.get("from"))
    if node is None or text is None:
        return
    where = join(path, "from")
    table = table_named(text, node.mark, where)
    if isinstance(table, Diagnostic):
        out.found.append(table)
        return
    if table in seen:
        line = seen[table].entries["from"].mark.line
        hint = f"put everything of the table into one entry; the first stands in line {line}"
        out.error(Problem.TABLE_TWICE, f"table `{table}` stands twice in `silver.tables`", node.mark, where, hint)
    seen.setdefault(table, item)
    out.found += uncaptured(patterns, table, node.mark, where)


def _target(item: MappingNode, path: str, seen: dict[str, tuple[str, Mark]], out: _Findings) -> None:
    source, given = text_of(item.entries.get("from")), item.entries.get("to")
    try:
        name = text_of(given) if given is not None else default_name(TableName.parse(source or ""))
    except ValueError:
        return
    if name is None:
        return
    node, where = (given, join(path, "to")) if given is not None else (item, path)
    if name in seen and seen[name][0] != source:
        hint = f"give one of them another name with `to:`; the first stands in line {seen[name][1].line}"
        out.error(Problem.TARGET_TWICE, f"two tables go to the silver table `{name}`", node.mark, where, hint)
    seen.setdefault(name, (source or "", node.mark))


def _keys(item: MappingNode, path: str, out: _Findings) -> None:
    seen: set[str] = set()
    for i, node, text in texts_of(item.entries.get("keys")):
        if text in seen:
            where = f"{path}.keys[{i}]"
            out.error(Problem.COLUMN_TWICE, f"column `{text}` stands twice in `keys`", node.mark, where, "remove one")
        seen.add(text)


def _lake(root: MappingNode, out: _Findings) -> None:
    node = at(root, "silver", "defaults", "namespace")
    if node is not None and text_of(node) in RESERVED:
        hint = "choose another name, for example `silver`"
        summary = f"namespace `{text_of(node)}` is a folder of the lake itself"
        out.error(Problem.LAKE_LAYOUT, summary, node.mark, "silver.defaults.namespace", hint)
    _iceberg(root, out)


def _iceberg(root: MappingNode, out: _Findings) -> None:
    path, catalog = at(root, "bronze", "path"), at(root, "lake", "iceberg")
    if path is not None and text_of(at(root, "bronze", "format")) == "iceberg":
        hint = "remove `path`; `lake.iceberg.warehouse` says where the tables of the catalog are"
        summary = "an Iceberg table has its place from its catalog"
        out.error(Problem.LAKE_LAYOUT, summary, path.mark, "bronze.path", hint)
    kind, uri = text_of(at(catalog, "type")), at(catalog, "uri")
    if kind == "rest" and uri is None and catalog is not None:
        hint = "give the server's address, for example `uri: https://catalog.example.com/api`"
        out.error(Problem.LAKE_LAYOUT, "a REST catalog needs its address", catalog.mark, "lake.iceberg", hint)
    text = text_of(uri)
    if text is None or uri is None:
        return
    wanted = _REST_ADDRESS if kind == "rest" else _SQL_ADDRESS
    if re.match(wanted, text) is None:
        hint = "of `type: sql` it is `postgresql+psycopg://…` or `sqlite:////…`, of `type: rest` `https://…`"
        summary = f"this is no address of a catalog of `type: {kind or 'sql'}`"
        out.error(Problem.LAKE_LAYOUT, summary, uri.mark, "lake.iceberg.uri", hint)


def _hosts(root: MappingNode, out: _Findings) -> None:
    """Where a PostgreSQL is; of the GaussDB family `family_rules` tells it."""
    source = root.entries.get("source")
    if not isinstance(source, MappingNode) or text_of(source.entries.get("type")) not in POSTGRES_TYPES:
        return
    host, hosts = source.entries.get("host"), source.entries.get("hosts")
    if host is not None and hosts is not None:
        summary = "`host` and `hosts` are both given"
        out.error(Problem.SOURCE_COMBINATION, summary, source.keys["hosts"], "source.hosts", "keep one of them")
    if host is None and hosts is None:
        hint = "add `host: …`, or `hosts: […]` for several"
        out.error(Problem.MISSING_KEY, "`host` is missing", source.mark, "source.host", hint)
    for i, node, text in texts_of(hosts):
        try:
            host_and_port(text)
        except ValueError as bad:
            summary = f"this is no host: {bad}"
            out.error(Problem.SOURCE_COMBINATION, summary, node.mark, f"source.hosts[{i}]", "write db1 or db1:5432")


def _tls(root: MappingNode, out: _Findings) -> None:
    """Authorities that no mode asks: libpq goes on without encryption where the server's certificate is not theirs."""
    trusted, mode = at(root, "source", "tls", "root_cert"), text_of(at(root, "source", "tls", "mode")) or "prefer"
    if trusted is not None and mode in {"disable", "prefer"}:
        hint = "set `mode: verify-full`, or verify-ca where the certificate does not name the host"
        summary = f"with `mode: {mode}` a server that `root_cert` does not vouch for is connected to all the same"
        out.error(Problem.SOURCE_COMBINATION, summary, trusted.mark, "source.tls.root_cert", hint)


def _plugin(root: MappingNode, out: _Findings) -> None:
    """What does not go with a plugin, or with SQL functions, of a PostgreSQL."""
    source = root.entries.get("source")
    if not isinstance(source, MappingNode) or text_of(source.entries.get("type")) not in POSTGRES_TYPES:
        return
    failover = at(source, "slot", "failover")
    if is_true(failover) and text_of(source.entries.get("mode")) == "polling":
        hint = "remove it, or use `mode: stream`: only a replication connection can make such a slot"
        summary = "a slot that SQL functions make has no copies on standbys"
        out.error(Problem.SOURCE_COMBINATION, summary, failover.mark, "source.slot.failover", hint)
    publication = at(root, "source", "publication")
    if publication is not None and text_of(at(root, "source", "slot", "plugin")) == "test_decoding":
        hint = "remove `publication`: `tables` says what is captured; or use `plugin: pgoutput`"
        summary = "the plugin test_decoding takes no publication"
        out.error(Problem.SOURCE_COMBINATION, summary, publication.mark, "source.publication", hint)


def _pgoutput(root: MappingNode, out: _Findings) -> None:
    """Options of a plugin that the slot does not have, and streaming that a pinned version does not have."""
    source = root.entries.get("source")
    decoding, kind = at(source, "decoding"), text_of(at(source, "type"))
    if not isinstance(source, MappingNode) or kind not in POSTGRES_TYPES or decoding is None:
        return
    if text_of(at(source, "slot", "plugin")) == "test_decoding":
        others = [name for name in decoding.entries if name != "two_phase"] if isinstance(decoding, MappingNode) else []
        if others:
            hint = "keep nothing but `two_phase`, which test_decoding has too; or use `plugin: pgoutput`"
            summary = f"`{others[0]}` is an option of pgoutput, and the slot's plugin is test_decoding"
            out.error(Problem.SOURCE_COMBINATION, summary, decoding.mark, "source.decoding", hint)
    pinned, streaming = at(decoding, "proto_version"), at(decoding, "streaming")
    version = pinned.value if isinstance(pinned, ScalarNode) else None
    needed = {"on": 2, "parallel": 4}.get(text_of(streaming) or "", 0)
    if streaming is not None and needed and text_of(source.entries.get("mode")) == "polling":
        hint = "remove `streaming`; or use `mode: stream`"
        summary = "SQL functions would give what is under way again at every look"
        out.error(Problem.SOURCE_COMBINATION, summary, streaming.mark, "source.decoding.streaming", hint)
    if streaming is not None and isinstance(version, int) and version < needed:
        summary = f"version {version} of pgoutput's protocol has no `streaming: {text_of(streaming)}`"
        hint = f"take `proto_version` out, or set it to {needed} or more"
        out.error(Problem.SOURCE_COMBINATION, summary, streaming.mark, "source.decoding.streaming", hint)
    two_phase = at(decoding, "two_phase")
    if not is_true(two_phase):
        return
    if isinstance(version, int) and version < 3:
        summary = f"version {version} of pgoutput's protocol has no `two_phase`"
        hint = "take `proto_version` out, or set it to 3 or more"
        out.error(Problem.SOURCE_COMBINATION, summary, two_phase.mark, "source.decoding.two_phase", hint)
    if at(root, "bronze", "redact") is not None:
        summary = "`two_phase` would write columns that are redacted: a prepared transaction is kept as it came"
        hint = "remove it: prepared transactions arrive whole at their COMMIT PREPARED then"
        out.error(Problem.SOURCE_COMBINATION, summary, two_phase.mark, "source.decoding.two_phase", hint)
