"""One finding of the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.relation import TableName


@dataclass(frozen=True, slots=True)
class CheckLine:
    """`ok`: right, wrong, or None for what works but should be known; `fix`: what to do, SQL or a command."""

    ok: bool | None
    subject: str
    text: str
    fix: str = ""
    code: str = ""


def failed(subject: str, error: CdcLakeError) -> CheckLine:
    """What an error says, as a finding."""
    return CheckLine(ok=False, subject=subject, text=error.message, fix=error.remedy, code=error.code)


def unchecked_text(project: Project, encoding: str) -> Iterator[CheckLine]:
    """What should be known of a database that promises nothing about its text."""
    source = project.pipeline.source
    if encoding == "SQL_ASCII" and source.encoding_errors == "stop":
        some = f" outside of {', '.join(source.hex_columns)}" if source.hex_columns else ""
        text = f"SQL_ASCII checks nothing: text that is not UTF-8{some} stops the copy and the stream"
        fix = "name columns that hold such text in `source.hex_columns`: it is kept in hexadecimal digits"
        yield CheckLine(ok=None, subject="encoding", text=text, fix=fix, code="DEC311")


def listed(names: Sequence[TableName]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(str, names[:5])) + more


def room(subject: str, used: int, most: int, needed: int, setting: str, code: str) -> CheckLine:
    """Whether enough is left of what the server limits by a setting."""
    ok = most - used >= needed
    fix = "" if ok else f"ALTER SYSTEM SET {setting} = {max(most, used) + 5};  then restart the server"
    return CheckLine(ok=ok, subject=subject, text=f"{used} of {most} in use, {needed} needed", fix=fix, code=code)
