"""Measures of the code's structure and names, each with a budget.

    python tools/house.py            # print the measures; exit with 1 if one exceeds its budget
    python tools/house.py --names    # also list what the measures of names counted, the most frequent first
    python tools/house.py --lines    # also list what the lines of each package are

It parses the modules of the product with `ast` and runs nothing. A module is a file of `cdc_lake` but `__init__.py` and
the templates of new projects.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "cdc_lake"

BUDGETS: Mapping[str, float] = {
    "modules": 257,
    "median lines of a module": 350,
    "modules for 10,000 lines": 40,  # it rises as lines fall, so this is what the plan allowed
    "modules under 60 lines": 5,
    "lines": 77_100,
    "function names that are a bare participle, pronoun or adverb, %": 0.1,
    "uses of banned words among identifiers, %": 0.1,
    "import cycles of modules": 0,
    "docstrings that only say `See X.`": 0,
    "files in the largest folder": 26,
}
"""Upper bounds. Lower one when the code allows it; raise one only with a decision (0069)."""

BANNED = frozenset(
    (
        "tell told heed said given found one mine ours there behind beside anew whole kept made whoever at out done "
        "some look seen known taken turned"
    ).split()
)
"""Words that say nothing about the thing they name (CONTRIBUTING.md)."""
IRREGULAR = frozenset(
    (
        "begun born bought bound brought built come done drawn driven fallen fed felt found given gone grown "
        "heard held hidden kept known laid led left lent lost made meant met paid said sat seen sent shown sold "
        "sought spent spoken stood struck stuck sworn taken taught thought told torn understood woken won worn "
        "written"
    ).split()
)
"""Past participles; those that are the verb itself too (`read`, `put`, `set`) are not among them."""
PARTICLES = frozenset(
    (
        "about above after again all alone along already always anew another anyone anything apart around as aside "
        "at away back before behind below beneath beside besides between beyond both by down each either else ever "
        "every few for forth from here in inside into its itself later less many mine more most much near nearby "
        "neither never next no nobody none nothing now of off on once one only onto other others ours out outside "
        "over own rather same several since so some someone something soon still such than that theirs them then "
        "there these they this those thus till to together too toward under until up upon upto when where which "
        "while who whoever whole whom whose why with within without yet"
    ).split()
)
REGULAR_NOUNS = frozenset("bed embed feed need proceed seed speed succeed exceed bleed breed weed".split())


@dataclass(frozen=True)
class Module:
    """A product module: its dotted name, file, number of lines and syntax tree."""

    name: str
    file: Path
    lines: int
    tree: ast.Module


def read_modules(root: Path = ROOT) -> list[Module]:
    """Parse all product modules, in the order of their names."""
    modules = []
    for file in sorted((root / PACKAGE).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__" or "templates" in parts:
            continue
        text = file.read_text(encoding="utf-8")
        modules.append(Module(".".join(parts), file, text.count("\n"), ast.parse(text)))
    return modules


def function_names(modules: Iterable[Module]) -> Iterator[str]:
    """The names of all functions and methods, without leading underscores and without `__special__` ones."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.endswith("__"):
                yield node.name.lstrip("_")


def is_bare(name: str) -> bool:
    """Whether a name is one word that is a past participle, a pronoun, a preposition or an adverb."""
    if "_" in name:
        return False
    regular = len(name) > 4 and name.endswith("ed") and name not in REGULAR_NOUNS
    return regular or name in IRREGULAR or name in PARTICLES


def identifiers(modules: Iterable[Module]) -> Iterator[str]:
    """Every use of an identifier: names, attributes, parameters, keywords, functions and classes."""
    for module in modules:
        for node in ast.walk(module.tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                    yield name.lstrip("_")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield name.lstrip("_")


def imported_modules(module: Module, names: frozenset[str]) -> set[str]:
    """The product modules that a module imports at any place, for types alone and inside functions included."""
    imported = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=aliases):
                imported |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(source), names=aliases, level=0):
                imported |= {source} | {f"{source}.{alias.name}" for alias in aliases}
    return (imported & names) - {module.name}


def import_cycles(modules: Iterable[Module]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    names = frozenset(module.name for module in modules)
    graph = {module.name: sorted(imported_modules(module, names)) for module in modules}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            component = [stack.pop()]
            while component[-1] != name:
                component.append(stack.pop())
            if len(component) > 1:
                cycles.append(sorted(component))

    for name in graph:
        if name not in index:
            visit(name)
    return cycles


def riddles(modules: Iterable[Module]) -> int:
    """The number of docstrings that only refer to another place."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    texts = (ast.get_docstring(node) for module in modules for node in ast.walk(module.tree) if isinstance(node, kinds))
    return sum(1 for text in texts if text is not None and re.fullmatch(r"See [\w.`]+\.?", text.strip()))


def share(part: int, whole: int) -> float:
    """A percentage with one decimal."""
    return round(100 * part / whole, 1) if whole else 0.0


def measure(modules: list[Module]) -> dict[str, float]:
    """All measures, by the names that `BUDGETS` has."""
    lines = [module.lines for module in modules]
    functions = list(function_names(modules))
    uses = Counter(identifiers(modules))
    folders = Counter(module.file.parent for module in modules)
    return {
        "modules": len(modules),
        "median lines of a module": statistics.median(lines),
        "modules for 10,000 lines": round(len(modules) / sum(lines) * 10_000, 1),
        "modules under 60 lines": sum(1 for count in lines if count < 60),
        "lines": sum(lines),
        "function names that are a bare participle, pronoun or adverb, %": share(
            sum(map(is_bare, functions)), len(functions)
        ),
        "uses of banned words among identifiers, %": share(sum(uses[word] for word in BANNED), uses.total()),
        "import cycles of modules": len(import_cycles(modules)),
        "docstrings that only say `See X.`": riddles(modules),
        "files in the largest folder": max(folders.values()),
    }


def print_names(modules: list[Module]) -> None:
    """List the names that are counted, with how often each occurs."""
    for title, counted in (
        ("function names", Counter(filter(is_bare, function_names(modules)))),
        ("banned words", Counter(name for name in identifiers(modules) if name in BANNED)),
    ):
        print(f"\n{title}: {', '.join(f'{name} {count}' for name, count in counted.most_common())}")
    for cycle in import_cycles(modules):
        print(f"\ncycle: {', '.join(cycle)}")


def kinds_of_lines(module: Module) -> Counter[str]:
    """The number of lines of a module that are blank, docstrings, imports, signatures, and other code."""
    text = module.file.read_text(encoding="utf-8").splitlines()
    kind = {number: "blank" if not line.strip() else "code" for number, line in enumerate(text, 1)}
    for node in ast.walk(module.tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                first, last, name = node.lineno, node.end_lineno or 0, "imports"
            case ast.Expr(value=ast.Constant(value=str())):
                first, last, name = node.lineno, node.end_lineno or 0, "docstrings"
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                first, last, name = node.lineno, node.body[0].lineno - 1, "signatures"
            case _:
                continue
        kind.update(
            (number, name) for number in range(first, last + 1) if kind[number] != "blank" or name == "docstrings"
        )
    return Counter(kind.values())


def print_lines(modules: list[Module]) -> None:
    """List the lines of each package by what they are."""
    columns = ("code", "signatures", "docstrings", "imports", "blank")
    packages: dict[str, Counter[str]] = {}
    for module in modules:
        package = module.name.split(".")[1] if module.name.count(".") > 1 else "(top)"
        packages[package] = packages.get(package, Counter()) + kinds_of_lines(module)
    packages["all"] = sum(packages.values(), Counter[str]())
    print(f"\n{'lines':>8}  " + "  ".join(f"{column:>10}" for column in columns))
    for package, counts in packages.items():
        shares = "  ".join(f"{counts[column]:>10,}" for column in columns)
        print(f"{counts.total():>8,}  {shares}  {package}")


def main() -> int:
    """Print the measures beside their budgets.

    Returns:
        0, or 1 if a measure exceeds its budget.
    """
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--names", action="store_true", help="list the names and cycles that are counted")
    options.add_argument("--lines", action="store_true", help="list the lines of each package by what they are")
    chosen = options.parse_args()
    modules = read_modules()
    measured = measure(modules)
    exceeded = {name for name, value in measured.items() if value > BUDGETS[name]}
    for name, value in measured.items():
        print(f"{value:>10,g}  of {BUDGETS[name]:>8,g}  {name}{'  EXCEEDED' if name in exceeded else ''}")
    if chosen.names:
        print_names(modules)
    if chosen.lines:
        print_lines(modules)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
