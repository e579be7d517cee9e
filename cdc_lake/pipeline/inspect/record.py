"""Recording a pipeline's stream into a file, raw or redacted, without touching the pipeline's own slot or lake.

The slot is one of its own that begins now and goes at the end, unless one is named; nothing is confirmed, so a
recording changes nothing at the source. The file is of the format of `source.recording_file`, and on the disk when the
call returns. A redacted recording has every value of every row overwritten by one of the same length (`decode.filler`)
before it is written; names, types, lengths and positions stay, and it decodes as the raw one would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.gaussdb_sent import effective_options
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.decode.filler import Filler
from cdc_lake.errors import DecodeError, RecordingNotRedacted
from cdc_lake.model.position import OrderDomain
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.gaussdb.frames import STANDBY_ONLY
from cdc_lake.pipeline.inspect.payload import PayloadReader, reading_of
from cdc_lake.pipeline.stream.open_stream import PATIENCE, patiently
from cdc_lake.source import server as postgres
from cdc_lake.source.capture import Capture, PostgresCapture
from cdc_lake.source.connection import connect, encoding_of
from cdc_lake.source.gaussdb.capture import FamilyCapture
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.server import identify
from cdc_lake.source.gaussdb.version import check_product
from cdc_lake.source.plugins import LINE_OPTIONS, PGOUTPUT, PHASED_LINE_OPTIONS, TEST_DECODING, message_options
from cdc_lake.source.recording_file import Alive, Data, RecordingHeader, RecordingWriter, copy_data, refuse_existing
from cdc_lake.source.silence import of_postgres
from cdc_lake.source.wire import connect as wire
from cdc_lake.source.wire.session import WireSession

_WAIT = 0.2  # seconds between two looks at the limits


@dataclass(frozen=True, slots=True)
class Limits:
    """When to end, whichever comes first: seconds, bytes of messages, whole transactions. None: never."""

    seconds: float | None = None
    bytes: int | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording holds. `transactions` counts COMMITs, None where nobody asked for them.

    `unreadable`: messages of a redacted one that could not be read and were overwritten as a whole.
    """

    file: str
    source: str
    plugin: str
    slot: str | None
    start: str
    messages: int
    keepalives: int
    bytes: int
    transactions: int | None
    seconds: float
    redacted: bool = False
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    """A capture, and how its stream is written."""

    capture: Capture
    start: str
    options: Mapping[str, str]
    encoding: str = "UTF8"


def record(
    project: Project,
    file: Path,
    limits: Limits,
    *,
    plugin: str | None = None,
    slot: str | None = None,
    redact: bool | None = None,
    stop: threading.Event,
    tell: Tell,
) -> Recorded:
    """Record until a limit or `stop`. Raises SourceError, RecordingNotWritten; what came until then is in the file.

    `redact` None: raw, which is refused where the pipeline redacts: raises RecordingNotRedacted. A slot that somebody
    has just left is waited for: raises Stopped where `stop` comes first.
    """
    refuse_existing(file)
    if redact is None and project.pipeline.bronze.redact:
        raise RecordingNotRedacted("the pipeline redacts, and a recording holds what the server sends")
    source = project.pipeline.source
    plugin = plugin or source.slot.plugin
    opened = patiently(lambda: _open(project, plugin, slot), stop, tell, PATIENCE)
    header = RecordingHeader(
        source.type,
        plugin,
        opened.options,
        opened.encoding,
        opened.start,
        datetime.now(UTC).isoformat("T", "seconds"),
        redacted=bool(redact),
    )
    with closing(opened.capture):
        tell(Progress("record", f"recording {source.place} from {opened.start} into {file}"))
        with RecordingWriter(file, header) as writer:
            commits = _commits(header) if limits.transactions is not None else None
            run = _Run(opened.capture, writer, limits, commits, _Overwriting(header) if redact else None)
            run.follow(stop)
    return Recorded(
        file=str(file),
        source=source.type,
        plugin=plugin,
        slot=slot,
        start=opened.start,
        messages=run.messages,
        keepalives=run.keepalives,
        bytes=writer.size,
        transactions=None if limits.transactions is None else run.transactions,
        seconds=run.seconds,
        redacted=bool(redact),
        unreadable=run.unreadable,
    )


def _open(project: Project, plugin: str, slot: str | None) -> _Open:
    match project.pipeline.source:
        case PostgresSource() as source:
            return _postgres(project, source, plugin, slot)
        case FamilySource() as source:
            return _family(project, source, plugin, slot)
        case _ as never:
            assert_never(never)


def _postgres(project: Project, source: PostgresSource, plugin: str, slot: str | None) -> _Open:
    session = connect(source, project.root, application=_application(project), replication=True)
    options: Mapping[str, str] = {}
    if plugin == PGOUTPUT:
        options = message_options(project.publication)
    elif plugin == TEST_DECODING:
        options = PHASED_LINE_OPTIONS if source.decoding.two_phase else LINE_OPTIONS
    try:
        timeout = postgres.identify(session, source).wal_sender_timeout
        capture = PostgresCapture(
            session,
            plugin,
            options,
            slot=slot,
            status_interval=source.status_interval / 1000,
            silence=of_postgres(source.silence_timeout / 1000, timeout),
        )
    except BaseException:
        session.close()
        raise
    # lines are in the encoding of the database, whatever a client asks for
    return _Open(capture, capture.start, options, "UTF8" if plugin == PGOUTPUT else encoding_of(session))


def _family(project: Project, source: FamilySource, plugin: str, slot: str | None) -> _Open:
    target = target_of(source, project.root)

    def dial(replication: bool) -> WireSession:
        return wire.connect(target, application=_application(project), replication=replication)

    mode = Mode.SERIAL if source.decoding_mode is Mode.SQL else None  # SQL functions read as serial decoding does
    options = effective_options(source, mode)
    options.pop(STANDBY_ONLY, None)
    with closing(dial(True)) as session:
        facts = identify(session)
        check_product(facts.version, source.type, session.place)
    capture = FamilyCapture(
        dial,
        plugin,
        options,
        slot=slot,
        order=OrderDomain(source.slot_order),
        status_interval=source.reply_interval / 1000,
        silence=source.silence_timeout / 1000,
    )
    return _Open(capture, capture.start, options, facts.encoding)


def _application(project: Project) -> str:
    return f"cdc_lake {project.name} record"


class _Run:
    """One recording as it grows."""

    def __init__(
        self,
        capture: Capture,
        writer: RecordingWriter,
        limits: Limits,
        commits: Callable[[Data], int] | None,
        overwriting: _Overwriting | None,
    ) -> None:
        self._capture = capture
        self._writer = writer
        self._limits = limits
        self._commits = commits
        self._overwriting = overwriting
        self._started = time.monotonic()
        self.messages = self.keepalives = self.transactions = 0

    @property
    def unreadable(self) -> int:
        """Messages that were overwritten as a whole."""
        return 0 if self._overwriting is None else self._overwriting.unreadable

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started

    def follow(self, stop: threading.Event) -> None:
        """Until a limit or `stop`. The message that reaches a limit is the last one written."""
        while not stop.is_set() and not self._reached():
            for body in self._capture.poll(_WAIT):
                self._take(body)
                if self._reached():
                    break

    def _take(self, body: bytes) -> None:
        entry = copy_data(body)
        self._writer.append(body if self._overwriting is None else self._overwriting.body(body, entry))
        if isinstance(entry, Data):
            self.messages += 1
            self.transactions += self._commits(entry) if self._commits else 0
        else:
            self.keepalives += 1

    def _reached(self) -> bool:
        limits = self._limits
        return (
            (limits.seconds is not None and self.seconds >= limits.seconds)
            or (limits.bytes is not None and self._writer.size >= limits.bytes)
            or (limits.transactions is not None and self.transactions >= limits.transactions)
        )


class _Overwriting:
    """Overwrites the values in messages, under a secret that is forgotten at the end."""

    def __init__(self, header: RecordingHeader) -> None:
        self._reader = PayloadReader(reading_of(header))
        self._filler = Filler()
        self.unreadable = 0

    def body(self, body: bytes, entry: Data | Alive | None) -> bytes:
        """The body of a message without its values."""
        match entry:
            case Alive():
                return body
            case Data(payload=given):
                payload, readable = self._reader.overwritten(given, self._filler)
            case None:
                given, payload, readable = body, self._filler.value(body), False
        self.unreadable += not readable
        return body[: len(body) - len(given)] + payload


def _commits(header: RecordingHeader) -> Callable[[Data], int]:
    """Counts the COMMITs of a message; one that cannot be decoded has none: it is kept for whoever looks into it."""
    reader = PayloadReader(reading_of(header))

    def count(entry: Data) -> int:
        try:
            return sum(found["type"] == "commit" for found in reader.objects(entry.payload, entry.lsn))
        except DecodeError:
            return 0

    return count
