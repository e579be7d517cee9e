"""The names of all metrics of both loops, with units and meanings; a stable interface.

Base units as Prometheus recommends: seconds, bytes, numbers. Every series has the label `pipeline` besides its own;
label values are names of tables, rules, operations and codes, never of rows.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import Final


class Kind(enum.StrEnum):
    """The type of a series: a gauge, a counter or a histogram."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Loop(enum.StrEnum):
    """The loop that exposes a metric; the label `loop` if both do."""

    RECEIVE = "receive"
    APPLY = "apply"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `labels`: besides `pipeline`; `buckets`: upper bounds of a histogram's buckets."""

    kind: Kind
    loops: tuple[Loop, ...]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names for queries."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


_RECEIVE: Final = (Loop.RECEIVE,)
_APPLY: Final = (Loop.APPLY,)
_receive_gauge, _receive_counter = partial(Metric, Kind.GAUGE, _RECEIVE), partial(Metric, Kind.COUNTER, _RECEIVE)
_apply_gauge, _apply_counter = partial(Metric, Kind.GAUGE, _APPLY), partial(Metric, Kind.COUNTER, _APPLY)
_ROWS: Final = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0)
_DURATIONS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)

HEALTHY: Final = _receive_gauge(
    "cdc_lake_healthy", "1 while the receiver lands and acknowledges, as `/healthz` reports; otherwise 0."
)
SOURCE_REACHABLE: Final = _receive_gauge(
    "cdc_lake_source_reachable",
    "1 if the source responded within the last 30 seconds; otherwise 0, and metrics that only the source can "
    "provide are omitted.",
)
RECEIVED_LAG_BYTES: Final = _receive_gauge(
    "cdc_lake_received_lag_bytes",
    "WAL of the source that the receiver has not read yet; unknown if CSNs order the stream.",
)
LANDED_LAG_BYTES: Final = _receive_gauge(
    "cdc_lake_landed_lag_bytes", "WAL of the source by which bronze is behind; unknown if CSNs order the stream."
)
LANDED_LAG_TRANSACTIONS: Final = _receive_gauge(
    "cdc_lake_landed_lag_transactions",
    "Transactions of the source by which bronze is behind, if CSNs order the stream and count them.",
)
LANDED_LAG_SECONDS: Final = _receive_gauge(
    "cdc_lake_landed_lag_seconds",
    "Upper bound of the time since the oldest transaction that is not in bronze was committed; 0 if none is known.",
)
SLOT_ACTIVE: Final = _receive_gauge(
    "cdc_lake_slot_active", "1 while the slot is read; 0 if nothing reads it, or it does not exist."
)
SLOT_RETAINED_WAL_BYTES: Final = _receive_gauge(
    "cdc_lake_slot_retained_wal_bytes", "WAL that the server retains for the slot."
)
SLOT_SAFE_WAL_BYTES: Final = _receive_gauge(
    "cdc_lake_slot_safe_wal_bytes",
    "WAL that can still be written before the slot is in danger; omitted if nothing limits the WAL retained for slots.",
)
SLOT_SPILLED_TRANSACTIONS_TOTAL: Final = _receive_counter(
    "cdc_lake_slot_spilled_transactions_total",
    "Transactions that exceeded the server's memory for decoding, so that it spilled them to its own disk.",
)
SLOT_SPILLED_BYTES_TOTAL: Final = _receive_counter(
    "cdc_lake_slot_spilled_bytes_total", "Decoded changes that the server spilled to its disk."
)
SLOT_STREAMED_TRANSACTIONS_TOTAL: Final = _receive_counter(
    "cdc_lake_slot_streamed_transactions_total", "Transactions that the server sent before their COMMIT."
)
SLOT_STREAMED_BYTES_TOTAL: Final = _receive_counter(
    "cdc_lake_slot_streamed_bytes_total", "Decoded changes that the server sent before their COMMIT."
)
WAL_BUDGET_USED_RATIO: Final = _receive_gauge(
    "cdc_lake_wal_budget_used_ratio",
    "Share of `source.wal_budget` that is used, 1 if a limit is reached; omitted without a budget.",
)
TRANSACTIONS_TOTAL: Final = _receive_counter(
    "cdc_lake_transactions_total", "Transactions landed in bronze and acknowledged."
)
CHANGES_TOTAL: Final = _receive_counter(
    "cdc_lake_changes_total",
    "Changes landed, by operation: I insert, U update, D delete, T truncate, M message, X undecodable, S copied row.",
    ("op",),
)
OPEN_TRANSACTION_BYTES: Final = _receive_gauge(
    "cdc_lake_open_transaction_bytes", "Changes of transactions whose COMMIT has not arrived."
)
DECODING_LAG_SECONDS: Final = _receive_gauge(
    "cdc_lake_source_decoding_lag_seconds",
    "Age of the latest WAL that a GaussDB has decoded, by its last heartbeat (`decoding: {enable-heartbeat: on}`).",
)
SPILLED_BYTES_TOTAL: Final = _receive_counter(
    "cdc_lake_spilled_bytes_total",
    "Changes written to the spool: of uncommitted transactions, or of transactions too large for memory.",
)
PREPARED_TRANSACTIONS: Final = _receive_gauge(
    "cdc_lake_prepared_transactions",
    "Prepared transactions that are stored until their COMMIT PREPARED, with two-phase decoding.",
)
PREPARED_OLDEST_SECONDS: Final = _receive_gauge(
    "cdc_lake_prepared_oldest_seconds", "Time since the oldest of them was prepared."
)
BATCH_ROWS: Final = Metric(
    Kind.HISTOGRAM, _RECEIVE, "cdc_lake_batch_rows", "Changes of one commit to bronze.", buckets=_ROWS
)
APPLIED_LAG_SECONDS: Final = _apply_gauge(
    "cdc_lake_applied_lag_seconds",
    "Time since the oldest transaction that is in bronze but not in silver was committed; 0 if there is none.",
)
APPLIED_TRANSACTIONS_TOTAL: Final = _apply_counter(
    "cdc_lake_applied_transactions_total", "Transactions of the spans that were applied."
)
APPLIED_CHANGES_TOTAL: Final = _apply_counter(
    "cdc_lake_applied_changes_total", "Changes of the spans that were applied."
)
MERGE_DURATION_SECONDS: Final = Metric(
    Kind.HISTOGRAM,
    _APPLY,
    "cdc_lake_merge_duration_seconds",
    "How long writing one table's part of a span took.",
    ("table",),
    _DURATIONS,
)
RULE_FAILURES_TOTAL: Final = _apply_counter(
    "cdc_lake_rule_failures_total", "Changes that violated a rule, whatever the rule does.", ("table", "rule")
)
RULE_FAILED_ROWS: Final = _apply_gauge(
    "cdc_lake_rule_failed_rows",
    "Rows of silver that violate a rule at its latest evaluation; `level`: none, warn, error or critical by the "
    "rule's thresholds, or broken if it could not be evaluated.",
    ("table", "rule", "level"),
)
CUT_WITHHELD: Final = _apply_gauge(
    "cdc_lake_cut_withheld",
    "1 if rules prevented the latest pin of a cut and none was made since, 0 otherwise; with `pin_below`.",
)
QUARANTINED_ROWS_TOTAL: Final = _apply_counter(
    "cdc_lake_quarantined_rows_total",
    "Changes put in quarantine, by the rule that they violate; `waiting`: queued behind such a change of their key.",
    ("table", "rule"),
)
QUARANTINED_KEYS: Final = _apply_gauge(
    "cdc_lake_quarantined_keys", "Keys with changes in quarantine as of the latest cut.", ("table",)
)
TABLE_STATE: Final = _apply_gauge(
    "cdc_lake_table_state",
    "1 for the state of a silver table at the latest cut: live, quarantined, failed, paused, left, or catching-up.",
    ("table", "state"),
)
TABLE_FAILED: Final = _apply_gauge(
    "cdc_lake_table_failed", "1 if a silver table cannot continue and waits; otherwise 0.", ("table",)
)
VERIFIED_TIMESTAMP_SECONDS: Final = _apply_gauge(
    "cdc_lake_verified_timestamp_seconds",
    "When `compare` last found a silver table equal to the source but for quarantined keys; omitted if it never did.",
    ("table",),
)
TABLE_DIFFERENT: Final = _apply_gauge(
    "cdc_lake_table_different",
    "1 if `compare` last found a difference between a silver table and the source; otherwise 0.",
    ("table",),
)
SCHEMA_CHANGES_TOTAL: Final = _apply_counter(
    "cdc_lake_schema_changes_total",
    "Operations on the columns of silver tables that new layouts of the source required.",
    ("kind",),
)
ERRORS_TOTAL: Final = Metric(
    Kind.COUNTER,
    (Loop.RECEIVE, Loop.APPLY),
    "cdc_lake_errors_total",
    "Failures and warnings with a code, including those that are retried; `cdc-lake explain CODE` prints a code's "
    "page.",
    ("loop", "code"),
)
LAST_SUCCESS_TIMESTAMP_SECONDS: Final = Metric(
    Kind.GAUGE,
    (Loop.RECEIVE, Loop.APPLY),
    "cdc_lake_last_success_timestamp_seconds",
    "When the loop last had nothing left to do: everything was received, landed and acknowledged, or applied to the "
    "end of bronze.",
    ("loop",),
)

METRICS: Final = tuple(value for value in globals().values() if isinstance(value, Metric))
"""Every metric, in the order of its documentation page, which is that of the definitions."""
