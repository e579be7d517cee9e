"""From the `source` section of a pipeline to a connection's target."""

from __future__ import annotations

from pathlib import Path

from cdc_lake.config.source import FamilySource
from cdc_lake.source.wire.target import WireTarget, WireTls


def target_of(source: FamilySource, root: Path) -> WireTarget:
    """The servers, database and role of the section; files of `tls` are relative to `root`."""

    def file(path: Path | None) -> Path | None:
        return None if path is None else root / path

    tls = source.tls
    return WireTarget(
        hosts=tuple((address.host, address.port) for address in source.addresses),
        database=source.database,
        user=source.user,
        password=None if source.password is None else source.password.get_secret_value(),
        replication_port=source.replication_port,
        tls=WireTls(tls.mode, file(tls.root_cert), file(tls.cert), file(tls.key)),
        alike=source.node == "coordinator",
        connect_timeout=source.connect_timeout / 1000,
        silence=source.silence_timeout / 1000,
    )
