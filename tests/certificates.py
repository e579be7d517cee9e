"""A certificate authority of one's own, by the machine's openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_authority(folder: Path) -> Path:
    """Write into a folder an authority (`ca`), a server's certificate for localhost only and a client's (`server`,
    `client`, each with its `.key`), somebody else's authority (`other.pem`), and the client's key with a password
    (`locked.key`).
    """

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    extensions = folder / "ext"
    extensions.write_text("subjectAltName=DNS:localhost\n")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", "req", "-subj", f"/CN={name}")
        sign = ["x509", "-req", "-in", "req", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", f"{name}.pem"]
        openssl(*sign, "-set_serial", str(len(name)), "-days", "2", "-extfile", "ext")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "o.key", "-out", "other.pem", "-subj", "/CN=o")
    openssl("rsa", "-aes256", "-in", "client.key", "-out", "locked.key", "-passout", "pass:secret")
    return folder
