"""The pages of metrics and of log events, from their tables."""

from __future__ import annotations

from cdc_lake.observability.events import EVENTS, FIELDS, Event
from cdc_lake.observability.metrics import METRICS
from tools.docs import GENERATED

_METRICS = """# Metrics

What monitoring is shown where `observe` asks for it: the receiver serves it, apply writes it into a file
([how](../guides/monitoring.md)). Every series has the label `pipeline` besides those named here. Counters and
histograms count since the start of their process. What is not known at the moment is left out.

| name | type | of | labels | meaning |
|---|---|---|---|---|
{metrics}

A histogram has `_bucket` (label `le`), `_sum` and `_count` behind its name. Labels hold names of tables, rules,
operations and codes; never a row value.
"""

_EVENTS = """# Events

What commands log where `observe.log: json` asks for it, and jobs on Databricks always
([how](../guides/monitoring.md#logs)): one JSON object a line. Every event has

| field | meaning |
|---|---|
| `timestamp` | when it was written, ISO 8601 in UTC |
| `level` | debug, info, warning or error; what carries a `code` is a warning at least |
| `event` | its name, as below |
| `pipeline`, `verb` | of which pipeline, by which command |
| `run` | {run}; left out where the command has no row there |
| `text` | the same for people; its wording may change |

Of events marked *repeats*, one of each kind and table is written in ten seconds, with `-v` all of them. Names of events
and fields stay; more may come.

| event | level | | meaning | fields |
|---|---|---|---|---|
{events}

## Fields

| field | meaning |
|---|---|
{fields}

Fields hold names, codes, positions and numbers; never a row value. What is no field of its event is left out when it is
written, and `refused` names it: that is a bug. Secrets that the pipeline holds are masked in every field.
"""


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
