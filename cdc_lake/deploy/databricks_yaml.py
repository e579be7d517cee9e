"""The file `databricks.yml` of a pipeline: made, checked, written; or one that is there, checked."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from cdc_lake.config.effective import Deployed, read_deployment
from cdc_lake.config.loader import display, project_root
from cdc_lake.deploy.databricks_bundle import (
    ENTRY_POINTS,
    PACKAGE,
    TARGETS,
    BundleParts,
    Extras,
    build,
    driver_needed,
    in_wheel,
    secrets,
    wheel_name,
)
from cdc_lake.deploy.databricks_checks import Known, Names, require_valid
from cdc_lake.errors import BundleNotWritten, NotDeployable
from cdc_lake.errors.base import install
from cdc_lake.model.diagnostic import Diagnostic

FILE = "databricks.yml"
_HEAD = """\
# Written by `cdc-lake bundle`; changes made here are kept until it is told `--force`, and judged by `--check`.
"""


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A bundle: its file, its jobs, what the workspace must have, and the wheel that it deploys.

    `secrets`: `scope/key`, where `SCOPE` is the variable `secret_scope`; `wheel_there`: whether the wheel is in place.
    """

    file: str
    written: bool
    jobs: tuple[str, ...]
    secrets: tuple[str, ...]
    wheel: str
    wheel_there: bool
    warnings: tuple[Diagnostic, ...] = ()


def write_bundle(pipeline: Path, folder: Path, *, schedule: str | None = None, force: bool = False) -> BundleFile:
    """Write the bundle of a pipeline into a folder of its project; nothing is written unless all of it is right.

    `schedule`: when apply runs, as a Quartz expression; without it, it runs on and on. Raises ConfigInvalid,
    NotDeployable, BundleInvalid, BundleNotWritten.
    """
    read = {target: read_deployment(pipeline, target) for target in TARGETS}
    parts = BundleParts(version(PACKAGE), _extras(read["prod"]), _upward(pipeline, folder), schedule)
    bundle = build(read, parts)
    data = (_HEAD + yaml.safe_dump(bundle, sort_keys=False, allow_unicode=True, width=110)).encode()
    file = folder / FILE
    bundle_file = _judge(data, file, read)
    _write(file, data, force=force)
    return replace(bundle_file, written=True)


def check_file(pipeline: Path, folder: Path) -> BundleFile:
    """Check the bundle that is in a folder. Raises ConfigInvalid, NotDeployable, BundleInvalid, BundleNotWritten."""
    read = {target: read_deployment(pipeline, target) for target in TARGETS}
    build(read, BundleParts(version(PACKAGE), _extras(read["prod"]), _upward(pipeline, folder)))  # still deployable
    file = folder / FILE
    try:
        data = file.read_bytes()
    except OSError as cause:
        hint = f"`cdc-lake bundle {display(pipeline)} --out {display(folder)}` writes it"
        raise BundleNotWritten(f"there is no bundle here: {cause.strerror}", where=str(file), hint=hint) from cause
    return _judge(data, file, read)


def _judge(data: bytes, file: Path, read: Mapping[str, Deployed]) -> BundleFile:
    wheel = file.parent / "dist" / wheel_name(version(PACKAGE))
    wheel_exists = wheel.is_file()
    known_names = Known(_entry_points(wheel) if wheel_exists else frozenset(ENTRY_POINTS), _names(read))
    warnings = require_valid(data, display(file), known_names)
    jobs = yaml.safe_load(data).get("resources", {}).get("jobs", {})
    return BundleFile(
        file=display(file),
        written=False,
        jobs=tuple(jobs),
        secrets=secrets(read.values()),
        wheel=display(wheel),
        wheel_there=wheel_exists,
        warnings=tuple(warnings),
    )


def _entry_points(wheel: Path) -> frozenset[str]:
    try:
        return in_wheel(wheel)
    except (OSError, zipfile.BadZipFile) as cause:
        hint = "build or download it again"
        raise BundleNotWritten("the wheel cannot be read", where=str(wheel), hint=hint) from cause


def _names(read: Mapping[str, Deployed]) -> Names:
    """What the pipeline says of the environment variables that it reads."""
    references = [r for pipeline in read.values() for r in pipeline.references if r.kind == "env"]
    secret = frozenset(r.name for r in references if r.secret)
    plain = frozenset(r.name for r in references) - secret
    return Names(secret, plain | {name.lower() for name in plain})


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


def _write(file: Path, data: bytes, *, force: bool) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if not force and file.exists() and file.read_bytes() != data:
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
