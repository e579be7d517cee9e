"""The result of `bundle` as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_lake.deploy.bundle_file import BundleFile


def bundle_text(done: BundleFile) -> str:
    """What was written or checked, and what the workspace needs before it is deployed."""
    lines = [f"{'written' if done.written else 'valid'}  {done.file}", f"jobs     {', '.join(done.jobs)}"]
    if done.secrets:
        lines.append(f"secrets  {', '.join(done.secrets)}")
    wheel = Path(done.wheel)
    steps = (
        []
        if done.wheel_there
        else [f"uv build --wheel --out-dir {wheel.parent.resolve()}   # in the sources of cdc_lake"]
    )
    if done.written:
        steps += [f"cd {wheel.parent.parent}", "databricks bundle deploy --target dev --var node_type_id=…"]
    return "\n".join([*lines, *(["", "next:", *(f"  {step}" for step in steps)] if steps else [])])
