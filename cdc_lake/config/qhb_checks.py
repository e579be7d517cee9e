"""What a QHB of a release that is written down cannot do, and what only a QHB has."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.node_values import at, fault, is_true, text_of
from cdc_lake.config.pgoutput import PARALLEL, TWO_PHASE
from cdc_lake.config.problems import Problem
from cdc_lake.config.qhb import OLDEST_QHB, protocol_of
from cdc_lake.config.release import parse_release
from cdc_lake.config.source import POSTGRES_TYPES
from cdc_lake.config.yaml_nodes import Node, ScalarNode
from cdc_lake.model.diagnostic import Diagnostic

_SINCE_PARALLEL = {
    "streaming": ("parallel", "write `on`: it carries the same changes"),
    "origin": ("none", "take it out"),
}
"""Options of pgoutput that came with version 4 of its protocol: the value, and what to do without it."""


def qhb_rules(source: Node | None) -> Iterator[Diagnostic]:
    """Everything wrong with `source.version` and what goes with it."""
    kind, version = text_of(at(source, "type")), at(source, "version")
    written = text_of(version)
    if version is None or written is None or kind not in POSTGRES_TYPES:
        return
    where = "source.version"
    if kind == "postgres":
        hint = "remove it: a PostgreSQL tells its own; or write `type: qhb`"
        yield fault(Problem.SOURCE_COMBINATION, "`version` is the release of a QHB", version.mark, where, hint)
        return
    try:
        release = parse_release(written)
    except ValueError:
        return  # told by its pattern
    if release < parse_release(OLDEST_QHB):
        summary = f"QHB {written} is not read; {OLDEST_QHB} is the oldest that is supported"
        yield fault(Problem.SOURCE_COMBINATION, summary, version.mark, where, "upgrade the server")
        return
    yield from _options(source, written, protocol_of(release))


def _options(source: Node | None, written: str, newest: int) -> Iterator[Diagnostic]:
    decoding, where = at(source, "decoding"), "source.decoding"
    pinned = at(decoding, "proto_version")
    if isinstance(pinned, ScalarNode) and isinstance(pinned.value, int) and pinned.value > newest:
        summary = f"QHB {written} speaks versions 1 to {newest} of pgoutput's protocol"
        path = f"{where}.proto_version"
        yield fault(Problem.SOURCE_COMBINATION, summary, pinned.mark, path, "take `proto_version` out")
    for name, (value, hint) in _SINCE_PARALLEL.items():
        given = at(decoding, name)
        if given is not None and text_of(given) == value and newest < PARALLEL:
            summary = f"QHB {written} has no `{name}: {value}`"
            yield fault(Problem.SOURCE_COMBINATION, summary, given.mark, f"{where}.{name}", hint)
    two_phase, by_lines = at(decoding, "two_phase"), text_of(at(source, "slot", "plugin")) == "test_decoding"
    if is_true(two_phase) and newest < TWO_PHASE and not by_lines:  # test_decoding has it in every release that is read
        summary = f"QHB {written} has no `two_phase`"
        hint = "take it out: prepared transactions then arrive whole at COMMIT PREPARED; or use `plugin: test_decoding`"
        yield fault(Problem.SOURCE_COMBINATION, summary, two_phase.mark, f"{where}.two_phase", hint)
    failover = at(source, "slot", "failover")
    if is_true(failover):
        summary, hint = f"standbys of QHB {written} keep no copies of slots", "take it out"
        yield fault(Problem.SOURCE_COMBINATION, summary, failover.mark, "source.slot.failover", hint)
