"""The commands for the bytes of a stream: `inspect payload`, `record`, `replay`. They need no bronze and no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from typer import Argument, Option

from cdc_lake.cli.command import Call, Environment, verb
from cdc_lake.cli.commands.inspect import inspect_app
from cdc_lake.cli.output import keep_out
from cdc_lake.cli.process import EXIT_FAILED, EXIT_INTERRUPTED
from cdc_lake.cli.text import seconds
from cdc_lake.model.diagnostic import pluralize, size

if TYPE_CHECKING:
    from cdc_lake.devtools.replay import Reading, Recorded, Replayed


recordings_app = typer.Typer()


PluginName: TypeAlias = Literal["mppdb_decoding", "test_decoding", "pgoutput"]
StyleName: TypeAlias = Literal["b", "t", "j", "serial"]
BatchFlag: TypeAlias = Literal["0", "1"]
BadText: TypeAlias = Literal["stop", "hex"]

PluginOption = Annotated[
    PluginName | None,
    Option("--plugin", help="Output plugin of the slot (default: as recorded, otherwise mppdb_decoding)."),
]
StyleOption = Annotated[
    StyleName | None, Option("--style", help="decode-style, or serial for parallel-decode-num 1 (default: detected).")
]
BatchOption = Annotated[
    BatchFlag | None, Option("--batch", help="sending-batch of styles t and j (default: detected).")
]
EncodingOption = Annotated[
    str, Option("--encoding", metavar="NAME", help="Encoding of the database, as the server names it.")
]
BadTextOption = Annotated[
    BadText,
    Option("--encoding-errors", help="How to handle text that is invalid in the encoding: stop, or print \\x… digits."),
]


@verb(inspect_app, "payload", pipeline=False)
def inspect_payload(
    call: Call,
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE", help="Payloads (CopyData without its `w` header) or recordings; - for standard input."
        ),
    ],
    plugin: PluginOption = None,
    style: StyleOption = None,
    batch: BatchOption = None,
    encoding: EncodingOption = "UTF8",
    encoding_errors: BadTextOption = "stop",
    recording: Annotated[
        bool | None, Option("--recording/--payload", help="What the files contain (default: detected).")
    ] = None,
) -> None:
    """Decode payloads of a replication stream into JSON, one line for each record.

    Files are read in the given order: a relation announced in one file names the columns in the following ones. A
    record that cannot be decoded becomes an object of type `error`, and the exit status is 1.
    """
    from cdc_lake.devtools.replay import inspect_files

    reading = _reading_options(plugin, style, batch, encoding, encoding_errors)
    _print(call, inspect_files(files, reading, recording=recording))


@verb(recordings_app, "record", pipeline=False)
def record_command(
    call: Call,
    pipeline: Annotated[Path, Argument(metavar="PIPELINE", help="Pipeline file of the source to record.")],
    file: Annotated[Path, Argument(metavar="FILE", help="Recording to write; the file must not exist.")],
    seconds: Annotated[float | None, Option("--seconds", min=0.1, help="Stop after this many seconds.")] = None,
    size: Annotated[
        str | None, Option("--bytes", metavar="SIZE", help="Stop after this much of the stream, for example 64MiB.")
    ] = None,
    transactions: Annotated[
        int | None, Option("--transactions", min=1, help="Stop after this many transactions.")
    ] = None,
    slot: Annotated[
        str | None,
        Option("--slot", help="Read this slot from its confirmed position (default: a temporary slot, from now on)."),
    ] = None,
    plugin: Annotated[
        PluginName | None, Option("--plugin", help="Output plugin of the slot (default: the pipeline's).")
    ] = None,
    redact: Annotated[
        bool | None, Option("--redact/--raw", help="Overwrite every value of every row, or keep the values.")
    ] = None,
    environment: Environment = None,
) -> None:
    """Record the live stream of a pipeline's source into a file, until a limit or Ctrl-C.

    With `--redact`, every value of every row is overwritten by one of the same length; names, types and positions are
    kept. Nothing is acknowledged to the server, and neither the pipeline's slot nor its lake is touched.
    """
    from cdc_lake.cli.process import StopOnSignal
    from cdc_lake.config.loader import load_project
    from cdc_lake.connectors.snapshot_copy import Stopped
    from cdc_lake.devtools.replay import Limits
    from cdc_lake.devtools.replay import record as run

    project = keep_out(load_project(pipeline, environment=environment))
    limits = Limits(seconds, None if size is None else _bytes(size), transactions)
    with StopOnSignal(lambda _: call.view.note("stopping: the recording is closed")) as stop:
        try:
            recorded = run(
                project, file, limits, plugin=plugin, slot=slot, redact=redact, stop=stop.event, report=call.view.report
            )
        except Stopped as early:
            raise typer.Exit(EXIT_INTERRUPTED) from early
    call.show(recorded, recorded_text)


def _bytes(text: str) -> int:
    from pydantic import TypeAdapter, ValidationError

    from cdc_lake.config.fields import Bytes

    try:
        return TypeAdapter[int](Bytes).validate_python(int(text) if text.isdigit() else text)
    except ValidationError as bad:
        raise typer.BadParameter("expected a size such as 64 MiB", param_hint="--bytes") from bad


@verb(recordings_app, "replay", pipeline=False)
def replay_command(
    call: Call,
    files: Annotated[list[Path], Argument(metavar="FILE", help="Recordings to replay.")],
    records: Annotated[bool, Option("--records", help="Print every record, as `inspect payload` does.")] = False,
    plugin: PluginOption = None,
    style: StyleOption = None,
    batch: BatchOption = None,
    encoding: EncodingOption = "UTF8",
    encoding_errors: BadTextOption = "stop",
) -> None:
    """Replay a recording: follow every transaction from BEGIN to COMMIT and count its changes."""
    from cdc_lake.devtools.replay import inspect_files
    from cdc_lake.devtools.replay import replay as run

    reading = _reading_options(plugin, style, batch, encoding, encoding_errors)
    if records:
        _print(call, inspect_files([str(file) for file in files], reading, recording=True))
        return
    replays = [run(file, reading) for file in files]
    call.view.result({"recordings": replays}, "\n\n".join(replayed_text(replay) for replay in replays))


def _print(call: Call, objects: Iterable[dict[str, Any]]) -> None:
    """Print one line per object, buffered. Raises Exit if one was an error."""
    from cdc_lake.cli.output import dumps

    failed, lines, size = False, [], 0
    for document in objects:
        failed = failed or document["type"] == "error"
        lines.append(dumps(document, indent=None))
        size += len(lines[-1])
        if size > 1 << 16:
            call.view.raw("\n".join(lines))
            lines, size = [], 0
    if lines:
        call.view.raw("\n".join(lines))
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _reading_options(
    plugin: PluginName | None, style: StyleName | None, batch: BatchFlag | None, encoding: str, bad_text: BadText
) -> Reading | None:
    """The reading options, if any was given; otherwise None, and the recording's header or the bytes decide."""
    from cdc_lake.decode.encoding import Codec, Policy
    from cdc_lake.decode.gaussdb.records import Style
    from cdc_lake.devtools.replay import DEFAULT, Reading

    codec = Codec(encoding, Policy(bad_text))
    if plugin == "pgoutput":
        if style not in {None, "serial"} or batch == "1":
            raise typer.BadParameter("pgoutput has one style and no batches", param_hint="--style, --batch")
        if codec.python != DEFAULT.codec.python:
            raise typer.BadParameter("pgoutput always sends UTF-8", param_hint="--encoding")
    reading = Reading(plugin or DEFAULT.plugin, Style(style) if style else None, batch == "1" if batch else None, codec)
    has_options = (
        plugin or style or batch or encoding != DEFAULT.codec.encoding or codec.policy is not DEFAULT.codec.policy
    )
    return reading if has_options else None


def replayed_text(replay: Replayed) -> str:
    """A recording: its stream, then one line per table."""
    csns = "" if replay.first_csn is None else f", CSN {replay.first_csn} to {replay.last_csn}"
    messages = (
        f"{pluralize(replay.messages, 'message')}, {size(replay.bytes)}, {pluralize(replay.keepalives, 'keepalive')}"
    )
    lines = [
        f"{replay.file}: {replay.plugin}, {messages}",
        f"{pluralize(replay.transactions, 'transaction')}, {replay.empty:,} of them empty{csns}",
    ]
    for table, kinds in replay.changes.items():
        lines.append(f"  {table}: " + ", ".join(pluralize(number, kind) for kind, number in kinds.items()))
    if replay.others:
        lines.append("also: " + ", ".join(pluralize(number, kind) for kind, number in replay.others.items()))
    if replay.open_changes:
        lines.append(f"it ends inside a transaction, after {pluralize(replay.open_changes, 'change')} of it")
    return "\n".join(lines)


def recorded_text(recorded: Recorded) -> str:
    """The content of a recording, and its possible uses."""
    transactions = "" if recorded.transactions is None else f"{pluralize(recorded.transactions, 'transaction')}, "
    messages = f"{pluralize(recorded.messages, 'message')} and {pluralize(recorded.keepalives, 'keepalive')}"
    whole = pluralize(recorded.unreadable, "message")
    undecodable = f", and {whole} as a whole: not decodable" if recorded.unreadable else ""
    return "\n".join(
        [
            (
                f"recorded {transactions}{messages}, {size(recorded.bytes)} "
                f"in {seconds(recorded.seconds)}, into {recorded.file}"
            ),
            *([f"every value is overwritten{undecodable}"] if recorded.redacted else []),
            f"next: cdc-lake replay {recorded.file}",
        ]
    )
