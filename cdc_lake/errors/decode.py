"""Bytes of the stream: DEC3xx."""

from __future__ import annotations

from cdc_lake.errors.base import ANEW, CdcLakeError


class DecodeError(CdcLakeError):
    """Bytes that are not what the protocol allows. `offset` counts from the start of the message.

    `good`: where it is of one of several transactions, how many of those before it can be decoded.
    """

    code = "DEC300"
    hint = "leave the slot as it is, it keeps the bytes; report what `cdc-lake run --only receive --debug` says"

    def __init__(self, message: str, *, offset: int = 0, where: str = "", hint: str | None = None) -> None:
        super().__init__(f"{message} (at byte {offset})", where=where, hint=hint)
        self.offset = offset
        self.good = 0


class TruncatedMessage(DecodeError):
    """A message ends before the value it announces."""

    code = "DEC301"

    def __init__(self, *, need: int, left: int, offset: int) -> None:
        super().__init__(f"the message ends early: {need} bytes announced, {left} left", offset=offset)


class UnexpectedMessage(DecodeError):
    """A message, tuple or value of a kind that was not asked for, or that nobody knows."""

    code = "DEC302"
    hint = "is the slot's plugin the one that `source.slot.plugin` names? if it is, report it"


class MalformedMessage(DecodeError):
    """A message whose parts contradict each other or the protocol."""

    code = "DEC303"


class InvalidText(DecodeError):
    """Text that is not valid UTF-8."""

    code = "DEC304"
    hint = (
        "a database in SQL_ASCII checks nothing: name the column in `source.hex_columns`, which keeps its bytes in "
        f"hexadecimal digits; or repair the row, and {ANEW}"
    )

    def __init__(self, *, offset: int) -> None:
        super().__init__("the text is not valid UTF-8", offset=offset)


class OutOfSequence(DecodeError):
    """A message where the protocol does not allow it: a change outside a transaction, a BEGIN inside one."""

    code = "DEC305"


class UnknownRelation(DecodeError):
    """A change of a table whose layout was never announced on this connection."""

    code = "DEC306"
    hint = "run `cdc-lake run` again: a new connection announces every table anew; if it repeats, report it"


class UnknownType(DecodeError):
    """A column of a type whose name neither the stream nor the catalog gives."""

    code = "DEC307"
    hint = f"was the type dropped since? `SELECT typname FROM pg_type WHERE oid = …` tells; if so, {ANEW}"


class BatchTooLarge(DecodeError):
    """More bytes in one batch of transactions than an Arrow array can address."""

    code = "DEC308"
    hint = f"a batch holds less than 2 GiB of values; a committed transaction cannot be split any more: {ANEW}"


class RecordingUnreadable(DecodeError):
    """A file that is no recording, or one that was cut off or damaged. `offset` counts from the start of the file."""

    code = "DEC320"
    hint = "a recording is what `cdc-lake record` wrote, whole; `inspect payload` also takes bare payloads"


class UnexpectedRecord(DecodeError):
    """A record, tuple or separator of the GaussDB family's binary style that is not of its format."""

    code = "DEC315"
    hint = "is the server's answer in `decode-style` b? Amid an upgrade it may use another one; if it is, report it"


class UnmatchedDelete(DecodeError):
    """A DELETE without a key at the beginning of a part, which may take back the last INSERT of the part before."""

    code = "DEC316"
    hint = "`cdc-lake held retry` decodes again what a version before landed as bytes"


class UnreadableRow(DecodeError):
    """A row whose values the server did not send: an INSERT or UPDATE without a new tuple, or with an empty one."""

    code = "DEC317"
    hint = f"the server could not read its own log record: see its log; then {ANEW}"


class NoOrderNumber(DecodeError):
    """A transaction without the number that orders the stream, its CSN or its commit LSN, or with one too large."""

    code = "DEC318"
    hint = f"use parallel decoding, or a server that prints CSNs; otherwise set `source.order: lsn`: {ANEW}"


class StreamedBlock(DecodeError):
    """A transaction that test_decoding streams before its commit: its changes come without their values."""

    code = "DEC319"
    hint = f"raise logical_decoding_work_mem so that it is not streamed; or set `plugin: pgoutput`: {ANEW}"


class PreparedUnread(DecodeError):
    """A transaction that a slot with two-phase decoding sends when it is prepared, before it is committed."""

    code = "DEC321"
    hint = "take two-phase decoding from the slot by copying it, and copying it back: the page of this code says how"


class UnreadBinary(DecodeError):
    """A binary value of a type whose bytes only the server can print. `column`: in full; `kind`: its type."""

    code = "DEC325"
    hint = "take `binary` out of `source.decoding` and run again: the server then sends the same changes as text"

    def __init__(self, column: str, kind: str) -> None:
        super().__init__(f"column `{column}` is of type `{kind}`, whose binary values are not read")


class PreparedUnknown(DecodeError):
    """COMMIT PREPARED of a transaction that changed something, whose PREPARE was not sent and is not kept either."""

    code = "DEC322"
    hint = (
        "is the lake's folder the one that the receiver had when it was prepared? bring `prepared` of its control "
        "folder back; if it is gone for good, the page of this code says how the server sends it whole"
    )


class StyleMismatch(DecodeError):
    """A payload of the GaussDB family that is written in another style than the one that was asked for."""

    code = "DEC310"
    hint = "amid an upgrade a server may fall back to serial decoding: wait for its end, then run again"

    def __init__(self, *, asked: str, actual: str, offset: int = 0) -> None:
        super().__init__(f"asked for {asked}, the payload looks like {actual}", offset=offset)


class TextNotInEncoding(DecodeError):
    """Text that is not valid in the encoding of the database."""

    code = "DEC311"
    hint = (
        "name the column in `source.hex_columns`, which keeps its bytes in hexadecimal digits; or repair the row, "
        f"and {ANEW}"
    )

    def __init__(self, encoding: str, *, offset: int) -> None:
        bare = encoding.upper() == "SQL_ASCII"
        what = "UTF-8, as which SQL_ASCII is read" if bare else f"in the encoding of the database, {encoding}"
        super().__init__(f"the text is not valid {what}", offset=offset)


class UnknownEncoding(DecodeError):
    """A database encoding nobody here can read."""

    code = "DEC312"
    hint = "`SELECT getdatabaseencoding()` names the encoding; a database in UTF8 is read best"

    def __init__(self, encoding: str) -> None:
        super().__init__(f"the database encoding `{encoding}` is not known")


class UnknownStatement(DecodeError):
    """A statement of text or JSON decoding that is none of those a server is known to print."""

    code = "DEC313"
    hint = "leave the slot as it is, it keeps the bytes; `cdc-lake record` saves the stream: report it"


class UnreadableTime(DecodeError):
    """A time of a transaction that is not in the form servers print."""

    code = "DEC314"

    def __init__(self) -> None:
        super().__init__("a time that is not `YYYY-MM-DD HH:MM:SS[.ffffff]±HH[:MM[:SS]]`")
