"""The page of decoding options of the GaussDB family, from the table of options and the rules."""

from __future__ import annotations

from cdc_lake.config.gaussdb_options import GAUSSDB, OPTIONS, Form, Mode, Option
from cdc_lake.config.validation.gaussdb import Rule
from tools.docs import GENERATED

_PAGE = """
# Decoding options

The options of logical decoding in GaussDB, openGauss and MogDB. Set them in `source.decoding` under these names;
[the guide](../guides/gaussdb.md) explains the important ones. *SQL* is `mode: polling`, *serial* a stream with
`parallel-decode-num: 1`, *parallel* one with 2 or more. An omitted option is sent as under *ours*, or not at all.

| option | value | server's default | ours | products | SQL | serial | parallel | |
|---|---|---|---|---|---|---|---|---|
{options}

Booleans are `on` or `off`, `true` or `false`, `yes` or `no`, 1 or 0. `white-table-list` is generated from `tables`:
names that contain a wildcard become `*`, and the receiver filters again.

## Where cdc_lake differs from the vendors' documents

| option | the documents say | cdc_lake | why |
|---|---|---|---|
{vendor}

## Rules

`cdc-lake validate` checks them without a connection; rules of releases only if `source.version` is set.

| rule | code | |
|---|---|---|
{rules}
"""


_VENDOR = (
    (
        "`parallel-decode-num`",
        "1 by default, and without it no other option of parallel decoding may be given",
        "sends 4; an explicit 1 is serial decoding and refuses those options",
        "only parallel decoding sends every CSN, and it is faster",
    ),
    (
        "`parallel-decode-num`, `output-order`, `logical-receiver-num`",
        "SQL functions check their range and ignore them",
        "refused with `mode: polling`, except `parallel-decode-num: 1`",
        "an option without effect hides a mistake",
    ),
    (
        "`sending-batch`",
        "0 by default",
        "sends 1",
        "one message contains many rows",
    ),
    (
        "`include-timestamp`",
        "off by default",
        "sends `on`",
        "lag and `as of` need the commit time; with `off`, `commit_ts` is NULL",
    ),
    (
        "`force-binary`",
        "0 is allowed in all modes",
        "refused in parallel decoding",
        "the parsers of the open-source servers do not support it there",
    ),
    (
        "`max-txn-in-memory`, `max-reorderbuffer-in-memory`",
        "0 to 100; newer GaussDB, in parallel decoding: 0 to a quarter (MB), to a half (GB) of `max_process_memory`",
        (
            "0 to 100; with `type: gaussdb` without `version`, or from 505 on, in parallel decoding larger values are "
            "accepted, and `check` compares them with the server's memory"
        ),
        "only the server knows its memory",
    ),
    (
        "`sender-timeout`",
        "0 to 2147483647 ms",
        "1 to 999 ms is refused",
        "the server would end the stream before a reply can arrive",
    ),
    (
        "`standby-connection`",
        "with one host, a standby",
        "needs two `hosts`, or is refused; refused through a coordinator",
        "a standby decodes, but the slot is created and tables are copied on the primary",
    ),
    (
        "`standby-connection`",
        "one parallel decoding connection for each standby is recommended",
        "not enforced; `check` reports it",
        "a standby has 20 decoder threads for all streams together",
    ),
    (
        "`exclude-userids`, `skip-generated-columns`",
        '"only with SQL functions, not when a decoding task is started" (one document), an option of streams (another)',
        "sent in every mode; if the server refuses it, the run ends with [SRC246](../errors/SRC246.md)",
        "the documents contradict each other",
    ),
    (
        "`skip-generated-columns`",
        "new rows are sent without generated columns, old rows always with them",
        "generated columns are not captured: not copied, not compared, omitted from old rows",
        "otherwise a table would alternate between two layouts",
    ),
    (
        "`dynamic-resolution`",
        "`false`: a user in `exclude-users` that does not exist ends decoding",
        "sent as configured; the error names the option and the remedy",
        "",
    ),
    (
        "`auto-advance`",
        "the server advances the slot by itself",
        "only `off`",
        "the slot would advance past the end of bronze",
    ),
    (
        "`start-position`",
        "a CSN and an LSN, at data nodes only",
        "refused",
        "it hides the BEGIN of its CSN; a stream continues from the end of bronze",
    ),
    (
        "start LSN of the client",
        "a client may choose where a stream starts (`withStartPosition`)",
        "always the end of bronze, or the starting point of the new slot",
        "any other position would omit transactions, or repeat them",
    ),
    (
        "`enable-heartbeat`",
        "reports the WAL read, the CSN sent and the time of the latest WAL decoded",
        "shown by `inspect payload`, and as the metric `cdc_lake_source_decoding_lag_seconds`",
        "never a position to acknowledge: it does not guarantee an order",
    ),
    (
        "`batch-sending`",
        "the name in one passage of a document",
        "unknown; `sending-batch` is suggested",
        "servers support `sending-batch`",
    ),
    (
        "styles t and j without batches",
        "the default of MogDB 3.0",
        "refused before 5.0",
        "no position is safe to acknowledge",
    ),
    (
        "slot name",
        "upper-case letters are folded to lower case",
        "refused, and the folded name is suggested",
        "two pipelines could refer to the same slot",
    ),
    (
        "SQL functions through a coordinator",
        "possible on a distributed GaussDB",
        "refused: `mode: polling` reads a data node or a single node",
        "they need slots in LSN order, which a coordinator does not have",
    ),
    (
        "`include-xids`, `include-timestamp` and `skip-empty-xacts` of `test_decoding`",
        "may be switched on and off",
        "always on (`skip-empty-xacts` off with `two_phase`); no other option of the plugin can be set",
        "a transaction without its number or time could not be compared or dated",
    ),
    (
        "`only-local` of `test_decoding`, `filter_by_origin`",
        "omit changes that have a replication origin",
        "not for `test_decoding`; for pgoutput `decoding: {origin: none}`, from PostgreSQL 16 and QHB 1.5.3",
        "its lines contain no origin, so omitted changes could not be determined",
    ),
    (
        "`stream-changes` of `test_decoding`",
        "prints large transactions before they commit",
        "never asked for; such a line ends the stream with DEC319",
        "the lines contain no values",
    ),
    (
        "logical messages",
        "each plugin sends prefix, content, position, and whether they are transactional",
        "rows `M` with `decoding: {messages: true}` of pgoutput, not read by silver; omitted with `test_decoding`",
        "`test_decoding` prints all messages of the database, whether asked for or not; `inspect payload` shows them",
    ),
    (
        "other output plugins",
        "can be written, and used by any client",
        "refused: `slot.plugin` is `pgoutput` or `test_decoding` (CFG107)",
        "changes that an unknown plugin omits could not be detected",
    ),
)
"""Per row: what it is about, what the documents say of it, what is done here, and why."""

_RULES = {
    Rule.UNKNOWN: "The server must know the option.",
    Rule.UNDOCUMENTED: "An option whose records are not documented is sent only with `allow_unknown_options: true`.",
    Rule.GAUSSDB_ONLY: "openGauss and MogDB do not have GaussDB's own options.",
    Rule.OPEN_SOURCE_ONLY: "GaussDB does not document an option of this name.",
    Rule.SINCE: "The release must have the option, or this way of decoding.",
    Rule.BOOLEAN: "A boolean is on/off, true/false, yes/no, 1/0 or an unambiguous prefix of one of these.",
    Rule.RANGE: "A number is an integer within the range of the option.",
    Rule.POWER_OF_TWO: "`parallel-queue-size` is a power of two.",
    Rule.STYLE_LETTER: "`decode-style` begins with b, t or j.",
    Rule.WHITE_LIST: "`white-table-list` is schema.table,… without spaces; `*` is a whole name, and no name has a dot.",
    Rule.COMMA_LIST: "A list of users is separated by commas, without spaces.",
    Rule.SQL_CHARACTERS: "SQL functions reject quotes, semicolons, backslashes, angle brackets and others in options.",
    Rule.PARALLEL_ONLY: "`decode-style`, `sending-batch` and `parallel-queue-size` exist only in parallel decoding.",
    Rule.SERIAL_ONLY: "`force-binary` does not exist in parallel decoding.",
    Rule.STREAM_ONLY: "SQL functions decode serially and do not have the options of a replication stream.",
    Rule.NO_BINARY: "`force-binary` has no effect in a stream, and SQL functions reject it.",
    Rule.NO_START_POSITION: "`start-position` hides the BEGIN of its CSN, so no complete transaction could follow.",
    Rule.BRONZE_CONFIRMS: "Only what bronze holds is acknowledged: the server must not advance the slot by itself.",
    Rule.CSN_SLOT_OPTION: "`logical-receiver-num` and `slice-id` require a slot in CSN order.",
    Rule.NODE_OPTION: "`logical-receiver-num` is an option of coordinators, `slice-id` of data nodes.",
    Rule.ORDER_OF_SLOT: "`output-order` must be the order of the slot; through a coordinator it is always CSN.",
    Rule.DENSITY: "CSN order on a slot in LSN order needs empty transactions: they prove that no CSN is missing.",
    Rule.STANDBY: "With `standby-connection`, `hosts` names the standby that decodes and the primary.",
    Rule.USERS_BY_NAME: "Through a coordinator, users are excluded by name: their OIDs differ between data nodes.",
    Rule.UNBATCHED: "Before 5.0, text and JSON without `sending-batch` carry no position that is safe to acknowledge.",
    Rule.LIST_COVERS: "A `white-table-list` in the file must include everything that `tables` captures.",
    Rule.REPLY_IN_TIME: "`sender-timeout` is 0, or leaves at least one second for a reply.",
    Rule.ONE_HOST: "Exactly one of `host` and `hosts` is set.",
    Rule.HOST_PORT: "Every host has a port: its own, or `port`.",
    Rule.SLOT_NAME: "Slot names that begin with gs_roach are reserved by the server.",
    Rule.NODE: "Only GaussDB has coordinators and data nodes.",
    Rule.PLUGIN_PRODUCT: "Only GaussDB has plugins `parallel_…`.",
    Rule.PLUGIN_STYLE: "A plugin `parallel_…` requires parallel decoding in its own style.",
    Rule.CSN_SLOT_PRODUCT: "Only GaussDB has slots in CSN order.",
    Rule.COORDINATOR_ORDER: "Through a coordinator, the order is always CSN.",
    Rule.CSN_SLOT_ORDER: "The stream of a slot in CSN order is in CSN order: its positions are CSNs.",
    Rule.SERIAL_ORDER: "Serial decoding and SQL functions omit other databases, so CSNs have gaps: order by LSN.",
    Rule.NODE_ORDER: "One data node of several has gaps in its CSNs: CSN order requires a slot in CSN order.",
    Rule.POLLING_SLOT: "SQL functions return LSNs: they read slots in LSN order.",
}


def options_page() -> str:
    """Every option of logical decoding, and every rule."""
    options = "\n".join(map(_option_row, OPTIONS.values()))
    rules = "\n".join(
        f"| `{rule.label}` | [{rule.problem}](../errors/{rule.problem}.md) | {sentence} |"
        for rule, sentence in _RULES.items()
    )
    vendor = "\n".join(f"| {' | '.join(row)} |" for row in _VENDOR)
    return GENERATED + _PAGE.format(options=options, rules=rules, vendor=vendor)


def _option_row(option: Option) -> str:
    products = (
        "GaussDB"
        if option.products == GAUSSDB
        else "openGauss, MogDB"
        if GAUSSDB.isdisjoint(option.products)
        else "all"
    )
    since = f" from {'.'.join(map(str, option.since))}" if option.since else ""
    value = f"{option.low} to {option.high}" if option.form is Form.NUMBER else option.form.value
    marks = ["yes" if mode in option.modes else "" for mode in Mode]
    cells = [f"`{option.name}`", value, option.default, option.sent_default, products + since, *marks, option.about]
    return "| " + " | ".join(cells) + " |"
