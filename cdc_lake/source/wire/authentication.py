"""Authentication in the GaussDB family: what a request asks for, and the answer to it. Pure functions.

The request codes are those of PostgreSQL up to 8; 10 to 13 are the family's own (in PostgreSQL 10 is SASL). Passwords
stored for sha256 are answered by a challenge in the manner of RFC 5802, whose constants and one misspelling are the
family's: key K = PBKDF2-HMAC-SHA1(password, salt, iterations). The request's layout depends on the protocol minor
number of the start-up packet: above 50 it has the iterations, at 50 nothing, below 50 the server's own signature; the
answer then counts 2048.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from cdc_lake.errors import AuthenticationRefused, AuthenticationUnsupported, StreamProtocol
from cdc_lake.source.wire.protocol import MINOR

DEFAULT_ITERATIONS = 2048
"""What a client counts where the request does not say it."""

SERVER_ITERATIONS = 10_000
"""What a server counts by default when a password is set."""

_ITERATIONS_MINOR = 50  # protocol minor number above which the request says the iterations
_STORED_OTHERWISE = {3: "for SM3", 7: "for md5 and sha256 together"}
_CODES = {
    1: "Kerberos 4",
    2: "Kerberos 5",
    4: "crypt",
    6: "SCM credentials",
    7: "GSSAPI",
    8: "GSSAPI",
    9: "SSPI",
    12: "the RFC variant of sha256 (code 12, of lite clients)",
    13: "SM3 (code 13)",
}
_SALT, _TOKEN, _SIGNATURE = 64, 8, 64  # characters, hexadecimal
_MOST_ITERATIONS = 10_000_000  # a server that asks for more wants us to be busy, not to log in
_INT = struct.Struct(">i")
_HEX = re.compile(r"[0-9a-fA-F]*")


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server is content."""


@dataclass(frozen=True, slots=True)
class Cleartext:
    """The password itself."""


@dataclass(frozen=True, slots=True)
class Md5:
    """PostgreSQL's md5, with 4 bytes of salt."""

    salt: bytes


@dataclass(frozen=True, slots=True)
class Sha256:
    """A password stored for sha256. `signature` is what a server sends to clients below minor 50."""

    salt: str
    token: str
    iterations: int
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Sha256OverMd5:
    """A `sha256` line for a password stored for md5."""

    salt: bytes


@dataclass(frozen=True, slots=True)
class Md5OverSha256:
    """An `md5` line for a password stored for sha256: a fixed salt of 64 hexadecimal characters and 4 bytes."""

    salt: str
    salt4: bytes


Request: TypeAlias = Accepted | Cleartext | Md5 | Sha256 | Sha256OverMd5 | Md5OverSha256
"""What a server can ask for and we can answer."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What a password, a salt and a number of iterations amount to."""

    client: bytes
    server: bytes

    @property
    def stored(self) -> bytes:
        """What the server keeps of the client's key."""
        return hashlib.sha256(self.client).digest()


def parse(body: bytes, minor: int = MINOR) -> Request:
    """Read the body of an authentication request. Raises AuthenticationUnsupported, StreamProtocol."""
    if len(body) < 4:
        raise StreamProtocol(f"an authentication request of {len(body)} bytes")
    code, rest = int(_INT.unpack_from(body)[0]), body[4:]
    match code:
        case 0:
            return Accepted()
        case 3:
            return Cleartext()
        case 5:
            return Md5(_exactly(rest, 4, code))
        case 10:
            return _sha256(rest, minor)
        case 11:
            return Md5OverSha256(_hex(rest[:_SALT], _SALT), _exactly(rest[_SALT:], 4, code))
        case _:
            name = _CODES.get(code, f"code {code}")
            raise AuthenticationUnsupported(f"the server asks for authentication by {name}")


def answer(request: Request, user: str, password: str) -> str | None:
    """The text to answer with; None where nothing is asked."""
    match request:
        case Accepted():
            return None
        case Cleartext():
            return password
        case Md5(salt):
            return "md5" + _md5(_md5(password.encode() + user.encode()).encode() + salt)
        case Sha256():
            return _proof(request, password)
        case Sha256OverMd5(salt):
            return "sha256" + hashlib.sha256(_md5(password.encode() + user.encode()).encode() + salt).hexdigest()
        case Md5OverSha256(salt, salt4):
            keys = derive(password, salt, DEFAULT_ITERATIONS)
            return "md5" + _md5((salt + keys.server.hex() + keys.stored.hex()).encode() + salt4)
        case _:
            assert_never(request)


def derive(password: str, salt: str, iterations: int) -> Keys:
    """The keys of a password; `salt` is hexadecimal."""
    key = hashlib.pbkdf2_hmac("sha1", password.encode(), bytes.fromhex(salt), iterations, 32)
    return Keys(_hmac(key, b"Client Key"), _hmac(key, b"Sever Key"))  # spelled like this on the server


def server_signature(keys: Keys, token: str) -> str:
    """What only a server that keeps this password can sign the token with."""
    return _hmac(keys.server, bytes.fromhex(token)).hex()


def check_server(request: Sha256, password: str) -> None:
    """Raise AuthenticationRefused where the server's signature is not of this password; without one it passes."""
    if request.signature is None:
        return
    # the server signs with what it has stored, whatever the old client is to count
    for iterations in (DEFAULT_ITERATIONS, SERVER_ITERATIONS):
        signature = server_signature(derive(password, request.salt, iterations), request.token)
        if hmac.compare_digest(signature, request.signature):
            return
    raise AuthenticationRefused("the server's signature does not fit the password: wrong password, or another server")


def _sha256(rest: bytes, minor: int) -> Request:
    """Code 10: how the password is stored, then what that asks for."""
    if len(rest) < 4:
        raise StreamProtocol("a sha256 request without the kind of password")
    stored, rest = int(_INT.unpack_from(rest)[0]), rest[4:]
    match stored:
        case 1:
            return Sha256OverMd5(_exactly(rest, 4, 10))
        case 0 | 2:  # stored in clear: the same exchange
            pass
        case _:
            how = _STORED_OTHERWISE.get(stored, f"in a way unknown here ({stored})")
            raise AuthenticationUnsupported(f"the server has the password stored {how}")
    salt, token, rest = _hex(rest[:_SALT], _SALT), _hex(rest[_SALT : _SALT + _TOKEN], _TOKEN), rest[_SALT + _TOKEN :]
    if minor > _ITERATIONS_MINOR:
        iterations = int(_INT.unpack(_exactly(rest, 4, 10))[0])
        if not 0 < iterations <= _MOST_ITERATIONS:
            raise StreamProtocol(f"a sha256 request of {iterations} iterations")
        return Sha256(salt, token, iterations)
    if minor == _ITERATIONS_MINOR:
        _exactly(rest, 0, 10)
        return Sha256(salt, token, DEFAULT_ITERATIONS)
    return Sha256(salt, token, DEFAULT_ITERATIONS, _hex(rest, _SIGNATURE))


def _proof(request: Sha256, password: str) -> str:
    keys = derive(password, request.salt, request.iterations)
    signed = _hmac(keys.stored, bytes.fromhex(request.token))
    return bytes(a ^ b for a, b in zip(keys.client, signed, strict=True)).hex()


def _hex(raw: bytes, size: int) -> str:
    text = raw.decode(errors="replace")
    if len(raw) != size or _HEX.fullmatch(text) is None:
        raise StreamProtocol(f"an authentication request without its {size} hexadecimal characters")
    return text


def _exactly(raw: bytes, size: int, code: int) -> bytes:
    if len(raw) != size:
        raise StreamProtocol(f"an authentication request of code {code} with {len(raw)} bytes where {size} belong")
    return raw


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, "sha256").digest()


def _md5(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()
