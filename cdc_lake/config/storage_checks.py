"""Rules about tables in an object store, judged on the tree of nodes like those of `checks`.

Spark is given no client of object stores, so what it writes (silver, checkpoints) stays in a folder; bronze and the
control tables are written and read without Spark and may be there.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.node_values import at, is_true, items_of, text_of
from cdc_lake.config.problems import Problem
from cdc_lake.config.storage import ObjectAddress
from cdc_lake.config.yaml_nodes import MappingNode, Node, ScalarNode
from cdc_lake.model.diagnostic import Diagnostic, Severity


def storage_rules(root: MappingNode) -> Iterator[Diagnostic]:
    """Everything that is wrong with addresses and with `lake.storage`."""
    storage = at(root, "lake", "storage")
    iceberg = text_of(at(root, "bronze", "format")) == "iceberg"
    yield from _lake_path(root)
    if (control := at(root, "lake", "control")) is not None:
        yield from _address(control, "lake.control", storage)
    path, warehouse = at(root, "bronze", "path"), at(root, "lake", "iceberg", "warehouse")
    if not iceberg and _is_address(path):
        yield from _address(path, "bronze.path", storage)
        yield from _durability(root)
    if _is_address(warehouse) and text_of(at(root, "lake", "iceberg", "type")) != "rest":
        text = text_of(warehouse) or ""
        if not text.startswith("file://"):
            yield from _address(warehouse, "lake.iceberg.warehouse", storage)
            yield from _silver(root)
            if iceberg:
                yield from _durability(root)
    if isinstance(storage, MappingNode):
        yield from _section(storage)


def _lake_path(root: MappingNode) -> Iterator[Diagnostic]:
    node = at(root, "lake", "path")
    if _is_address(node):
        hint = "silver and checkpoints are in a folder; `bronze.path` and `lake.control` can be in an object store"
        yield _error("a folder is expected, not an address", node, "lake.path", hint)


def _address(node: Node | None, path: str, storage: Node | None) -> Iterator[Diagnostic]:
    if isinstance(node, ScalarNode) and node.broken:
        return
    try:
        ObjectAddress.parse(text_of(node) or "")
    except ValueError:
        hint = "write s3://bucket/folder, or a folder of this machine; in names: letters, digits, `.`, `_`, `-`"
        yield _error("this is no address in an object store that is known", node, path, hint)
        return
    if storage is None:
        hint = "add `lake.storage` with `region`, `access_key_id`, `secret_access_key` and the store's `endpoint`"
        yield _error("an object store needs `lake.storage`", node, path, hint)


def _durability(root: MappingNode) -> Iterator[Diagnostic]:
    node = at(root, "bronze", "durability")
    if node is not None:
        hint = "remove it: what the store says it has taken is durable there, and nothing less is confirmed"
        yield _error("bronze in an object store has no durability to choose", node, "bronze.durability", hint)


def _silver(root: MappingNode) -> Iterator[Diagnostic]:
    hint = "use `format: delta` for silver, or a warehouse on this machine"
    summary = "silver tables of format iceberg cannot be in an object store: Spark is given no client for it"
    node = at(root, "silver", "defaults", "format")
    if text_of(node) == "iceberg":
        yield _error(summary, node, "silver.defaults.format", hint)
    tables = at(root, "silver", "tables")
    for i, table in enumerate(items_of(tables)):
        node = at(table, "format")
        if text_of(node) == "iceberg":
            yield _error(summary, node, f"silver.tables[{i}].format", hint)


def _section(storage: MappingNode) -> Iterator[Diagnostic]:
    endpoint = at(storage, "endpoint")
    if (text_of(endpoint) or "").startswith("http://") and not is_true(at(storage, "allow_http")):
        hint = "use https://, or say `allow_http: true` where nobody else can reach the network between"
        yield _error("the endpoint has no TLS", endpoint, "lake.storage.endpoint", hint)


def _error(summary: str, node: Node | None, path: str, hint: str) -> Diagnostic:
    place = node.mark.location(path) if node is not None else None
    return Diagnostic(Severity.ERROR, Problem.LAKE_LAYOUT, summary, place, hint)


def _is_address(node: Node | None) -> bool:
    return "://" in (text_of(node) or "")
