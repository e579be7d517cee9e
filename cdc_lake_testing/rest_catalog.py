"""A small Iceberg REST catalog for tests: real HTTP and commits, on pyiceberg's catalog in a SQLite file.

It supports what pyiceberg and Spark need to create namespaces and tables, load them and commit to them (Apache Iceberg,
REST catalog specification), and can lose requests and replies on demand. It has no authentication.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from cdc_lake.config.model import Storage
from cdc_lake.tables.store_options import pyiceberg_properties

_SEPARATOR = "\x1f"
_STATUS: dict[type[Exception], int] = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    CommitFailedException: 409,
    NotImplementedError: 501,
}


class Loss(Enum):
    """What the server does to a commit."""

    NONE = "none"
    REQUEST = "the connection ends before the commit is made"
    REPLY = "the commit is made, the connection ends"
    ERROR = "the commit is made, the answer is an internal error"
    SILENCE = "the commit is made, no answer comes"


class Limit(Enum):
    """What a catalog does not do, though the specification of REST catalogs has it."""

    REFS = "it drops branches and tags without an error"
    VERSIONS = "it shows the newest version only"
    CONDITIONS = "it takes a commit whose version is not the newest"
    REGISTER = "it registers no tables"
    WRITE = "it makes no tables"


NESSIE = frozenset({Limit.REFS, Limit.VERSIONS})
"""What Nessie 0.99.0 was seen to do."""


class RestCatalogServer:
    """Serves on a port of its own while the context is open. `loss` is what happens to the commits that follow.

    Its tables are in its folder, or at `warehouse` in the store of `storage`. `vend` makes what a client is given with
    each table that it loads, such as credentials of the store.
    """

    def __init__(
        self,
        folder: Path,
        warehouse: str | None = None,
        storage: Storage | None = None,
        *,
        limits: Collection[Limit] = (),
        vend: Callable[[], dict[str, str]] = dict,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.catalog = SqlCatalog(
            "served",
            uri=f"sqlite:///{folder / 'rest.db'}",
            warehouse=warehouse or f"file://{folder / 'warehouse'}",
            **({} if storage is None else pyiceberg_properties(storage)),
        )
        self.loss = Loss.NONE
        self.limits = limits
        self.commits = 0
        self._vend = vend
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def uri(self) -> str:
        """What `lake.iceberg.uri` says."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.catalog.close()

    def answer(self, method: str, path: list[str], body: bytes) -> tuple[int, Any]:
        """Status and JSON of a request; `path` without the leading `v1`."""
        with self._lock:
            match method, path:
                case "GET", ["config"]:
                    return 200, {"defaults": {}, "overrides": {}}
                case _, ["namespaces", *rest]:
                    return self._namespaces(method, rest, body)
                case _:
                    return 404, _error("NoSuchPath", "no such path", 404)

    def _namespaces(self, method: str, rest: list[str], body: bytes) -> tuple[int, Any]:
        match method, rest:
            case "GET", []:
                return 200, {"namespaces": [list(name) for name in self.catalog.list_namespaces()]}
            case "POST", []:
                asked = json.loads(body)
                self.catalog.create_namespace(tuple(asked["namespace"]), asked.get("properties") or {})
                return 200, {"namespace": asked["namespace"], "properties": {}}
            case (("GET" | "HEAD"), [name]):
                found = self.catalog.load_namespace_properties(_namespace(name))
                return (204, None) if method == "HEAD" else (200, {"namespace": _namespace(name), "properties": found})
            case "POST", [name, "register"]:
                if Limit.REGISTER in self.limits:
                    raise NotImplementedError
                asked = json.loads(body)
                where = (*_namespace(name), asked["name"])
                return 200, self._loaded(self.catalog.register_table(where, asked["metadata-location"]))
            case _, [name, "tables", *table]:
                return self._tables(method, _namespace(name), table, body)
            case _:
                return 404, _error("NoSuchPath", "no such path", 404)

    def _tables(self, method: str, namespace: tuple[str, ...], rest: list[str], body: bytes) -> tuple[int, Any]:
        match method, rest:
            case _, [name, *more]:
                return self._table(method, (*namespace, unquote(name)), more, body)
            case "GET", []:
                tables = self.catalog.list_tables(namespace)
                return 200, {"identifiers": [{"namespace": name[:-1], "name": name[-1]} for name in tables]}
            case "POST", [] if Limit.WRITE in self.limits:
                return 403, _error("ForbiddenException", "this role only reads", 403)
            case "POST", []:
                given = {"location": None, "partition-spec": None, "write-order": None, **json.loads(body)}
                return 200, self._loaded(self._create(namespace, CreateTableRequest.model_validate(given)))
            case _:
                return 404, _error("NoSuchPath", "no such path", 404)

    def _table(self, method: str, identifier: tuple[str, ...], rest: list[str], body: bytes) -> tuple[int, Any]:
        match method, rest:
            case (("GET" | "HEAD"), []):
                table = self.catalog.load_table(identifier)
                return (204, None) if method == "HEAD" else (200, self._loaded(table))
            case "POST", []:
                return 200, self._commit(identifier, body)
            case "DELETE", []:
                self.catalog.drop_table(identifier)
                return 204, None
            case "POST", ["metrics"]:
                return 204, None
            case _:
                return 404, _error("NoSuchPath", "no such path", 404)

    def _create(self, namespace: tuple[str, ...], asked: CreateTableRequest) -> Table:
        return self.catalog.create_table(
            (*namespace, asked.name),
            schema=asked.table_schema,
            location=asked.location,
            properties=asked.properties,
            **({} if asked.partition_spec is None else {"partition_spec": asked.partition_spec}),
            **({} if asked.write_order is None else {"sort_order": asked.write_order}),
        )

    def _commit(self, identifier: tuple[str, ...], body: bytes) -> dict[str, Any]:
        if self.loss is Loss.REQUEST:
            raise ConnectionAbortedError
        named = {"identifier": {"namespace": identifier[:-1], "name": identifier[-1]}, **json.loads(body)}
        asked = CommitTableRequest.model_validate(named)
        table = self.catalog.load_table(identifier)
        requirements = tuple(r for r in asked.requirements if not self._is_met(r, table))
        updates = tuple(u for u in asked.updates if not (Limit.REFS in self.limits and _is_of_other_ref(u)))
        response = self.catalog.commit_table(table, requirements, updates)
        self.commits += 1
        if self.loss is Loss.REPLY:
            raise ConnectionAbortedError
        if self.loss is Loss.SILENCE:
            raise TimeoutError
        if self.loss is Loss.ERROR:
            msg = "the answer was lost inside the server"
            raise RuntimeError(msg)
        answer: dict[str, Any] = json.loads(response.model_dump_json(by_alias=True))
        return {**answer, "metadata": self._shown(answer["metadata"])}

    def _is_met(self, requirement: TableRequirement, table: Table) -> bool:
        return Limit.CONDITIONS in self.limits or _is_met(requirement, table)

    def _loaded(self, table: Table) -> dict[str, Any]:
        metadata = self._shown(json.loads(table.metadata.model_dump_json(by_alias=True)))
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": self._vend()}

    def _shown(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """What a client sees of a table's metadata."""
        head = metadata.get("current-snapshot-id")
        if Limit.VERSIONS not in self.limits or head is None:
            return metadata
        newest = [{**s, "parent-snapshot-id": None} for s in metadata["snapshots"] if s["snapshot-id"] == head]
        return {**metadata, "snapshots": newest, "refs": {"main": metadata["refs"]["main"]}, "snapshot-log": []}


def _handler(server: RestCatalogServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the library
            """Say nothing."""

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = [part for part in urlsplit(self.path).path.split("/") if part][1:]
            try:
                status, said = server.answer(self.command, path, body)
            except ConnectionAbortedError:
                self.close_connection = True
                return
            except TimeoutError:
                server.closed.wait()
                self.close_connection = True
                return
            except Exception as failure:  # noqa: BLE001 - a server answers, whatever happened
                status = _STATUS.get(type(failure), 500)
                said = _error(type(failure).__name__, str(failure), status)
            data = b"" if said is None or self.command == "HEAD" else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    for method in ("GET", "HEAD", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._serve)  # noqa: SLF001 - a class made here
    return Handler


def _is_met(requirement: TableRequirement, table: Table) -> bool:
    """Whether a branch that must not be there is not: pyiceberg refuses that question for a table without versions."""
    if not isinstance(requirement, AssertRefSnapshotId) or requirement.snapshot_id is not None:
        return False
    return requirement.ref not in table.metadata.refs


def _namespace(name: str) -> tuple[str, ...]:
    return tuple(unquote(name).split(_SEPARATOR))


def _is_of_other_ref(update: TableUpdate) -> bool:
    return isinstance(update, SetSnapshotRefUpdate | RemoveSnapshotRefUpdate) and update.ref_name != "main"


def _error(kind: str, message: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}
