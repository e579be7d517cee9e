"""TLS of the wire client: whether to encrypt, whom to trust, and errors that say which file or name is wrong."""

from __future__ import annotations

import socket
import ssl

from cdc_lake.errors import ServerUnreachable, StreamProtocol, TlsRefused
from cdc_lake.source.wire import protocol
from cdc_lake.source.wire.target import WireTls


def encrypted(plain: socket.socket, tls: WireTls, host: str, place: str) -> socket.socket:
    """The socket to speak over: encrypted as asked for, if the server offers it. Raises TlsRefused.

    A Unix socket stays as it is, in every mode: nobody is between.
    """
    if tls.mode == "disable" or plain.family == socket.AF_UNIX:
        return plain
    context = _context(tls, place)
    try:
        plain.sendall(protocol.ssl_request())
        # one byte only: what follows belongs to the handshake, or nobody may have put it there
        offered = plain.recv(1)
    except OSError as broken:
        raise ServerUnreachable(f"the connection broke off before it began: {broken}", where=place) from broken
    if offered == b"S":
        return _handshake(plain, context, tls, host, place)
    if not offered:
        raise ServerUnreachable("the server closed the connection at once", where=place)
    if offered != b"N":
        raise StreamProtocol(
            f"the server answered the question for TLS with the byte {offered[0]}",
            where=place,
            hint="is a database listening there? a server with no room left answers like this as well: try again",
        )
    if tls.mode == "prefer":
        return plain
    raise TlsRefused(
        f"`source.tls.mode` is {tls.mode}, but the server does not encrypt",
        where=place,
        hint="turn `ssl` on at the server; `tls: {mode: disable}` only where nobody can listen",
    )


def _handshake(plain: socket.socket, context: ssl.SSLContext, tls: WireTls, host: str, place: str) -> socket.socket:
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as wrong:
        which = str(tls.root_cert) if tls.root_cert else "the system's authorities"
        raise TlsRefused(
            f"the server's certificate is not accepted: {wrong.verify_message} (trusted: {which})",
            where=place,
            hint="set `source.tls.root_cert` to the authority that signed it; verify-full compares the host's name too",
        ) from wrong
    except ssl.SSLError as wrong:
        raise TlsRefused(f"the TLS handshake failed: {wrong.reason or wrong}", where=place) from wrong
    except OSError as broken:
        raise ServerUnreachable(f"the connection broke off in the TLS handshake: {broken}", where=place) from broken


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
            # an empty answer, so that an encrypted key is an error and not a question at the terminal
            context.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as wrong:  # ssl.SSLError is one
        files = ", ".join(str(file) for file in (tls.root_cert, tls.cert, tls.key) if file is not None)
        reason = wrong.reason if isinstance(wrong, ssl.SSLError) else wrong.strerror
        raise TlsRefused(
            f"the files of `source.tls` cannot be used: {reason} ({files})",
            where=place,
            hint="PEM files are expected; the key without a passphrase and belonging to the certificate",
        ) from wrong
    return context
