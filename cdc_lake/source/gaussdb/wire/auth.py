"""Authentication and TLS with a GaussDB family server, and the errors of its refusals.

Request codes up to 8 are PostgreSQL's; 10 to 13 are the family's own (in PostgreSQL 10 is SASL). For passwords stored
as sha256 a challenge similar to RFC 5802 is used, with the family's own constants, one of them misspelled: key K =
PBKDF2-HMAC-SHA1(password, salt, iterations). The request contains the iterations because we start with the protocol
minor number 51; for older clients it does not.

The family has its own texts for errors unknown to PostgreSQL; all others are classified as everywhere
(`source.refusals`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from cdc_lake import errors
from cdc_lake.errors.base import ANEW
from cdc_lake.source.gaussdb.wire import protocol
from cdc_lake.source.gaussdb.wire.protocol import ServerMessage, WireTls
from cdc_lake.source.refusals import connection_kind, statement_kind, statement_words
from cdc_lake.source.sql_text import identifier

DEFAULT_ITERATIONS = 2048
"""Number of iterations if the request does not contain it."""

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
_SALT, _TOKEN = 64, 8  # characters, hexadecimal
_MOST_ITERATIONS = 10_000_000  # a server that requests more wants to keep the client busy
_INT = struct.Struct(">i")
_HEX = re.compile(r"[0-9a-fA-F]*")


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server accepted the login."""


@dataclass(frozen=True, slots=True)
class Cleartext:
    """The server requests the password in clear text."""


@dataclass(frozen=True, slots=True)
class Md5:
    """PostgreSQL's md5, with 4 bytes of salt."""

    salt: bytes


@dataclass(frozen=True, slots=True)
class Sha256:
    """A password stored for sha256."""

    salt: str
    token: str
    iterations: int


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
"""The requests that a server can send and we can answer."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys derived from a password, a salt and a number of iterations."""

    client: bytes
    server: bytes

    @property
    def stored_key(self) -> bytes:
        """The form of the client's key stored by the server."""
        return hashlib.sha256(self.client).digest()


def parse(body: bytes) -> Request:
    """Parse the body of an authentication request. Raises AuthenticationUnsupported, StreamProtocol."""
    if len(body) < 4:
        raise errors.StreamProtocol(f"an authentication request of {len(body)} bytes")
    code, rest = int(_INT.unpack_from(body)[0]), body[4:]
    match code:
        case 0:
            return Accepted()
        case 3:
            return Cleartext()
        case 5:
            return Md5(_four_bytes(rest, code))
        case 10:
            return _sha256(rest)
        case 11:
            return Md5OverSha256(_hex(rest[:_SALT], _SALT), _four_bytes(rest[_SALT:], code))
        case _:
            name = _CODES.get(code, f"code {code}")
            raise errors.AuthenticationUnsupported(f"the server asks for authentication by {name}")


def answer(request: Request, user: str, password: str) -> str | None:
    """The text of the answer; None if nothing is requested."""
    match request:
        case Accepted():
            return None
        case Cleartext():
            return password
        case Md5(salt4):
            return "md5" + _md5(_md5(password.encode() + user.encode()).encode() + salt4)
        case Sha256(salt, token, iterations):
            keys = derive(password, salt, iterations)
            signed = _hmac(keys.stored_key, bytes.fromhex(token))
            return bytes(a ^ b for a, b in zip(keys.client, signed, strict=True)).hex()
        case Sha256OverMd5(salt4):
            return "sha256" + hashlib.sha256(_md5(password.encode() + user.encode()).encode() + salt4).hexdigest()
        case Md5OverSha256(salt, salt4):
            keys = derive(password, salt, DEFAULT_ITERATIONS)
            return "md5" + _md5((salt + keys.server.hex() + keys.stored_key.hex()).encode() + salt4)
        case _:
            assert_never(request)


def derive(password: str, salt: str, iterations: int) -> Keys:
    """The keys of a password; `salt` is hexadecimal."""
    key = hashlib.pbkdf2_hmac("sha1", password.encode(), bytes.fromhex(salt), iterations, 32)
    return Keys(_hmac(key, b"Client Key"), _hmac(key, b"Sever Key"))  # misspelled like this on the server


def _sha256(rest: bytes) -> Request:
    """Code 10: how the password is stored, then the corresponding request."""
    if len(rest) < 4:
        raise errors.StreamProtocol("a sha256 request without the kind of password")
    stored, rest = int(_INT.unpack_from(rest)[0]), rest[4:]
    match stored:
        case 1:
            return Sha256OverMd5(_four_bytes(rest, 10))
        case 0 | 2:  # stored in clear text: the same exchange
            pass
        case _:
            how = {3: "for SM3", 7: "for md5 and sha256 together"}.get(stored, f"in an unknown form ({stored})")
            raise errors.AuthenticationUnsupported(f"the server has the password stored {how}")
    salt, token, rest = _hex(rest[:_SALT], _SALT), _hex(rest[_SALT : _SALT + _TOKEN], _TOKEN), rest[_SALT + _TOKEN :]
    iterations = int(_INT.unpack(_four_bytes(rest, 10))[0])
    if not 0 < iterations <= _MOST_ITERATIONS:
        raise errors.StreamProtocol(f"a sha256 request of {iterations} iterations")
    return Sha256(salt, token, iterations)


def _hex(raw: bytes, size: int) -> str:
    text = raw.decode(errors="replace")
    if len(raw) != size or _HEX.fullmatch(text) is None:
        raise errors.StreamProtocol(f"an authentication request without its {size} hexadecimal characters")
    return text


def _four_bytes(raw: bytes, code: int) -> bytes:
    if len(raw) != _INT.size:
        raise errors.StreamProtocol(f"an authentication request of code {code} with {len(raw)} bytes where 4 belong")
    return raw


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, "sha256").digest()


def _md5(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def negotiate_tls(plain: socket.socket, tls: WireTls, host: str, place: str) -> socket.socket:
    """The socket to use: encrypted as configured, if the server offers it. Raises TlsRefused.

    A Unix socket is never encrypted: nobody can intercept it.
    """
    if tls.mode == "disable" or plain.family == socket.AF_UNIX:
        return plain
    context = _context(tls, place)
    try:
        plain.sendall(protocol.ssl_request())
        # one byte only: further bytes belong to the handshake, and must not be accepted unencrypted
        offered = plain.recv(1)
    except OSError as broken:
        raise errors.ServerUnreachable(
            f"the connection was lost before it was established: {broken}", where=place
        ) from broken
    if offered == b"S":
        return _handshake(plain, context, tls, host, place)
    if not offered:
        raise errors.ServerUnreachable("the server closed the connection at once", where=place)
    if offered != b"N":
        hint = (
            "check that a database is listening there; a server without free connections also answers "
            "like this: in that case retry"
        )
        raise errors.StreamProtocol(
            f"the server answered the TLS request with the byte {offered[0]}", where=place, hint=hint
        )
    if tls.mode == "prefer":
        return plain
    hint = "turn `ssl` on at the server; use `tls: {mode: disable}` only if the network is trusted"
    raise errors.TlsRefused(f"`source.tls.mode` is {tls.mode}, but the server does not encrypt", where=place, hint=hint)


def _handshake(plain: socket.socket, context: ssl.SSLContext, tls: WireTls, host: str, place: str) -> socket.socket:
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as wrong:
        which = str(tls.root_cert) if tls.root_cert else "the system's certificate authorities"
        text = f"the server's certificate is not accepted: {wrong.verify_message} (trusted: {which})"
        hint = "set `source.tls.root_cert` to the authority that signed it; verify-full also checks the host name"
        raise errors.TlsRefused(text, where=place, hint=hint) from wrong
    except ssl.SSLError as wrong:
        raise errors.TlsRefused(f"the TLS handshake failed: {wrong.reason or wrong}", where=place) from wrong
    except OSError as broken:
        raise errors.ServerUnreachable(
            f"the connection was lost in the TLS handshake: {broken}", where=place
        ) from broken


def _context(tls: WireTls, place: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    verify = tls.mode in {"verify-ca", "verify-full"} or (tls.mode == "require" and tls.root_cert is not None)
    context.check_hostname = tls.mode == "verify-full"
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    try:
        if verify and tls.root_cert is not None:
            context.load_verify_locations(tls.root_cert)
        elif verify:
            context.load_default_certs()
        if tls.cert is not None:
            # an empty password, so that an encrypted key raises an error instead of prompting at the terminal
            context.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as wrong:  # includes ssl.SSLError
        files = ", ".join(str(file) for file in (tls.root_cert, tls.cert, tls.key) if file is not None)
        reason = wrong.reason if isinstance(wrong, ssl.SSLError) else wrong.strerror
        text = f"the files of `source.tls` cannot be used: {reason} ({files})"
        hint = "use PEM files; the key must have no passphrase and must belong to the certificate"
        raise errors.TlsRefused(text, where=place, hint=hint) from wrong
    return context


_NO_USER = r"\b(role|user)\b.* does(n't| not) exist"
"""With `dynamic-resolution: off` a nonexistent name in `exclude-users` ends decoding; the words are not documented, so
PostgreSQL's are used (undefined_object).
"""

_FAMILY: tuple[tuple[str, type[errors.SourceError], str], ...] = (
    (r"replication should connect HA port", errors.ReplicationPortNeeded, ""),
    (r"listen ip and port is not for the gsql client", errors.ServicePortNeeded, ""),
    (r"option \S+ = .* is unknown", errors.OptionUnknown, "22023"),
    (r"output[-_ ]order", errors.WrongOutputOrder, ""),
    (r"could not parse value .* for parameter", errors.OptionRefused, "22023"),
    (r"option \S+ should be", errors.OptionRefused, "22023"),
    (_NO_USER, errors.OptionRefused, "42704"),
    (r'invalid value for parameter "logical_sender_timeout"', errors.OptionRefused, "22023"),
    (r"could not access file", errors.PluginMissing, "58P01"),
    (r"replication slot name .* (contains invalid character|is too (long|short)|is not)", errors.SlotNameInvalid, ""),
    (r"Invalid logical replication slot", errors.SlotMissing, ""),
    (r"replication slot .* already exists", errors.SlotForeign, ""),
    (r"replication slot .* was not created in this database", errors.SlotOfOtherDatabase, ""),
    (r"cannot use physical replication slot", errors.SlotForeign, ""),
    (r"WAL segment .* has already been removed", errors.WalGone, ""),
    (r"walsender closed because of role is primary", errors.StandbyNeeded, ""),
    (r"create logical decode dispatcher", errors.DecodersExhausted, ""),
    (r"standby mode doesn't support", errors.ServerSettings, ""),
    (r"unrecognized configuration parameter", errors.ServerSettings, ""),
    # before 5.0 the sender's timeout has this SQLSTATE, which means something else everywhere
    (r"timeout", errors.ServerUnreachable, "42809"),
)
"""Errors with the family's own wording, a regular expression; with an SQLSTATE if the words alone are ambiguous."""

_STARTUP: dict[str, type[errors.SourceError]] = {
    "28P01": errors.AuthenticationRefused,
    "28000": errors.AuthenticationRefused,
    "28P02": errors.AuthenticationRefused,
    "3D000": errors.DatabaseUnknown,
    "42501": errors.RoleLacksReplication,
    "53300": errors.ServerBusy,
    "57P03": errors.ServerBusy,
}

_HINTS: dict[type[errors.SourceError], str] = {
    errors.SlotActive: (
        "stop the other receiver; after a crash the server releases the slot within about a second to a minute"
    ),
    errors.WalGone: f"raise max_size_for_xlog_prune on the server; then {ANEW}",
}

_SETTINGS_HINTS = (
    ("wal_level", "set wal_level = logical (gs_guc set) and restart the server"),
    ("standby mode", "set `source.host` to the primary: slots are created there"),
    ("unrecognized configuration parameter", "report this with the server's version: it is another product or version"),
)


def server_error(message: ServerMessage, doing: str, *, where: str = "", user: str = "") -> errors.SourceError:
    """The error of a statement, command or stream that the server ended; `doing` describes its purpose."""
    kind = _family_kind(message) or statement_kind(message.sqlstate or None, message.message, doing)
    words = statement_words(message.sqlstate or None, message.message, doing)
    return kind(words, where=where, hint=_hint(kind, message, user))


def startup_error(message: ServerMessage, *, user: str, database: str, where: str) -> errors.SourceError:
    """The error for a connection that the server refused."""
    kind = _family_kind(message) or _STARTUP.get(message.sqlstate) or connection_kind(message.message, database)
    words = statement_words(message.sqlstate or None, message.message, f"no connection as `{user}`")
    return kind(words, where=where, hint=_hint(kind, message, user))


def _family_kind(message: ServerMessage) -> type[errors.SourceError] | None:
    for pattern, kind, sqlstate in _FAMILY:
        if sqlstate in {"", message.sqlstate} and re.search(pattern, message.message, re.IGNORECASE):
            return kind
    return None


def _hint(kind: type[errors.SourceError], message: ServerMessage, user: str) -> str | None:
    if kind is errors.RoleLacksReplication:
        role = identifier(user) if user else "<user>"
        return f"run as an administrator: ALTER ROLE {role} REPLICATION, or grant the role gs_role_replication"
    if kind is errors.OptionRefused and re.search(_NO_USER, message.message, re.IGNORECASE):
        return (
            "remove the name from `exclude-users`, or keep `dynamic-resolution` on: the name then takes effect when "
            "the user exists"
        )
    if kind is errors.ServerSettings:
        return next((hint for words, hint in _SETTINGS_HINTS if words in message.message.lower()), None)
    return _HINTS.get(kind)
