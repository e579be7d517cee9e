"""The encoding of a database: converts bytes of a stream to text, and handles invalid text.

The server sends text in the encoding of the database, whatever the client requests, and formats messages bytewise.
Bytes are therefore split first, and a `Codec` converts each value to text last. Names of encodings are the server's
(`SELECT getdatabaseencoding()`), in any spelling that the server accepts. SQL_ASCII guarantees nothing about its bytes:
they are read as UTF-8.

If bytes are not valid in the encoding, a policy decides: stop, or return the value in hexadecimal digits:

    not-text:c3282f        the bytes C3 28 2F, after a prefix

The form is unambiguous: in a column that may contain it, a text that begins with the prefix is converted too. In every
other column the prefix is ordinary text.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow.compute as pc

from cdc_lake.errors import TextNotInEncoding, UnknownEncoding
from cdc_lake.model.change import Tuple, Value
from cdc_lake.model.relation import TableName

PREFIX: Final = "not-text:"

InHex: TypeAlias = Callable[[TableName, str], bool]
"""Whether invalid text of a table's column may be stored in hexadecimal digits."""


class UndecodableText(str):
    """A value that is invalid text; `offset`: the byte of the message with the error."""

    __slots__ = ("offset",)
    offset: int

    @classmethod
    def from_bytes(cls, data: bytes, offset: int) -> UndecodableText:
        """The value for invalid bytes."""
        text = cls(PREFIX + data.hex())
        text.offset = offset
        return text


def apply_text_policy(
    table: TableName,
    names: Sequence[str],
    values: Tuple,
    in_hex: InHex,
    encode: Callable[[str], bytes],
    error: Callable[[int], Exception],
) -> Tuple:
    """Apply the policy of each column to the invalid values of a tuple. `encode` returns a text's bytes in the
    database.

    Raises the result of `error` for the invalid byte if a value's column must be text.
    """
    if not any(isinstance(value, str) and value.startswith(PREFIX) for value in values):
        return values
    resolved: list[Value] = []
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str) or not value.startswith(PREFIX):
            resolved.append(value)
        elif not isinstance(value, UndecodableText):
            resolved.append(PREFIX + encode(value).hex() if in_hex(table, name) else value)
        elif in_hex(table, name):
            resolved.append(str(value))
        else:
            raise error(value.offset)
    return tuple(resolved)


def any_prefixed(lists: Any) -> bool:
    """Whether a value of a list<string> array begins with the prefix: then each value has to be checked."""
    values = pc.list_flatten(lists)
    return bool(len(values)) and bool(pc.any(pc.starts_with(values, PREFIX)).as_py())


_PYTHON: Final = {
    **dict.fromkeys(("sqlascii", "utf8", "unicode"), "utf-8"),
    **dict.fromkeys(("gbk", "zhs16gbk"), "gbk"),
    "gb18030": "gb18030",
    "euccn": "gb2312",
    "eucjp": "euc_jp",
    "eucjis2004": "euc_jis_2004",
    "euckr": "euc_kr",
    **{f"latin{n}": f"iso8859-{part}" for n, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), start=1)},
    **{f"iso8859{part}": f"iso8859-{part}" for part in (*range(1, 11), 13, 14, 15, 16)},
    **{f"{name}{page}": f"cp{page}" for name in ("win", "windows") for page in (866, 874, *range(1250, 1259))},
    **dict.fromkeys(("abc", "tcvn", "tcvn5712", "vscii"), "cp1258"),
    **dict.fromkeys(("koi8", "koi8r"), "koi8-r"),
    "koi8u": "koi8-u",
}
"""Python's codec for a server encoding, whose name is in lower case without punctuation.

Python has no codec, or a different one, for EUC_TW, MULE_INTERNAL and GB18030_2022.
"""

_IN_TWO_BYTES: Final = re.compile(rb"(?:[\x00-\x7f]|[\x81-\xfe][\x40-\x7e\x80-\xfe])*+")


class Policy(enum.Enum):
    """What to do with text that is invalid in the encoding of the database."""

    STOP = "stop"
    HEX = "hex"


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """Converts bytes of one database to text. Raises UnknownEncoding.

    `ascii_apart`: whether a byte below 0x80 is always the ASCII character; in GBK and GB18030 it may be the second half
    of another one (for example 0x5C, the backslash; never a quote, a blank or a colon). `in_hex`: the columns of the
    policy `hex`; a codec does not know columns, its users check it.
    """

    encoding: str = "UTF8"
    policy: Policy = Policy.STOP
    in_hex: InHex = lambda _table, _column: True
    python: str = field(init=False)
    ascii_apart: bool = field(init=False)

    def __post_init__(self) -> None:
        python = _PYTHON.get(re.sub(r"[^a-z0-9]", "", self.encoding.lower()))
        if python is None:
            raise UnknownEncoding(self.encoding)
        object.__setattr__(self, "python", python)
        object.__setattr__(self, "ascii_apart", python not in ("gbk", "gb18030"))

    def text(self, data: bytes, offset: int = 0) -> str:
        """`data`, which begins at byte `offset`, as text. Raises TextNotInEncoding if the policy is to stop."""
        try:
            return self.strict(data)
        except UnicodeDecodeError as error:
            wrong = offset + error.start
        if self.policy is Policy.HEX:
            return UndecodableText.from_bytes(data, wrong)
        # raised here, because the cause would contain the value
        raise TextNotInEncoding(self.encoding, offset=wrong)

    def encode(self, text: str) -> bytes:
        """The bytes of a text that this codec decoded."""
        try:
            return text.encode(self.python)
        except UnicodeEncodeError:
            return text.encode("gb18030")  # user-defined characters, see `strict`

    def name(self, data: bytes, offset: int = 0) -> str:
        """The name of a table, column or type: as `text`, but never in hexadecimal digits."""
        try:
            return self.strict(data)
        except UnicodeDecodeError as error:
            wrong = offset + error.start
        raise TextNotInEncoding(self.encoding, offset=wrong)

    def strict(self, data: bytes) -> str:
        """`data` as text; raises UnicodeDecodeError with any policy."""
        if self.python != "gbk":
            return data.decode(self.python)
        try:
            return data.decode("gbk")
        except UnicodeDecodeError:
            # user-defined characters are valid in GBK; GB18030 maps them to Unicode
            if _IN_TWO_BYTES.fullmatch(data) is None:
                raise
            return data.decode("gb18030")
