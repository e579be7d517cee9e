"""Bytes of the stream: DEC3xx."""

from __future__ import annotations

from cdc_lake.errors.base import ANEW, CdcLakeError


class DecodeError(CdcLakeError):
    """Bytes that the protocol does not allow. `offset` counts from the start of the message.

    `good`: if the error is in one of several transactions, how many of those before it can be decoded.
    """

    code = "DEC300"
    hint = (
        "leave the slot as it is, because it retains the data; report the output of `cdc-lake run --only receive "
        "--debug`"
    )

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
    """A message, tuple or value of an unexpected or unknown kind."""

    code = "DEC302"
    hint = "check that `source.slot.plugin` names the slot's plugin; if it does, report the error"


class MalformedMessage(DecodeError):
    """A message whose parts contradict each other or the protocol."""

    code = "DEC303"


class InvalidText(DecodeError):
    """Text that is not valid UTF-8."""

    code = "DEC304"
    hint = (
        "name the column in `source.hex_columns`, which stores its bytes as hexadecimal digits: a database in "
        f"SQL_ASCII checks no encoding; or repair the row, and {ANEW}"
    )

    def __init__(self, *, offset: int) -> None:
        super().__init__("the text is not valid UTF-8", offset=offset)


class OutOfSequence(DecodeError):
    """A message where the protocol does not allow it: a change outside a transaction, or a BEGIN inside one."""

    code = "DEC305"


class UnknownRelation(DecodeError):
    """A change of a table whose layout was never announced on this connection."""

    code = "DEC306"
    hint = (
        "run `cdc-lake run` again: on a new connection the server announces every table again; if the error recurs, "
        "report it"
    )


class UnknownType(DecodeError):
    """A column whose type has no name in the stream or in the catalog."""

    code = "DEC307"
    hint = f"run `SELECT typname FROM pg_type WHERE oid = …` to see whether the type was dropped; if so, {ANEW}"


class BatchTooLarge(DecodeError):
    """A batch of transactions has more bytes than an Arrow array can address."""

    code = "DEC308"
    hint = f"a batch contains less than 2 GiB of values, and a committed transaction cannot be split any more: {ANEW}"


class RecordingUnreadable(DecodeError):
    """A file that is not a recording, or is truncated or damaged. `offset` counts from the start of the file."""

    code = "DEC320"
    hint = "name a complete file that `cdc-lake record` wrote; `inspect payload` also reads bare payloads"


class UnexpectedRecord(DecodeError):
    """A record, tuple or separator that does not conform to the binary style of the GaussDB family."""

    code = "DEC315"
    hint = (
        "check that the server sends `decode-style` b: during an upgrade it may use another style; if it sends b, "
        "report the error"
    )


class UnmatchedDelete(DecodeError):
    """A DELETE without a key at the start of a part, which may revert the last INSERT of the part before."""

    code = "DEC316"
    hint = "run `cdc-lake quarantine retry`, which decodes transactions again that an earlier version landed as bytes"


class UnreadableRow(DecodeError):
    """A row whose values the server did not send: an INSERT or UPDATE without a new tuple, or with an empty one."""

    code = "DEC317"
    hint = f"see the server's log: the server could not read its own WAL record; then {ANEW}"


class NoOrderNumber(DecodeError):
    """A transaction without the number that orders the stream, its CSN or commit LSN, or with one too large."""

    code = "DEC318"
    hint = f"use parallel decoding, or a server that prints CSNs; otherwise set `source.order: lsn`: {ANEW}"


class StreamedBlock(DecodeError):
    """A transaction that test_decoding streams before its commit: its changes come without their values."""

    code = "DEC319"
    hint = f"raise logical_decoding_work_mem so that the transaction is not streamed; or set `plugin: pgoutput`: {ANEW}"


class PreparedUnread(DecodeError):
    """A transaction that a slot with two-phase decoding sends when it is prepared, before it is committed."""

    code = "DEC321"
    hint = "turn two-phase decoding off by copying the slot and copying it back, as `cdc-lake explain DEC321` describes"


class UnreadBinary(DecodeError):
    """A binary value of a type that only the server can print. `column`: its full name; `kind`: its type."""

    code = "DEC325"
    hint = "remove `binary` from `source.decoding` and run again: the server then sends the same changes as text"

    def __init__(self, column: str, kind: str) -> None:
        super().__init__(f"column `{column}` is of type `{kind}`, whose binary values cannot be read")


class PreparedUnknown(DecodeError):
    """COMMIT PREPARED of a transaction with changes whose PREPARE was neither sent nor stored."""

    code = "DEC322"
    hint = (
        "check that the folder of the lake is the one that the receiver had at PREPARE, and restore `prepared` of "
        "its control folder; if it is lost permanently, `cdc-lake explain DEC322` describes how to have the server "
        "send the transaction again"
    )


class StyleMismatch(DecodeError):
    """A payload of the GaussDB family in another style than the requested one."""

    code = "DEC310"
    hint = (
        "wait until an upgrade of the server has ended, then run again: during one, the server may fall back to "
        "serial decoding"
    )

    def __init__(self, *, asked: str, actual: str, offset: int = 0) -> None:
        super().__init__(f"asked for {asked}, the payload looks like {actual}", offset=offset)


class TextNotInEncoding(DecodeError):
    """Text that is not valid in the encoding of the database."""

    code = "DEC311"
    hint = (
        "name the column in `source.hex_columns`, which stores its bytes as hexadecimal digits; or repair the row, "
        f"and {ANEW}"
    )

    def __init__(self, encoding: str, *, offset: int) -> None:
        bare = encoding.upper() == "SQL_ASCII"
        what = "UTF-8, as which SQL_ASCII is read" if bare else f"in the encoding of the database, {encoding}"
        super().__init__(f"the text is not valid {what}", offset=offset)


class UnknownEncoding(DecodeError):
    """A database encoding that is not supported."""

    code = "DEC312"
    hint = "run `SELECT getdatabaseencoding()` to see the encoding; UTF8 is supported best"

    def __init__(self, encoding: str) -> None:
        super().__init__(f"the database encoding `{encoding}` is not known")


class UnknownStatement(DecodeError):
    """A statement of text or JSON decoding that no known server prints."""

    code = "DEC313"
    hint = (
        "leave the slot as it is, because it retains the data; save the stream with `cdc-lake record`, and report "
        "the error"
    )


class UnreadableTime(DecodeError):
    """The time of a transaction is not in a form that servers print."""

    code = "DEC314"

    def __init__(self) -> None:
        super().__init__("a time that is not `YYYY-MM-DD HH:MM:SS[.ffffff]±HH[:MM[:SS]]`")
