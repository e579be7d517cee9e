"""Results as text: pure functions from values to what people read.

Numbers carry units, positions can be pasted back.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Iterable, Sequence
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, TypeVar

from cdc_lake.model.counting import counted
from cdc_lake.model.diagnostic import Diagnostic, Severity
from cdc_lake.model.printable import printable
from cdc_lake.source.stream import shown

if TYPE_CHECKING:
    from cdc_lake.cli.scaffold import NewProject
    from cdc_lake.config.effective import Setting
    from cdc_lake.pipeline.check.doctor import CheckLine
    from cdc_lake.pipeline.plan import Plan
    from cdc_lake.pipeline.run import RunSummary

T = TypeVar("T")
GREEN, RED, YELLOW, DIM, RESET = "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[0m"


def tint(text: str, colour: str, *, on: bool) -> str:
    """The text in a colour, where colour is on."""
    return f"{colour}{text}{RESET}" if on else text


def table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "  ") -> list[str]:
    """Rows as aligned columns two blanks apart, a line each; `right` are the columns of numbers."""
    if not rows:
        return []
    rows = [[printable(cell, keep="") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(cells)]
        lines.append((indent + "  ".join(padded)).rstrip())
    return lines


def wrapped(head: str, text: str, width: int) -> list[str]:
    """A line of any length within the width, behind its head; words are not cut, so that they can be pasted."""
    fill = TextWrapper(width, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False)
    return fill.wrap(head + printable(text))


def size(value: int | None) -> str:
    """Bytes with a unit that fits, `-` where it is not known."""
    if value is None:
        return "-"
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(amount) >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def seconds(value: float | None) -> str:
    """A length of time with a unit that fits, `-` where it is not known."""
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 172_800 else f"{value / 86_400:.1f} d"


def new_project_text(made: NewProject) -> str:
    """What `init` wrote and what to do next."""
    lines = [f"made a {made.template} project in {made.folder}", ""]
    lines += [f"  {name}" for name in made.files]
    return "\n".join([*lines, "", "next:", *(f"  {command}" for command in made.next)])


def validation_text(files: Sequence[str], found: Sequence[Diagnostic]) -> str:
    """The verdict over pipeline files."""
    errors = sum(d.severity is Severity.ERROR for d in found)
    warnings = len(found) - errors
    notes = f" ({counted(warnings, 'warning')})" if warnings else ""
    if errors:
        return f"{counted(errors, 'problem')} in {', '.join(files)}{notes}"
    return f"valid: {', '.join(files)}{notes}"


def settings_text(settings: Iterable[Setting], width: int) -> str:
    """Every setting with its origin, lined up where the width allows."""
    rows = [(s.path, s.text, s.source) for s in settings]
    path = min(max(len(r[0]) for r in rows), width // 2)
    value = min(max(len(r[1]) for r in rows), width // 3)
    return "\n".join(f"{p.ljust(path)}  {v.ljust(value)}  {o}" for p, v, o in rows)


def check_text(
    lines: Sequence[CheckLine],
    width: int,
    *,
    colour: bool,
    verbose: bool = False,
    quiet: bool = False,
    receives: bool = False,
) -> str:
    """The doctor's findings: what has to be fixed first, then what should be known, then what is right.

    The fix stays in one line, so that it can be pasted. Of many findings of one kind the first few are shown, with
    `verbose` all; with `quiet` only what has to be fixed. `receives`: the host is one that only receives.
    """
    marks = {
        True: tint("✓", GREEN, on=colour),
        False: tint("✗", RED, on=colour),
        None: tint("-", YELLOW, on=colour),
    }
    shown = sorted(lines, key=lambda line: _CONCERN.index(line.ok))
    shown = [line for line in shown if line.ok is False or not quiet]
    subject = max((len(line.subject) for line in shown), default=0)
    out = []
    for some in _alike(shown, lambda line: (line.ok, line.subject, line.code)):
        few = some if verbose or len(some) <= _FEW else some[:_FEW]
        for line in few:
            code = f" [{line.code}]" if line.code and line.ok is False else ""
            first, *more = wrapped(f"  {line.subject.ljust(subject)}  ", f"{line.text}{code}", width)
            out += [f"{marks[line.ok]}{first[1:]}", *more]
            if line.fix and line.ok is not True:
                fixes = line.fix.splitlines()
                left = 0 if verbose or len(fixes) <= _FEW else len(fixes) - _FEW
                out += [f"    → {part}" for part in fixes[: len(fixes) - left]]
                out += [f"    … {counted(left, 'more line')}: `cdc-lake check --sql` prints them"] if left else []
        if left := len(some) - len(few):
            out.append(f"  {''.ljust(subject)}  … and {left} more of this kind: `cdc-lake check -v`")
    bad = sum(line.ok is False for line in lines)
    ready = f"ready: `cdc-lake run{' --only receive' if receives else ''}`"
    verdict = f"{counted(bad, 'thing')} to fix" if bad else ready
    return "\n".join([*out, "", verdict] if out else [verdict])


_CONCERN = (False, None, True)
_FEW = 5
"""Findings or steps of one kind that are shown unless all are asked for."""


def _alike(items: Iterable[T], kind: Callable[[T], Hashable]) -> list[list[T]]:
    """Items by their kind, in the order of the first of each."""
    found: dict[Hashable, list[T]] = {}
    for one in items:
        found.setdefault(kind(one), []).append(one)
    return list(found.values())


def plan_text(planned: Plan, *, verbose: bool = False) -> str:
    """The actions of a plan, those first that would lose something.

    Of many actions of one kind the first few are shown, with `verbose` all.
    """
    if not planned.actions:
        return f"nothing to do: {planned.pipeline} is up to date"
    lines = [f"plan for {planned.pipeline}", ""]
    ordered = sorted(planned.actions, key=lambda action: not action.destructive)
    for some in _alike(ordered, lambda action: (action.kind, action.changes, action.destructive)):
        few = some if verbose or some[0].destructive or len(some) <= _FEW else some[:_FEW]
        for action in few:
            mark = "!" if action.destructive else "+" if action.changes else " "
            lines.append(f"  {mark} {action.text}")
        if left := some[len(few) :]:
            rows = [action.rows for action in left if action.rows is not None]
            about = f", about {counted(sum(rows), 'row')}" if rows else ""
            lines.append(f"    … and {len(left)} more of this kind{about}: `cdc-lake plan -v`")
    lines.append("")
    if waiting := planned.waiting:
        lines.append(f"! {counted(len(waiting), 'destructive action')}: not done unless allowed:")
        lines.append("  cdc-lake run " + " \\\n    ".join(f"--allow {shlex.quote(text)}" for text in waiting))
    if planned.rebuilds:
        lines.append(f"! {counted(planned.rebuilds, 'rebuild')} needed, which no run makes")
    if planned.copied:
        lines.append(f"! {counted(planned.copied, 'operation')} for which only another copy of the table helps")
    if adopted := planned.adopted:
        lines.append(f"! {counted(len(adopted), 'table')} of others: not replaced unless adopted:")
        lines.append("  cdc-lake run " + " ".join(f"--adopt {shlex.quote(label)}" for label in adopted))
    if not planned.destructive:
        lines.append("nothing destructive; `cdc-lake run` does it" if planned.changes else "nothing to make or alter")
    return "\n".join(lines)


def run_text(summary: RunSummary) -> str:
    """What a run did: where bronze and silver are, how much moved, what was held."""
    lines = [f"{summary.outcome}  {summary.pipeline} in {seconds(summary.seconds)}"]
    if (got := summary.receive) is not None:
        copied = f", {counted(got.snapshot_rows, 'snapshot row')}" if got.snapshot_rows else ""
        moved = f"{counted(got.transactions, 'transaction')}, {counted(got.changes, 'change')}{copied}"
        lines.append(f"received  {moved}; bronze is at {_position(got.stream, got.upto)}")
    if (done := summary.apply) is not None:
        moved = f"{counted(done.transactions, 'transaction')}, {counted(done.changes, 'change')}"
        at = _position(done.stream, done.upto)
        lines.append(f"applied   {moved} in {counted(done.merges, 'merge')}; silver is at {at}")
        if done.held:
            lines.append(f"held      {counted(done.held, 'change')}: `cdc-lake status` says by which rule")
        lines += [f"paused    {table}: it stays where it was paused" for table in done.paused]
    return "\n".join(lines)


def _position(stream: str | None, value: int | None) -> str:
    return "no position yet" if stream is None or value is None else shown(stream, value)


def report_text(files: Any) -> str:
    """Where the report is."""
    return f"report  {files.html}\ndata    {files.json}"
