"""The demo, line by line, and the notebooks on its lake, cell by cell in plain Python."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest

from cdc_lake import Pipeline
from cdc_lake.tables.catalog import catalog_settings
from cdc_lake.tables.spark_session import RUNTIME_SETTINGS
from tests.conftest import INTERPRETED
from tests.shell import QuickShell

from .conftest import BUDGET

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@dataclass
class Shown:
    """What a notebook printed, and the last values of its cells."""

    text: str = ""
    values: list[Any] = field(default_factory=list)

    @property
    def frames(self) -> list[pd.DataFrame]:
        return [value for value in self.values if isinstance(value, pd.DataFrame)]

    @property
    def charts(self) -> list[str]:
        return [value.svg for value in self.values if hasattr(value, "_repr_svg_")]


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [c for c in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


def executed(notebook: Path, **given: Any) -> Shown:
    """Run a notebook's code as a kernel does: one cell after another, the last value of each is shown."""
    said, shown, names = io.StringIO(), Shown(), {"__name__": "__main__", **given}
    with contextlib.redirect_stdout(said):
        for cell in cells(notebook):
            body = ast.parse("".join(cell["source"])).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), notebook.name, "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names)
                shown.values += [] if value is None else [value]
    shown.text = said.getvalue()
    return shown


def workload(root: Path) -> ModuleType:
    """The demo's program of a project, as a module."""
    spec = importlib.util.spec_from_file_location("shop_workload", root / "pipelines" / "shop_workload.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Demo:
    """A project with a finished demo, its server running; `said`: what each command of the demo printed."""

    shell: QuickShell
    said: dict[str, str]


@pytest.fixture(scope="module")
def demo(spark: Any) -> Iterator[Demo]:
    """The demo's script, line by line, with the Spark that is there."""
    parent = Path(tempfile.mkdtemp(prefix="cdc_test_"))
    parent.chmod(0o755)  # the server is another user's
    QuickShell(parent).fine("init", "demo", "shop")
    shell, program = QuickShell(parent / "shop"), workload(parent / "shop")
    (shell.folder / "notebooks").mkdir()
    with (shell.folder / "pipelines" / "shop.yaml").open("a") as file:
        file.write("lake: {iceberg: {catalog: notebooks}}\n")  # Spark has a catalog of the usual name already
    said = {}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        for line in (ROOT / "pipelines" / "demo.sh").read_text().splitlines():
            match line.split():
                case ["python", "pipelines/shop_workload.py", verb, _]:
                    program.main(verb)
                    project = Pipeline.load(shell.folder / "pipelines" / "shop.yaml").project
                    for key, value in (catalog_settings(project) | (INTERPRETED if BUDGET == 1 else {})).items():
                        patch.setitem(RUNTIME_SETTINGS, key, value)
                case ["cdc", *words]:
                    said[" ".join(words)] = shell.fine(*words, "--pipeline", "pipelines/shop.yaml")
        yield Demo(shell, said)
        program.main("remove")
    shutil.rmtree(parent)


@pytest.fixture(autouse=True)
def beside(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo.shell.folder / "notebooks")
    monkeypatch.syspath_prepend(ROOT / "notebooks")  # a kernel starts there: `charts` is beside the notebooks


def test_the_demo_ends_as_the_readme_says(demo: Demo) -> None:
    assert [*demo.said] == ["run --once --only receive", "run --once", "compare", "status", "report"]
    assert "equal but for 3 quarantined keys" in demo.said["compare"]
    assert "quarantine" in demo.said["status"]
    assert (demo.shell.folder / "lake" / "reports" / "shop" / "report.html").is_file()
    assert "no address" in demo.shell.fine("inspect", "row", "public.customers", "1901"), "what it says to try next"


def test_01_shows_a_finished_lake() -> None:
    shown = executed(NOTEBOOKS[0])
    tables, last, story = shown.frames
    assert set(tables["format"]) == {"delta", "iceberg"}
    assert "public.prices" in shown.text
    assert len(last) == 5
    assert story["op"].tolist()[0] == "S"


def test_02_reads_bronze_and_draws_it() -> None:
    shown = executed(NOTEBOOKS[1])
    assert "public.carts" in shown.text
    assert "the chain holds" in shown.text
    assert not shown.frames[0].empty
    by_table, lag = shown.charts
    assert "public.orders" in by_table
    assert lag.count("<polyline") == 2
    for svg in shown.charts:
        assert {element.tag.partition("}")[2] for element in ET.fromstring(svg).iter()} >= {"svg", "text"}


def test_03_explains_why_a_row_is_not_in_silver() -> None:
    shown = executed(NOTEBOOKS[2])
    missing, story, waits, came, moved, silver = shown.frames
    assert missing.empty
    assert story["op"].tolist() == ["I", "U"]
    assert [rules != () for rules in waits["rules"]] == [True, False]
    assert len(came) == 3, "two orders and an email"
    assert moved["op"].tolist()[0] == "S"
    assert "the same story: True" in shown.text
    assert len(silver) == 1


def test_04_proves_silver_and_shows_what_is_held() -> None:
    shown = executed(NOTEBOOKS[3])
    assert "equal but for 3 quarantined keys" in shown.text
    tables, verified, rules, waits, past = shown.frames
    assert verified["verified_through"].notna().all()
    assert set(tables["verdict"]) <= {"equal", "equal but for 1 quarantined key", "equal but for 2 quarantined keys"}
    assert (rules["failed at the gate"] > 0).any()
    assert len(waits) == 4
    assert {"between_amount", "equal_to_source"} <= set(past["rule"])
    assert "0 cuts were not pinned" in shown.text
    assert (Path.cwd().parent / "lake" / "reports" / "shop" / "status.html").is_file()
    by_rule, trend = shown.charts
    assert "silver.orders" in by_rule
    assert "<polyline" in trend


def test_05_reads_a_cut_and_bronze_with_the_spark_it_is_given(spark: Any) -> None:
    dbutils = SimpleNamespace(secrets=SimpleNamespace(get=lambda scope, key: f"{scope}/{key}"))
    shown = executed(NOTEBOOKS[4], spark=spark, dbutils=dbutils)
    paid, changes = shown.frames
    assert paid["country"].tolist() == ["CN", "DE", "FR", "RU"]
    assert set(changes["_op"]) == {"I", "U"}
    assert "public_orders" in shown.text
