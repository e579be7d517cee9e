"""The verb `compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc_lake.cli.verb import Call, verb

if TYPE_CHECKING:
    from cdc_lake.pipeline.compare.sample import Sample


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app, "compare")(compare)


def compare(
    call: Call,
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="All by default.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Say which keys can be brought from the source into bronze; with --yes do.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: do it; the next run merges what landed.")] = False,
    show_values: Annotated[
        bool,
        typer.Option("--show-values", help="Also the rows of the keys that are named; compare.json has them then."),
    ] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="CUT", help="Silver as the cut at or below a position, time or promise has it."),
    ] = None,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="N%|ROWS", help="Some rows only, other ones each time.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="TABLE", help="Leave a table out; may be repeated.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Match all rows, hash none of them first.")] = False,
) -> None:
    """Prove that silver equals the source, row by row."""
    from cdc_lake.cli.render_compare import comparison_text
    from cdc_lake.model.as_of import as_of
    from cdc_lake.pipeline.compare.prove import compare as prove
    from cdc_lake.pipeline.state.comparison import Verdict

    if yes and not repair:
        raise typer.BadParameter("there is nothing to agree to without --repair", param_hint="--yes")
    if repair and at is not None:
        raise typer.BadParameter("what differs in an older version of silver is not repaired", param_hint="--at")
    comparison = prove(
        call.project(),
        tables or (),
        call.view.tell,
        repair=repair,
        yes=yes,
        values=show_values,
        at=None if at is None else as_of(at),
        full=full,
        exclude=exclude or (),
        sample=None if sample is None else _sample(sample),
    )
    call.view.result(comparison.document(), comparison_text(comparison, call.view.width))
    if comparison.verdict in {Verdict.INCONCLUSIVE, Verdict.DIFFERENT}:
        raise typer.Exit(1)


def _sample(text: str) -> Sample:
    from cdc_lake.pipeline.compare.sample import Sample

    try:
        return Sample.parse(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="--sample") from wrong
