"""Which pipeline a command is about, when its file was not named."""

from __future__ import annotations

import re
from pathlib import Path

from cdc_lake.config.load import PIPELINES, display
from cdc_lake.config.problems import PipelineNotChosen

_SUFFIXES = frozenset({".yaml", ".yml"})
_PIPELINE_KEY = re.compile(rb"^pipeline\s*:", re.MULTILINE)


def choose(given: Path | None, folder: Path) -> Path:
    """The file that was named, or the only one of the project in `folder`. Raises PipelineNotChosen."""
    if given is not None:
        return given
    found = candidates(folder)
    if len(found) == 1:
        return found[0]
    if not found:
        raise PipelineNotChosen(
            f"no pipeline file in {folder}",
            hint="go to the project's folder, name a file with `--pipeline FILE`, or start with "
            "`cdc-lake init postgres DIR`",
        )
    names = "\n  ".join(display(f) for f in found)
    raise PipelineNotChosen(
        f"this project has {len(found)} pipelines:\n  {names}", hint=f"name one: `--pipeline {display(found[0])}`"
    )


def candidates(folder: Path) -> list[Path]:
    """The pipeline files of a project: all of `pipelines/`, or the files in the folder that say `pipeline:`."""
    inside = folder / PIPELINES
    if inside.is_dir() and (found := _yaml(inside)):
        return found
    return [f for f in _yaml(folder) if folder.name == PIPELINES or _PIPELINE_KEY.search(f.read_bytes())]


def _yaml(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.suffix in _SUFFIXES and f.is_file())
