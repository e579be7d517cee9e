"""Authentication: every code that the family's servers request, and how they verify the response.

The line of pg_hba.conf and the form of the stored password determine the code. Reference: sendAuthRequest of the
servers and the vendor's JDBC driver, as documented on the page about the protocol.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from struct import pack
from typing import Final, assert_never

from cdc_lake_testing.gaussdb.wire import Channel, Closed, packet

DENIED: Final = "Invalid username/password,login denied."
ITERATIONS: Final = 10000
OLD_ITERATIONS: Final = 2048
"""What a client of protocol 3.50 and older takes for granted."""

NEW_MINOR: Final = 50
"""Above this protocol minor number the iterations are sent."""


class Method(enum.Enum):
    """The method of the line in pg_hba.conf; REJECT stands for no line at all."""

    TRUST = "trust"
    PASSWORD = "password"
    MD5 = "md5"
    SHA256 = "sha256"
    SM3 = "sm3"
    REJECT = "reject"


class Stored(enum.Enum):
    """How the server keeps the password (`password_encryption_type`)."""

    MD5 = "md5"
    SHA256 = "sha256"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's password and how it is stored.

    Who asks by code 11, or an old client by code 10, is not told the iterations and takes 2048 for granted: with
    10000 stored, the default of servers, such a login is refused though the password is right.
    """

    password: str
    stored: Stored = Stored.SHA256
    iterations: int = ITERATIONS


def authenticate(channel: Channel, user: str, known: Credentials | None, method: Method, minor: int) -> bool:
    """Run the exchange; True if the client is who it says (AuthenticationOk is the caller's to send).

    An unknown user is asked like any other and fails at the end, so that names cannot be tried out.
    """
    credentials = known or Credentials(secrets.token_hex(16))
    expected: str | None
    match method:
        case Method.TRUST:
            return True
        case Method.REJECT:
            return False
        case Method.PASSWORD:
            request, expected = _ask(3), credentials.password
        case Method.MD5:
            request, expected = _md5_line(user, credentials)
        case Method.SHA256:
            request, expected = _sha256_line(user, credentials, minor)
        case Method.SM3:
            request, expected = _ask(13, secrets.token_hex(32).encode() + secrets.token_hex(4).encode()), None
        case _:
            assert_never(method)
    channel.send(request)
    kind, body = channel.read()
    if kind != b"p":
        raise Closed(f"a message of type {kind!r} where a password was due")
    answer = body.rstrip(b"\0").decode(errors="replace")
    return known is not None and expected is not None and hmac.compare_digest(answer.encode(), expected.encode())


def sha256_answer(password: str, salt: str, token: str, iterations: int) -> str:
    """What answers code 10 for a password stored as sha256; `salt` 64 and `token` 8 hex digits."""
    client_key, _ = _keys(password, salt, iterations)
    signature = hmac.digest(hashlib.sha256(client_key).digest(), bytes.fromhex(token), "sha256")
    return bytes(a ^ b for a, b in zip(client_key, signature, strict=True)).hex()


def server_signature(password: str, salt: str, token: str, iterations: int) -> str:
    """What a server of code 10 sends to clients below protocol 3.50, to prove that it knows the password."""
    _, server_key = _keys(password, salt, iterations)
    return hmac.digest(server_key, bytes.fromhex(token), "sha256").hex()


def md5_answer(user: str, password: str, salt: bytes) -> str:
    """What answers code 5."""
    inner = hashlib.md5((password + user).encode(), usedforsecurity=False).hexdigest()
    return "md5" + hashlib.md5(inner.encode() + salt, usedforsecurity=False).hexdigest()


def md5_stored_answer(user: str, password: str, salt: bytes) -> str:
    """What answers code 10 for a password stored as md5."""
    inner = hashlib.md5((password + user).encode(), usedforsecurity=False).hexdigest()
    return "sha256" + hashlib.sha256(inner.encode() + salt).hexdigest()


def md5_sha256_answer(password: str, salt: str, salt4: bytes, iterations: int) -> str:
    """What answers code 11."""
    client_key, server_key = _keys(password, salt, iterations)
    stored = hashlib.sha256(client_key).hexdigest()
    text = salt.encode() + server_key.hex().encode() + stored.encode() + salt4
    return "md5" + hashlib.md5(text, usedforsecurity=False).hexdigest()


def _keys(password: str, salt: str, iterations: int) -> tuple[bytes, bytes]:
    key = hashlib.pbkdf2_hmac("sha1", password.encode(), bytes.fromhex(salt), iterations, 32)
    return hmac.digest(key, b"Client Key", "sha256"), hmac.digest(key, b"Sever Key", "sha256")  # spelled like this


def _ask(code: int, body: bytes = b"") -> bytes:
    return packet(b"R", pack(">I", code) + body)


def _md5_line(user: str, credentials: Credentials) -> tuple[bytes, str]:
    salt4 = secrets.token_bytes(4)
    if credentials.stored is Stored.SHA256:
        salt = secrets.token_hex(32)
        expected = md5_sha256_answer(credentials.password, salt, salt4, credentials.iterations)
        return _ask(11, salt.encode() + salt4), expected
    return _ask(5, salt4), md5_answer(user, credentials.password, salt4)


def _sha256_line(user: str, credentials: Credentials, minor: int) -> tuple[bytes, str]:
    if credentials.stored is Stored.MD5:
        salt4 = secrets.token_bytes(4)
        return _ask(10, pack(">I", 1) + salt4), md5_stored_answer(user, credentials.password, salt4)
    salt, token = secrets.token_hex(32), secrets.token_hex(4)
    iterations = credentials.iterations
    body = pack(">I", 2) + salt.encode() + token.encode()
    if minor > NEW_MINOR:
        body += pack(">I", iterations)
    elif minor < NEW_MINOR:
        body += server_signature(credentials.password, salt, token, iterations).encode()
    # An old client reckons with 2048 whatever the server stored: with 10000 stored it fails, as recorded.
    return _ask(10, body), sha256_answer(credentials.password, salt, token, iterations)
