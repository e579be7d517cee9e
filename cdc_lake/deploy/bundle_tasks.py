"""A task of a bundle: one compute, a classic one where it is ours; an entry point that the wheel has."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator

from cdc_lake.config.yaml_nodes import MappingNode, Mark, Node, ScalarNode, SequenceNode, join
from cdc_lake.deploy.entry_points import ENTRY_POINTS, NEEDED, PACKAGE
from cdc_lake.deploy.fields import COMPUTE
from cdc_lake.deploy.flaw import flaw
from cdc_lake.errors import ComputeUnclear, EntryPointMissing, ServerlessCompute
from cdc_lake.model.diagnostic import Diagnostic

_WHY_CLASSIC = "serverless compute speaks Spark Connect only, and cdc_lake works with Spark's own sessions and streams"


def task_flaws(task: MappingNode, path: str, entry_points: Collection[str], called: set[str]) -> Iterator[Diagnostic]:
    """What is wrong with a task; `called` takes the entry points of this package that it calls."""
    work = task.entries.get("python_wheel_task")
    ours = isinstance(work, MappingNode) and _text(work.entries.get("package_name")) == PACKAGE
    yield from _compute(task, path, ours=ours)
    if ours and isinstance(work, MappingNode):
        below = join(path, "python_wheel_task")
        name = _text(work.entries.get("entry_point"))
        called.add(name)
        yield from _entry_point(work, name, below, entry_points)
        if name in ENTRY_POINTS:
            yield from _parameters(work, name, below)


def _text(node: Node | None) -> str:
    return node.text if isinstance(node, ScalarNode) else ""


def _compute(task: MappingNode, path: str, *, ours: bool) -> Iterator[Diagnostic]:
    given = [key for key in COMPUTE if key in task.entries]
    if len(given) > 1:
        names = " and ".join(f"`{key}`" for key in given)
        yield flaw(ComputeUnclear, f"a task has more than one compute: {names}", task.keys[given[1]], path)
    if ours and not given:
        yield flaw(ComputeUnclear, f"a task has no compute: {_WHY_CLASSIC}", task.mark, path)
    if ours and (serverless := [key for key in ("environment_key", "compute") if key in given]):
        key = serverless[0]
        yield flaw(ServerlessCompute, f"a job is serverless: {_WHY_CLASSIC}", task.keys[key], join(path, key))


def _entry_point(work: MappingNode, name: str, path: str, known: Collection[str]) -> Iterator[Diagnostic]:
    if name in known:
        return
    close = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(sorted(known))}"
    mark = work.keys.get("entry_point", work.mark)
    said = f"the wheel has no entry point `{name}`" if name else "`entry_point` is missing"
    yield flaw(EntryPointMissing, said, mark, join(path, "entry_point"), hint)


def _parameters(work: MappingNode, name: str, path: str) -> Iterator[Diagnostic]:
    given = dict(_given(work, path))
    for parameter, (mark, below) in given.items():
        if parameter not in ENTRY_POINTS[name]:
            hint = f"it takes {', '.join(sorted(ENTRY_POINTS[name]))}"
            yield flaw(EntryPointMissing, f"`{name}` takes no parameter `{parameter}`", mark, below, hint)
    if NEEDED not in given:
        hint = "name the pipeline file: `${workspace.file_path}/pipelines/NAME.yaml`"
        yield flaw(EntryPointMissing, f"`{name}` is given no `{NEEDED}`", work.mark, path, hint)


def _given(work: MappingNode, path: str) -> Iterator[tuple[str, tuple[Mark, str]]]:
    named, listed = work.entries.get("named_parameters"), work.entries.get("parameters")
    if isinstance(named, MappingNode):
        for key, mark in named.keys.items():
            yield key, (mark, join(join(path, "named_parameters"), key))
    if isinstance(listed, SequenceNode):
        for i, item in enumerate(listed.items):
            name = _text(item).removeprefix("--").partition("=")[0]
            yield name, (item.mark, join(join(path, "parameters"), i))
