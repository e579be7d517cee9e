"""Bundles and jobs, and what monitoring is shown of them: DEP7xx."""

from __future__ import annotations

from cdc_lake.errors.root import CdcLakeError


class DeployError(CdcLakeError):
    """A bundle or a job."""

    code = "DEP700"


class MetricsNotServed(DeployError):
    """The address for metrics cannot be listened at."""

    code = "DEP710"
    hint = (
        "another program listens there, or another receiver: give each pipeline a port of its own in "
        "`observe.metrics`, with an address that this machine has"
    )


class MetricsNotWritten(DeployError):
    """The file for metrics cannot be written. It is told, and tried again; apply goes on."""

    code = "DEP711"
    hint = "make the folder of `observe.textfile`, and let the user that applies write into it"
