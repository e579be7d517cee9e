"""The file `databricks.yml` of a pipeline. `databricks bundle validate` checks it, in the workspace it is meant for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from cdc_lake.config.effective import Deployed, read_deployment
from cdc_lake.config.loader import display, project_root
from cdc_lake.deploy.databricks_bundle import (
    PACKAGE,
    TARGETS,
    BundleParts,
    Extras,
    build,
    driver_needed,
    secrets,
    wheel_name,
)
from cdc_lake.errors import BundleNotWritten, NotDeployable
from cdc_lake.errors.base import install

FILE = "databricks.yml"
_HEAD = "# Written by `cdc-lake bundle`, which keeps changes made here unless `--force` tells it to overwrite them.\n"


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A bundle: its file, its jobs, what the workspace must have, and the wheel that it deploys.

    Attributes:
        file: The bundle, relative to the working directory.
        written: Whether the file was written; False if it had the same content.
        jobs: Names of the jobs.
        secrets: Secrets that must exist, as `scope/key`; `SCOPE` is the value of the variable `secret_scope`.
        wheel: Where the wheel must be.
        wheel_there: Whether it is there.
    """

    file: str
    written: bool
    jobs: tuple[str, ...]
    secrets: tuple[str, ...]
    wheel: str
    wheel_there: bool


def write_bundle(pipeline: Path, folder: Path, *, schedule: str | None = None, force: bool = False) -> BundleFile:
    """Write the bundle of a pipeline into a folder of its project.

    The bundle names secrets and never contains a value of one; a pipeline with a secret in plain text is refused.

    Args:
        pipeline: The pipeline file.
        folder: The folder, in the pipeline's project.
        schedule: When apply runs, as a Quartz expression; without it, apply runs continuously.
        force: Whether to overwrite a file with other content.

    Raises:
        ConfigInvalid: The pipeline is invalid.
        NotDeployable: The pipeline cannot run as jobs on Databricks, or would upload a secret.
        BundleNotWritten: The file has other content, or cannot be written.
    """
    read = {target: read_deployment(pipeline, target) for target in TARGETS}
    parts = BundleParts(version(PACKAGE), _extras(read["prod"]), _upward(pipeline, folder), schedule)
    bundle = build(read, parts)
    data = (_HEAD + yaml.safe_dump(bundle, sort_keys=False, allow_unicode=True, width=110)).encode()
    file, wheel = folder / FILE, folder / "dist" / wheel_name(version(PACKAGE))
    return BundleFile(
        file=display(file),
        written=_write(file, data, force=force),
        jobs=tuple(bundle["resources"]["jobs"]),
        secrets=secrets(read.values()),
        wheel=display(wheel),
        wheel_there=wheel.is_file(),
    )


def _extras(pipeline: Deployed) -> Extras:
    """The versions that are installed here: what was tried here is what runs there."""
    packages = ["great-expectations", "pandas", *(["psycopg"] if driver_needed(pipeline) else [])]
    try:
        return Extras({package: version(package) for package in packages})
    except PackageNotFoundError as missing:
        hint = f"`{install('databricks')}`: the jobs get the versions that are installed here"
        raise NotDeployable(f"`{missing.name}` is not installed here", where="this machine", hint=hint) from missing


def _upward(pipeline: Path, folder: Path) -> str:
    """The way from the bundle's folder to the project's, as the bundle writes it: `../`, or nothing."""
    root = project_root(pipeline)
    if not folder.resolve().is_relative_to(root):
        hint = f"name a folder in {display(root)}"
        raise NotDeployable("the bundle is not in the pipeline's project", where=str(folder), hint=hint)
    return "../" * len(folder.resolve().relative_to(root).parts)


def _write(file: Path, data: bytes, *, force: bool) -> bool:
    """Write the file unless it has this content. Raises BundleNotWritten."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if file.exists():
            if file.read_bytes() == data:
                return False
            if not force:
                hint = "compare the two, and add `--force` to write over it"
                raise BundleNotWritten(
                    f"`{file.name}` is there already and says something else", where=str(file), hint=hint
                )
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(file)
    except OSError as cause:
        hint = "make the folder writable and free space on its disk"
        raise BundleNotWritten(f"`{file.name}` could not be written", where=str(file.parent), hint=hint) from cause
    return True
