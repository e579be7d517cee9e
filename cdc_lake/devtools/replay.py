"""The commands `record`, `replay` and `inspect payload`: records streams, decodes them again, and shows them as JSON.

A recording changes nothing at the source: it uses its own slot unless one is named, and confirms nothing. With
redaction every value is overwritten by one of the same length before it is written, so the file decodes like the
original. Replaying decodes every payload and follows every transaction from BEGIN to COMMIT, without a server or a
lake: the receiver could have processed any recording that replays.

`inspect payload` accepts one payload (after the 25 bytes of a `w` header), one complete CopyData message, lines of text
decoding, or a recording; the format is given or detected. An undecodable payload gives one object of type `error`, and
reading continues with the next one.
"""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple, TypeAlias, assert_never, get_args

from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.project import Project, effective_options
from cdc_lake.config.source import FamilySource, PostgresSource
from cdc_lake.connectors.gaussdb.decoding import STANDBY_ONLY
from cdc_lake.connectors.open_stream import PATIENCE, retry_while_slot_active
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.decode.test_decoding import line
from cdc_lake.devtools import anonymize
from cdc_lake.devtools.anonymize import Filler
from cdc_lake.devtools.recording import (
    Alive,
    Data,
    FamilyCapture,
    PostgresCapture,
    RecordingHeader,
    RecordingReader,
    RecordingWriter,
    copy_data,
    is_recording,
    refuse_existing,
)
from cdc_lake.devtools.wire_dump import Described, PgoutputDescriber, describe, described_line, guess, is_line, present
from cdc_lake.errors import DecodeError, OutOfSequence, RecordingNotRedacted, RecordingUnreadable
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.gaussdb.server import check_product, identify, target_of
from cdc_lake.source.gaussdb.wire import session as wire
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.postgres import server as postgres
from cdc_lake.source.postgres.connection import connect, encoding_of
from cdc_lake.source.postgres.plugins import LINE_OPTIONS, PGOUTPUT, PHASED_LINE_OPTIONS, TEST_DECODING, message_options
from cdc_lake.source.socket_io import of_postgres

Plugin: TypeAlias = Literal["mppdb_decoding", "test_decoding", "pgoutput"]
PLUGINS: Final[tuple[Plugin, ...]] = get_args(Plugin)
STDIN: Final = "-"

_STARTS: Final = re.compile(
    rb"BEGIN|COMMIT|commit|ABORT|PREPARE|ROLLBACK PREPARED|table |\{\"|prefix: |message: |streaming |"
    rb"(?:opening|closing|aborting|preparing|committing) (?:a )?streamed"
)
"""The beginning of a statement of text decoding; other lines continue the previous one."""
_PEEKED: Final = re.compile(rb" *([0-9A-F]{1,8}/[0-9A-F]{1,8})(?:\t| *\| *)([0-9]+)(?:\t| *\| ?)(.*)", re.DOTALL)
"""A row of location, xid and data."""
_HEADING: Final = re.compile(rb" *(?:lsn|location) *\| *xid *\| *data *\r?\n[-+]+\r?\n")
_COUNT: Final = re.compile(rb"\n\([0-9]+ rows?\)\s*\Z")
"""What psql prints before and after rows."""
_HEX: Final = re.compile(rb"\s*(?:\\x)?((?:[0-9a-fA-F]{2})+)\s*")
_PRINTABLE: Final = 0x20  # lower: the first byte of a length


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read payloads; None is detected from the bytes of each."""

    plugin: Plugin
    style: Style | None = None
    batch: bool | None = None
    codec: Codec = field(default_factory=Codec)


DEFAULT: Final = Reading("mppdb_decoding")


def reading_of(header: RecordingHeader | None) -> Reading:
    """How to read a recording, from its plugin and, for the GaussDB family, its options."""
    if header is None:
        return DEFAULT
    plugin = next((candidate for candidate in PLUGINS if candidate == header.plugin), None)
    if plugin is None:
        raise RecordingUnreadable(f"a recording of plugin `{header.plugin}`: expected one of {', '.join(PLUGINS)}")
    if plugin == "pgoutput":
        return Reading(plugin)
    options, codec = header.options, Codec(header.encoding)
    if options.get("parallel-decode-num", "1") == "1":
        return Reading(plugin, Style.SERIAL if plugin == "mppdb_decoding" else None, codec=codec)
    return Reading(plugin, Style(options.get("decode-style", "b")[:1]), options.get("sending-batch") == "1", codec)


class PayloadReader:
    """Reads payloads in stream order: pgoutput sends a relation once, before its rows."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._pgoutput = PgoutputDescriber()

    @property
    def reads_text(self) -> bool:
        """Whether payloads may be lines of text."""
        return self._reading.plugin != "pgoutput"

    def objects(self, payload: bytes, header_lsn: int | None = None) -> list[Described]:
        """The objects of one payload; `header_lsn` is that of its `w`, if known. Raises DecodeError."""
        reading = self._reading
        if reading.plugin == "pgoutput":
            return [self._pgoutput.describe(payload)]
        only_postgres = line(payload, reading.codec.text) if reading.plugin == "test_decoding" else None
        if only_postgres is not None:
            return [described_line(only_postgres, header_lsn)]
        style, batch = guess(payload, self._style(payload))
        batch = batch if reading.batch is None else reading.batch
        decoded = records(
            payload, style, batch=batch, codec=reading.codec, header_lsn=header_lsn, plugin=reading.plugin
        )
        return [describe(record) for record in decoded]

    def overwritten(self, payload: bytes, filler: Filler) -> tuple[bytes, bool]:
        """The payload with every row value overwritten, and whether all of it was readable."""
        reading = self._reading
        if reading.plugin == "pgoutput":
            return anonymize.overwritten_message(payload, filler)
        try:
            style, batch = guess(payload, self._style(payload))
        except DecodeError:
            return filler.value(payload), False
        batch = batch if reading.batch is None else reading.batch
        return anonymize.overwritten_record(payload, style, batch=batch, codec=reading.codec, filler=filler)

    def _style(self, payload: bytes) -> Style | None:
        """The configured style. Text of test_decoding has two forms, its own and style t, told apart by the bytes."""
        stated = self._reading.style
        return None if (self._reading.plugin, stated) == ("test_decoding", Style.TEXT) and is_line(payload) else stated


def inspect_files(
    names: Sequence[str], override: Reading | None = None, *, recording: bool | None = None
) -> Iterator[Described]:
    """The objects of all files in order (`-` is standard input).

    `override` None: from the header of a recording, otherwise `DEFAULT`. `recording` None: detected from the bytes. An
    unreadable file or payload gives an object of type `error` with `file`, and in a recording `entry`.
    """
    payloads = PayloadReader(override or DEFAULT)
    for name in names:
        try:
            with _open_input(name) as file:
                if not (is_recording(file) if recording is None else recording):
                    yield from _payloads(payloads, file.read(), name)
                    continue
                played = RecordingReader(file, name)
                reader = payloads if override or not played.header else PayloadReader(reading_of(played.header))
                for number, entry in enumerate(played, start=1):
                    if isinstance(entry, Data):
                        yield from _objects(reader, entry.payload, entry.lsn, name, number)
        except OSError as failed:
            yield error_object(RecordingUnreadable(f"the file cannot be read: {failed.strerror}"), name)
        except DecodeError as broken:  # of the file, or of its header
            yield error_object(broken, name)


def error_object(error: DecodeError, file: str, entry: int | None = None) -> Described:
    """An undecodable payload, in the form of the other objects."""
    body = {"code": error.code, "message": error.message, "offset": error.offset, "file": file, "entry": entry}
    return present(type="error", **body, where=error.where or None, hint=error.remedy or None)


class Statement(NamedTuple):
    """One statement of text decoding, with its LSN and transaction id if they precede it."""

    lsn: int | None
    xid: int | None
    text: bytes


def statements(payload: bytes) -> list[Statement]:
    """Lines of text decoding, one statement per payload, without a line feed added by an editor.

    Location and xid precede it in the rows of `pg_logical_slot_peek_changes` (location, xid, data) and of
    `pg_logical_get_area_changes`, printed with tabs or bars. A line that begins inside a value continues the previous
    one. Framed payloads are returned whole, also if rows of `pg_logical_slot_peek_binary_changes` have them in
    hexadecimal digits. Headers and footers of psql are omitted.
    """
    if (heading := _HEADING.match(payload)) is not None:
        payload = _COUNT.sub(b"\n", payload[heading.end() :])
    if (digits := _HEX.fullmatch(payload)) is not None:
        return [Statement(None, None, bytes.fromhex(digits[1].decode()))]
    if not payload or payload[0] < _PRINTABLE:
        return [Statement(None, None, payload)]
    parsed: list[Statement] = []
    for text in payload.splitlines(keepends=True):
        if (row := _PEEKED.match(text)) is not None:
            digits = _HEX.fullmatch(row[3]) if row[3].startswith(b"\\x") else None
            data = row[3] if digits is None else bytes.fromhex(digits[1].decode())
            parsed.append(Statement(Lsn.parse(row[1].decode()).value, int(row[2]), data))
        elif parsed and (_STARTS.match(text) is None or parsed[-1].text.count(b"'") % 2):
            parsed[-1] = parsed[-1]._replace(text=parsed[-1].text + text)
        else:
            parsed.append(Statement(None, None, text))
    return [  # a zero byte is never in text, but in every binary message
        statement if b"\0" in statement.text else statement._replace(text=statement.text.rstrip(b"\r\n"))
        for statement in parsed
    ]


def _open_input(name: str) -> BinaryIO:
    return io.BytesIO(sys.stdin.buffer.read()) if name == STDIN else open(name, "rb")  # noqa: PTH123


def _payloads(reader: PayloadReader, data: bytes, name: str) -> Iterator[Described]:
    """The objects of a payload; only if it has none, those of its lines, because a value may contain any line."""
    lsn = None
    message = copy_data(data)  # the header was not removed: no payload begins with its letter
    if isinstance(message, Data):
        data, lsn = message.payload, message.lsn
    elif message is not None:
        return
    single = [Statement(None, None, data)]
    printed = any((_PEEKED.match(data), _HEADING.match(data), _HEX.fullmatch(data)))
    parts = statements(data) if reader.reads_text or printed else single
    objects = [] if printed else _objects(reader, data, lsn, name)
    if parts == single or not {item["type"] for item in objects} <= {"error", "other"}:
        yield from objects
        return
    inside = False
    for before, xid, payload in parts:
        for item in _objects(reader, payload, lsn if before is None else before, name):
            inside = inside or item["type"] == "begin"
            # area decoding prints no BEGIN and mixes transactions: only the column identifies a row's transaction
            is_complete = inside or xid is None or "xid" in item or item["type"] == "error"
            yield item if is_complete else {**item, "xid": xid}
            inside = inside and item["type"] != "commit"


def _objects(
    reader: PayloadReader, payload: bytes, lsn: int | None, name: str, entry: int | None = None
) -> list[Described]:
    try:
        return reader.objects(payload, lsn)
    except DecodeError as error:
        return [error_object(error, name, entry)]


_WAIT = 0.2  # seconds between two checks of the limits


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, whichever comes first: seconds, bytes of messages, complete transactions. None: never."""

    seconds: float | None = None
    bytes: int | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of a recording. `transactions` counts COMMITs, None if not requested.

    `unreadable`: number of unreadable messages in a redacted one, which were overwritten completely.
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


_Capture: TypeAlias = PostgresCapture | FamilyCapture
_Open: TypeAlias = tuple[_Capture, Mapping[str, str], str]
"""A capture, the options of its stream, and the encoding of its text."""


def record(
    project: Project,
    file: Path,
    limits: Limits,
    *,
    plugin: str | None = None,
    slot: str | None = None,
    redact: bool | None = None,
    stop: threading.Event,
    report: ProgressReporter,
) -> Recorded:
    """Record until a limit or `stop`. Raises SourceError, RecordingNotWritten; what arrived until then is in the file.

    `redact` None: raw, which raises RecordingNotRedacted if the pipeline redacts. Waits for a slot whose reader has
    just disconnected: raises Stopped if `stop` is set first.
    """
    refuse_existing(file)
    if redact is None and project.pipeline.bronze.redact:
        raise RecordingNotRedacted("the pipeline redacts, but a recording contains what the server sends")
    source = project.pipeline.source
    plugin = plugin or source.slot.plugin
    capture, options, encoding = retry_while_slot_active(lambda: _open(project, plugin, slot), stop, report, PATIENCE)
    started = datetime.now(UTC).isoformat("T", "seconds")
    header = RecordingHeader(source.type, plugin, options, encoding, capture.start, started, redacted=bool(redact))
    with closing(capture):
        report(ProgressEvent("record", f"recording {source.place} from {capture.start} into {file}"))
        with RecordingWriter(file, header) as writer:
            commits = _commits(header) if limits.transactions is not None else None
            overwriting = _Overwriting(header) if redact else None
            run = _Run(capture, writer, limits, commits, overwriting)
            run.follow(stop)
    return Recorded(
        file=str(file),
        source=source.type,
        plugin=plugin,
        slot=slot,
        start=capture.start,
        messages=run.messages,
        keepalives=run.keepalives,
        bytes=writer.size,
        transactions=None if limits.transactions is None else run.transactions,
        seconds=run.seconds,
        redacted=bool(redact),
        unreadable=0 if overwriting is None else overwriting.unreadable,
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
        interval, silence = source.status_interval / 1000, of_postgres(source.silence_timeout / 1000, timeout)
        capture = PostgresCapture(session, plugin, options, slot=slot, status_interval=interval, silence=silence)
    except BaseException:
        session.close()
        raise
    # lines use the database's encoding, whatever a client requests
    return capture, options, "UTF8" if plugin == PGOUTPUT else encoding_of(session)


def _family(project: Project, source: FamilySource, plugin: str, slot: str | None) -> _Open:
    target = target_of(source, project.root)

    def dial(replication: bool) -> WireSession:
        return wire.connect(target, application=_application(project), replication=replication)

    mode = Mode.SERIAL if source.decoding_mode is Mode.SQL else None  # their format is that of serial decoding
    options = effective_options(source, mode)
    options.pop(STANDBY_ONLY, None)
    with closing(dial(True)) as session:
        facts = identify(session)
        check_product(facts.version, source.type, session.place)
    order = OrderDomain(source.slot_order)
    interval, silence = source.reply_interval / 1000, source.silence_timeout / 1000
    capture = FamilyCapture(dial, plugin, options, slot=slot, order=order, status_interval=interval, silence=silence)
    return capture, options, facts.encoding


def _application(project: Project) -> str:
    return f"cdc_lake {project.name} record"


@dataclass(slots=True)
class _Run:
    """One recording in progress."""

    capture: _Capture
    writer: RecordingWriter
    limits: Limits
    commits: Callable[[Data], int] | None
    overwriting: _Overwriting | None
    started: float = field(default_factory=time.monotonic)
    messages: int = 0
    keepalives: int = 0
    transactions: int = 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def follow(self, stop: threading.Event) -> None:
        """Record until a limit or `stop`. The message that reaches a limit is the last one."""
        while not stop.is_set() and not self._is_limit_reached():
            for body in self.capture.poll(_WAIT):
                self._take(body)
                if self._is_limit_reached():
                    break

    def _take(self, body: bytes) -> None:
        entry = copy_data(body)
        self.writer.append(body if self.overwriting is None else self.overwriting.body(body, entry))
        if isinstance(entry, Data):
            self.messages += 1
            self.transactions += self.commits(entry) if self.commits else 0
        else:
            self.keepalives += 1

    def _is_limit_reached(self) -> bool:
        limits = self.limits
        return (
            (limits.seconds is not None and self.seconds >= limits.seconds)
            or (limits.bytes is not None and self.writer.size >= limits.bytes)
            or (limits.transactions is not None and self.transactions >= limits.transactions)
        )


class _Overwriting:
    """Overwrites the values in messages, with a secret that is discarded at the end."""

    def __init__(self, header: RecordingHeader) -> None:
        self._reader = PayloadReader(reading_of(header))
        self._filler = Filler()
        self.unreadable = 0

    def body(self, body: bytes, entry: Data | Alive | None) -> bytes:
        """The body of a message without its values."""
        match entry:
            case Alive():
                return body
            case Data(payload=original):
                payload, readable = self._reader.overwritten(original, self._filler)
            case None:
                original, payload, readable = body, self._filler.value(body), False
        self.unreadable += not readable
        return body[: len(body) - len(original)] + payload


def _commits(header: RecordingHeader) -> Callable[[Data], int]:
    """Counts the COMMITs of a message; an undecodable one, kept for analysis, counts as none."""
    reader = PayloadReader(reading_of(header))

    def count(entry: Data) -> int:
        try:
            return sum(item["type"] == "commit" for item in reader.objects(entry.payload, entry.lsn))
        except DecodeError:
            return 0

    return count


_CHANGES = frozenset({"insert", "update", "delete", "truncate"})


@dataclass(frozen=True, slots=True)
class Replayed:
    """The content of a recording. `changes`: table → kind → number; `first`, `last`: LSNs of its data messages.

    `open_changes` counts the changes after the last COMMIT: a recording may end inside a transaction.
    """

    file: str
    plugin: str
    messages: int
    keepalives: int
    bytes: int
    transactions: int
    empty: int
    first_csn: int | None
    last_csn: int | None
    changes: dict[str, dict[str, int]]
    others: dict[str, int]
    open_changes: int


@dataclass(slots=True)
class _Count:
    """The running counts."""

    messages: int = 0
    keepalives: int = 0
    bytes: int = 0
    transactions: int = 0
    empty: int = 0
    csns: list[int] = field(default_factory=list)
    changes: dict[str, Counter[str]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    open: Counter[tuple[str, str]] | None = None

    def take(self, item: Described) -> None:
        """Count one object of the stream. Raises OutOfSequence if it is not valid here."""
        kind = item["type"]
        if (csn := item.get("csn")) is not None:
            self.csns = [min([csn, *self.csns]), max([csn, *self.csns])]
        if kind == "begin":
            if self.open is not None:
                raise OutOfSequence("a BEGIN inside a transaction")
            self.open = Counter()
        elif kind in _CHANGES:
            self._transaction(f"a {kind}").update((table, kind) for table in _tables(item))
        elif kind == "commit":
            counts = self._transaction("a COMMIT")
            self.transactions += 1
            self.empty += not counts
            for (table, operation), number in counts.items():
                self.changes.setdefault(table, Counter())[operation] += number
            self.open = None
        else:
            self.others[kind] += 1

    def _transaction(self, what: str) -> Counter[tuple[str, str]]:
        if self.open is None:
            raise OutOfSequence(f"{what} outside a transaction")
        return self.open


def replay(path: Path, override: Reading | None = None) -> Replayed:
    """Read a recording to its end. `override` None: by its header.

    Raises DecodeError, whose `where` names the file and the number of the entry.
    """
    with RecordingReader.open(path) as recording:
        reading = override or reading_of(recording.header)
        reader, count = PayloadReader(reading), _Count()
        for number, entry in enumerate(recording, start=1):
            match entry:
                case Alive():
                    count.keepalives += 1
                case Data(lsn=lsn, payload=payload):
                    count.messages += 1
                    count.bytes += len(payload)
                    try:
                        for item in reader.objects(payload, lsn):
                            count.take(item)
                    except DecodeError as error:
                        error.where = f"{path}, entry {number}"
                        raise
    return Replayed(
        file=str(path),
        plugin=reading.plugin,
        messages=count.messages,
        keepalives=count.keepalives,
        bytes=count.bytes,
        transactions=count.transactions,
        empty=count.empty,
        first_csn=count.csns[0] if count.csns else None,
        last_csn=count.csns[-1] if count.csns else None,
        changes={table: dict(kinds) for table, kinds in sorted(count.changes.items())},
        others=dict(count.others),
        open_changes=0 if count.open is None else count.open.total(),
    )


def _tables(item: Described) -> list[str]:
    named = item.get("tables", [item])
    return [f"{t['schema']}.{t['table']}" if "table" in t else f"OID {t['relation_oid']}" for t in named]
