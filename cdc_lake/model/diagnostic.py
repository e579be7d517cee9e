"""Diagnostics: one value for the terminal, JSON, HTML and tests, and every problem of a pipeline file.

A file is read to the end and all problems are reported together, by `ConfigInvalid`. Each code has a page
`docs/errors/CODE.md`. Names of tables and columns are arbitrary: text for a terminal is escaped, so that it contains no
control sequences.
"""

from __future__ import annotations

import enum
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from cdc_lake.errors import ConfigError


class Severity(enum.Enum):
    """The severity: an error stops, a warning does not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file, 1-based, with the path of the value inside the document."""

    file: str
    line: int
    column: int
    path: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}"
        return f"{place}  ({self.path})" if self.path else place


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A problem, its location, and the remedy."""

    severity: Severity
    code: str
    summary: str
    location: Location | None = None
    hint: str = ""


_COLOUR = re.compile(r"(\x1b\[\d*m)")  # ECMA-48: select graphic rendition, as `cli.text` writes it


def printable(text: str, *, keep: str = "\n", colour: bool = False) -> str:
    """The text with control and format characters escaped, except those in `keep`, and colours with `colour`."""
    if text.isprintable():
        return text
    parts = _COLOUR.split(text) if colour else [text]
    return "".join(part if nth % 2 else _escape(part, keep) for nth, part in enumerate(parts))


def _escape(text: str, keep: str) -> str:
    return "".join(
        character.encode("unicode_escape").decode()
        if character not in keep and unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
        else character
        for character in text
    )


def pluralize(number: int, noun: str) -> str:
    """`1 problem`, `2,000 problems`; for nouns with a plural in s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(value: int | None) -> str:
    """Bytes with a suitable unit, `-` if unknown."""
    if value is None:
        return "-"
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(amount) >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


class Problem(enum.StrEnum):
    """The codes of diagnostics."""

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
    RENAMED = "CFG113"
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
    hint = "`cdc-lake validate` lists the problems again; `cdc-lake explain CODE` explains one"

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
    hint = "name it: `cdc-lake VERB --pipeline pipelines/NAME.yaml`; `cdc-lake init` creates a new project"


class FolderNotEmpty(ConfigError):
    """`init` refuses to write into a folder that is not empty."""

    code = "CFG141"
    exit_code = 2
    hint = "choose another folder, or add `--force` to overwrite its files with those of the template"


class UnknownTemplate(ConfigError):
    """The template does not exist."""

    code = "CFG142"
    exit_code = 2


class UnknownCode(ConfigError):
    """The code has no page."""

    code = "CFG143"
    exit_code = 2
    hint = (
        "write a code such as CFG104, as printed in brackets after `error`; `cdc-lake explain --list` lists all codes"
    )
