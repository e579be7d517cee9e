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


class RedactionUnfit(ConfigError):
    """A rule of `bronze.redact` names a column that is not there, or would take one that identifies rows."""

    code = "CFG154"
    hint = "correct the name; for a column that comes later write a pattern, for example `public.users.emai?`"


class RecordingNotRedacted(ConfigError):
    """A pipeline that redacts is to be recorded as its server sends it."""

    code = "CFG155"
    exit_code = 2
    hint = "`--redact` overwrites every value of every row; `--raw` records them as they are"
