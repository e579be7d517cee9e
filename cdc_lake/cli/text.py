"""Results as text: pure functions from values to text. Numbers have units, positions can be pasted into commands.

Errors and diagnostics always have the same form: what failed, where, then the hint. The pages of error codes are beside
the package in the wheel, and in `docs/errors` in a checkout.
"""

from __future__ import annotations

import difflib
import shlex
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, TypeVar

from cdc_lake.errors import CdcLakeError
from cdc_lake.model.diagnostic import Diagnostic, Severity, UnknownCode, pluralize, printable, size
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.source.base import format_stream_position

if TYPE_CHECKING:
    from cdc_lake.cli.project_template import NewProject
    from cdc_lake.config.effective import Setting
    from cdc_lake.ops.check.runner import CheckLine
    from cdc_lake.ops.plan import Plan
    from cdc_lake.runtime.run import RunSummary


T = TypeVar("T")
GREEN, RED, YELLOW, _CYAN, _BOLD, RESET = (f"\x1b[{n}m" for n in (32, 31, 33, 36, 1, 0))
_LONG = 60  # characters of a value


def tint(text: str, colour: str, *, on: bool) -> str:
    """The text in a colour, if colour is on."""
    return f"{colour}{text}{RESET}" if on else text


def table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "  ") -> list[str]:
    """Rows as aligned columns separated by two blanks, a line each; `right` are numeric columns."""
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


def wrap_line(head: str, text: str, width: int) -> list[str]:
    """A line wrapped to the width, after its head; words are not split, so that they can be pasted."""
    fill = TextWrapper(width, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False)
    return fill.wrap(head + printable(text))


def format_count(value: int | None) -> str:
    """A whole number, `-` if unknown."""
    return "-" if value is None else f"{value:,}"


def format_value(value: str | None) -> str:
    """A value as an SQL literal, shortened to fit a line."""
    if value is None:
        return "NULL"
    text = value if len(value) <= _LONG else f"{value[: _LONG - 3]}… [{len(value):,} characters]"
    return "'" + text.replace("'", "''").replace("\n", "\\n") + "'"


def format_key(key: Sequence[str | None]) -> str:
    """The values of a key in parentheses."""
    return f"({', '.join('NULL' if part is None else part for part in key)})"


def seconds(value: float | None) -> str:
    """A duration with a suitable unit, `-` if unknown."""
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 172_800 else f"{value / 86_400:.1f} d"


def new_project_text(project: NewProject) -> str:
    """The result of `init` and the next steps."""
    lines = [f"created a {project.template} project in {project.folder}", ""]
    lines += [f"  {name}" for name in project.files]
    return "\n".join([*lines, "", "next:", *(f"  {command}" for command in project.next)])


def validation_text(files: Sequence[str], problems: Sequence[Diagnostic]) -> str:
    """The verdict over pipeline files."""
    errors = sum(d.severity is Severity.ERROR for d in problems)
    warnings = len(problems) - errors
    notes = f" ({pluralize(warnings, 'warning')})" if warnings else ""
    verdict = f"{pluralize(errors, 'problem')} in" if errors else "valid:"
    return f"{verdict} {', '.join(files)}{notes}"


def settings_text(settings: Iterable[Setting], width: int) -> str:
    """Every setting with its origin, aligned if the width allows."""
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
    """The findings of `check`: problems first, then notes, then what is right.

    A fix is one line, so that it can be pasted. Of many findings of one kind the first few are shown, with `verbose`
    all; with `quiet` only problems. `receives`: the host only receives.
    """
    marks = {True: tint("✓", GREEN, on=colour), False: tint("✗", RED, on=colour), None: tint("-", YELLOW, on=colour)}
    shown = sorted(lines, key=lambda line: _CONCERN.index(line.ok))
    shown = [line for line in shown if line.ok is False or not quiet]
    subject = max((len(line.subject) for line in shown), default=0)
    result = []
    for group in _alike(shown, lambda line: (line.ok, line.subject, line.code)):
        few = group if verbose or len(group) <= _FEW else group[:_FEW]
        for line in few:
            code = f" [{line.code}]" if line.code and line.ok is False else ""
            first, *more = wrap_line(f"  {line.subject.ljust(subject)}  ", f"{line.text}{code}", width)
            result += [f"{marks[line.ok]}{first[1:]}", *more]
            if line.fix and line.ok is not True:
                fixes = line.fix.splitlines()
                left = 0 if verbose or len(fixes) <= _FEW else len(fixes) - _FEW
                result += [f"    → {part}" for part in fixes[: len(fixes) - left]]
                result += [f"    … {pluralize(left, 'more line')}: `cdc-lake check --sql` prints them"] if left else []
        if left := len(group) - len(few):
            result.append(f"  {''.ljust(subject)}  … and {left} more of this kind: `cdc-lake check -v`")
    bad = sum(line.ok is False for line in lines)
    ready = f"ready: `cdc-lake run{' --only receive' if receives else ''}`"
    verdict = f"{pluralize(bad, 'problem')} to fix" if bad else ready
    return "\n".join([*result, "", verdict] if result else [verdict])


_CONCERN = (False, None, True)
_FEW = 5
"""Number of findings or steps of one kind shown by default."""


def _alike(items: Iterable[T], kind: Callable[[T], Hashable]) -> list[list[T]]:
    """Items grouped by kind, in the order of the first of each."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return list(groups.values())


def plan_text(planned: Plan, *, verbose: bool = False) -> str:
    """The actions of a plan, destructive ones first.

    Of many actions of one kind the first few are shown, with `verbose` all.
    """
    if not planned.actions:
        return f"nothing to do: {planned.pipeline} is up to date"
    lines = [f"plan for {planned.pipeline}", ""]
    ordered = sorted(planned.actions, key=lambda action: not action.destructive)
    for group in _alike(ordered, lambda action: (action.kind, action.changes, action.destructive)):
        few = group if verbose or group[0].destructive or len(group) <= _FEW else group[:_FEW]
        for action in few:
            mark = "!" if action.destructive else "+" if action.changes else " "
            lines.append(f"  {mark} {action.text}")
        if left := group[len(few) :]:
            rows = [action.rows for action in left if action.rows is not None]
            about = f", about {pluralize(sum(rows), 'row')}" if rows else ""
            lines.append(f"    … and {len(left)} more of this kind{about}: `cdc-lake plan -v`")
    lines.append("")
    if waiting := planned.waiting:
        lines.append(f"! {pluralize(len(waiting), 'destructive action')}: not carried out unless allowed:")
        lines.append("  cdc-lake run " + " \\\n    ".join(f"--allow {shlex.quote(text)}" for text in waiting))
    if planned.rebuilds:
        lines.append(f"! {pluralize(planned.rebuilds, 'rebuild')} needed, which a run does not do")
    if planned.copy_count:
        lines.append(f"! {pluralize(planned.copy_count, 'operation')} that need a new copy of the table")
    if adopted := planned.adopted_tables:
        lines.append(f"! {pluralize(len(adopted), 'table')} of other writers: not replaced unless adopted:")
        lines.append("  cdc-lake run " + " ".join(f"--adopt {shlex.quote(label)}" for label in adopted))
    if not planned.destructive:
        lines.append(
            "nothing destructive; `cdc-lake run` carries it out" if planned.changes else "nothing to create or alter"
        )
    return "\n".join(lines)


def run_text(summary: RunSummary) -> str:
    """The result of a run: positions of bronze and silver, amounts, quarantined changes."""
    lines = [f"{summary.outcome}  {summary.pipeline} in {seconds(summary.seconds)}"]
    if (got := summary.receive) is not None:
        copied = f", {pluralize(got.snapshot_rows, 'snapshot row')}" if got.snapshot_rows else ""
        moved = f"{pluralize(got.transactions, 'transaction')}, {pluralize(got.changes, 'change')}{copied}"
        lines.append(f"received  {moved}; bronze is at {_position(got.stream, got.upto)}")
    if (applied := summary.apply) is not None:
        moved = f"{pluralize(applied.transactions, 'transaction')}, {pluralize(applied.changes, 'change')}"
        position = _position(applied.stream, applied.upto)
        lines.append(f"applied   {moved} in {pluralize(applied.merges, 'merge')}; silver is at {position}")
        if applied.quarantined:
            lines.append(f"held      {pluralize(applied.quarantined, 'change')}: `cdc-lake status` shows by which rule")
        lines += [f"paused    {table}: it stays where it was paused" for table in applied.paused]
    return "\n".join(lines)


def _position(stream: str | None, value: int | None) -> str:
    return "no position yet" if stream is None or value is None else format_stream_position(stream, value)


def error_text(error: CdcLakeError, *, colour: bool = False) -> str:
    """An error; one with diagnostics is shown as those."""
    diagnostics: tuple[Diagnostic, ...] = getattr(error, "diagnostics", ())
    if diagnostics:
        return "\n\n".join(diagnostic_text(d, colour=colour) for d in diagnostics)
    return _text("error", error.code, error.message, error.where, error.remedy, colour=colour)


def diagnostic_text(diagnostic: Diagnostic, *, colour: bool = False) -> str:
    """One diagnostic."""
    where = str(diagnostic.location) if diagnostic.location else ""
    return _text(diagnostic.severity.value, diagnostic.code, diagnostic.summary, where, diagnostic.hint, colour=colour)


def _text(severity: str, code: str, summary: str, where: str, hint: str, *, colour: bool) -> str:
    head = f"{severity}[{code}]"
    label = "hint"
    if colour:
        head = tint(_BOLD + head, RED if severity == Severity.ERROR.value else YELLOW, on=True)
        label = tint(label, _CYAN, on=True)
    lines = [f"{head}: {printable(summary)}"]
    if where:
        lines.append(f"  in {printable(where)}")
    if hint:
        lines += ["", f"{label}: {printable(hint)}"]
    return "\n".join(lines)


_PACKAGE = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """The folder of the pages."""
    shipped = _PACKAGE / "docs" / "errors"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "docs" / "errors"


def codes() -> list[str]:
    """Every code that has a page."""
    return sorted(f.stem for f in folder().glob("*.md"))


def page(code: str) -> str:
    """The page of a code. Raises UnknownCode."""
    known_codes, wanted = codes(), code.strip().upper()
    if wanted not in known_codes:
        digits = wanted[:3] + wanted[3:].translate(str.maketrans("OIL", "011"))
        close = difflib.get_close_matches(digits, known_codes, n=1)
        hint = f"did you mean {close[0]}? `cdc-lake explain --list` lists all codes" if close else None
        raise UnknownCode(f"there is no code `{code}`", hint=hint)
    return (folder() / f"{wanted}.md").read_text(encoding="utf-8")


def titles() -> list[tuple[str, str]]:
    """Each code with the title of its page."""
    result = []
    for code in codes():
        first = (folder() / f"{code}.md").read_text(encoding="utf-8").partition("\n")[0]
        result.append((code, first.partition(":")[2].strip()))
    return result


REPEATING = frozenset({"receive", "landed", "backlog", "maintain", "apply", "merge", "cut"})
"""Stages reported repeatedly while a loop runs: they update one line."""

_BYTES = "bytes"
_SETTLED = 1.0  # minimum seconds for a meaningful rate


def count(progress: ProgressEvent) -> str:
    """`12,000 of 40,000 rows`, `3.0 MiB of 1.2 GiB of WAL`, as far as known."""
    if progress.done is None:
        return ""
    if progress.unit.startswith(_BYTES):
        of = f" of {size(progress.total)}" if progress.total is not None else ""
        return f"{size(progress.done)}{of}{progress.unit.removeprefix(_BYTES)}"
    of = f" of {progress.total:,}" if progress.total is not None else ""
    unit = progress.unit.removesuffix("s") if progress.done == 1 and progress.total is None else progress.unit
    return f"{progress.done:,}{of} {unit}".rstrip()


class Pace:
    """The speed of stages, since the first report of the current pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, tuple[float, int, int]] = {}

    def describe_pace(self, progress: ProgressEvent) -> str:
        """`1,200 rows/s, 25 s left`; empty without a total, at the end, and in the first second."""
        if progress.done is None or progress.total is None:
            return ""
        if progress.done >= progress.total:
            self._since.pop(progress.stage, None)
            return ""
        now = self._clock()
        began, first, total = self._since.setdefault(progress.stage, (now, progress.done, progress.total))
        if progress.done < first or total != progress.total:  # a new pass
            self._since[progress.stage] = now, progress.done, progress.total
            return ""
        gained, passed = progress.done - first, now - began
        if passed < _SETTLED or gained <= 0:
            return ""
        rate = gained / passed
        return f"{_rate(rate, progress.unit)}, {seconds((progress.total - progress.done) / rate)} left"


def progress_line(progress: ProgressEvent, pace: str = "") -> str:
    """One line of progress."""
    return f"{progress.stage:<9} {' · '.join(part for part in (progress.text, count(progress), pace) if part)}"


def _rate(rate: float, unit: str) -> str:
    if unit.startswith(_BYTES):
        return f"{size(int(rate))}/s"
    number = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    return f"{number} {unit}/s"
