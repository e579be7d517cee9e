"""Bundles and jobs: DEP7xx."""

from __future__ import annotations

from cdc_lake.errors.root import CdcLakeError


class DeployError(CdcLakeError):
    """A bundle or a job."""

    code = "DEP700"
