"""Database encodings and the policy for text outside of them."""

from contextlib import suppress

import pytest

from cdc_lake.decode.encoding import Codec, Policy
from cdc_lake.errors import TextNotInEncoding, UnknownEncoding


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("UTF8", "utf-8"),
        ("utf-8", "utf-8"),
        ("SQL_ASCII", "utf-8"),
        ("GBK", "gbk"),
        ("GB18030", "gb18030"),
        ("EUC_CN", "gb2312"),
        ("LATIN1", "iso8859-1"),
        ("LATIN5", "iso8859-9"),
        ("LATIN9", "iso8859-15"),
        ("ISO_8859_5", "iso8859-5"),
        ("WIN1251", "cp1251"),
        ("KOI8R", "koi8-r"),
    ],
)
def test_server_names_of_encodings_are_known(name, python):
    codec = Codec(name)
    assert codec.python == python
    assert codec.text(b"a") == "a"


@pytest.mark.parametrize("name", ["", "EUC_TW", "MULE_INTERNAL", "GB18030_2022", "latin99"])
def test_other_encodings_are_refused_by_name(name):
    with pytest.raises(UnknownEncoding, match=f"`{name}`"):
        Codec(name)


def test_characters_a_user_defined_in_gbk_are_read():
    codec = Codec("GBK")
    assert codec.text(b"\xaa\xa1a") == "\ue000a"
    with pytest.raises(TextNotInEncoding):
        codec.text(b"\xaa\xa1\x81\x30\x81\x30")  # four bytes are of GB18030, not of GBK


@pytest.mark.parametrize("name", ["EUC_CN", "EUC_JP", "EUC_KR", "EUC_JIS_2004", "LATIN1", "UTF8", "SQL_ASCII"])
def test_only_gbk_and_gb18030_have_ascii_bytes_inside_characters(name):
    codec = Codec(name)
    assert codec.ascii_apart
    for first in range(0x80, 0x100):
        for second in range(0x80):
            with suppress(UnicodeDecodeError):
                assert bytes([first, second]).decode(codec.python).endswith(chr(second))


@pytest.mark.parametrize("name", ["GBK", "GB18030"])
def test_no_sign_the_formats_are_made_of_is_inside_a_character(name):
    codec = Codec(name)
    assert not codec.ascii_apart
    for first in range(0x81, 0xFF):
        for sign in b"'\" :(),.":
            with pytest.raises(UnicodeDecodeError):
                bytes([first, sign, 0x30, 0x81]).decode(codec.python)


def test_the_policy_is_for_values_and_not_for_names():
    assert Codec(policy=Policy.HEX).text(b"a\xff", 5) == "not-text:61ff"
    with pytest.raises(TextNotInEncoding) as error:
        Codec(policy=Policy.HEX).name(b"a\xff", 5)
    assert error.value.offset == 6
