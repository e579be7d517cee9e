"""Merge modules into rooms by a map; rewrite every import."""
import ast, json, re, subprocess, sys, collections
from pathlib import Path

ROOT = Path(sys.argv[1])
plan = json.load(open(sys.argv[2]))   # {"modules": {old: new}, "symbols": {"old:name": "new:name"}, "docs": {...}}
MOD = plan["modules"]                  # dotted -> dotted
NEW = set(MOD.values())
SYM = {tuple(k.split(":")): tuple(v.split(":")) for k, v in plan.get("symbols", {}).items()}
ALIAS = {tuple(k.split(":")): v for k, v in plan.get("aliases", {}).items()}  # (importing module, bound name) -> new bound name
PKGDOC = plan.get("packages", {})
DUP = set(plan.get("duplicates", ()))
EXTRA = plan.get("imports", {})

def dotted(p):
    s = str(p.relative_to(ROOT))[:-3].replace("/", ".")
    return s[:-9] if s.endswith(".__init__") else s

def target(mod, name):
    if (mod, name) in SYM: return SYM[mod, name]
    return MOD.get(mod, mod), name

warnings = []
class File:
    def __init__(self, path):
        self.path = path
        self.mod = dotted(path)
        self.pkg = self.mod if path.name == "__init__.py" else self.mod.rpartition(".")[0]
        self.src = path.read_bytes()
        self.text = self.src.decode()
        self.lines = self.src.split(b"\n")
        self.off = [0]
        for l in self.lines: self.off.append(self.off[-1] + len(l) + 1)
        self.tree = ast.parse(self.text)
        self.edits = []
    def pos(self, line, col): return self.off[line - 1] + col
    def span(self, node): return self.pos(node.lineno, node.col_offset), self.pos(node.end_lineno, node.end_col_offset)
    def edit(self, a, b, new): self.edits.append((a, b, new.encode()))
    def apply(self):
        out = self.src
        for a, b, new in sorted(set(self.edits), reverse=True):
            out = out[:a] + new + out[b:]
        return out.decode()

def scope_of(node):
    while not isinstance(node, (ast.Module, ast.FunctionDef)): node = node.parent
    return node

def rename(f, old, new, scope=None):
    """All uses of a global name in a file."""
    for n in ast.walk(scope or f.tree):
        if isinstance(n, ast.Name) and n.id == old:
            a, b = f.span(n); f.edit(a, b, new)
        elif isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and n.name == old and n in f.tree.body:
            start = f.pos(n.lineno, n.col_offset)
            m = re.compile(rb"(?:async )?(?:def|class)\s+" + old.encode() + rb"\b").match(f.src, start)
            f.edit(m.end() - len(old), m.end(), new)
        elif isinstance(n, ast.arg) and n.arg == old:
            warnings.append(f"{f.mod}: parameter {old} shadows what is renamed to {new} (line {n.lineno})")
        elif isinstance(n, ast.Global) and old in n.names:
            warnings.append(f"{f.mod}: global {old} (line {n.lineno})")
    for n in ast.walk(f.tree):
        if isinstance(n, (ast.FunctionDef, ast.Lambda)):
            pass

def used(f):
    names = set()
    for n in ast.walk(f.tree):
        if isinstance(n, ast.Name): names.add(n.id)
        elif isinstance(n, ast.arg): names.add(n.arg)
        elif isinstance(n, (ast.FunctionDef, ast.ClassDef)): names.add(n.name)
        elif isinstance(n, ast.alias): names.add(n.asname or n.name.split(".")[0])
        elif isinstance(n, ast.ExceptHandler) and n.name: names.add(n.name)
    return names

def parents(tree):
    for n in ast.walk(tree):
        for c in ast.iter_child_nodes(n): c.parent = n

def rewrite(f):
    """Edits for all imports of moved modules and symbols."""
    parents(f.tree)
    own_new = MOD.get(f.mod, f.mod)
    names = used(f)
    stored = {n.id for n in ast.walk(f.tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    args = {n.arg for n in ast.walk(f.tree) if isinstance(n, ast.arg)}
    renamed = {}
    # definitions of this module that are renamed
    for (m, n), (nm, nn) in SYM.items():
        if m == f.mod and n != nn:
            rename(f, n, nn)
    for (m, n), new in ALIAS.items():
        if m == f.mod: rename(f, n, new)
    done = set()
    for node in ast.walk(f.tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name in MOD: warnings.append(f"{f.mod}: import {a.name}")
            continue
        if not isinstance(node, ast.ImportFrom): continue
        if node.level:
            base = f.pkg.split(".")
            base = base[: len(base) - node.level + 1]
            mod = ".".join(base + ([node.module] if node.module else []))
        else: mod = node.module or ""
        if not (mod == "cdc_lake" or mod.startswith("cdc_lake.") or mod in MOD or any((mod + "." + a.name) in MOD for a in node.names) or any((f.mod, a.asname or a.name) in ALIAS for a in node.names)): continue
        out = collections.OrderedDict(); changed = False
        for a in node.names:
            full = mod + "." + a.name
            bound = a.asname or a.name
            if full in MOD:
                changed = True
                new = MOD[full]
                if new == own_new:
                    for n in ast.walk(f.tree):
                        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == bound:
                            tm, tn = target(full, n.attr)
                            x, y = f.span(n); f.edit(x, y, tn)
                            if tm != own_new: warnings.append(f"{f.mod}: {bound}.{n.attr} left the room")
                    continue
                npkg, _, nbase = new.rpartition(".")
                for n in ast.walk(f.tree):
                    if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == bound:
                        tm, tn = target(full, n.attr)
                        if tm != new: warnings.append(f"{f.mod}: {bound}.{n.attr} is in {tm} now")
                        elif tn != n.attr:
                            x, y = f.span(n); f.edit(y - len(n.attr.encode()), y, tn)
                want = nbase
                if a.asname and a.asname != a.name:
                    out.setdefault(npkg, []).append((nbase, a.asname if a.asname != nbase else None))
                elif want == bound: out.setdefault(npkg, []).append((nbase, None))
                elif want not in names and bound not in stored and bound not in args:
                    if (bound, want) not in done:
                        done.add((bound, want))
                        for n in ast.walk(f.tree):
                            if isinstance(n, ast.Name) and n.id == bound:
                                x, y = f.span(n); f.edit(x, y, want)
                    out.setdefault(npkg, []).append((nbase, None))
                else: out.setdefault(npkg, []).append((nbase, bound))
            else:
                nm, nn = target(mod, a.name)
                want = ALIAS.get((f.mod, bound))
                if (nm, nn) != (mod, a.name) or want: changed = True
                if nm == own_new and f.mod in MOD:
                    changed = True
                    if bound != nn: rename(f, bound, nn, scope_of(node))
                    continue
                if want:
                    out.setdefault(nm, []).append((nn, want if want != nn else None))
                elif a.asname: out.setdefault(nm, []).append((nn, a.asname if a.asname != nn else None))
                elif nn != a.name:
                    if nn not in names and bound not in stored and bound not in args:
                        rename(f, bound, nn); out.setdefault(nm, []).append((nn, None))
                    else: out.setdefault(nm, []).append((nn, bound))
                else: out.setdefault(nm, []).append((nn, None))
        if not changed: continue
        start, end = f.span(node)
        line = f.lines[node.end_lineno - 1].decode()
        tail = f.lines[node.end_lineno - 1][node.end_col_offset:].decode()
        indent = " " * node.col_offset
        # relative imports stay relative where nothing moved
        pieces = []
        for m, what in out.items():
            what = ", ".join(n if as_ is None else f"{n} as {as_}" for n, as_ in what)
            pieces.append(f"from {m} import {what}")
        if pieces:
            glue = (tail if tail.strip().startswith("#") else "") + "\n" + indent
            f.edit(start, end, glue.join(pieces))
        else:
            body = next((b for b in (getattr(node.parent, k, None) for k in ("body", "orelse", "handlers", "finalbody")) if b and node in b), [])
            if len(body) == 1 and not isinstance(node.parent, ast.Module): f.edit(start, f.off[node.end_lineno] - 1, "pass")
            else: f.edit(f.off[node.lineno - 1], f.off[node.end_lineno], "")

def is_type_checking(n): return isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING"

def split(text):
    """Docstring, runtime imports, typing imports, the rest."""
    tree = ast.parse(text); lines = text.split("\n")
    doc = ast.get_docstring(tree, clean=False)
    if doc is not None:
        seg = ast.get_source_segment(text, tree.body[0].value)
        doc = seg[seg.index('"""') + 3:-3]
    drop = set(); imports = []; typing_ = []
    body = tree.body
    if doc is not None:
        n = body[0]; drop |= set(range(n.lineno, n.end_lineno + 1)); body = body[1:]
    for n in body:
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            drop |= set(range(n.lineno, n.end_lineno + 1))
            if isinstance(n, ast.ImportFrom) and n.module == "__future__": continue
            imports.append("\n".join(lines[n.lineno - 1:n.end_lineno]))
        elif is_type_checking(n) and not n.orelse and all(isinstance(x, (ast.Import, ast.ImportFrom, ast.Pass)) for x in n.body):
            drop |= set(range(n.lineno, n.end_lineno + 1))
            for x in n.body:
                if not isinstance(x, ast.Pass): typing_.append(ast.unparse(x))
    rest = "\n".join(l for i, l in enumerate(lines, 1) if i not in drop).strip("\n")
    return doc, imports, typing_, rest

def bound_names(stmt):
    n = ast.parse(stmt).body[0]
    return {(a.asname or a.name) for a in n.names}

def toposort(srcs, deps):
    out = []; state = {}
    def visit(s):
        if state.get(s) == 2: return
        if state.get(s) == 1: warnings.append(f"import-time circle at {s}"); return
        state[s] = 1
        for d in srcs:
            if d in deps[s]: visit(d)
        state[s] = 2; out.append(s)
    for s in srcs: visit(s)
    return out

def without_duplicates(bodies):
    seen = set(); out = []
    for body in bodies:
        tree = ast.parse(body); lines = body.split("\n"); drop = set()
        for i, n in enumerate(tree.body):
            names = []
            if isinstance(n, ast.Assign):
                for t in n.targets: names += [x.id for x in ast.walk(t) if isinstance(x, ast.Name)]
            elif isinstance(n, ast.AnnAssign): names = [n.target.id]
            if names and set(names) <= DUP:
                if set(names) <= seen:
                    end = n.end_lineno
                    nxt = tree.body[i + 1] if i + 1 < len(tree.body) else None
                    if isinstance(nxt, ast.Expr) and isinstance(nxt.value, ast.Constant) and isinstance(nxt.value.value, str): end = nxt.end_lineno
                    drop |= set(range(n.lineno, end + 1))
                seen |= set(names)
        out.append("\n".join(l for i, l in enumerate(lines, 1) if i not in drop))
    return out

def main():
    paths = [p for d in ("cdc_lake", "tests", "benchmarks", "notebooks", "docs", "conf", "pipelines") if (ROOT / d).exists() for p in (ROOT / d).rglob("*.py")]
    files = {}
    for p in paths:
        try: files[dotted(p)] = File(p)
        except SyntaxError: continue
    deps = {}
    for m, f in files.items():
        if m in MOD:
            d = set()
            for n in f.tree.body:
                if isinstance(n, ast.ImportFrom) and n.module:
                    for a in n.names:
                        for c in (n.module, n.module + "." + a.name):
                            if MOD.get(c) == MOD[m] and c != m: d.add(c)
            deps[m] = d
    for f in files.values(): rewrite(f)
    new_text = {m: f.apply() for m, f in files.items()}
    by = collections.OrderedDict()
    for m, t in MOD.items(): by.setdefault(t, []).append(m)
    for (m, n), (nm, nn) in SYM.items(): by.setdefault(nm, [])
    # symbols that leave their module for another room
    moved = collections.defaultdict(list)
    backs = collections.defaultdict(list)
    for (m, n), (nm, nn) in SYM.items():
        if MOD.get(m, m) != nm:
            tree = ast.parse(new_text[m]); lines = new_text[m].split("\n")
            for i, node in enumerate(tree.body):
                nms = [node.name] if hasattr(node, "name") else [t.id for t in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(t, ast.Name)]
                if nn in nms or n in nms:
                    a = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])]); b = node.end_lineno
                    nxt = tree.body[i + 1] if i + 1 < len(tree.body) else None
                    if nxt is not None and isinstance(nxt, ast.Expr) and isinstance(nxt.value, ast.Constant) and isinstance(nxt.value.value, str): b = nxt.end_lineno
                    moved[nm].append((m, "\n".join(lines[a - 1:b])))
                    new_text[m] = "\n".join(lines[:a - 1] + lines[b:])
                    if any(isinstance(x, ast.Name) and x.id == nn for x in ast.walk(ast.parse(new_text[m]))):
                        backs[m].append(f"from {nm} import {nn}")
                    break
            else: warnings.append(f"no {n} in {m}")
    for m, t in new_text.items():
        if m not in MOD and t != files[m].text: files[m].path.write_text(t)
    removed = []
    written = {}
    for t, srcs in by.items():
        srcs = toposort(srcs, deps)
        docs, imps, typ, bodies = [], [], [], []
        for s in srcs:
            d, i, ty, rest = split(new_text[s])
            if d: docs.append(d.strip())
            imps += i + backs[s]; typ += ty
            if rest: bodies.append(rest)
            removed.append(files[s].path)
        lead = [x for _, x in moved.get(t, ())]
        imps += EXTRA.get(t, [])
        bodies = without_duplicates(bodies)
        have = set()
        for i in imps: have |= bound_names(i)
        ty2 = []
        for x in typ:
            n = ast.parse(x).body[0]
            keep = [a for a in n.names if (a.asname or a.name) not in have]
            if keep:
                n.names = keep; ty2.append(ast.unparse(n))
        doc = plan.get("docs", {}).get(t) or "\n\n".join(docs)
        text = f'{"r" if chr(92) in doc else ""}"""{doc}{chr(10) if chr(10) in doc else ""}"""\n\nfrom __future__ import annotations\n\n' if doc else "from __future__ import annotations\n\n"
        text += "\n".join(dict.fromkeys(imps)) + "\n"
        if ty2: text += "\nif TYPE_CHECKING:\n" + "\n".join("    " + x for x in dict.fromkeys(ty2)) + "\n"
        text += "\n\n" + "\n\n\n".join(lead + bodies) + "\n"
        written[t] = text
    for p in removed: p.unlink()
    for t, text in written.items():
        p = ROOT / (t.replace(".", "/") + ".py")
        p.parent.mkdir(parents=True, exist_ok=True)
        q = p.parent
        while q != ROOT:
            i = q / "__init__.py"
            if not i.exists() and not (q / "__init__.py").exists(): i.write_text(PKGDOC.get(dotted(i), "") )
            q = q.parent
        p.write_text(text)
    # texts that name modules
    pat = re.compile(r"\bcdc_lake(?:[./]\w+)+")
    def sub(m):
        s = m[0]
        slash = "/" in s
        if python and re.match(r"\s*(from|import)\s", m.string[m.string.rfind("\n", 0, m.start()) + 1:m.start() + 1]): return s; slash = "/" in s
        parts = re.split(r"[./]", s)
        longest = max((k for k in range(2, len(parts) + 1) if ".".join(parts[:k]) in NEW), default=0)
        for k in range(len(parts), 1, -1):
            d = ".".join(parts[:k])
            if d in MOD and k < longest: return s
            if d in MOD and d in NEW and MOD[d] != d and not slash: return s
            if d in MOD:
                rest = parts[k:]
                if rest:
                    nm, nn = target(d, rest[0]) if rest[0] != "py" else (MOD[d], rest[0])
                    rest = [nn, *rest[1:]]
                else: nm = MOD[d]
                if slash:
                    out = nm.replace(".", "/")
                    return out + ("." + ".".join(rest) if rest else "")
                return ".".join([nm, *rest])
        return s
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in names:
        p = ROOT / name
        if not p.is_file() or p.suffix in {".xz", ".bin", ".png", ".gz", ".jsonl"} or name.startswith(("tools/move_modules", "tests/data", "CHANGELOG", "docs/decisions", "benchmarks/results")): continue
        try: t = p.read_text()
        except UnicodeDecodeError: continue
        python = p.suffix == ".py"
        n = pat.sub(sub, t)
        if n != t: p.write_text(n)
    for t in list(written):
        p = ROOT / (t.replace(".", "/") + ".py")
        python = True
        x = pat.sub(sub, p.read_text())
        p.write_text(x)
    # empty packages
    for p in sorted((ROOT / "cdc_lake").rglob("__init__.py"), key=lambda p: -len(p.parts)):
        left = [x for x in p.parent.iterdir() if x.name not in {"__init__.py", "__pycache__"}]
        if not left and p.read_text().strip() == "": p.unlink()
    for w in dict.fromkeys(warnings): print("WARN", w)
main()
