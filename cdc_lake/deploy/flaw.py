"""A flaw of a bundle as a diagnostic: the kind is an error class, which has the code and the usual hint."""

from __future__ import annotations

from cdc_lake.config.yaml_nodes import Mark
from cdc_lake.errors import DeployError
from cdc_lake.model.diagnostic import Diagnostic, Severity


def flaw(kind: type[DeployError], summary: str, mark: Mark, path: str, hint: str | None = None) -> Diagnostic:
    """One thing that is wrong, where it is written."""
    return Diagnostic(Severity.ERROR, kind.code, summary, mark.location(path), kind.hint if hint is None else hint)
