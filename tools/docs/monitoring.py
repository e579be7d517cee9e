"""The pages of metrics and of log events, from their tables."""

from __future__ import annotations

from cdc_lake.observability.events import EVENTS, Event
from cdc_lake.observability.metrics import METRICS
from tools.docs import GENERATED

_METRICS = """# Metrics

If `observe` is configured, the receiver serves these metrics, and apply writes them to a file
([how](../guides/monitoring.md)). Every series also has the label `pipeline`. Counters and histograms count from the
start of their process. Values that are currently unknown are omitted.

| name | type | of | labels | meaning |
|---|---|---|---|---|
{metrics}

The series of a histogram have the suffixes `_bucket` (label `le`), `_sum` and `_count`. Labels contain names of tables,
rules and operations, and codes; never a row value.
"""

_EVENTS = """# Events

Commands log these events if `observe.log: json` is set, and jobs on Databricks always do
([how](../guides/monitoring.md#logs)): one JSON object per line. Every event has these fields:

| field | meaning |
|---|---|
| `timestamp` | when it was written, ISO 8601 in UTC |
| `level` | debug, info, warning or error; an event with a `code` is at least a warning |
| `event` | its name, as listed below |
| `pipeline`, `verb` | the pipeline, and the command that logged it |
| `run` | {run}; omitted if the command has no row there |
| `text` | the same as text; its wording may change |

Of events marked *repeats*, one per kind and table is written every ten seconds; with `-v` all of them are. Names of
events and fields do not change; new ones may be added.

| event | level | | meaning | fields |
|---|---|---|---|---|
{events}

## Fields

| field | meaning |
|---|---|
{fields}

Fields contain names, codes, positions and numbers; never a row value. A field that its event does not define is not
written, and `refused` names it: that is a bug. The secrets of the pipeline are masked in every field.
"""

FIELDS = {
    "run": "identifier of the run, as in the control table `runs`",
    "code": "code of the error or warning; `cdc-lake explain CODE` prints its page",
    "table": "silver table; for a comparison, the source table",
    "tables": "source tables",
    "position": "position in the stream, in the form that commands accept: `0/16B3748` or a CSN",
    "upto": "the same position as an integer, as tables store it",
    "done": "how much of it is done, in `unit`",
    "total": "how much there is in total",
    "unit": "what is counted: rows, changes, tables, files, spans, keys, bytes of WAL, CSNs",
    "epoch": "epoch of the stream",
    "transactions": "transactions of one commit to bronze",
    "changes": "changes of one commit to bronze",
    "operations": "the same by operation: I U D T M X S",
    "bytes": "bytes written, or of files that were compacted or removed",
    "version": "version of the bronze table that contains it",
    "server_end": "end of the server's WAL as last reported, an integer",
    "mode": "how the table was written: overwrite, append or merge ([which when](../concepts/applying.md))",
    "broadcast": "whether the changes were sent to every executor",
    "bounded": "whether only a part of the table was read",
    "seconds": "how long it took",
    "files_written": "files that were written",
    "bytes_written": "bytes of these",
    "files_replaced": "files that were replaced by these",
    "bytes_replaced": "bytes of the replaced files",
    "files_marked": "files in which rows were marked as deleted",
    "kind": "operation on the columns, `add_column` for one",
    "operation": "an operation that was allowed, as `plan` words it",
    "columns": "names of columns",
    "configuration": "number of the configuration",
    "changed": "names of columns that are redacted differently from here on",
    "timeline": "the server's current timeline",
    "before": "the server's timeline until then",
    "part": "what was done: retention, compaction, expiry, removal",
    "files": "number of files before",
    "into": "number of files after",
    "delete_files": "delete files that were compacted",
    "versions": "versions that were expired",
    "bytes_after": "bytes of these",
    "decoded_later": "transactions decoded later whose stored rows are no longer needed",
    "log_entries": "entries of the table's log that were removed",
    "rows": "rows that were removed",
    "verdict": "the verdict of a comparison for a table",
    "outcome": "done, stopped or failed",
    "where": "file or location that the error concerns",
    "hint": "what to do",
    "exit_code": "exit code of the command",
    "retry": "whether waiting helps: never or later",
}
"""Every field of any event, except those of every event, with its meaning."""


def metrics_page() -> str:
    """Every metric."""
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(one.loops)} | {', '.join(f'`{name}`' for name in one.labels)} "
        f"| {one.help} |"
        for one in METRICS
    ]
    return GENERATED + _METRICS.format(metrics="\n".join(rows))


def events_page() -> str:
    """Every event of the log."""
    fields = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items() if name != "run")
    return GENERATED + _EVENTS.format(run=FIELDS["run"], events="\n".join(map(_event, EVENTS)), fields=fields)


def _event(event: Event) -> str:
    fields, repeats = ", ".join(f"`{name}`" for name in event.fields), "*repeats*" if event.repeats else ""
    return f"| `{event.name}` | {event.level.name.lower()} | {repeats} | {event.help} | {fields} |"
