"""The documentation says only what is there: links, commands, pipeline files, Python, generated pages, notebooks."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import itertools
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.cli.app import ORDER, app
from cdc_lake.cli.text import codes
from cdc_lake.config.loader import validate
from cdc_lake.config.model import Pipeline
from cdc_lake.config.schema import SOURCE_TYPES
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.change import Insert, Transaction, Update
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.live.test_postgres_versions import BEHAVIOURS
from tests.postgres_matrix import HEAD, PAGE, VERSIONS
from tests.postgres_matrix import page as matrix_page
from tools.docs import REFERENCE
from tools.docs.command_line import EXIT_CODES
from tools.docs.lake_tables import example
from tools.docs.pages import PAGES as GENERATED

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    p
    for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "cdc_lake/cli/templates").rglob("*.md"))
    if p.is_file()
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    return [m[3] for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if m[2] in languages]


@cache
def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


# ── links ────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_between_pages_resolve() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            to = (page.parent / path).resolve() if path else page
            assert to.exists(), f"{name(page)}: {target}"
            assert to.is_relative_to(ROOT), f"{name(page)}: {target}"
            if anchor:
                assert anchor in anchors(to), f"{name(page)}: {target}"


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────


def commands(text: str) -> list[str]:
    """`cdc-lake …` in code: whole lines of blocks, and spans of prose."""
    lines = re.findall(r"^\s*(?:\$ )?(cdc-lake(?: [^\n]*)?)$", text, re.MULTILINE)
    return [line.split("  #")[0].partition(" # ")[0].strip() for line in lines]


def spans(text: str) -> list[str]:
    return [s for s in re.findall(r"`([^`\n]+)`", text) if s.startswith("cdc-lake ")]


@cache
def verbs() -> Any:
    """All verbs with their options: made once, as a page may name dozens."""
    return get_command(app)


def problem(command: str) -> str | None:
    """Why a command line cannot be, None where it can."""
    words = shlex.split(command.partition(" | ")[0].replace("…", ""))[1:]
    node: Any = verbs()
    known = {o for p in node.params for o in p.opts}
    if wrong := [w for w in itertools.takewhile(lambda w: w.startswith("-"), words) if w not in known]:
        return f"no option `{wrong[0]}`"
    words = list(itertools.dropwhile(lambda w: w.startswith("-"), words))
    while words and hasattr(node, "commands") and not words[0].startswith("-"):
        if words[0] not in node.commands:
            return None if words[0].isupper() else f"no verb `{words[0]}`"
        node = node.commands[words.pop(0)]
    known = {o for p in node.params for o in (*p.opts, *p.secondary_opts)} | {"-h", "--help"}
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in known:
            return f"no option `{word}`"
    return None


def test_commands_exist_with_their_options() -> None:
    for page in PAGES:
        found = [c for block in blocks(page, "", "sh", "bash", "console") for c in commands(block)]
        found += spans(prose(page))
        wrong = {c: why for c in found if (why := problem(c))}
        assert not wrong, name(page)


def test_commands_in_the_hints_of_errors_exist() -> None:
    def classes(kind: type[CdcLakeError]) -> list[type[CdcLakeError]]:
        return [kind, *(c for sub in kind.__subclasses__() for c in classes(sub))]

    importlib.import_module("cdc_lake.model.diagnostic")
    wrong = {(k.code, c): why for k in classes(CdcLakeError) for c in spans(k.hint) if (why := problem(c))}
    assert not wrong


def test_the_check_of_commands_finds_wrong_ones() -> None:
    assert problem("cdc-lake run --once --only receive") is None
    assert problem("cdc-lake inspect tx 0/16B3748") is None
    assert problem("cdc-lake rum") == "no verb `rum`"
    assert problem("cdc-lake run --twice") == "no option `--twice`"
    assert commands("$ cdc-lake check   # is it?\n  cdc-lake plan\n") == ["cdc-lake check", "cdc-lake plan"]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = "\n".join([*blocks(page, ""), *re.findall(r"`([^`\n]+)`", prose(page))])
        assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets, name(page)


# ── pipeline files ───────────────────────────────────────────────────────────────────────────────────────────────


def test_pipeline_files_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            if not block.startswith("version:") or page.parent.name == "errors":
                continue  # a part of a file; an example of what is wrong
            for variable in re.findall(r"\$\{env:(\w+)", block):
                monkeypatch.setenv(variable, "x")
            file = tmp_path / "shown.yaml"
            file.write_text(block, encoding="utf-8")
            assert validate([file]) == [], name(page)


def test_the_readme_shows_a_pipeline_file() -> None:
    assert any(block.startswith("version: 1") for block in blocks(ROOT / "README.md", "yaml"))


# ── Python ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_python_compiles_and_imports_what_is_there() -> None:
    for page in PAGES:
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cdc_lake"):
                    module = importlib.import_module(node.module)
                    assert all(hasattr(module, alias.name) for alias in node.names), f"{name(page)}: {node.module}"


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", SOURCE_TYPES)
def test_every_kind_of_source_has_a_page_that_says_what_was_proven(kind: str) -> None:
    page = ROOT / "docs" / "guides" / f"{kind}.md"
    assert "what-was-proven-and-how" in anchors(page)
    assert f"guides/{kind}.md" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


# ── the index ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_index_leads_to_every_page_and_notebook() -> None:
    index = ROOT / "docs" / "README.md"
    led = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(index))}
    pages = {p for p in PAGES if p.is_relative_to(ROOT / "docs") and p.parent.name not in {"errors", "decisions"}}
    assert {name(p) for p in (*pages - {index}, *NOTEBOOKS) if p not in led} == set()


def test_a_page_of_reference_is_made_by_a_script() -> None:
    by_hand = {p.name for p in (ROOT / "docs/reference").glob("*.md") if not p.read_text().startswith("<!-- ")}
    assert by_hand <= {"versions.md", "mistakes.md"}, "tests of their own compare those with what is there"


# ── generated pages ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_example_of_bronze_has_every_kind_of_row_that_is_written() -> None:
    assert {row["op"] for row in example()} == set("BRIUDTMCSX")


def test_pinned_versions_are_those_of_the_page() -> None:
    page = (ROOT / "docs/reference/versions.md").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for package in ("pyspark", "delta-spark", "deltalake", "pyiceberg", "psycopg", "great-expectations", "pandas"):
        assert f"| {package} | {pins[package]}" in page
    driver = importlib.import_module("cdc_lake.tables.catalog").POSTGRES_DRIVER
    for coordinates in (*importlib.import_module("cdc_lake.tables.spark_session").PACKAGES, driver):
        assert coordinates.rpartition(":")[2] in page, coordinates


# ── notebooks (run by tests/spark/test_notebooks.py) and Python on pages ─────────────────────────────────────────


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [c for c in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(notebook))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_a_notebook_uses_public_names_alone(notebook: Path) -> None:
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in cells(notebook)))
    used = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in used if module.startswith("cdc_lake")} <= {"cdc_lake"}


def test_the_python_of_the_page_of_bronze_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what needs Spark; that is in tests/spark."""
    finished_lake(tmp_path)
    monkeypatch.chdir(tmp_path)
    said, names = io.StringIO(), {"__name__": "__main__"}
    with contextlib.redirect_stdout(said):
        for block in blocks(ROOT / "docs/reference/bronze.md", "python"):
            if "spark" not in block:
                exec(compile(block, "bronze.md", "exec"), names)
    assert "paid" in said.getvalue()


def finished_lake(folder: Path) -> None:
    """Of what a demo leaves, in small: bronze with a copy and two transactions."""
    orders = table("public.orders", id="int4", status="text")
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "shop.yaml").write_text(
        "version: 1\npipeline: shop\nsource: {type: postgres, host: 127.0.0.1, port: 1, database: shop, user: cdc, "
        'connect_timeout: 1 s, tables: ["public.*"]}\n'
    )
    bronze = DeltaBronze(folder / "lake" / "bronze" / "shop")
    bronze.begin_stream("pg:1:shop:shop:0/3E8", 1000)
    bronze.append_snapshot("initial-1", 0, orders, pa.array([["1", "new"]]), 0, 1000)
    for position, change in ((2000, Insert(orders, ("2", "new"))), (3000, Update(orders, ("1", "paid")))):
        bronze.append([raw_transaction(Transaction(boundaries(position), (change,)))])


@pytest.mark.parametrize("name", sorted(GENERATED.keys() - {"licences.md"}))
def test_a_generated_page_is_current(name):
    """All but the page of licences: what is installed differs a little from machine to machine (test_packaging.py)."""
    assert (REFERENCE / name).read_text(encoding="utf-8") == GENERATED[name](), "run `make docs`"


def test_every_key_has_a_description():
    schema = json.loads(GENERATED["pipeline.schema.json"]())
    for name, node in [("Pipeline", schema), *schema["$defs"].items()]:
        for key, value in node.get("properties", {}).items():
            assert value.get("description") or "$ref" in value, f"{name}.{key}"


def test_the_schema_knows_every_top_level_key():
    schema = json.loads(GENERATED["pipeline.schema.json"]())
    assert set(schema["properties"]) == {i.alias or n for n, i in Pipeline.model_fields.items()}
    assert schema["additionalProperties"] is False


def test_the_page_of_errors_has_every_code_once_with_its_exit_code():
    rows = dict(
        re.findall(r"^\| \[(\w+)\]\(\S+\) \| .+ \| (\d+) \| (?:yes)? \|$", GENERATED["errors.md"](), re.MULTILINE)
    )
    assert sorted(rows) == codes()
    assert {rows["SRC201"], rows["CFG104"], rows["QUA501"], rows["STA612"]} == {"4", "3", "5", "1"}
    assert {int(code) for code in rows.values()} <= {code for code, _, _ in EXIT_CODES}


def test_every_verb_has_its_place_in_the_list():
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    assert {name for name, command in group.commands.items() if not command.hidden} == set(ORDER)


def test_the_page_is_of_these_behaviours() -> None:
    text = PAGE.read_text()
    assert text.startswith(HEAD)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.removeprefix(HEAD).splitlines()]
    head, _, *rows = lines
    assert tuple(int(version.partition(".")[0]) for version in head[1:]) == VERSIONS
    assert [row[0] for row in rows] == [one.title for one in BEHAVIOURS]
    for one, row in zip(BEHAVIOURS, rows, strict=True):
        for version, cell in zip(VERSIONS, row[1:], strict=True):
            assert cell == ("yes" if version >= one.since else "")
    found = {
        version: {"version": head[nth], **{row[0]: row[nth] for row in rows}} for nth, version in enumerate(VERSIONS, 1)
    }
    assert matrix_page(found, [row[0] for row in rows]) == text
