"""The commands of `inspect`: the content of bronze, from one row to the whole chain; prepared transactions; failpoints.

They print row values, because the user requests them. Only `row` also reads silver, and only `chain --against` connects
to the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from cdc_lake.cli.command import Call, Epoch, verb
from cdc_lake.cli.text import format_value, table
from cdc_lake.model.diagnostic import pluralize, size
from cdc_lake.model.position import END
from cdc_lake.observability.failpoints import FailpointList
from cdc_lake.source.base import format_stream_position

if TYPE_CHECKING:
    from cdc_lake.bronze.hash_chain import ChainVerdict
    from cdc_lake.bronze.reader import BronzeReader
    from cdc_lake.bronze.row_history import RowEvent
    from cdc_lake.comparison.bronze_vs_source import SourceProof
    from cdc_lake.config.project import Project
    from cdc_lake.model.relation import TableName
    from cdc_lake.ops import inspect
    from cdc_lake.runtime.quarantine import QuarantinedChange
    from cdc_lake.runtime.receive.lag import PreparedList, PreparedTransaction


inspect_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Inspect bronze: a span, a transaction, a row, the hash chain, prepared transactions; list failpoints.",
)

From = Annotated[
    str | None,
    Option("--from", metavar="POSITION", help="Start after this position (default: at the start of the stream)."),
]
To = Annotated[
    str | None,
    Option("--to", metavar="POSITION", help="End with this position, inclusive (default: at the end of the stream)."),
]


@verb(inspect_app, "span")
def inspect_span(
    call: Call,
    after: From = None,
    upto: To = None,
    epoch: Epoch = None,
    limit: Annotated[
        int, Option("--limit", min=0, help="Maximum number of transactions to list; the totals cover all.")
    ] = 100,
) -> None:
    """List the transactions in a range of positions, and their totals by table."""
    from cdc_lake.ops.inspect import asked_span
    from cdc_lake.ops.inspect import inspect_span as look_up

    bronze = _bronze(call)
    call.show(look_up(bronze, asked_span(bronze, after, upto, epoch), limit), span_text)


@verb(inspect_app, "tx")
def inspect_tx(
    call: Call,
    position: Annotated[str, Argument(help="Position, as printed: 0/16B3748, or a number.")],
    epoch: Epoch = None,
) -> None:
    """Show the transaction committed at a position: its boundaries, and its changes in order."""
    from cdc_lake.model.position import parse_position
    from cdc_lake.ops.inspect import inspect_transaction

    call.show(inspect_transaction(_bronze(call), parse_position(position), epoch), transaction_text)


@verb(inspect_app, "row")
def inspect_row(
    call: Call,
    table: Annotated[str, Argument(help="Source table, schema.table.")],
    key: Annotated[list[str], Argument(help="Key: values in key order, or column=value.")],
) -> None:
    """Show one row: all its changes, the resulting row, its quarantined changes, and the row in silver."""
    from cdc_lake.bronze.open import bronze_reader
    from cdc_lake.control.streams import source_table
    from cdc_lake.ops.inspect import row_everywhere

    project, name = call.project(), source_table(table)
    bronze = bronze_reader(project)
    call.show(row_everywhere(project, bronze, name, _key(key, name, bronze)), row_text)


@verb(inspect_app, "chain")
def inspect_chain(
    call: Call,
    after: From = None,
    upto: To = None,
    epoch: Epoch = None,
    against: Annotated[
        str | None,
        Option("--against", metavar="source", help="Compare bronze with the rows and the slot of the source."),
    ] = None,
) -> None:
    """Verify that no transaction in bronze is missing, duplicated or altered: all of them, or those in a range."""
    from cdc_lake.bronze.hash_chain_verify import verify
    from cdc_lake.bronze.open import bronze_reader
    from cdc_lake.control.table_pauses import read_epoch_facts
    from cdc_lake.ops.inspect import asked_span, plain
    from cdc_lake.tables.control_tables import control_tables

    project = call.project()
    if against is not None:
        _against(call, project, against, whole_chain=(after, upto, epoch) == (None, None, None))
        return
    bronze = bronze_reader(project)
    span = None if (after, upto, epoch) == (None, None, None) else asked_span(bronze, after, upto, epoch)
    control = control_tables(project)
    verdict = verify(
        bronze, span, load_epoch_facts=lambda: read_epoch_facts(project, bronze, control), report=call.view.report
    )
    call.view.result(plain(verdict), chain_text(verdict))
    if not verdict.holds:
        raise typer.Exit(1)


@verb(inspect_app, "prepared", document="parked")
def inspect_prepared(call: Call) -> None:
    """List prepared transactions kept until their COMMIT PREPARED, oldest first."""
    from cdc_lake.runtime.receive.lag import list_prepared

    call.show(list_prepared(call.project()), prepared_text)


@verb(inspect_app, "failpoints", pipeline=False)
def inspect_failpoints(call: Call) -> None:
    """List the points at which a pipeline can be killed on purpose, and how: crash points and their failpoints."""
    from cdc_lake.observability.failpoints import list_failpoints

    call.show(list_failpoints(), failpoints_text)


def _against(call: Call, project: Project, what: str, *, whole_chain: bool) -> None:
    from cdc_lake.cli.output import plain
    from cdc_lake.comparison.bronze_vs_source import against_source

    if what != "source" or not whole_chain:
        raise typer.BadParameter("expected `source`, without a range", param_hint="--against")
    proof = against_source(project, call.view.report)
    call.view.result({"holds": proof.holds, **plain(proof)}, proof_text(proof))
    if not proof.holds:
        raise typer.Exit(1)


def _bronze(call: Call) -> BronzeReader:
    from cdc_lake.bronze.open import bronze_reader

    return bronze_reader(call.project())


def _key(values: list[str], table: TableName, bronze: BronzeReader) -> dict[str, str]:
    """A key as `column=value` for each column, or as plain values in primary key order."""
    from cdc_lake.ops.inspect import row_key

    if all("=" in part for part in values):
        return dict(part.split("=", 1) for part in values)
    return row_key(bronze, table, values)


OPS = {
    "I": "insert",
    "U": "update",
    "D": "delete",
    "T": "truncate",
    "M": "message",
    "S": "snapshot",
    "X": "undecodable",
}
"""Display names of bronze's operations."""

_DIGITS = 32  # of a digest; `--json` shows all


def transaction_text(transaction: inspect.TransactionView) -> str:
    """A transaction: its boundaries, then one line per change."""
    xid = "" if transaction.xid is None else f", xid {transaction.xid}"
    by = f", by {transaction.user}" if transaction.user else ""
    lines = [
        (
            f"transaction {format_stream_position(transaction.stream, transaction.position)}, "
            f"epoch {transaction.epoch}{xid}{by}"
        ),
        f"committed   {time_text(transaction.commit_ts)}",
        f"size        {pluralize(len(transaction.changes), 'change')}, {size(transaction.size)}",
        f"content     {transaction.content[:_DIGITS]}…",
        f"hash        {transaction.hash[:_DIGITS]}…",
    ]
    if (why := transaction.undecodable) is not None:
        lines += [f"undecodable {why.code}: {why.message}", f"            in {why.where}; tried by cdc_lake {why.by}"]
    lines.append("")
    return "\n".join(lines + [_change(change) for change in transaction.changes])


def span_text(span: inspect.SpanView) -> str:
    """The transactions of a span, one per line, and the totals by table."""
    start_text = "from the start" if span.after < 0 else f"after {format_stream_position(span.stream, span.after)}"
    upto = "" if span.upto == END else f" up to {format_stream_position(span.stream, span.upto)}"
    empty = f", {span.empty:,} without rows" if span.empty else ""
    lines = [
        f"epoch {span.epoch}, {start_text}{upto}",
        (
            f"{pluralize(span.transactions, 'transaction')}{empty}, "
            f"{pluralize(span.changes, 'change')}, {size(span.bytes)}"
        ),
    ]
    if span.listed:
        rows = [_line(span.stream, line) for line in span.listed]
        lines += ["", *table(rows, right=frozenset({0, 2, 3}))]
    if (more := span.transactions - len(span.listed)) > 0:
        lines.append(f"  … and {more:,} more (`--limit`)")
    totals = [[name, *_kinds(kinds)] for name, kinds in span.counts.items()]
    return "\n".join([*lines, "", *table(totals)] if totals else lines)


def _line(stream: str, line: inspect.TransactionLine) -> list[str]:
    changes = "undecodable" if line.undecodable else pluralize(line.changes, "change")
    when = "-" if line.commit_ts is None else f"{line.commit_ts:%Y-%m-%dT%H:%M:%SZ}"
    return [format_stream_position(stream, line.position), when, changes, size(line.bytes)]


def _kinds(kinds: Mapping[str, int]) -> list[str]:
    return [f"{op} {kinds[op]:,}" if op in kinds else "" for op in "IUDT"]


def _change(change: inspect.ChangeView) -> str:
    op = OPS.get(change.op, change.op)
    return f"  {change.ordinal:>4} {op:<8} {change.relation or ''}{_tuples(change.new, change.old, change.unchanged)}"


def chain_text(verdict: ChainVerdict) -> str:
    """Whether the chain is intact, otherwise the first place where it is broken."""
    totals = f"{pluralize(verdict.transactions, 'transaction')}, {pluralize(verdict.changes, 'change')}"
    if verdict.empty:
        totals += f", {verdict.empty:,} without rows"
    if verdict.passed_over:
        totals += f", {verdict.passed_over:,} CSNs in recorded gaps"
    if verdict.holds:
        return f"the chain holds: {totals}"
    place = ""
    if verdict.broken_at is not None:
        epoch, position = verdict.broken_at
        place = f" at {format_stream_position(verdict.stream, position)} of epoch {epoch}"
    return f"the chain is broken{place}: {verdict.reason}\nverified before it: {totals}"


def proof_text(proof: SourceProof) -> str:
    """The chain, the slot and each table."""
    lines = [chain_text(proof.chain)]
    if proof.confirmed is None:
        lines.append("slot: missing")
    else:
        what = f"discarded {'changes' if proof.forgotten else 'nothing'} that bronze does not have"
        lines.append(f"slot: confirmed {proof.confirmed}, bronze holds {proof.held}: the server {what}")
    for table_proof in proof.tables:
        kinds = ("missing", "extra", "changed", "repeated")
        odd = ", ".join(f"{getattr(table_proof, kind):,} {kind}" for kind in kinds if getattr(table_proof, kind))
        because = f" ({odd or table_proof.reason})" if odd or table_proof.reason else ""
        lines.append(
            f"{table_proof.table}: {table_proof.verdict}, {pluralize(table_proof.source_rows, 'row')}{because}"
        )
    return "\n".join(lines)


def _tuples(
    new: Mapping[str, str | None] | None, old: Mapping[str, str | None] | None, unchanged: Sequence[str]
) -> str:
    old_text = "" if old is None else f"  old {_row_text(old)}"
    if new is None:
        return old_text
    return f"{old_text}  {'' if old is None else 'new '}{_row_text(new, unchanged)}"


def time_text(value: datetime | None) -> str:
    """A time to the millisecond, `-` if there is none."""
    return "-" if value is None else value.isoformat(timespec="milliseconds")


def row_text(row: inspect.RowEverywhere) -> str:
    """The whole history of a row; `bronze`, `quarantine` and `silver` are the last lines, as a summary."""
    key = ", ".join(f"{column}={value}" for column, value in row.key.items())
    lines = [f"{row.table} ({key}): {pluralize(len(row.events), 'event')}", ""]
    epochs = len({event.epoch for event in row.events}) > 1
    for event, change in zip(row.events, row.changes, strict=True):
        lines.append(_event(event, change, epoch=epochs))
    lines += ["", f"bronze     {_row_text(row.net)}"]
    lines += [f"quarantine {_quarantine_text(change)}" for change in row.quarantined]
    return "\n".join([*lines, *_silver(row.silver)])


def _event(event: RowEvent, change: inspect.RowChange, *, epoch: bool) -> str:
    of = f"epoch {event.epoch}  " if epoch else ""
    place = f"{of}{format_stream_position(event.stream, event.position)}:{event.ordinal}"
    values = f"  {_values_text(event, change)}".rstrip()
    if event.note:  # its ordinal is a time, not a place in a transaction
        op = "read" if event.new is not None else "gone"
        return f"  {of}{format_stream_position(event.stream, event.position)}  {op:<8}{values}  {event.note}"
    return f"  {place}  {time_text(event.commit_ts)}  {OPS.get(event.op, event.op):<8}{values}"


def _values_text(event: RowEvent, change: inspect.RowChange) -> str:
    """The new values: all of a new row, the differences of an update, and unsent values that are unknown."""
    after = change.after
    if after is None:
        return _row_text(change.before) if change.before is not None else ""
    before = change.before
    unknown = [f"{name} was not sent" for name in event.unchanged if name not in after]
    if before is None:
        moved = [f"from {_row_text(event.old)}"] if event.old is not None else []
        return ", ".join([_row_text(after), *moved, *unknown])
    changed = [
        f"{name} {format_value(before[name])} → {format_value(value)}"
        if name in before
        else f"{name} {format_value(value)}"
        for name, value in after.items()
        if name not in before or before[name] != value
    ]
    return ", ".join([*changed, *unknown]) or "no value changed"


def _row_text(values: Mapping[str, str | None] | None, unchanged: Sequence[str] = ()) -> str:
    if values is None:
        return "no row"
    shown = (f"{n}=<unchanged>" if n in unchanged else f"{n}={format_value(v)}" for n, v in values.items())
    return f"({', '.join(shown)})"


def _quarantine_text(change: QuarantinedChange) -> str:
    why = f"breaks {', '.join(change.rules)}" if change.rules else "queued behind a quarantined change"
    return f"{change.position}:{change.ordinal} {OPS.get(change.op, change.op)}, {why}"


def _silver(silver: inspect.SilverRows | None) -> list[str]:
    if silver is None:
        return ["silver     has nothing of this table yet"]
    state = "" if silver.state == "active" else f" ({silver.state})"
    head = f"silver     {silver.table} at {silver.position}{state}:"
    if silver.reason:
        return [f"{head} {silver.reason}"]
    if len(silver.rows) == 1:
        return [f"{head} {_row_text(silver.rows[0])}"]
    return [f"{head} no row"] if not silver.rows else [head, *(f"           {_row_text(row)}" for row in silver.rows)]


def failpoints_text(listing: FailpointList) -> str:
    """Each crash point with its failpoints, and how to arm one."""
    says = {failpoint.name: failpoint.says for failpoint in listing.failpoints}
    rows = table([(name, says[name]) for name in says], indent="     ")
    lines = dict(zip(says, rows, strict=True))
    texts = [
        f"{listing.variable}=NAME kills the process that reaches it (SIGKILL), NAME:3 the third time.",
        "Wherever a process dies, the next start reaches the same state.",
        "",
    ]
    for point in listing.points:
        texts += [f"{point.number:>3}  {point.says}", *(lines[name] for name in point.failpoints)]
        texts += [f"     {point.besides}"] if point.besides else []
    beyond = [lines[failpoint.name] for failpoint in listing.failpoints if not failpoint.points]
    return "\n".join([*texts, "", "beyond these", *beyond])


_NUMBERS = frozenset({1, 4, 5})  # columns


def prepared_text(listing: PreparedList) -> str:
    """Each prepared transaction with its data; its gid as a Python literal, since it may contain anything."""
    if listing.place is None:
        return "no prepared transactions are kept: they arrive at COMMIT PREPARED (`source.decoding.two_phase` is off)"
    if not listing.transactions:
        return f"no prepared transactions in {listing.place}"
    heads = ("gid", "xid", "position", "prepared", "changes", "bytes", "tables")
    lines = table([heads, *map(_prepared_row, listing.transactions)], right=_NUMBERS, indent="")
    many = pluralize(len(listing.transactions), "transaction")
    held = sum(transaction.bytes for transaction in listing.transactions)
    return "\n".join([*lines, "", f"{many} kept until COMMIT PREPARED, {size(held)}, in {listing.place}"])


def _prepared_row(transaction: PreparedTransaction) -> tuple[str, ...]:
    prepared_at = f"{transaction.prepared_at:%Y-%m-%dT%H:%M:%SZ}"
    tables = ", ".join(transaction.tables) or "-"
    return (
        repr(transaction.gid),
        str(transaction.xid),
        transaction.position,
        prepared_at,
        f"{transaction.changes:,}",
        size(transaction.bytes),
        tables,
    )
