"""Payloads as people hand them over, as JSON objects: `inspect payload` and `replay` show them.

A file holds one payload (what follows the 25 bytes of a `w` header), one whole CopyData message, several lines of text
decoding, or a recording. How it is written is said by the caller or read off the bytes. A payload that cannot be
decoded gives one object of type `error`, and the next one is read: nothing ends early, nothing is left out.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Literal, NamedTuple, TypeAlias, get_args

from cdc_lake.decode import overwrite_pgoutput
from cdc_lake.decode.describe import Described, described, present
from cdc_lake.decode.describe_pgoutput import PgoutputDescriber
from cdc_lake.decode.filler import Filler
from cdc_lake.decode.mppdb import overwrite
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.guess import guess, is_line
from cdc_lake.decode.mppdb.payload import records
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.decode.postgres_lines import described_line, line
from cdc_lake.errors import DecodeError, RecordingUnreadable
from cdc_lake.model.position import Lsn
from cdc_lake.source.recording_file import Data, RecordingHeader, RecordingReader, copy_data, is_recording

Plugin: TypeAlias = Literal["mppdb_decoding", "test_decoding", "pgoutput"]
PLUGINS: Final[tuple[Plugin, ...]] = get_args(Plugin)
STDIN: Final = "-"

_STARTS: Final = re.compile(
    rb"BEGIN|COMMIT|commit|ABORT|PREPARE|ROLLBACK PREPARED|table |\{\"|prefix: |message: |streaming |"
    rb"(?:opening|closing|aborting|preparing|committing) (?:a )?streamed"
)
"""How a statement of text decoding begins; another line goes on with the one before it."""
_PEEKED: Final = re.compile(rb" *([0-9A-F]{1,8}/[0-9A-F]{1,8})(?:\t| *\| *)([0-9]+)(?:\t| *\| ?)(.*)", re.DOTALL)
"""A row of location, xid and data."""
_HEADING: Final = re.compile(rb" *(?:lsn|location) *\| *xid *\| *data *\r?\n[-+]+\r?\n")
_COUNT: Final = re.compile(rb"\n\([0-9]+ rows?\)\s*\Z")
"""What psql prints before and behind rows."""
_HEX: Final = re.compile(rb"\s*(?:\\x)?((?:[0-9a-fA-F]{2})+)\s*")
_PRINTABLE: Final = 0x20  # below it: the first byte of a length


@dataclass(frozen=True, slots=True)
class Reading:
    """How payloads are to be read; None is read off the bytes of each."""

    plugin: Plugin
    style: Style | None = None
    batch: bool | None = None
    codec: Codec = field(default_factory=Codec)


DEFAULT: Final = Reading("mppdb_decoding")


def reading_of(header: RecordingHeader | None) -> Reading:
    """How a recording says it is written: by its plugin, and of the family by the options it was asked for."""
    if header is None:
        return DEFAULT
    plugin = next((known for known in PLUGINS if known == header.plugin), None)
    if plugin is None:
        raise RecordingUnreadable(f"a recording of plugin `{header.plugin}`: expected one of {', '.join(PLUGINS)}")
    if plugin == "pgoutput":
        return Reading(plugin)
    options, codec = header.options, Codec(header.encoding)
    if options.get("parallel-decode-num", "1") == "1":
        return Reading(plugin, Style.SERIAL if plugin == "mppdb_decoding" else None, codec=codec)
    return Reading(plugin, Style(options.get("decode-style", "b")[:1]), options.get("sending-batch") == "1", codec)


class PayloadReader:
    """Reads payloads in the order of their stream: pgoutput names a relation once and its columns ever after."""

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
            return [self._pgoutput.described(payload)]
        only_postgres = line(payload, reading.codec.decode) if reading.plugin == "test_decoding" else None
        if only_postgres is not None:
            return [described_line(only_postgres, header_lsn)]
        style, batch = guess(payload, self._style(payload))
        batch = batch if reading.batch is None else reading.batch
        found = records(payload, style, batch=batch, codec=reading.codec, header_lsn=header_lsn, plugin=reading.plugin)
        return [described(record) for record in found]

    def overwritten(self, payload: bytes, filler: Filler) -> tuple[bytes, bool]:
        """The payload with every value of every row overwritten, and whether all of it could be read."""
        reading = self._reading
        if reading.plugin == "pgoutput":
            return overwrite_pgoutput.overwritten(payload, filler)
        try:
            style, batch = guess(payload, self._style(payload))
        except DecodeError:
            return filler.value(payload), False
        batch = batch if reading.batch is None else reading.batch
        return overwrite.overwritten(payload, style, batch=batch, codec=reading.codec, filler=filler)

    def _style(self, payload: bytes) -> Style | None:
        """The style that was said. Text of test_decoding has two forms, its own and style t: the bytes say which."""
        said = self._reading.style
        return None if (self._reading.plugin, said) == ("test_decoding", Style.TEXT) and is_line(payload) else said


def inspect_files(
    names: Sequence[str], given: Reading | None = None, *, recording: bool | None = None
) -> Iterator[Described]:
    """The objects of all files in order (`-` is standard input).

    `given` None: as a recording says of itself, otherwise `DEFAULT`. `recording` None: told by the bytes. A file or
    payload that cannot be read gives an object of type `error` with `file`, and in a recording `entry`.
    """
    payloads = PayloadReader(given or DEFAULT)
    for name in names:
        try:
            with _opened(name) as file:
                if not (is_recording(file) if recording is None else recording):
                    yield from _payloads(payloads, file.read(), name)
                    continue
                played = RecordingReader(file, name)
                reader = payloads if given or not played.header else PayloadReader(reading_of(played.header))
                yield from _recording(reader, played, name)
        except OSError as failed:
            yield error_object(RecordingUnreadable(f"the file cannot be read: {failed.strerror}"), name)
        except DecodeError as broken:  # of the file, or of what its header says
            yield error_object(broken, name)


def error_object(error: DecodeError, file: str, entry: int | None = None) -> Described:
    """A payload that cannot be decoded, in the form of the other objects."""
    body = {"code": error.code, "message": error.message, "offset": error.offset, "file": file, "entry": entry}
    return present(type="error", **body, where=error.where or None, hint=error.remedy or None)


class Statement(NamedTuple):
    """One statement of text decoding, with its LSN and transaction id where they stand before it."""

    lsn: int | None
    xid: int | None
    text: bytes


def statements(payload: bytes) -> list[Statement]:
    """Lines of text decoding as one payload a statement, without the line feed an editor puts behind them.

    Location and xid stand before it in the rows of `pg_logical_slot_peek_changes` (location, xid, data) and of
    `pg_logical_get_area_changes`, which a program printed with tabs or bars. A line that begins inside a value goes on
    with the one before it. Framed payloads are given back whole, also where the rows of
    `pg_logical_slot_peek_binary_changes` have them in hexadecimal digits. What psql prints around rows is left out.
    """
    if (heading := _HEADING.match(payload)) is not None:
        payload = _COUNT.sub(b"\n", payload[heading.end() :])
    if (digits := _HEX.fullmatch(payload)) is not None:
        return [Statement(None, None, bytes.fromhex(digits[1].decode()))]
    if not payload or payload[0] < _PRINTABLE:
        return [Statement(None, None, payload)]
    found: list[Statement] = []
    for text in payload.splitlines(keepends=True):
        if (row := _PEEKED.match(text)) is not None:
            digits = _HEX.fullmatch(row[3]) if row[3].startswith(b"\\x") else None
            data = row[3] if digits is None else bytes.fromhex(digits[1].decode())
            found.append(Statement(Lsn.parse(row[1].decode()).value, int(row[2]), data))
        elif found and (_STARTS.match(text) is None or found[-1].text.count(b"'") % 2):
            found[-1] = found[-1]._replace(text=found[-1].text + text)
        else:
            found.append(Statement(None, None, text))
    return [one if _framed(one.text) else one._replace(text=one.text.rstrip(b"\r\n")) for one in found]


def _framed(payload: bytes) -> bool:
    return b"\0" in payload  # no text has it, and each binary message


def _opened(name: str) -> BinaryIO:
    return io.BytesIO(sys.stdin.buffer.read()) if name == STDIN else open(name, "rb")  # noqa: PTH123


def _recording(reader: PayloadReader, recording: RecordingReader, name: str) -> Iterator[Described]:
    for number, entry in enumerate(recording, start=1):
        if isinstance(entry, Data):
            yield from _objects(reader, entry.payload, entry.lsn, name, number)


def _payloads(reader: PayloadReader, data: bytes, name: str) -> Iterator[Described]:
    lsn = None
    whole = copy_data(data)  # the header was left on: no payload begins with its letter
    if isinstance(whole, Data):
        data, lsn = whole.payload, whole.lsn
    elif whole is not None:
        return
    yield from _whole_or_parts(reader, data, lsn, name)


def _whole_or_parts(reader: PayloadReader, data: bytes, lsn: int | None, name: str) -> Iterator[Described]:
    """What a payload says; only where it says nothing, what its lines say: a value may hold any line."""
    whole = [Statement(None, None, data)]
    printed = any((_PEEKED.match(data), _HEADING.match(data), _HEX.fullmatch(data)))
    parts = statements(data) if reader.reads_text or printed else whole
    found = [] if printed else _objects(reader, data, lsn, name)
    if parts == whole or not {one["type"] for one in found} <= {"error", "other"}:
        yield from found
        return
    inside = False
    for before, xid, payload in parts:
        for one in _objects(reader, payload, lsn if before is None else before, name):
            inside = inside or one["type"] == "begin"
            # area decoding prints no BEGIN and mixes transactions: the column is all that says whose a row is
            told = inside or xid is None or "xid" in one or one["type"] == "error"
            yield one if told else {**one, "xid": xid}
            inside = inside and one["type"] != "commit"


def _objects(
    reader: PayloadReader, payload: bytes, lsn: int | None, name: str, entry: int | None = None
) -> list[Described]:
    try:
        return reader.objects(payload, lsn)
    except DecodeError as error:
        return [error_object(error, name, entry)]
