"""Canaries: texts that are to be nowhere, also not in what a command writes; `cdc_lake_testing.secrets` looks for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake_testing.secrets import leaks

__all__ = ["CANARY", "Told", "leaks", "told"]

CANARY = "hunter2canary"

Told = Callable[..., tuple[int, str]]


@pytest.fixture
def told(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """Runs a command in a project of this pipeline file; its exit code, and all that it wrote."""
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith(("PG", "CDC_LAKE_", "AWS_"))]:
        monkeypatch.delenv(name)

    def run(text: str, *arguments: str) -> tuple[int, str]:
        (tmp_path / "pipelines").mkdir(exist_ok=True)
        (tmp_path / "pipelines" / "shop.yaml").write_text(text, encoding="utf-8")
        capfd.readouterr()
        code = run_command(app, list(arguments))
        out, err = capfd.readouterr()
        return code, out + err

    return run
