"""Creates projects from templates, with the project's name filled in."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from cdc_lake.config.loader import display
from cdc_lake.errors import ConfigError
from cdc_lake.model.diagnostic import FolderNotEmpty, UnknownTemplate

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_PLACEHOLDER = "PIPELINE_NAME"
_DOT = "dot_"  # `dot_gitignore` becomes `.gitignore`: packaging tools omit hidden files


class NotWritable(ConfigError):
    """A file of the new project cannot be written."""

    code = "CFG144"
    exit_code = 1
    hint = "choose a folder you may write to"


@dataclass(frozen=True, slots=True)
class NewProject:
    """The result of `init`: the folder, its files, the next commands."""

    template: str
    folder: Path
    files: tuple[str, ...]
    next: tuple[str, ...]


def templates() -> list[str]:
    """Names of the templates of this version."""
    return sorted(f.name for f in _TEMPLATES.iterdir() if f.is_dir() and (f / "pipelines").is_dir())


def scaffold(template: str, folder: Path, *, force: bool = False) -> NewProject:
    """Write a template into a folder. Raises UnknownTemplate, FolderNotEmpty, NotWritable."""
    names = templates()
    if template not in names:
        close = difflib.get_close_matches(template, names, n=1)
        guess = f"did you mean `{close[0]}`? " if close else ""
        raise UnknownTemplate(f"there is no template `{template}`", hint=f"{guess}this version has {', '.join(names)}")
    if folder.exists() and not folder.is_dir():
        raise FolderNotEmpty(f"`{folder}` is a file", hint="name a folder")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise FolderNotEmpty(f"the folder `{folder}` is not empty")
    name = pipeline_name(folder)
    try:
        files = tuple(_write(source, _TEMPLATES / template, folder, name) for source in _files(_TEMPLATES / template))
    except OSError as bad:
        raise NotWritable(f"`{folder}` cannot be written: {bad.strerror or 'input/output error'}") from bad
    return NewProject(template, folder, files, _next_commands(template, folder))


def pipeline_name(folder: Path) -> str:
    """A folder's name converted to a pipeline name: lower-case letters, digits, underscores, a letter first."""
    text = re.sub(r"[^a-z0-9]+", "_", folder.resolve().name.lower()).strip("_")[:63]
    return text if text and text[0].isalpha() else f"p_{text}"[:63].rstrip("_")


def _files(root: Path) -> list[Path]:
    return sorted(f for f in root.rglob("*") if f.is_file() and "__pycache__" not in f.parts)


def _write(source: Path, root: Path, folder: Path, name: str) -> str:
    relative = source.relative_to(root).as_posix().replace(_PLACEHOLDER, name)
    relative = "/".join(part.replace(_DOT, ".", 1) if part.startswith(_DOT) else part for part in relative.split("/"))
    target = folder / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source.read_text(encoding="utf-8").replace(_PLACEHOLDER, name), encoding="utf-8")
    return relative


def _next_commands(template: str, folder: Path) -> tuple[str, ...]:
    go = () if folder.resolve() == Path.cwd() else (f"cd {display(folder)}",)
    match template:
        case "demo":
            return (*go, "python pipelines/shop_workload.py start", "cdc-lake run --once", "cdc-lake compare")
        case "databricks":
            return (*go, "cdc-lake bundle --out deploy")
        case _:
            return (*go, "cdc-lake validate", "cdc-lake check", "cdc-lake run --once")
