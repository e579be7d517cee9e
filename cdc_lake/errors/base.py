"""The root of the error tree: what every error knows.

A pipeline file, an environment, a reference: CFG1xx.
"""

from __future__ import annotations

import enum
import json
import re
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from typing import ClassVar, Final, Self, TypeVar
from urllib.parse import unquote


def install(extra: str) -> str:
    """How to install an extra of this package from where the package itself came from."""
    try:
        direct_url = distribution("cdc_lake").read_text("direct_url.json")
        url = json.loads(direct_url) if direct_url else {}
    except (PackageNotFoundError, ValueError):
        url = {}
    place = str(url.get("url", ""))
    if (folder := url.get("dir_info")) is not None:
        option = "-e " if folder.get("editable") else ""
        return f"pip install {option}'{unquote(place.removeprefix('file://'))}[{extra}]'"
    if commit := url.get("vcs_info", {}).get("commit_id"):
        return f"pip install 'cdc_lake[{extra}] @ git+{place}@{commit}'"
    return f"pip install 'cdc_lake[{extra}] @ {place}'" if place else f"pip install 'cdc_lake[{extra}]'"


ANEW: Final = "`cdc-lake restart` begins a new stream with new copies; silver, cuts and decisions are kept"
"""The remedy for a stream that cannot continue, as hints word it."""


_RESYNC: Final = re.compile(
    r"`cdc-lake resync [^`]+`(?: then)?(?: copies (?:it|the table) again)?(?:,? (?:while )?the other tables continue)?"
)


def without_table_copies(remedy: str) -> str:
    """Rewords a remedy for a stream that cannot copy a single table: there, every table must be copied again."""
    return _RESYNC.sub("`cdc-lake restart` copies every table again (this stream takes no copy of one table)", remedy)


_TABLE: Final = re.compile(r"(`cdc-lake [a-z]+ )TABLE\b")


class Retry(enum.Enum):
    """Whether trying again without changing anything can help."""

    NEVER = "never"
    LATER = "later"


class CdcLakeError(Exception):
    """The root of the tree: a code, a message in the user's terms, a location, a hint, and whether waiting helps."""

    code: ClassVar[str] = "CDC000"
    hint: ClassVar[str] = ""
    retry: ClassVar[Retry] = Retry.NEVER
    exit_code: ClassVar[int | None] = None

    def __init__(self, message: str, *, where: str = "", hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = type(self).hint if hint is None else hint

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # declared as an attribute, which `add_note` creates
        """What a traceback prints below the message, in a notebook or a job."""
        return [note for note in (f"error[{self.code}]", self.where and f"in {self.where}", self.remedy) if note]

    def for_table(self, table: str) -> Self:
        """Puts the name of the table in place of TABLE in the remedy, so that its commands can be run as printed."""
        self.remedy = _TABLE.sub(lambda command: command[1] + shlex.quote(table), self.remedy)
        return self

    @classmethod
    def status(cls) -> int:
        """The process exit code of this class of errors (`docs/reference/exit-codes.md`)."""
        if cls.exit_code is not None:
            return cls.exit_code
        return 4 if cls.retry is Retry.LATER else 1

    @property
    def exit_status(self) -> int:
        """The process exit code of this error."""
        return self.status()


_E = TypeVar("_E", bound=CdcLakeError)


def kinds(kind: type[_E]) -> list[type[_E]]:
    """A class of errors and all its subclasses."""
    return [kind, *(descendant for child in kind.__subclasses__() for descendant in kinds(child))]


class ConfigError(CdcLakeError):
    """A pipeline file cannot be used as it is."""

    code = "CFG100"
    exit_code = 3


class NotForThisSource(ConfigError):
    """The command does not read from sources of this type."""

    code = "CFG145"
    hint = "`cdc-lake validate` and `cdc-lake plan --show-config` work for every type of source"


class RedactionUnfit(ConfigError):
    """A rule of `bronze.redact` names a column that does not exist, or would redact one that identifies rows."""

    code = "CFG154"
    hint = (
        "correct the name; to cover a column that will be added later, write a pattern, for example "
        "`public.users.emai?`"
    )


class RecordingNotRedacted(ConfigError):
    """A pipeline with redaction was to be recorded exactly as its server sends it."""

    code = "CFG155"
    exit_code = 2
    hint = "add `--redact` to overwrite every value of every row, or `--raw` to record the values as they are"
