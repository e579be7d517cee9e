"""Where to connect to and as whom: everything a session needs to know before it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cdc_lake.source.printing import PRINTING
from cdc_lake.source.silence import LONGEST

TlsMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]

SETTINGS: Mapping[str, str] = {
    **PRINTING,
    "IntervalStyle": "postgres",  # the family's default, in which parallel decoders print whatever a session asks for
    "statement_timeout": "0",  # a role's own time limits would cut the copy
    "session_timeout": "0",  # the family ends idle sessions, after ten minutes by default
}
"""What every session asks for at its start: how values are printed, and no time limits."""


@dataclass(frozen=True, slots=True)
class WireTls:
    """Encryption, in libpq's words. Paths are absolute, or relative to the working folder.

    Without `root_cert` verify-ca and verify-full trust the system's authorities; `require` with one verifies the
    chain. `prefer` takes encryption where the server offers it; where it then fails, that is an error.
    """

    mode: TlsMode = "prefer"
    root_cert: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class WireTarget:
    """A server, or several of which one is the primary, a database, a role.

    `hosts` are `(host, port)` with the service port; a host that begins with `/` is the folder of a Unix socket.
    `replication_port` is the HA port of every host, where replication connections go; None: the service port + 1.
    `connect_timeout` is in seconds and counts for each host; so is `silence`, after which a peer that TCP hears nothing
    of is given up (`source.silence`). `alike`: any host will do that is no standby, as the
    coordinators of a distributed server; otherwise there must not be two.
    """

    hosts: tuple[tuple[str, int], ...]
    database: str
    user: str
    password: str | None = field(default=None, repr=False)
    replication_port: int | None = None
    tls: WireTls = WireTls()
    connect_timeout: float = 10.0
    silence: float = LONGEST
    alike: bool = False
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)

    def ports(self, *, replication: bool) -> tuple[tuple[str, int], ...]:
        """The addresses for ordinary sessions or for replication connections."""
        if not replication:
            return self.hosts
        return tuple(
            (host, port + 1 if self.replication_port is None else self.replication_port) for host, port in self.hosts
        )

    def place(self, host: str, port: int) -> str:
        """How errors name an address."""
        return f"{host}:{port}/{self.database}"
