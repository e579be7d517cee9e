"""A pipeline file, an environment, a reference: CFG1xx."""

from __future__ import annotations

from cdc_lake.errors.root import CdcLakeError


class ConfigError(CdcLakeError):
    """A pipeline file cannot be used as it is."""

    code = "CFG100"
    exit_code = 3


class NotForThisSource(ConfigError):
    """The command does not read from sources of this type."""

    code = "CFG145"
    hint = "`cdc-lake validate` and `cdc-lake plan --show-config` work for every type of source"
