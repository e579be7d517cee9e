"""The rules of a source of the GaussDB family by name, and what is said where one is broken."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cdc_lake.config.problems import Problem


class Rule(enum.Enum):
    """A rule: its name, the code of the problem, and the rule itself in a sentence."""

    def __init__(self, label: str, problem: Problem, sentence: str) -> None:
        self.label, self.problem, self.sentence = label, problem, sentence

    # which options there are
    UNKNOWN = "unknown-option", Problem.OPTION_UNKNOWN, "An option is one the server knows."
    UNDOCUMENTED = (
        "undocumented-option", Problem.OPTION_UNKNOWN,
        "An option whose records no document describes is sent only with `allow_unknown_options: true`.",
    )  # fmt: skip
    GAUSSDB_ONLY = "gaussdb-only", Problem.OPTION_UNKNOWN, "openGauss and MogDB have no option of GaussDB's own."
    OPEN_SOURCE_ONLY = "open-source-only", Problem.OPTION_UNKNOWN, "GaussDB documents no option of this name."
    SINCE = "since-release", Problem.OPTION_UNKNOWN, "The release knows the option, or the way of decoding."
    # what a value looks like
    BOOLEAN = (
        "boolean", Problem.OPTION_VALUE,
        "A boolean is on/off, true/false, yes/no, 1/0 or an unambiguous beginning of one.",
    )  # fmt: skip
    RANGE = "range", Problem.OPTION_VALUE, "A number is whole and in its range."
    POWER_OF_TWO = "power-of-two", Problem.OPTION_VALUE, "`parallel-queue-size` is a power of two."
    STYLE_LETTER = "style-letter", Problem.OPTION_VALUE, "`decode-style` begins with b, t or j."
    WHITE_LIST = (
        "white-list-form", Problem.OPTION_VALUE,
        "`white-table-list` is schema.table,… without blanks; `*` stands for a whole name; no name has a dot.",
    )  # fmt: skip
    COMMA_LIST = "comma-list", Problem.OPTION_VALUE, "A list of users is written with commas, without blanks."
    SQL_CHARACTERS = (
        "sql-characters", Problem.OPTION_VALUE,
        "SQL functions refuse quotes, semicolons, backslashes, angle brackets and such in options.",
    )  # fmt: skip
    # what goes with what
    PARALLEL_ONLY = (
        "parallel-only", Problem.OPTION_COMBINATION,
        "`decode-style`, `sending-batch` and `parallel-queue-size` exist in parallel decoding only.",
    )  # fmt: skip
    SERIAL_ONLY = "serial-only", Problem.OPTION_COMBINATION, "`force-binary` does not exist in parallel decoding."
    STREAM_ONLY = (
        "stream-only", Problem.OPTION_COMBINATION,
        "SQL functions decode serially and know no option of a replication stream.",
    )  # fmt: skip
    NO_BINARY = "no-force-binary", Problem.OPTION_COMBINATION, "`force-binary` has no use; the functions refuse it."
    NO_START_POSITION = (
        "no-start-position", Problem.OPTION_COMBINATION,
        "`start-position` hides the BEGIN of its CSN, so no whole transaction could follow.",
    )  # fmt: skip
    BRONZE_CONFIRMS = (
        "bronze-confirms", Problem.OPTION_COMBINATION,
        "Only what bronze holds is confirmed: the server must not move the slot by itself.",
    )  # fmt: skip
    CSN_SLOT_OPTION = (
        "csn-slot-option", Problem.OPTION_COMBINATION,
        "`logical-receiver-num` and `slice-id` need a slot in CSN order.",
    )  # fmt: skip
    NODE_OPTION = (
        "option-of-node", Problem.OPTION_COMBINATION,
        "`logical-receiver-num` is an option of coordinators, `slice-id` one of data nodes.",
    )  # fmt: skip
    ORDER_OF_SLOT = (
        "output-order-of-slot", Problem.OPTION_COMBINATION,
        "`output-order` is the slot's order; through a coordinator it is always CSN.",
    )  # fmt: skip
    DENSITY = (
        "density-needs-empty-transactions", Problem.OPTION_COMBINATION,
        "In CSN order on an LSN slot empty transactions are sent: they prove that no CSN is missing.",
    )  # fmt: skip
    STANDBY = (
        "standby-and-primary", Problem.OPTION_COMBINATION,
        "With `standby-connection` a standby decodes; `hosts` names it and the primary, where the slot is made.",
    )  # fmt: skip
    USERS_BY_NAME = (
        "users-by-name", Problem.OPTION_COMBINATION,
        "Through a coordinator users are excluded by name: their OIDs differ from data node to data node.",
    )  # fmt: skip
    UNBATCHED = (
        "unbatched-since-5.0", Problem.OPTION_COMBINATION,
        "Text and JSON without `sending-batch` carry no position that is safe to confirm before 5.0.",
    )  # fmt: skip
    LIST_COVERS = (
        "white-list-covers-tables", Problem.OPTION_COMBINATION,
        "A `white-table-list` of your own lets through all that `tables` takes in.",
    )  # fmt: skip
    REPLY_IN_TIME = (
        "reply-in-time", Problem.OPTION_COMBINATION,
        "`sender-timeout` is 0, or leaves at least a second for a reply.",
    )  # fmt: skip
    # fields of the source beside its options
    ONE_HOST = "one-host", Problem.SOURCE_COMBINATION, "Either `host` or `hosts` is given."
    HOST_PORT = "host-and-port", Problem.SOURCE_COMBINATION, "Every host has a port: its own, or `port`."
    SLOT_NAME = "slot-name", Problem.SOURCE_COMBINATION, "Slot names that begin with gs_roach are the server's own."
    NODE = "distributed-gaussdb", Problem.SOURCE_COMBINATION, "Only GaussDB has coordinators and data nodes."
    PLUGIN_PRODUCT = "plugin-of-gaussdb", Problem.SOURCE_COMBINATION, "Plugins `parallel_…` are GaussDB's."
    PLUGIN_STYLE = (
        "plugin-and-style", Problem.SOURCE_COMBINATION,
        "A plugin `parallel_…` is read by parallel decoding, in its own style.",
    )  # fmt: skip
    CSN_SLOT_PRODUCT = "csn-slot-of-gaussdb", Problem.SOURCE_COMBINATION, "Only GaussDB has slots in CSN order."
    COORDINATOR_ORDER = (
        "coordinator-in-csn-order", Problem.SOURCE_COMBINATION,
        "Through a coordinator the order is always CSN.",
    )  # fmt: skip
    CSN_SLOT_ORDER = (
        "order-of-csn-slot", Problem.SOURCE_COMBINATION,
        "The stream of a slot in CSN order is in CSN order: its positions are CSNs.",
    )  # fmt: skip
    SERIAL_ORDER = (
        "serial-is-not-dense", Problem.SOURCE_COMBINATION,
        "Serial decoding and SQL functions leave out other databases' transactions, so CSNs have gaps: order by LSN.",
    )  # fmt: skip
    NODE_ORDER = (
        "data-node-is-not-dense", Problem.SOURCE_COMBINATION,
        "One data node of several has gaps in its CSNs: CSN order needs a slot in CSN order.",
    )  # fmt: skip
    POLLING_SLOT = (
        "polling-in-lsn-order", Problem.SOURCE_COMBINATION,
        "SQL functions give LSNs: they read slots in LSN order.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broken rule: where (keys below `source`), what is wrong, and what to do. `key`: it is about the key itself."""

    rule: Rule
    at: tuple[str, ...]
    summary: str
    remedy: str
    key: bool = False
