"""Every problem a pipeline file can have, by code, and the error that carries all of them at once.

A problem found while loading is a `Diagnostic`: files are read to the end and everything wrong is told together. Each
code has a page `docs/errors/CODE.md`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from cdc_lake.errors import ConfigError
from cdc_lake.model.diagnostic import Diagnostic, Severity
from cdc_lake.model.printable import printable


class Problem(enum.StrEnum):
    """Codes of diagnostics, named for what is wrong."""

    UNREADABLE = "CFG102"
    SYNTAX = "CFG103"
    UNKNOWN_KEY = "CFG104"
    DUPLICATE_KEY = "CFG105"
    MISSING_KEY = "CFG106"
    VALUE = "CFG107"
    YAML_FEATURE = "CFG108"
    NOT_A_PIPELINE = "CFG109"
    ENCODING = "CFG110"
    VERSION = "CFG111"
    SOURCE_TYPE = "CFG112"
    ENV_MISSING = "CFG120"
    FILE_MISSING = "CFG121"
    SECRET = "CFG122"  # noqa: S105  # a code
    REFERENCE = "CFG123"
    ENVIRONMENT = "CFG124"
    PLAIN_PASSWORD = "CFG125"  # noqa: S105  # a code
    OPTION_UNKNOWN = "CFG126"
    OPTION_VALUE = "CFG127"
    OPTION_COMBINATION = "CFG128"
    SOURCE_COMBINATION = "CFG129"
    TABLE_NAME = "CFG130"
    NOT_CAPTURED = "CFG131"
    TABLE_TWICE = "CFG132"
    TARGET_TWICE = "CFG133"
    RULE_TWICE = "CFG134"
    BOUNDS = "CFG135"
    REGEX = "CFG136"
    COLUMN_TWICE = "CFG137"
    NOTHING_CAPTURED = "CFG138"
    LAKE_LAYOUT = "CFG139"
    EXPOSED = "CFG146"
    REDACT_PATTERN = "CFG150"
    REDACT_OVERLAP = "CFG151"
    REDACT_KEY = "CFG152"
    REDACT_NEEDED = "CFG153"
    UNDECODABLE_REDACTED = "CFG156"
    HEX_COLUMN = "CFG157"
    NOT_OF_KIND = "CFG158"
    TRANSFORM = "CFG160"
    DIVISION = "CFG161"
    GROUP = "CFG162"
    RULE_OPTIONS = "CFG170"
    RULE_OF_TABLE = "CFG171"


class ConfigInvalid(ConfigError):
    """One or more problems in the files of a pipeline, all of them in `diagnostics`, in the order of the files."""

    code = "CFG101"
    hint = "`cdc-lake validate` lists the problems again; `cdc-lake explain CODE` tells more about one"

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        errors = [d for d in diagnostics if d.severity is Severity.ERROR]
        first = errors[0] if errors else None
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(
            printable(f"{first.summary}{more}" if first else "the configuration is invalid"),
            where=printable(str(first.location)) if first and first.location else "",
        )
        self.diagnostics = tuple(diagnostics)


class PipelineNotChosen(ConfigError):
    """No pipeline file was named and the project does not have exactly one."""

    code = "CFG140"
    exit_code = 2
    hint = "name it: `cdc-lake VERB --pipeline pipelines/NAME.yaml`; `cdc-lake init` makes a new project"


class FolderNotEmpty(ConfigError):
    """`init` will not write into a folder that holds something."""

    code = "CFG141"
    exit_code = 2
    hint = "choose another folder, or add `--force` to write the template's files over what is there"


class UnknownTemplate(ConfigError):
    """`init` does not know the template."""

    code = "CFG142"
    exit_code = 2


class UnknownCode(ConfigError):
    """`explain` has no page of this code."""

    code = "CFG143"
    exit_code = 2
    hint = "codes look like CFG104: they stand in brackets behind `error`; `cdc-lake explain --list` lists them"
