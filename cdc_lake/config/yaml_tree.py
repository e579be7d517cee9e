"""Parses YAML into a tree of nodes with their locations.

The tree is built from PyYAML's events; no object is ever constructed. Plain scalars follow stricter rules than YAML's:
the only booleans are `true` and `false`, numbers are plain decimal numbers, and everything else (`no`, `on`, `010`,
dates) is text. Anchors, aliases, merge keys, tags, multiple documents and deep nesting are rejected: a pipeline file is
plain data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from cdc_lake.model.diagnostic import Diagnostic, Location, Problem, Severity

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?")
_FEATURES = {"*": "alias", "&": "anchor", "!": "tag"}
_NULLS = frozenset({"", "~", "null"})
# What YAML does not allow in a stream, checked here because PyYAML gives such a character no line.
_UNPRINTABLE = re.compile("[^\\x09\\x0a\\x0d\\x20-\\x7e\\x85\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")

Plain: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A location: the file as displayed, and line and column, counted from 1."""

    file: str
    line: int
    column: int

    def location(self, path: str = "") -> Location:
        """The location, with the path of the value at it."""
        return Location(self.file, self.line, self.column, path)


@dataclass(slots=True)
class ScalarNode:
    """A scalar value. `text`: the text as written; `references`: the references that it contained, once resolved;
    `broken`: a problem has already been reported, so the missing value is not reported again.
    """

    mark: Mark
    value: Plain
    text: str
    plain: bool
    references: tuple[str, ...] = ()
    broken: bool = False


@dataclass(slots=True)
class SequenceNode:
    """A list."""

    mark: Mark
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class MappingNode:
    """Keys and values, with the location of each key."""

    mark: Mark
    entries: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Mark] = field(default_factory=dict)


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode


def resolve_plain(text: str) -> Plain:
    """The value of an unquoted scalar."""
    if text in _NULLS:
        return None
    if text in {"true", "false"}:
        return text == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def join(path: str, part: str | int) -> str:
    """Append a key or an index to a path: `silver.tables[0].from`."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    return f"{path}.{part}" if path else part


class _Refused(Exception):  # never leaves this module
    def __init__(self, problem: Problem, summary: str, mark: Mark, hint: str = "") -> None:
        super().__init__(summary)
        self.diagnostic = Diagnostic(Severity.ERROR, problem, summary, mark.location(), hint)


def parse(data: bytes, file: str) -> tuple[MappingNode | None, list[Diagnostic]]:
    """Parse the bytes of one file: its root mapping (None if there is none) and the problems of its form."""
    reader = _Reader(file)
    try:
        return reader.document(_decode(data, file)), reader.diagnostics
    except _Refused as refused:
        return None, [*reader.diagnostics, refused.diagnostic]


def _decode(data: bytes, file: str) -> str:
    if len(data) > MAX_BYTES:
        raise _Refused(Problem.NOT_A_PIPELINE, f"the file is larger than {MAX_BYTES >> 20} MiB", Mark(file, 1, 1))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        before = data[: bad.start]
        line = before.count(b"\n") + 1
        column = bad.start - (before.rfind(b"\n") + 1) + 1
        summary = f"the file is not UTF-8 (byte {bad.start + 1})"
        hint = "save the file as UTF-8; `iconv -f latin1 -t utf-8 FILE` converts one"
        raise _Refused(Problem.ENCODING, summary, Mark(file, line, column), hint) from bad
    if (odd := _UNPRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, odd.start()) + 1
        column = odd.start() - text.rfind("\n", 0, odd.start())
        summary = f"control character U+{ord(odd[0]):04X} in the file"
        hint = 'remove it; in a quoted value it can be written as an escape, "\\x00"'
        raise _Refused(Problem.ENCODING, summary, Mark(file, line, column), hint)
    return text


class _Reader:
    """Builds the tree of one document; continues after problems that do not break the structure."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.diagnostics: list[Diagnostic] = []

    def document(self, text: str) -> MappingNode:
        events = self._events(text)
        next(events)  # stream start
        first = next(events)
        if isinstance(first, yaml.StreamEndEvent):
            hint = "`cdc-lake init postgres DIR` writes a pipeline file to start from"
            raise _Refused(Problem.NOT_A_PIPELINE, "the file is empty", Mark(self.file, 1, 1), hint)
        root = self._node(events, next(events), depth=0, path="")
        next(events)  # document end
        more = next(events)
        if not isinstance(more, yaml.StreamEndEvent):
            summary = "the file contains more than one YAML document"
            hint = "remove the line `---` and put each pipeline in its own file"
            raise _Refused(Problem.YAML_FEATURE, summary, self._mark(more.start_mark), hint)
        if not isinstance(root, MappingNode):
            hint = "a pipeline file starts with `version: 1` and `pipeline: NAME`"
            raise _Refused(Problem.NOT_A_PIPELINE, "the file is not a mapping of keys to values", root.mark, hint)
        return root

    def _events(self, text: str) -> Iterator[yaml.Event]:
        try:
            yield from yaml.parse(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as bad:
            raise _Refused(Problem.SYNTAX, *_syntax(bad, self._mark(_error_place(bad)), text)) from bad

    def _mark(self, mark: Any) -> Mark:
        return Mark(self.file, mark.line + 1, mark.column + 1) if mark is not None else Mark(self.file, 1, 1)

    def _report(self, problem: Problem, summary: str, mark: Mark, path: str, hint: str) -> None:
        self.diagnostics.append(fault(problem, summary, mark, path, hint))

    def _node(self, events: Iterator[yaml.Event], event: yaml.Event, *, depth: int, path: str) -> Node:
        mark = self._mark(event.start_mark)
        if depth > MAX_DEPTH:
            raise _Refused(Problem.YAML_FEATURE, f"nested deeper than {MAX_DEPTH} levels", mark)
        if feature := _feature(event):  # the text after it is not repeated: it may be a password that nobody quoted
            hint = f'to write a text that starts with `{feature}`, quote it: "{feature}…"'
            hint = f"write the value out where it is needed; {hint}" if feature == "&" else hint
            self._report(Problem.YAML_FEATURE, f"a YAML {_FEATURES[feature]} `{feature}…`", mark, path, hint)
        if isinstance(event, yaml.SequenceStartEvent):
            items = SequenceNode(mark)
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                item_path = join(path, len(items.items))
                items.items.append(self._node(events, event, depth=depth + 1, path=item_path))
            return items
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, mark, depth=depth, path=path)
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style is None
            value = resolve_plain(event.value) if plain else event.value
            return ScalarNode(mark, value, event.value, plain, broken=bool(feature))
        return ScalarNode(mark, None, "", plain=True, broken=True)  # an alias, reported already

    def _mapping(self, events: Iterator[yaml.Event], mark: Mark, *, depth: int, path: str) -> MappingNode:
        mapping = MappingNode(mark)
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(events, event, depth=depth + 1, path=path)
            if not isinstance(key, ScalarNode):
                hint = "write keys as plain words"
                self._report(Problem.SYNTAX, "a key is a list or a mapping", key.mark, path, hint)
                self._node(events, next(events), depth=depth + 1, path=path)
                continue
            name = key.text
            value_path = join(path, name)
            value = self._node(events, next(events), depth=depth + 1, path=value_path)
            if name == "<<" and key.plain:
                hint = "write the keys out: merge keys are not supported"
                self._report(Problem.YAML_FEATURE, "a YAML merge key `<<`", key.mark, path, hint)
            elif name in mapping.keys:
                earlier = mapping.keys[name]
                hint = f"remove one of them; the first is on line {earlier.line}"
                self._report(Problem.DUPLICATE_KEY, f"duplicate key `{name}`", key.mark, value_path, hint)
            else:
                mapping.keys[name] = key.mark
                mapping.entries[name] = value
        return mapping


def _feature(event: yaml.Event) -> str:
    """The unsupported YAML feature of an event: an alias `*`, an anchor `&` or a tag `!`; empty if it has none."""
    if isinstance(event, yaml.AliasEvent):
        return "*"
    return "&" if getattr(event, "anchor", None) is not None else "!" if getattr(event, "tag", None) is not None else ""


def _error_place(bad: yaml.MarkedYAMLError) -> Any:
    """The location of the mistake: for a missing colon or an invalid tag, where the construct began."""
    began = "could not find expected ':'" in (bad.problem or "") or bad.context == "while scanning a tag"
    return bad.context_mark if began and bad.context_mark is not None else bad.problem_mark or bad.context_mark


def _syntax(bad: yaml.MarkedYAMLError, mark: Mark, text: str) -> tuple[str, Mark, str]:
    lines = text.splitlines()
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent or line[mark.column - 1 : mark.column] == "\t":
        return "a tab is used for indentation", mark, "indent with spaces"
    if line[max(0, mark.column - 2) : mark.column] == "${":
        place = Mark(mark.file, mark.line, mark.column - 1)
        return "a reference without quotes inside `{ }` or `[ ]`", place, 'quote it: "${env:NAME}"'
    problem = bad.problem or "not valid YAML"
    if "could not find expected ':'" in problem:
        return "expected `key: value`", mark, "a colon is missing, or a quote before it"
    if "mapping values are not allowed" in problem:
        return "a second `:` on one line", mark, "quote the value, or put the inner key on a line of its own"
    if bad.context == "while scanning a tag" or "tag handle" in problem:
        return "an invalid YAML tag", mark, 'to write a text that starts with `!`, quote it: "!public.tmp_*"'
    context = f" {bad.context}" if bad.context else ""
    return f"not valid YAML: {problem}{context}", mark, "check for an unclosed bracket or quote, and the indentation"


def nodes(node: Node, path: str = "", key: Mark | None = None) -> Iterator[tuple[str, Node, Mark]]:
    """The node and all nodes below it, each with its path and the location of its key, or its own if it has none."""
    yield path, node, key or node.mark
    if isinstance(node, SequenceNode):
        for i, item in enumerate(node.items):
            yield from nodes(item, join(path, i))
    elif isinstance(node, MappingNode):
        for name, value in node.entries.items():
            yield from nodes(value, join(path, name), node.keys[name])


def fault(problem: Problem, summary: str, mark: Mark, path: str, hint: str) -> Diagnostic:
    """An error at a location in the file."""
    return Diagnostic(Severity.ERROR, problem, summary, mark.location(path), hint)
