"""Every code block of the documentation is looked at by some test, or says why not; translations have the same ones.

A block that nothing reads is marked in the line before it: `<!-- not run: why -->`, or `<!-- run by: FILE -->` where a
test elsewhere does. Of the pages of errors, which quote what is said, pipeline files and parts of them are looked at.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent, indent

import pytest

from cdc_lake.config.loader import lay_over
from cdc_lake.config.schema import check
from cdc_lake.config.yaml_tree import parse
from tests.unit.test_docs import BLOCK, PAGES, ROOT, blocks, name, problem, prose

MARK = re.compile(r"<!-- (not run|run by): (.+) -->\n$")
MADE = re.compile(r"<!-- (made|generated) by ")
OTHERS = [p for p in PAGES if p.parent.name != "errors" and not MADE.match(p.read_text(encoding="utf-8"))]
SHELL = re.compile(r"(?:make|cd|export|chmod|python|\.venv/bin/pytest) .*|#.*|")
WHOLE = """
version: 1
pipeline: shop
source: {type: postgres, host: h, database: d, user: u, tables: ["*.*"]}
"""
OF_THE_FAMILY = r"decoding:|replication_port|mppdb|type: (gaussdb|opengauss|mogdb)|csn"


def found(page: Path) -> list[tuple[str, str, str]]:
    """Language, text and what stands before each block."""
    text = page.read_text(encoding="utf-8")
    return [(m[2], dedent(m[3]), text[: m.start()]) for m in BLOCK.finditer(text)]


def is_shell(text: str) -> bool:
    lines = [line.removeprefix("$ ").strip() for line in text.splitlines()]
    return all(line.startswith("cdc-lake") or SHELL.fullmatch(line) for line in lines)


def documents(text: str) -> list[object]:
    """JSON: one document, or one a line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def part_problems(text: str) -> list[str]:
    """What is wrong with a part of a pipeline file, laid over a whole one. A list is one of silver tables."""
    if text.startswith("-"):
        text = "silver:\n  tables:\n" + indent(text, "    ")
    elif (top := re.match(r"(rules|keys|tables|tls):", text)) is not None and top[1] in ("tables", "tls"):
        text = "source:\n" + indent(text, "  ")
    elif top is not None:
        text = "silver:\n  tables:\n    - from: public.t\n" + indent(text, "      ")
    whole = WHOLE.replace("postgres", "opengauss") if re.search(OF_THE_FAMILY, text) else WHOLE
    base, (over, wrong) = parse(whole.encode(), "whole")[0], parse(text.encode(), "part")
    assert base is not None
    return [d.summary for d in (wrong if over is None or wrong else check(lay_over(base, over))[1])]


def test_every_block_is_looked_at_or_says_why_not() -> None:
    for page in OTHERS:
        for language, text, before in found(page):
            mark = MARK.search(before.rstrip(" "))
            if mark is not None:
                assert mark[1] == "not run" or (ROOT / mark[2]).is_file(), f"{name(page)}: {mark[0]}"
                continue
            match language:
                case "":
                    assert is_shell(text), f"mend it, or mark it as not run: {name(page)}: {text}"
                case "json":
                    assert documents(text), name(page)
                case _:
                    assert language in {"yaml", "python"}, f"{name(page)}: {text}"


def test_parts_of_pipeline_files_fit() -> None:
    for page in (p for p in PAGES if blocks(p, "yaml")):
        for language, text, before in found(page):
            if language == "yaml" and not text.startswith("version:") and not MARK.search(before.rstrip(" ")):
                assert part_problems(text) == [], f"mend it, or mark it as not run: {name(page)}: {text}"


def test_pages_of_errors_hold_nothing_that_explain_should_not_print() -> None:
    """A block there that is no part of a pipeline file has no language."""
    assert [name(p) for p in PAGES if p.parent.name == "errors" and "<!--" in p.read_text(encoding="utf-8")] == []


def test_the_looks_find_what_is_wrong() -> None:
    assert part_problems("silver:\n  tabels: []\n") == ["unknown key `tabels` in `silver`"]
    assert part_problems("- {from: public.t, kid: history}\n") == ["unknown key `kid` in `silver.tables[0]`"]
    assert part_problems("a: [\n")
    assert is_shell("export A=b\ncdc-lake run\n")
    assert not is_shell("psql shop\n")
    assert problem("cdc-lake rum")


def test_links_by_reference_are_defined() -> None:
    for page in PAGES:
        text = prose(page)
        defined = set(re.findall(r"^\[([^\]]+)\]: https://\S+$", text, re.MULTILINE))
        used = set(re.findall(r"\]\[([^\]]+)\]", re.sub(r"`[^`\n]*`", "", text)))
        assert used == defined, name(page)


@pytest.mark.parametrize("page", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=name)
def test_links_in_notebooks_resolve(page: Path) -> None:
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        for target in re.findall(
            r"\]\(([^)\s]+)\)", "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        ):
            assert re.match(r"[a-z]+:", target) or (page.parent / target.partition("#")[0]).exists(), target


# ── translations ─────────────────────────────────────────────────────────────────────────────────────────────────

GUIDE = ROOT / "docs" / "guides" / "gaussdb.md"


def said(page: Path) -> list[str]:
    """Code blocks without comments and pictures."""
    lines = ([re.sub(r"(^|\s+)#.*$", "", line).rstrip() for line in text.splitlines()] for _, text, _ in found(page))
    return ["\n".join(filter(None, block)) for block in lines if not any("──▶" in line for line in block)]


@pytest.mark.parametrize("page", [ROOT / "README.zh.md", ROOT / "README.ru.md"], ids=name)
def test_a_translation_has_the_commands_of_the_original(page: Path) -> None:
    """All of the English README but its map of the folders, in order, and the server's part of the guide of GaussDB."""
    original, guide = said(ROOT / "README.md")[:-1], said(GUIDE)
    assert [block for block in said(page) if block in original] == original
    rest = [block for block in said(page) if block not in original]
    assert rest == guide[: len(rest)]
    assert len(rest) == len(guide)


@pytest.mark.parametrize("page", [ROOT / "README.zh.md", ROOT / "README.ru.md"], ids=name)
def test_a_translation_and_the_original_name_each_other(page: Path) -> None:
    assert "(README.md)" in page.read_text(encoding="utf-8")
    assert f"({page.name})" in (ROOT / "README.md").read_text(encoding="utf-8")
