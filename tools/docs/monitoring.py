"""The pages of metrics and of log events, from their tables."""

from __future__ import annotations

from cdc_lake.observability.events import EVENTS, FIELDS, Event
from cdc_lake.observability.metrics import FORMER_NAMES, METRICS
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

This version also exposes {former}, the former names.
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


def metrics_page() -> str:
    """Every metric."""
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(one.loops)} | {', '.join(f'`{name}`' for name in one.labels)} "
        f"| {one.help} |"
        for one in METRICS
    ]
    former = ", ".join(f"`{metric.name}` as `{name}`" for metric, name in FORMER_NAMES.items())
    return GENERATED + _METRICS.format(metrics="\n".join(rows), former=former)


def events_page() -> str:
    """Every event of the log."""
    fields = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items() if name != "run")
    return GENERATED + _EVENTS.format(run=FIELDS["run"], events="\n".join(map(_event, EVENTS)), fields=fields)


def _event(event: Event) -> str:
    fields, repeats = ", ".join(f"`{name}`" for name in event.fields), "*repeats*" if event.repeats else ""
    return f"| `{event.name}` | {event.level.name.lower()} | {repeats} | {event.help} | {fields} |"
