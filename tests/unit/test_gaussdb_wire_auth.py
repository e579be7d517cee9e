"""Authentication of the GaussDB family: the documented values, the recorded exchanges, and bytes that are neither."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from pathlib import Path

import pytest

from cdc_lake.errors import AuthenticationUnsupported, SourceError, StreamProtocol
from cdc_lake.source.gaussdb.wire import auth
from cdc_lake.source.gaussdb.wire.auth import (
    Accepted,
    Cleartext,
    Md5,
    Md5OverSha256,
    Sha256,
    Sha256OverMd5,
    answer,
    parse,
)
from cdc_lake.source.gaussdb.wire.protocol import MINOR
from tests.seeds import one_seed

RECORDED = json.loads((Path(__file__).parents[1] / "data/opengauss/authentication.json").read_text())
SALT, TOKEN, SALT4 = "0123456789abcdef" * 4, "abcd1234", bytes.fromhex("01020304")


def body(code: int, rest: bytes = b"") -> bytes:
    return struct.pack(">i", code) + rest


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Sha256(SALT, TOKEN, 10000), "fdfd1a4779c2b9e60fa7ced561e399a16f45c1b4ae116ca796007d716e6cceec"),
        (Sha256(SALT, TOKEN, 2048), "aa7fbd169692ec63da7cc08ae9820edd710c3ef4fc8a522103df6180889b1090"),
        (Sha256OverMd5(SALT4), "sha256eece9d8816b2b791443160a7c02842b3039ceab920f0dbf4f19b3863421045c7"),
        (Md5OverSha256(SALT, SALT4), "md52ba795c9d288d7dd9c4265e40eb7e904"),
        (Md5(SALT4), "md51f50ae2934a8664caedf3c6eb2c031fa"),
        (Cleartext(), "Gauss@123"),
        (Accepted(), None),
    ],
)
def test_the_documented_values_come_out(request_: auth.Request, expected: str | None) -> None:
    assert answer(request_, "cdc", "Gauss@123") == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (body(0), Accepted()),
        (body(3), Cleartext()),
        (body(5, SALT4), Md5(SALT4)),
        (body(10, body(1, SALT4)), Sha256OverMd5(SALT4)),
        (body(10, body(2, (SALT + TOKEN).encode() + body(10000))), Sha256(SALT, TOKEN, 10000)),
        (body(10, body(0, (SALT + TOKEN).encode() + body(10000))), Sha256(SALT, TOKEN, 10000)),
        (body(11, SALT.encode() + SALT4), Md5OverSha256(SALT, SALT4)),
    ],
)
def test_every_request_is_read(raw: bytes, expected: auth.Request) -> None:
    assert parse(raw) == expected


@pytest.mark.parametrize(
    "exchange",
    [e for e in RECORDED if e["minor"] == MINOR and "answer" in e and "password" in e],
    ids=lambda e: e["name"],
)
def test_recorded_requests_get_the_recorded_answers(exchange: dict[str, str]) -> None:
    request = parse(bytes.fromhex(exchange["request"])[5:])
    said = answer(request, exchange["user"], exchange["password"])
    assert said is not None
    assert said.encode() == bytes.fromhex(exchange["answer"])[5:-1]


def test_a_request_for_md5_over_a_sha256_password_was_recorded() -> None:
    (raw,) = [e["request"] for e in RECORDED if e["outcome"] == "unanswered"]
    assert isinstance(parse(bytes.fromhex(raw)[5:]), Md5OverSha256)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (body(13, b"rest"), "SM3"),
        (body(12), "RFC variant"),
        (body(7), "GSSAPI"),
        (body(99), "code 99"),
        (body(10, body(3, SALT.encode())), "stored for SM3"),
        (body(10, body(7)), "md5 and sha256"),
        (body(10, body(42)), "in an unknown form"),
    ],
)
def test_what_is_not_spoken_is_refused_by_name(raw: bytes, words: str) -> None:
    with pytest.raises(AuthenticationUnsupported, match=words) as caught:
        parse(raw)
    assert "pg_hba.conf" in caught.value.remedy


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0",
        body(5),
        body(5, b"12345"),
        body(10),
        body(10, body(1, b"123")),
        body(10, body(2, SALT.encode())),
        body(10, body(2, (SALT[:-1] + "x" + TOKEN).encode() + body(10000))),
        body(10, body(2, (SALT + TOKEN).encode() + body(0))),
        body(10, body(2, (SALT + TOKEN).encode() + body(-1))),
        body(10, body(2, (SALT + TOKEN).encode() + body(2_000_000_000))),
        body(11, SALT.encode()),
    ],
)
def test_a_broken_request_is_an_error_and_costs_no_time(raw: bytes) -> None:
    with pytest.raises(StreamProtocol):
        parse(raw)


def test_any_bytes_are_a_request_or_an_error() -> None:
    seed = one_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    known = [bytes.fromhex(e["request"])[5:] for e in RECORDED]
    for _ in range(20_000):
        raw = bytearray(chance.choice(known))
        for _ in range(chance.randrange(4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        if chance.random() < 0.3:
            del raw[chance.randrange(len(raw)) :]
        with contextlib.suppress(SourceError):
            parse(bytes(raw))
