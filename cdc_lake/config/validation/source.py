"""Rules across fields of the sections `source`, `bronze` and `lake`, with what redaction does to silver; and
`cross_field`, which evaluates all rules.

Rules that need the server, such as the condition of a row filter, are checked when it is connected to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from cdc_lake.config.fields import compile_columns, compile_pattern, exact_column, overlap, parse_release
from cdc_lake.config.model import ObjectAddress, Provider, SilverTable, is_local
from cdc_lake.config.rules import Expression, Monotonic, named_columns
from cdc_lake.config.silver_tables import MIN_KEY
from cdc_lake.config.source import OLDEST_QHB, PARALLEL, TWO_PHASE, Pgoutput, host_and_port, protocol_of
from cdc_lake.config.validation.checked_pipeline import CheckedPipeline, Finding, Rule, table_name
from cdc_lake.config.validation.gaussdb import family_rules
from cdc_lake.config.validation.silver import SILVER_RULES
from cdc_lake.config.yaml_tree import MappingNode, ScalarNode, join
from cdc_lake.model.diagnostic import Diagnostic, Problem

RESERVED = frozenset({"bronze", "control", "checkpoints", "reports", "scratch", "warehouse"})
"""Folders of a lake that are not namespaces of silver tables."""

_DECODING = "source.decoding"


def cross_field(root: MappingNode) -> list[Diagnostic]:
    """All problems across the fields of one pipeline."""
    return list(CheckedPipeline(root).diagnose((*_RULES, *SILVER_RULES, family_rules, *_REDACTION_RULES)))


def _by_test_decoding(pipeline: CheckedPipeline) -> bool:
    return pipeline.postgres.slot.plugin == "test_decoding"


def _is_polling(pipeline: CheckedPipeline) -> bool:
    return pipeline.postgres.mode == "polling"


_RESERVED_SPARK = frozenset(
    f"spark.{name}"
    for name in (
        "checkpoint.dir", "delta.logStore.abfss.impl", "delta.logStore.gs.impl", "delta.logStore.s3.impl", "jars",
        "jars.packages", "master", "sql.ansi.enabled",
        "sql.extensions", "sql.parquet.outputTimestampType", "sql.session.timeZone",
        "sql.sources.partitionOverwriteMode",
    )
)  # fmt: skip


def _bronze_in_store(pipeline: CheckedPipeline) -> bool:
    path = "lake.iceberg.warehouse" if pipeline.bronze.format == "iceberg" else "bronze.path"
    in_lake = _in_store(pipeline) and not pipeline.is_set(path)
    return in_lake or path in dict(_store_addresses(pipeline))


def _in_store(pipeline: CheckedPipeline) -> bool:
    return "://" in pipeline.lake.path


def _table_patterns(pipeline: CheckedPipeline) -> Iterator[Finding]:
    for i, pattern in enumerate(pipeline.source.tables):
        try:
            compile_pattern(pattern.removeprefix("!"))
        except ValueError:
            hint = 'write schema.table, for example "public.*"; a dot inside a name is written `\\.`'
            yield Finding(Problem.TABLE_NAME, f"source.tables[{i}]", f"`{pattern}` is not a table pattern", hint)


def _hosts(pipeline: CheckedPipeline) -> Iterator[Finding]:
    for i, text in enumerate(pipeline.postgres.hosts or ()):
        try:
            host_and_port(text)
        except ValueError as bad:
            summary = f"invalid host: {bad}"
            yield Finding(Problem.SOURCE_COMBINATION, f"source.hosts[{i}]", summary, "write db1 or db1:5432")


def _protocol(pipeline: CheckedPipeline) -> Iterator[Finding]:
    """Options that a pinned version of pgoutput's protocol does not have."""
    decoding = pipeline.postgres.decoding
    version, needed = decoding.proto_version, {"on": 2, "parallel": 4}.get(decoding.streaming or "", 0)
    if version is not None and version < needed:
        summary = f"version {version} of the pgoutput protocol does not support `streaming: {decoding.streaming}`"
        hint = f"remove `proto_version`, or set it to {needed} or more"
        yield Finding(Problem.SOURCE_COMBINATION, f"{_DECODING}.streaming", summary, hint)
    if version is not None and decoding.two_phase and version < TWO_PHASE:
        summary = f"version {version} of the pgoutput protocol does not support `two_phase`"
        hint = "remove `proto_version`, or set it to 3 or more"
        yield Finding(Problem.SOURCE_COMBINATION, f"{_DECODING}.two_phase", summary, hint)


def _other_plugin(pipeline: CheckedPipeline) -> str | None:
    """An option that test_decoding does not have."""
    names = (name for name in Pgoutput.model_fields if name != "two_phase" and pipeline.node(f"{_DECODING}.{name}"))
    return next(names, None) if _by_test_decoding(pipeline) else None


def _qhb(pipeline: CheckedPipeline) -> Iterator[Finding]:
    """What a QHB of a release cannot do."""
    source, problem = pipeline.postgres, Problem.SOURCE_COMBINATION
    if source.type != "qhb" or source.version is None:
        return
    release, decoding = parse_release(source.version), source.decoding
    if release < parse_release(OLDEST_QHB):
        summary = f"QHB {source.version} is not supported; the oldest supported release is {OLDEST_QHB}"
        yield Finding(problem, "source.version", summary, "upgrade the server")
        return
    newest = protocol_of(release)
    if (decoding.proto_version or 0) > newest:
        summary = f"QHB {source.version} supports versions 1 to {newest} of the pgoutput protocol"
        yield Finding(problem, f"{_DECODING}.proto_version", summary, "remove `proto_version`")
    if decoding.streaming == "parallel" and newest < PARALLEL:
        summary = f"QHB {source.version} does not support `streaming: parallel`"
        yield Finding(problem, f"{_DECODING}.streaming", summary, "write `on`: it carries the same changes")
    if decoding.origin == "none" and newest < PARALLEL:
        summary = f"QHB {source.version} does not support `origin: none`"
        yield Finding(problem, f"{_DECODING}.origin", summary, "remove it")
    if decoding.two_phase and newest < TWO_PHASE and not _by_test_decoding(pipeline):  # which has it in every release
        hint = "remove it: prepared transactions then arrive at COMMIT PREPARED; or use `plugin: test_decoding`"
        yield Finding(problem, f"{_DECODING}.two_phase", f"QHB {source.version} does not support `two_phase`", hint)
    if source.slot.failover:
        summary = f"QHB {source.version} does not synchronize slots to standbys"
        yield Finding(problem, "source.slot.failover", summary, "remove it")


def _row_filters(pipeline: CheckedPipeline) -> Iterator[Finding]:
    for name in pipeline.postgres.row_filters:
        yield from pipeline.check_table(name, join("source.row_filters", name), key=True)


def _hex_columns(pipeline: CheckedPipeline) -> Iterator[Finding]:
    for i, pattern in enumerate(pipeline.source.hex_columns):
        path = f"source.hex_columns[{i}]"
        try:
            compile_columns(pattern)
        except ValueError:
            hint = 'write schema.table.column, for example "public.notes.*"; a dot inside a name is written `\\.`'
            yield Finding(Problem.HEX_COLUMN, path, f"`{pattern}` is not a column pattern", hint)
            continue
        if (exact := exact_column(pattern)) is not None:
            yield from pipeline.check_captured(exact[0], path)


def _store_addresses(pipeline: CheckedPipeline) -> Iterator[tuple[str, str]]:
    """Settings that name a folder in an object store."""
    bronze, lake = pipeline.bronze, pipeline.lake
    if _in_store(pipeline):
        yield "lake.path", lake.path
    if lake.control is not None:
        yield "lake.control", lake.control
    if bronze.format == "delta" and "://" in (bronze.path or ""):
        yield "bronze.path", bronze.path or ""
    warehouse = lake.iceberg.warehouse or ""
    if "://" in warehouse and lake.iceberg.type != "rest" and not warehouse.startswith("file://"):
        yield "lake.iceberg.warehouse", warehouse


_SERVICES: dict[Provider, str] = {"s3": "S3", "azure": "ADLS", "gcs": "GCS"}
_CREDENTIALS: dict[tuple[Provider, str], tuple[tuple[str, ...], ...]] = {
    ("s3", "keys"): (("access_key_id", "secret_access_key"),),
    ("s3", "role"): (("role_arn",),),
    ("azure", "keys"): (("account_key",), ("sas_token",), ("tenant_id", "client_id", "client_secret")),
    ("gcs", "keys"): (("service_account_file",),),
}
"""What each service needs for each kind of credentials: one of the groups, completely."""
_APPLIES: dict[str, tuple[Provider, str | None]] = {
    "region": ("s3", None), "ca_file": ("s3", None), "account": ("azure", None),
    "session_token": ("s3", "keys"), "external_id": ("s3", "role"),
    **{name: kind for kind, groups in _CREDENTIALS.items() for group in groups for name in group},
}  # fmt: skip
"""The service of a field, and its kind of credentials if it has one."""


def _object_store(pipeline: CheckedPipeline) -> Iterator[Finding]:
    first: tuple[str, ObjectAddress] | None = None
    for path, text in _store_addresses(pipeline):
        try:
            address = ObjectAddress.parse(text)
        except ValueError:
            hint = (
                "write s3://bucket/folder, abfss://container@account.dfs.core.windows.net/folder, gs://bucket/folder, "
                "or a local folder; names consist of letters, digits, `.`, `_`, `-`"
            )
            yield Finding(Problem.LAKE_LAYOUT, path, "not a valid object store address", hint)
            continue
        if pipeline.lake.storage is None:
            fields = {
                "s3": "`region`, the store's `endpoint`, and `access_key_id` and `secret_access_key`",
                "azure": "`account_key`, `sas_token` or a service principal",
                "gcs": "`service_account_file`",
            }[address.provider]
            hint = f"add `lake.storage` with {fields} or `credentials: environment`"
            yield Finding(Problem.LAKE_LAYOUT, path, "an object store requires `lake.storage`", hint)
        if first is None:
            first = path, address
        elif (first[1].provider, first[1].account) != (address.provider, address.account):
            summary = f"all addresses of a lake are in one service and one account, but `{first[0]}` is in another"
            hint = f"choose an address in the same as {first[1]}"
            yield Finding(Problem.LAKE_LAYOUT, path, summary, hint)


def _of_storage(name: str, summary: str, hint: str) -> Finding:
    return Finding(Problem.LAKE_LAYOUT, f"lake.storage.{name}", summary, hint)


def _storage(pipeline: CheckedPipeline) -> Iterator[Finding]:
    """Fields of `lake.storage` that do not fit its service or its credentials, and those that are missing."""
    if (storage := pipeline.lake.storage) is None:
        return
    provider = storage.provider
    for _, text in _store_addresses(pipeline):
        with suppress(ValueError):  # reported by `_object_store`
            provider = ObjectAddress.parse(text).provider
            break
    service, kind = _SERVICES[provider], (provider, storage.credentials)
    is_set = {name for name in type(storage).model_fields if pipeline.is_set(f"lake.storage.{name}")}
    if provider == "s3" and "region" not in is_set:
        yield _of_storage("region", "S3 requires `region`", "add the bucket's, for example `region: eu-west-1`")
    if "provider" in is_set and storage.provider != provider:
        yield _of_storage("provider", f"the addresses are in {service}", "remove it: the addresses say it")
    if provider != "s3" and storage.credentials == "role":
        yield _of_storage("credentials", f"{service} has no roles to assume", "set it to `keys` or `environment`")
        return
    for name, needed in _APPLIES.items():
        if name in is_set and needed[0] != provider:
            yield _of_storage(name, f"`{name}` does not apply to {service}", "remove it, or correct the addresses")
        elif name in is_set and needed[1] not in {None, storage.credentials}:
            summary = f"`{name}` does not apply to `credentials: {storage.credentials}`"
            yield _of_storage(name, summary, "remove one of them")
    yield from _missing_credentials(is_set, _CREDENTIALS.get(kind, ()))


def _missing_credentials(is_set: set[str], groups: tuple[tuple[str, ...], ...]) -> Iterator[Finding]:
    hint = "add it as a reference, `${env:NAME}` or `${file:path}`, or set `credentials: environment`"
    used = [group for group in groups if not is_set.isdisjoint(group)]
    for group in used[1:]:
        name = next(name for name in group if name in is_set)
        yield _of_storage(name, f"`{used[0][0]}` and `{name}` are credentials of two kinds", "keep one of them")
    if len(groups) > 1 and not used:
        summary = "ADLS requires `account_key`, `sas_token`, or `tenant_id`, `client_id` and `client_secret`"
        yield _of_storage("account_key", summary, hint.replace("it", "one of them", 1))
    elif groups:
        for name in (used or groups)[0]:
            if name not in is_set:
                yield _of_storage(name, f"the store requires `{name}`", hint)


def _catalog_of_store(pipeline: CheckedPipeline) -> Iterator[Finding]:
    """Iceberg tables in an object store whose catalog would be a file on this machine."""
    if not _in_store(pipeline) or pipeline.is_set("lake.iceberg.uri") or pipeline.lake.iceberg.type == "glue":
        return
    summary = "Iceberg tables in an object store need a catalog that every machine reaches"
    hint = "set `lake.iceberg.type` and `lake.iceberg.uri` to a REST catalog, a Hive metastore or a PostgreSQL database"
    formats = {"bronze": pipeline.bronze.format, "silver.defaults": pipeline.silver.defaults.format}
    formats |= {f"silver.tables[{i}]": table.format for i, table in enumerate(pipeline.silver.tables) if table.format}
    for path, format_ in formats.items():
        if format_ == "iceberg":
            yield Finding(Problem.LAKE_LAYOUT, f"{path}.format", summary, hint)


def _cluster(pipeline: CheckedPipeline) -> Iterator[Finding]:
    master = pipeline.spark.master
    if master is not None and not is_local(master) and not _in_store(pipeline):
        summary = "a cluster cannot write to a folder of this machine"
        hint = "set `lake.path` to a folder of an object store (for example `s3://bucket/folder`), or remove `master`"
        yield Finding(Problem.LAKE_LAYOUT, "spark.master", summary, hint)
    for name in pipeline.spark.conf:
        if name in _RESERVED_SPARK or name.startswith("spark.sql.catalog."):
            summary = f"cdc_lake sets `{name}` itself: results depend on it"
            yield Finding(Problem.LAKE_LAYOUT, f"spark.conf.{name}", summary, "remove it")
        elif not name.startswith("spark."):
            summary = f"`{name}` is not a setting of Spark"
            yield Finding(Problem.LAKE_LAYOUT, f"spark.conf.{name}", summary, "names begin with `spark.`")


_CATALOG_ADDRESSES = {
    "sql": (r"(sqlite:///|postgresql(\+psycopg)?://)", "postgresql+psycopg://…` or `sqlite:////…"),
    "rest": (r"https?://", "https://…"),
    "hive": (r"thrift://[^:/]+:\d+$", "thrift://host:9083"),
    "glue": (r"https?://", "https://…"),
}


def _catalog(pipeline: CheckedPipeline) -> Iterator[Finding]:
    catalog, storage = pipeline.lake.iceberg, pipeline.lake.storage
    form, example = _CATALOG_ADDRESSES[catalog.type]
    if catalog.uri is None and catalog.type in {"rest", "hive"}:
        hint = f"add the address of the server, for example `uri: {example.replace('…', 'catalog.example.com/api')}`"
        yield Finding(Problem.LAKE_LAYOUT, "lake.iceberg", f"a catalog of `type: {catalog.type}` requires `uri`", hint)
    elif catalog.uri is not None and not re.match(form, catalog.uri):
        summary = f"not a valid address of a catalog of `type: {catalog.type}`"
        yield Finding(Problem.LAKE_LAYOUT, "lake.iceberg.uri", summary, f"write `{example}`")
    metastore = pipeline.lake.delta.metastore
    if metastore is not None and not re.match(rf"{_CATALOG_ADDRESSES['hive'][0]}|glue(\+https?://.+)?$", metastore):
        summary, hint = "not a valid address of a Hive metastore", f"write `{_CATALOG_ADDRESSES['hive'][1]}`, or `glue`"
        yield Finding(Problem.LAKE_LAYOUT, "lake.delta.metastore", summary, hint)
    elif metastore != pipeline.lake.delta.hive and (storage is None or not pipeline.lake.path.startswith("s3://")):
        summary, hint = "tables in AWS Glue are in S3", "set `lake.path: s3://bucket/folder`, or remove `metastore`"
        yield Finding(Problem.LAKE_LAYOUT, "lake.delta.metastore", summary, hint)
    elif metastore != pipeline.lake.delta.hive and storage is not None and storage.credentials == "role":
        summary, hint = "a role is not assumed for AWS Glue", "set `lake.storage.credentials: environment`, or use keys"
        yield Finding(Problem.LAKE_LAYOUT, "lake.storage", summary, hint)
    if catalog.type == "glue" and not (catalog.warehouse or pipeline.lake.path).startswith("s3://"):
        summary, hint = "tables in AWS Glue are in S3", "set `warehouse: s3://bucket/folder`"
        yield Finding(Problem.LAKE_LAYOUT, "lake.iceberg", summary, hint)
    if catalog.type == "glue" and storage is not None and storage.credentials != "environment":
        summary = "Spark's client of AWS Glue takes only credentials of the environment"
        hint = "set `lake.storage.credentials: environment`, and remove keys and role"
        yield Finding(Problem.LAKE_LAYOUT, "lake.storage", summary, hint)


def _redact_strategies(pipeline: CheckedPipeline) -> Iterator[Finding]:
    for number, rule in enumerate(pipeline.bronze.redact):
        path = f"bronze.redact[{number}].strategy"
        node = pipeline.node(path)
        if rule.strategy == "null" and isinstance(node, ScalarNode) and node.text != "null":  # empty, or `~`
            yield Finding(Problem.VALUE, path, "`strategy` has no value", "write drop, null or sha256")


def _redact_patterns(pipeline: CheckedPipeline) -> Iterator[tuple[int, str, str]]:
    """The column patterns of `bronze.redact`: number of the entry, text, path."""
    for number, rule in enumerate(pipeline.bronze.redact):
        for i, text in enumerate(rule.columns):
            yield number, text, f"bronze.redact[{number}].columns[{i}]"


def _is_pattern(text: str) -> bool:
    try:
        compile_columns(text)
    except ValueError:
        return False
    return not text.startswith("!")


def _redact_columns(pipeline: CheckedPipeline) -> Iterator[Finding]:
    earlier: list[tuple[int, str, str]] = []
    for number, text, path in _redact_patterns(pipeline):
        if not _is_pattern(text):
            hint = 'write schema.table.column, for example "public.*.email"; a dot inside a name is written `\\.`'
            yield Finding(Problem.REDACT_PATTERN, path, f"`{text}` is not a column pattern", hint)
            continue
        other = next((e for e in earlier if e[0] != number and overlap(text, e[1])), None)
        if other is not None:
            summary = f"`{text}` and `{other[1]}` may match the same column"
            hint = f"a column can have only one rule; the other one is on line {pipeline.line(other[2])}"
            yield Finding(Problem.REDACT_OVERLAP, path, summary, hint)
        earlier.append((number, text, path))
        if (exact := exact_column(text)) is not None:
            yield from pipeline.check_captured(exact[0], path)


def _redact_key(pipeline: CheckedPipeline) -> Iterator[Finding]:
    path = "bronze.redact_key"
    hint = "set `redact_key: ${env:NAME}` in `bronze`; `openssl rand -hex 32` generates a good key"
    hashed = next((i for i, rule in enumerate(pipeline.bronze.redact) if rule.strategy == "sha256"), None)
    node = pipeline.node(path)
    if node is None and hashed is not None:
        summary, beside = "`strategy: sha256` requires `redact_key`", f"bronze.redact[{hashed}]"
        yield Finding(Problem.REDACT_KEY, path, summary, hint, beside=beside)
    elif isinstance(node, ScalarNode) and node.text and pipeline.bronze.redact:
        if not node.references:
            yield Finding(Problem.REDACT_KEY, path, "the redaction key is written in plain text", hint)
        elif len(node.text.encode()) < MIN_KEY:
            summary = f"the redaction key is shorter than {MIN_KEY} bytes"
            yield Finding(Problem.REDACT_KEY, path, summary, hint)


def _needed_columns(pipeline: CheckedPipeline) -> Iterator[Finding]:
    """Columns that a silver table needs and that would be lost."""
    rules = pipeline.bronze.redact
    patterns = [
        (rules[number].strategy, text, path) for number, text, path in _redact_patterns(pipeline) if _is_pattern(text)
    ]
    for i, entry in enumerate(pipeline.silver.tables):
        if (table := table_name(entry.from_)) is None:
            continue
        for use, column, path in _uses(entry, f"silver.tables[{i}]"):
            lost = {"drop", "null"} if use == "is a key" else {"drop"}
            for strategy, text, pattern_path in patterns:
                if strategy in lost and compile_columns(text).fullmatch(table.column(column)):
                    summary = f"column `{column}` {use} and is redacted by `{strategy}`"
                    line = pipeline.line(pattern_path)
                    hint = f"redact it with `sha256`, or not at all; the rule is on line {line}"
                    yield Finding(Problem.REDACT_NEEDED, path, summary, hint)
                    break


def _uses(entry: SilverTable, path: str) -> Iterator[tuple[str, str, str]]:
    """Columns that an entry of `silver.tables` names: what for, their name, and where."""
    for i, key in enumerate(entry.keys or ()):
        yield "is a key", key, f"{path}.keys[{i}]"
    for i, rule in enumerate(entry.rules):
        where = f"{path}.rules[{i}]"
        for n, column in enumerate(named_columns(rule)):
            place = f"{where}.column" if hasattr(rule, "column") else f"{where}.columns[{n}]"
            yield "is used by a rule", column, place
        if isinstance(rule, Monotonic):
            yield "is used by a rule", rule.by, f"{where}.by"
        if isinstance(rule, Expression):
            for word in dict.fromkeys(re.findall(r"\w+", re.sub(r"'[^']*'", "", rule.expression))):
                yield "is used by a rule", word, f"{where}.expression"


_REDACTION_RULES = (_redact_strategies, _redact_columns, _redact_key, _needed_columns)
_RULES = (
    _table_patterns,
    Rule(
        Problem.NOTHING_CAPTURED, "source.tables", lambda p: all(t.startswith("!") for t in p.source.tables),
        "`tables` only excludes tables", 'add the tables to capture, for example "public.*"',
    ),
    Rule(
        Problem.SOURCE_COMBINATION, "source.hosts",
        lambda p: p.postgres and p.is_set("source.host") and p.is_set("source.hosts"),
        "`host` and `hosts` are both set", "keep one of them", key=True,
    ),
    Rule(
        Problem.MISSING_KEY, "source.host",
        lambda p: p.postgres and not p.is_set("source.host") and not p.is_set("source.hosts"),
        "`host` is missing", "add `host: …`, or `hosts: […]` for several",
    ),
    _hosts,
    Rule(
        Problem.SOURCE_COMBINATION, "source.tls.root_cert",
        # libpq goes on without encryption if the server's certificate is not theirs
        lambda p: p.source.tls.mode if p.source.tls.root_cert and p.source.tls.mode in {"disable", "prefer"} else None,
        "with `mode: {}`, the connection is made even if `root_cert` does not trust the server",
        "set `mode: verify-full`, or verify-ca if the certificate does not name the host",
    ),
    Rule(
        Problem.SOURCE_COMBINATION, "source.slot.failover", lambda p: p.postgres.slot.failover and _is_polling(p),
        "a slot created by SQL functions is not synchronized to standbys",
        "remove it, or use `mode: stream`: only a replication connection can create such a slot",
    ),
    Rule(
        Problem.SOURCE_COMBINATION, "source.publication", lambda p: p.postgres.publication and _by_test_decoding(p),
        "the plugin test_decoding does not use a publication",
        "remove `publication`: `tables` says what is captured; or use `plugin: pgoutput`",
    ),
    Rule(
        Problem.SOURCE_COMBINATION, _DECODING, _other_plugin,
        "`{}` is an option of pgoutput, but the plugin of the slot is test_decoding",
        "keep only `two_phase`, which test_decoding also has; or use `plugin: pgoutput`",
    ),
    Rule(
        Problem.SOURCE_COMBINATION, f"{_DECODING}.streaming",
        lambda p: p.postgres.decoding.streaming in {"on", "parallel"} and _is_polling(p),
        "SQL functions would return in-progress transactions again at every poll",
        "remove `streaming`, or use `mode: stream`",
    ),
    _protocol,
    Rule(
        Problem.SOURCE_COMBINATION, f"{_DECODING}.two_phase",
        lambda p: p.postgres.decoding.two_phase and p.bronze.redact,
        "`two_phase` would store redacted columns: a prepared transaction is kept as received",
        "remove it: prepared transactions then arrive at COMMIT PREPARED",
    ),
    Rule(
        Problem.SOURCE_COMBINATION, "source.row_filters", lambda p: p.postgres.row_filters and _by_test_decoding(p),
        "the plugin test_decoding does not use a publication, so it cannot filter rows",
        "use `plugin: pgoutput`, or filter rows in silver with `where` of the table",
    ),
    _row_filters,
    Rule(
        Problem.SOURCE_COMBINATION, "source.version", lambda p: p.postgres.type == "postgres" and p.postgres.version,
        "`version` applies only to QHB", "remove it: PostgreSQL reports its own version; or write `type: qhb`",
    ),
    _qhb,
    _hex_columns,
    Rule(
        Problem.HEX_COLUMN, "source.hex_columns",
        lambda p: p.source.encoding_errors == "hex" and p.node("source.hex_columns"),
        "`encoding_errors: hex` already applies to every column",
        "remove one of them: with `hex_columns`, other columns stop",
    ),
    Rule(
        Problem.UNDECODABLE_REDACTED, "bronze.undecodable",
        lambda p: p.bronze.undecodable == "land" and p.bronze.redact,
        "`undecodable: land` would store bytes of redacted columns",
        "set it to `stop`: what cannot be decoded cannot be redacted",
    ),
    Rule(
        Problem.LAKE_LAYOUT, "lake.work", lambda p: p.is_set("lake.work") and not _in_store(p),
        "`work` applies only to a lake in an object store", "remove it: `path` is the directory",
    ),
    _object_store,
    _storage,
    Rule(
        Problem.LAKE_LAYOUT, "bronze.durability", lambda p: _bronze_in_store(p) and p.node("bronze.durability"),
        "`durability` does not apply to bronze in an object store",
        "remove it: what the store accepts is durable there, and only that is acknowledged",
    ),
    _catalog_of_store,
    Rule(
        Problem.LAKE_LAYOUT, "lake.storage.endpoint",
        lambda p: p.lake.storage and not p.lake.storage.allow_http
        and (p.lake.storage.endpoint or "").startswith("http://"),
        "the endpoint does not use TLS",
        "use https://, or set `allow_http: true` if nobody else can reach the network",
    ),
    Rule(
        Problem.LAKE_LAYOUT, "silver.defaults.namespace",
        lambda p: p.silver.defaults.namespace if p.silver.defaults.namespace in RESERVED else None,
        "namespace `{}` is reserved: it is a folder of the lake", "choose another name, for example `silver`",
    ),
    Rule(
        Problem.LAKE_LAYOUT, "bronze.path", lambda p: p.bronze.format == "iceberg" and p.bronze.path,
        "the catalog determines the location of an Iceberg table",
        "remove `path`; `lake.iceberg.warehouse` sets the location of the catalog's tables",
    ),
    _catalog,
    _cluster,
)  # fmt: skip
