"""The commands of `quarantine`: lists the quarantine, records decisions, and retries undecodable transactions.

Keys are printed, because the user requests them; no other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from cdc_lake.cli.command import Call, Table, verb
from cdc_lake.cli.text import format_key, table
from cdc_lake.model.diagnostic import pluralize, size

if TYPE_CHECKING:
    from cdc_lake.control.streams import UndecodedTransaction
    from cdc_lake.model.quarantine import Verb
    from cdc_lake.runtime.quarantine import QuarantinedChange, QuarantineDecision, QuarantineList
    from cdc_lake.runtime.redecode import QuarantineRetry


quarantine_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Quarantine: changes held by rules, and transactions that could not be decoded.",
)


KeyParts = Annotated[
    list[str] | None,
    Option(
        "--key",
        metavar="VALUE",
        help="Select the changes that hold this key: one option for each key column, in key order.",
    ),
]
All = Annotated[bool, Option("--all", help="Select all quarantined changes of the table.")]
RuleName = Annotated[
    str | None, Option("--rule", metavar="NAME", help="With --all: select only changes held by this rule alone.")
]
Reason = Annotated[str, Option("--reason", metavar="TEXT", help="Reason, stored with the decision.")]
Yes = Annotated[bool, Option("--yes", help="Make the decision; without it, only list the changes.")]


@verb(quarantine_app, "list")
def quarantine_list(call: Call) -> None:
    """List changes held by rules, by key, and transactions stored undecoded, each with its reason."""
    from cdc_lake.runtime.quarantine import list_quarantine

    call.show(list_quarantine(call.project()), list_text)


@verb(quarantine_app, "retry")
def quarantine_retry(
    call: Call,
    position: Annotated[
        str | None, Argument(help="Position of one transaction, as printed: 0/16B3748, or a number (default: all).")
    ] = None,
) -> None:
    """Retry decoding transactions stored undecoded, with this version and settings; bronze stays as it is."""
    from cdc_lake.model.position import parse_position
    from cdc_lake.runtime.redecode import retry

    result = retry(call.project(), None if position is None else parse_position(position), call.view.report)
    call.show(result, retry_text)
    if result.failed_count:
        raise typer.Exit(1)


@verb(quarantine_app, "release", document="held-release")
def quarantine_release(
    call: Call,
    table: Table,
    reason: Reason,
    key: KeyParts = None,
    every: All = False,
    rule: RuleName = None,
    yes: Yes = False,
) -> None:
    """Release quarantined changes as they are, in their order: the next run applies them, whatever rule they break."""
    _decide(call, "release", table, key, rule, reason, every=every, yes=yes)


@verb(quarantine_app, "discard", document="held-discard")
def quarantine_discard(
    call: Call,
    table: Table,
    reason: Reason,
    key: KeyParts = None,
    every: All = False,
    rule: RuleName = None,
    yes: Yes = False,
) -> None:
    """Discard quarantined changes for good: silver keeps its rows, and later changes of their keys are applied."""
    _decide(call, "discard", table, key, rule, reason, every=every, yes=yes)


def _decide(
    call: Call, verb: Verb, table: str, key: list[str] | None, rule: str | None, reason: str, *, every: bool, yes: bool
) -> None:
    from cdc_lake.runtime.quarantine import Choice, decide

    if every == bool(key):
        raise typer.BadParameter("give one key, or --all", param_hint="--key")
    if rule is not None and not every:
        raise typer.BadParameter("requires --all", param_hint="--rule")
    decision = decide(call.project(), verb, table, Choice(tuple(key) if key else None, rule), reason, yes=yes)
    call.show(decision, decided_text)


_SHOWN = 100
_KEYS = 3


def list_text(listing: QuarantineList) -> str:
    """The undecodable transactions, each with its error, then quarantined changes, one per line."""
    lines: list[str] = []
    for transaction in listing.undecodable:
        lines += _undecodable(transaction)
    if listing.undecodable:
        after = f", and {pluralize(listing.behind, 'transaction')} behind the first" if listing.behind else ""
        several = "them" if len(listing.undecodable) > 1 else "it"
        lines += [f"silver stops before {several}{after}: `cdc-lake quarantine retry` decodes {several} again", ""]
    lines += _changes(listing.changes)
    return "\n".join(lines).rstrip() or "nothing is held"


def _undecodable(transaction: UndecodedTransaction) -> list[str]:
    what = f"{pluralize(transaction.frames, 'message')}, {size(transaction.bytes)}"
    return [
        f"transaction {transaction.position} could not be decoded: {what}, {_tables(transaction.tables)}",
        f"  {transaction.code}: {transaction.message}",
        f"  in {transaction.where}; tried by cdc_lake {transaction.by}",
    ]


def _tables(tables: Sequence[str]) -> str:
    return f"of {', '.join(tables)}" if tables else "of tables that could not be read"


def _changes(changes: Sequence[QuarantinedChange]) -> list[str]:
    if not changes:
        return []
    rows: list[tuple[str, ...]] = [("table", "position", "op", "key", "held by")]
    lines = table([*rows, *(_change(change) for change in changes[:_SHOWN])], indent="")
    more = len(changes) - _SHOWN
    return [*lines, *([f"… and {more:,} more: the control table `quarantine` has all"] if more > 0 else [])]


def decided_text(decision: QuarantineDecision) -> str:
    """The decision that was, or would be, made, change by change, and what remains held."""
    past = {"release": "released", "discard": "discarded"}[decision.verb]
    lines = _changes(decision.changes)
    for group in decision.left:
        keys = ", ".join(format_key(key) for key in group.keys[:_KEYS]) + (", …" if len(group.keys) > _KEYS else "")
        lines.append(f"{keys} stays held: {group.why}")
    if decision.before:
        was = "was" if decision.before == 1 else "were"
        lines.append(f"{pluralize(decision.before, 'change')} {was} {past} before")
    if not decision.changes:
        return "\n".join([*lines, *([] if lines else [f"no such change of {decision.source} is held"])])
    many = pluralize(len(decision.changes), "change")
    if decision.done:
        when = "a run carries it out once the table is resumed" if decision.paused else "the next run carries it out"
        verdict = f"{many} {past}: {when}, before position {decision.position}"
    else:
        verdict = f"{many} would be {past}: add --yes to do it"
    return "\n".join([*lines, "", verdict])


def _change(change: QuarantinedChange) -> tuple[str, ...]:
    from cdc_lake.model.quarantine import CEILING

    waits = "a quarantined change of its key" if change.group is None else f"what group {change.group} holds"
    why = ", ".join(change.rules) or f"queued behind {waits}"
    decided = {None: "", "release": "; to be released", "discard": "; to be discarded"}
    return (
        change.table,
        f"{change.position} released" if change.ordinal < CEILING else f"{change.position}:{change.ordinal}",
        change.op,
        format_key(change.key),
        why + decided[change.decided],
    )


def retry_text(result: QuarantineRetry) -> str:
    """The result for each transaction."""
    lines = []
    for attempt in result.tried:
        if attempt.changes is None:
            lines += [
                f"{attempt.position}  still cannot be decoded",
                f"  {attempt.code}: {attempt.message}",
                f"  in {attempt.where}",
            ]
        else:
            lines.append(
                f"{attempt.position}  decoded: {pluralize(attempt.changes, 'change')} {_tables(attempt.tables)}"
            )
    if not result.tried:
        return "nothing to decode"
    verdict = (
        f"{pluralize(result.failed_count, 'transaction')} of {len(result.tried)} cannot be "
        f"decoded by cdc_lake {result.version}"
    )
    return "\n".join([*lines, verdict if result.failed_count else "`cdc-lake run` applies them"])
