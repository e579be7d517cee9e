"""Rename functions, methods, attributes, parameters and local variables wherever mypy finds them used.

    python rename.py TOP MAP.json [--dry]

MAP: {"package.module.name": "new", "package.module.Class.member": "new", "package.module.function(parameter)": "new",
"package.module.function[local]": "new"}. Renames follow imports, overrides, implementations of protocols, keyword arguments,
`partial`, `dataclasses.replace`, class patterns, `__slots__`, docstrings and `monkeypatch.setattr`. What cannot be placed is
printed. Not seen: names in other strings (`mock.patch`, code that tests start), `**{"name": …}`, fakes that derive from nothing.

Used for the names of the house (docs/decisions/0059); to be deleted with the last of its renames.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from mypy import build, nodes as N, types as T
from mypy.patterns import ClassPattern
from mypy.find_sources import create_source_list
from mypy.options import Options

EXCLUDED = {"node", "info", "analyzed", "type", "var", "variable", "expanded", "original_def", "unanalyzed_items", "subject_dummy",
            "assignments", "definition", "def_frame", "original_first_item", "names", "replacements", "unanalyzed_type", "defn", "setter", "store_argument"}
_ATTRS: dict[type, list[str]] = {}


def attributes(node: Any) -> list[str]:
    cls = type(node)
    if cls not in _ATTRS:
        names = []
        for base in cls.__mro__:
            for name in (*base.__dict__.get("__mypyc_attrs__", ()), *base.__dict__.get("__slots__", ())):
                if name not in names and name not in EXCLUDED and not name.startswith("__"):
                    names.append(name)
        _ATTRS[cls] = names
    return _ATTRS[cls]


def children(node: Any) -> Any:
    def nodes(value: Any) -> Any:
        if isinstance(value, N.Node) and not isinstance(value, (N.TypeInfo, N.Var, N.MypyFile, N.SymbolNode)):
            yield value
        elif isinstance(value, (N.FuncDef, N.Decorator, N.OverloadedFuncDef)):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from nodes(item)
        elif isinstance(value, dict):
            for item in value.values():
                yield from nodes(item)
    for name in attributes(node):
        try:
            value = getattr(node, name)
        except AttributeError:
            continue
        yield from nodes(value)


class TraverserVisitor:
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def visit(self, node: Any) -> None:
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        match node:
            case N.FuncDef(): self.visit_func_def(node)
            case N.LambdaExpr(): self.visit_lambda_expr(node)
            case N.NameExpr(): self.visit_name_expr(node)
            case N.MemberExpr(): self.visit_member_expr(node)
            case N.CallExpr(): self.visit_call_expr(node)
            case ClassPattern(): self.visit_class_pattern(node)
            case _: self.below(node)

    def below(self, node: Any) -> None:
        for child in children(node):
            self.visit(child)

    visit_mypy_file = below

TOP = Path(sys.argv[1]).resolve()
MAP: dict[str, str] = json.loads(Path(sys.argv[2]).read_text())
DRY = "--dry" in sys.argv
ROOTS = [p for p in (sys.argv[3].split(",") if len(sys.argv) > 3 and not sys.argv[3].startswith("--") else ("cdc_lake", "tests", "benchmarks")) if (TOP / p).is_dir()]


def options() -> Options:
    o = Options()
    o.incremental = False
    o.cache_dir = "/dev/null"
    o.export_types = True
    o.preserve_asts = True
    o.check_untyped_defs = True
    o.python_version = (3, 11)
    o.ignore_missing_imports = True
    o.follow_imports = "normal"
    o.namespace_packages = True
    o.explicit_package_bases = True
    o.mypy_path = [str(TOP)]
    o.local_partial_types = True
    o.show_traceback = False
    o.exclude = [r"templates/"]
    for heavy in ('pyspark','pandas','numpy','pyarrow','pyiceberg','deltalake','great_expectations','botocore','boto3','google','requests','psutil','jinja2','playwright','altair','matplotlib','hypothesis','_pytest','pytest','cryptography','pydantic','typer','rich','structlog','prometheus_client','openlineage','psycopg','py4j','fsspec','sqlalchemy','attr','attrs'):
        for name in (heavy, heavy + '.*'):
            o.per_module_options[name] = {'follow_imports': 'skip', 'ignore_missing_imports': True}
    o.build_per_module_cache()
    return o


class Renamer(TraverserVisitor):
    def __init__(self, types: dict[Any, Any], file: Path, tree: N.MypyFile, world: World) -> None:
        super().__init__()
        self.types, self.file, self.tree, self.world = types, file, tree, world
        self.source = file.read_bytes()
        self.lines = self.source.split(b"\n")
        self.edits: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.lost: list[str] = []
        self.func: list[str] = []
        self.py = ast.parse(self.source)
        self.calls = {}
        self.aliases = []
        self.match_classes = {}
        for node in ast.walk(self.py):
            if isinstance(node, ast.Call):
                self.calls[(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)] = node
            elif isinstance(node, ast.ImportFrom):
                self.aliases.append(node)
            elif isinstance(node, ast.MatchClass):
                self.match_classes[(node.lineno, node.col_offset)] = node

    # edits
    def put(self, line: int, col: int, old: str, new: str, why: str) -> None:
        o, n = old.encode(), new.encode()
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else b""
        if col >= 0 and text[col:col + len(o)] == o and not re.match(rb"\w", text[col + len(o):col + len(o) + 1]):
            self.edits[(line, col)] = (o, n)
            return
        found = [m.start() for m in re.finditer(rb"(?<!\w)" + re.escape(o) + rb"(?!\w)", text)]
        inside = [c for c in found if text[:c].count(b"{") > text[:c].count(b"}") and text[max(c - 1, 0):c] != b"."]
        if len(found) == 1:
            self.edits[(line, found[0])] = (o, n)
        elif inside and why in ("name", "lambda"):
            for c in inside:
                self.edits[(line, c)] = (o, n)
        else:
            self.lost.append(f"{self.file.relative_to(TOP)}:{line}:{col}: {old} -> {new} ({why}; {len(found)} on the line)")

    # definitions
    def visit_func_def(self, o: N.FuncDef) -> None:
        new = self.world.new_of(o.fullname) if o.info is None or o.info is N.FUNC_NO_INFO else self.world.new_member(o.info, o.name)
        if new is None and not (o.info and o.info is not N.FUNC_NO_INFO):
            new = self.world.new_of(self.local_name(o.name))
        if new:
            for line in range(o.line, o.line + 12):
                if line <= len(self.lines) and (m := re.search(rb"def\s+(" + re.escape(o.name.encode()) + rb")\b", self.lines[line - 1])):
                    self.put(line, m.start(1), o.name, new, "def")
                    break
            else:
                self.lost.append(f"{self.file}:{o.line} def {o.name}")
        name = o.fullname if o.fullname and "." in o.fullname and o.fullname.startswith(("cdc", "tests", "bench", "tools")) else self.local_name(o.name)
        self.func.append(name)
        self.params(o)
        self.below(o)
        self.func.pop()

    def local_name(self, name: str) -> str:
        return f"{self.func[-1]}.{name}" if self.func else f"{self.tree.fullname}.{name}"

    def params(self, o: N.FuncItem) -> None:
        for a in o.arguments:
            v = a.variable
            new = self.world.new_param(self.func[-1] if self.func else "", v.name)
            if new:
                self.world.vars[v] = new
                self.put(a.line, a.column, v.name, new, "parameter")

    def visit_lambda_expr(self, o: N.LambdaExpr) -> None:
        for a in o.arguments:
            if self.func and (new := self.world.new_local(self.func, a.variable.name)):
                self.world.vars[a.variable] = new
                self.put(a.line, a.column, a.variable.name, new, "lambda")
        self.below(o)

    # uses
    def var_new(self, o: N.NameExpr) -> str | None:
        node = o.node
        if isinstance(node, N.Var):
            if node in self.world.vars:
                return self.world.vars[node]
            if node.info and node.info is not N.VAR_NO_INFO and node.info.fullname:
                if (new := self.world.new_member(node.info, node.name)):
                    return new
            if "." in (node.fullname or "") and o.kind == N.GDEF:
                return self.world.new_of(node.fullname)
            if self.func and o.kind == N.LDEF:
                return self.world.new_local(self.func, node.name)
            if self.func and o.kind is None:
                return self.world.new_local(self.func, o.name)
        elif isinstance(node, N.FuncDef | N.OverloadedFuncDef | N.Decorator | N.TypeInfo | N.TypeAlias):
            return self.world.new_of(node.fullname) or self.world.new_of(self.local_name(o.name))
        elif node is None and self.func:
            return self.world.new_local(self.func, o.name)
        return None

    def visit_name_expr(self, o: N.NameExpr) -> None:
        if new := self.var_new(o):
            if o.name == new:
                return
            # an import under another name keeps it
            self.put(o.line, o.column, o.name, new, "name") if self.named_so(o) else None
        self.below(o)

    def named_so(self, o: N.NameExpr) -> bool:
        node = o.node
        return node is None or getattr(node, "name", o.name) == o.name

    def visit_member_expr(self, o: N.MemberExpr) -> None:
        new = None
        if isinstance(o.expr, N.RefExpr) and isinstance(o.expr.node, N.MypyFile) and o.fullname:
            real = o.node.fullname if o.node is not None and getattr(o.node, "fullname", None) else o.fullname
            new = self.world.new_of(real)
        elif isinstance(o.expr, N.RefExpr) and isinstance(o.expr.node, N.TypeInfo):
            new = self.world.new_member(o.expr.node, o.name)
        else:
            new = self.world.new_of_type(self.types.get(o.expr), o.name)
            if new is None and self.types.get(o.expr) is None and o.name in self.world.member_names:
                self.lost.append(f"{self.file.relative_to(TOP)}:{o.line}: .{o.name} of unknown type")
            elif new is None and isinstance(T.get_proper_type(self.types.get(o.expr)), T.AnyType) and o.name in self.world.member_names:
                self.lost.append(f"{self.file.relative_to(TOP)}:{o.line}: .{o.name} of Any")
        if new and new != o.name:
            self.put(o.end_line or o.line, (o.end_column or 0) - len(o.name.encode()), o.name, new, "member")
        self.below(o)

    def visit_call_expr(self, o: N.CallExpr) -> None:
        self.call(o)
        self.below(o)

    def call(self, o: N.CallExpr) -> None:
        node = self.calls.get((o.line, o.column, o.end_line, o.end_column))
        keywords = {k.arg: k for k in node.keywords if k.arg} if node else {}
        callee = o.callee
        partial = isinstance(callee, N.RefExpr) and callee.fullname in ("functools.partial",) and o.args
        target = o.args[0] if partial else callee
        if isinstance(callee, N.RefExpr) and callee.fullname in ("dataclasses.replace",) and o.args:
            for name, k in keywords.items():
                if new := self.world.new_of_type(self.types.get(o.args[0]), name):
                    self.put(k.lineno, k.col_offset, name, new, "replace")
            return
        if isinstance(callee, N.MemberExpr) and callee.name in ("setattr", "delattr") and len(o.args) >= 2 and isinstance(o.args[1], N.StrExpr):
            self.patched(o.args[0], o.args[1])
        if isinstance(callee, N.NameExpr) and callee.name in ("getattr", "hasattr", "setattr") and len(o.args) >= 2 and isinstance(o.args[1], N.StrExpr):
            self.patched(o.args[0], o.args[1])
        names = [n for n in o.arg_names if n]
        if not names:
            return
        for name in names:
            if name in self.world.param_names or name in self.world.member_names:
                new = self.param_of(target, name)
                if new and name in keywords:
                    self.put(keywords[name].lineno, keywords[name].col_offset, name, new, "keyword")
                elif new:
                    self.lost.append(f"{self.file.relative_to(TOP)}:{o.line}: keyword {name}")

    def param_of(self, target: Any, name: str) -> str | None:
        """The new name of a parameter of what is called."""
        node = target.node if isinstance(target, N.RefExpr) else None
        if isinstance(node, N.TypeInfo):
            return self.world.param_of_class(node, name)
        if isinstance(node, N.Decorator):
            node = node.func
        if isinstance(node, N.FuncDef):
            if new := self.world.new_param(node.fullname, name):
                return new
        t = T.get_proper_type(self.types.get(target))
        for item in ([t] if not isinstance(t, T.Overloaded) else t.items):
            if isinstance(item, T.CallableType):
                d = item.definition
                if isinstance(d, N.Decorator):
                    d = d.func
                if isinstance(d, N.FuncDef):
                    if d.name in ("__init__", "__new__") and d.info:
                        return self.world.param_of_class(d.info, name)
                    if d.info and d.info is not N.FUNC_NO_INFO:
                        return self.world.new_param_member(d.info, d.name, name)
                    return self.world.new_param(d.fullname, name)
                if item.is_type_obj():
                    return self.world.param_of_class(item.type_object(), name)
        if isinstance(t, T.TypeType) and isinstance(T.get_proper_type(t.item), T.Instance):
            return self.world.param_of_class(T.get_proper_type(t.item).type, name)
        if isinstance(target, N.MemberExpr):
            for info in self.world.infos(self.types.get(target.expr)):
                if new := self.world.new_param_member(info, target.name, name):
                    return new
        return None

    def patched(self, owner: Any, text: N.StrExpr) -> None:
        new = None
        if isinstance(owner, N.RefExpr) and isinstance(owner.node, N.MypyFile):
            sym = owner.node.names.get(text.value)
            new = self.world.new_of(sym.node.fullname if sym and sym.node is not None and getattr(sym.node, 'fullname', None) else f"{owner.node.fullname}.{text.value}")
        elif isinstance(owner, N.RefExpr) and isinstance(owner.node, N.TypeInfo):
            new = self.world.new_member(owner.node, text.value)
        else:
            new = self.world.new_of_type(self.types.get(owner), text.value)
        if new:
            line = self.lines[text.line - 1]
            col = line.find(text.value.encode(), text.column)
            self.put(text.line, col, text.value, new, "patched")

    def visit_class_pattern(self, o: Any) -> None:
        node = self.match_classes.get((o.line, o.column))
        info = o.class_ref.node
        if isinstance(info, N.TypeInfo) and node is not None:
            for key, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
                if new := self.world.new_member(info, key):
                    head = self.lines[pattern.lineno - 1][:pattern.col_offset]
                    col = head.rfind(key.encode())
                    self.put(pattern.lineno, col, key, new, "pattern")
        self.below(o)

    def imports(self) -> None:
        for node in self.aliases:
            if node.level or not node.module:
                continue
            module = self.world.trees.get(node.module)
            for alias in node.names:
                real = f"{node.module}.{alias.name}"
                if module is not None and (sym := module.names.get(alias.name)) and sym.node is not None and getattr(sym.node, "fullname", None):
                    real = sym.node.fullname
                if (new := self.world.new_of(real)) and real.rpartition(".")[2] == alias.name:
                    self.put(alias.lineno, alias.col_offset, alias.name, new, "import")

    def words(self) -> None:
        """Names in `__slots__`, and in docstrings between backticks."""
        def walk(node: Any, q: str) -> None:
            for ch in ast.iter_child_nodes(node):
                if isinstance(ch, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    a = ch.args
                    news = {}
                    for x in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]:
                        if x is not None and (new := MAP.get(f"{q}.{ch.name}({x.arg})")):
                            news[x.arg] = new
                    self.docstring(ch, news)
                    walk(ch, f"{q}.{ch.name}")
                elif isinstance(ch, ast.ClassDef):
                    name = f"{q}.{ch.name}"
                    info = self.world.by_name.get(name)
                    news = {}
                    if info is not None:
                        for member in info.names:
                            if new := self.world.new_member(info, member):
                                news[member] = new
                        init = next((x for x in ch.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"), None)
                        for x in init.args.args + init.args.kwonlyargs if init else []:
                            if new := MAP.get(f"{name}.__init__({x.arg})"):
                                news.setdefault(x.arg, new)
                    self.docstring(ch, news)
                    for x in ch.body:
                        if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "__slots__":
                            for c in ast.walk(x.value):
                                if isinstance(c, ast.Constant) and c.value in news:
                                    self.put(c.lineno, c.col_offset + 1, c.value, news[c.value], "slot")
                    walk(ch, name)
                else:
                    walk(ch, q)
        walk(self.py, self.tree.fullname)

    def classes(self) -> None:
        """Classes and type aliases, in annotations too, which mypy keeps apart."""
        local: dict[str, str] = {}
        modules: dict[str, Any] = {}
        for name, sym in self.tree.names.items():
            full = getattr(sym.node, "fullname", None)
            if full in MAP and full.rpartition(".")[2] == name:
                local[name] = MAP[full]
            if isinstance(sym.node, N.MypyFile):
                modules[name] = sym.node
        for node in self.aliases:
            module = self.world.trees.get(node.module or "")
            for alias in node.names:
                if module is None or alias.asname:
                    continue
                sym = module.names.get(alias.name)
                full = getattr(sym.node, "fullname", None) if sym else None
                if full in MAP and full.rpartition(".")[2] == alias.name:
                    local.setdefault(alias.name, MAP[full])
                if sym is not None and isinstance(sym.node, N.MypyFile):
                    modules.setdefault(alias.name, sym.node)
                if f"{node.module}.{alias.name}" in self.world.trees:
                    modules.setdefault(alias.name, self.world.trees[f"{node.module}.{alias.name}"])
        for node in ast.walk(self.py):
            if isinstance(node, ast.Name) and node.id in local:
                self.put(node.lineno, node.col_offset, node.id, local[node.id], "class name")
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                sym = modules[node.value.id].names.get(node.attr)
                full = getattr(sym.node, "fullname", None) if sym else None
                if full in MAP:
                    self.put(node.end_lineno, node.end_col_offset - len(node.attr.encode()), node.attr, MAP[full], "class attr")
            elif isinstance(node, ast.ClassDef) and node.name in local:
                line = node.lineno
                m = re.search(rb"class\s+(" + node.name.encode() + rb")\b", self.lines[line - 1])
                self.put(line, m.start(1), node.name, local[node.name], "class")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno == node.end_lineno and re.fullmatch(r"[\w\[\], .|]+", node.value) and any(re.search(rf"\b{n}\b", node.value) for n in local):
                line = self.lines[node.lineno - 1]
                for n in local:
                    if node.value == n or (re.search(rf"\b{n}\b", node.value) and re.search(r"[\[|]", node.value)):
                        for m in re.finditer(rb"\b" + n.encode() + rb"\b", line[node.col_offset:node.end_col_offset]):
                            self.edits[(node.lineno, node.col_offset + m.start())] = (n.encode(), local[n].encode())
        for node in ast.walk(self.py):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
                self.docstring(node, local)

    def docstring(self, node: Any, news: dict[str, str]) -> None:
        if not node.body:
            return
        first = node.body[0]
        if not news or not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)):
            return
        for line in range(first.lineno, first.end_lineno + 1):
            for m in re.finditer(rb"`(?:[\w.]+\.)?(\w+)`", self.lines[line - 1]):
                if (old := m.group(1).decode()) in news:
                    self.edits[(line, m.start(1))] = (old.encode(), news[old].encode())

    def write(self) -> int:
        if not self.edits:
            return 0
        by_line: dict[int, list[tuple[int, bytes, bytes]]] = defaultdict(list)
        for (line, col), (old, new) in self.edits.items():
            by_line[line].append((col, old, new))
        for line, items in by_line.items():
            text = self.lines[line - 1]
            for col, old, new in sorted(items, reverse=True):
                assert text[col:col + len(old)] == old
                text = text[:col] + new + text[col + len(old):]
            self.lines[line - 1] = text
        if not DRY:
            self.file.write_bytes(b"\n".join(self.lines))
        return len(self.edits)


class World:
    def __init__(self, trees: dict[str, N.MypyFile]) -> None:
        self.trees = trees
        self.vars: dict[Any, str] = {}
        self.classes = [s.node for t in trees.values() for s in self.nested(t.names) if isinstance(s.node, N.TypeInfo)]
        self.classes = list({c.fullname: c for c in self.classes if c.fullname.partition(".")[0] in ROOTS}.values())
        self.by_name = {c.fullname: c for c in self.classes}
        self.member_names = {k.rpartition(".")[2] for k in MAP if "(" not in k and "[" not in k}
        self.param_names = {k.partition("(")[2].rstrip(")") for k in MAP if "(" in k}
        self.family: dict[tuple[str, str], str] = {}
        self.members()

    def nested(self, names: Any, depth: int = 0) -> Any:
        for s in names.values():
            yield s
            if isinstance(s.node, N.TypeInfo) and depth < 3 and s.node.fullname.partition(".")[0] in ROOTS:
                yield from self.nested(s.node.names, depth + 1)

    def members(self) -> None:
        """Names of members that are one: overrides, and what implements a protocol."""
        parent: dict[tuple[str, str], tuple[str, str]] = {}

        def find(x: tuple[str, str]) -> tuple[str, str]:
            while parent.setdefault(x, x) != x:
                x = parent[x]
            return x

        wanted = self.member_names
        def names_of(c: Any) -> set[str]:
            return {n for b in c.mro if b.fullname.partition(".")[0] in ROOTS for n in b.names}

        all_names = {c.fullname: names_of(c) for c in self.classes}
        protocols = [c for c in self.classes if c.is_protocol]
        for c in self.classes:
            for b in c.mro[1:]:
                for n in c.names:
                    if n in wanted and n in b.names and b.fullname.partition(".")[0] in ROOTS:
                        parent[find((c.fullname, n))] = find((b.fullname, n))
        for p in protocols:
            need = {n for n in all_names[p.fullname] if not n.startswith("__")}
            for c in self.classes:
                if c is not p and need and need <= all_names[c.fullname]:
                    for n in need & wanted:
                        for b in c.mro:
                            if n in b.names and b.fullname.partition(".")[0] in ROOTS:
                                for q in p.mro:
                                    if n in q.names and q.fullname.partition(".")[0] in ROOTS:
                                        parent[find((b.fullname, n))] = find((q.fullname, n))
        groups: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for x in list(parent):
            groups[find(x)].append(x)
        for group in groups.values():
            news = {MAP[f"{c}.{n}"] for c, n in group if f"{c}.{n}" in MAP}
            if len(news) > 1:
                print("CONFLICT", group, news)
            for c, n in group:
                if news:
                    self.family[(c, n)] = sorted(news)[0]

    def new_of(self, fullname: str | None) -> str | None:
        return MAP.get(fullname or "")

    def new_member(self, info: Any, name: str) -> str | None:
        for b in info.mro:
            if name in b.names:
                return self.family.get((b.fullname, name)) or MAP.get(f"{b.fullname}.{name}")
        return None

    def infos(self, t: Any) -> list[Any]:
        t = T.get_proper_type(t)
        if isinstance(t, T.Instance):
            return [t.type]
        if isinstance(t, T.UnionType):
            return [i for item in t.items for i in self.infos(item)]
        if isinstance(t, T.TypeType):
            return self.infos(t.item)
        if isinstance(t, T.TupleType):
            return self.infos(t.partial_fallback)
        if isinstance(t, T.TypeVarType):
            return self.infos(t.upper_bound)
        if isinstance(t, T.LiteralType):
            return self.infos(t.fallback)
        if isinstance(t, T.CallableType) and t.is_type_obj():
            return [t.type_object()]
        return []

    def new_of_type(self, t: Any, name: str) -> str | None:
        for info in self.infos(t):
            if new := self.new_member(info, name):
                return new
        return None

    def new_param(self, function: str, name: str) -> str | None:
        return MAP.get(f"{function}({name})")

    def new_param_member(self, info: Any, method: str, name: str) -> str | None:
        for b in info.mro:
            if method in b.names and (new := MAP.get(f"{b.fullname}.{method}({name})")):
                return new
        return None

    def param_of_class(self, info: Any, name: str) -> str | None:
        for b in info.mro:
            if "__init__" in b.names and (new := MAP.get(f"{b.fullname}.__init__({name})")):
                return new
        return self.new_member(info, name)

    def new_local(self, func: list[str], name: str) -> str | None:
        for f in reversed(func):
            if new := (MAP.get(f"{f}[{name}]") or MAP.get(f"{f}({name})")):
                return new
        return None


def main() -> None:
    began = time.monotonic()
    o = options()
    sources = create_source_list([str(TOP / r) for r in ROOTS], o)
    result = build.build(sources, o)
    trees = {name: s.tree for name, s in result.graph.items() if s.tree is not None}
    print(f"{len(trees)} modules, {len(result.errors)} errors, {time.monotonic() - began:.0f} s")
    world = World(trees)
    renamers = []
    for name, tree in trees.items():
        path = Path(tree.path)
        if name.partition(".")[0] not in ROOTS or not str(path.resolve()).startswith(str(TOP)) or path.suffix != ".py":
            continue
        renamers.append(Renamer(result.types, path.resolve(), tree, world))
    total = 0
    for r in renamers:
        r.imports()
        r.words()
        if any(k.rpartition('.')[2][:1].isupper() or k.rpartition('.')[2].startswith('_') for k in MAP): r.classes()
        r.visit_mypy_file(r.tree)
    for r in renamers:
        total += r.write()
        for line in r.lost:
            print("LOST", line)
    print(f"{total} edits, {time.monotonic() - began:.0f} s")


main()
