"""Which fields of a source of the GaussDB family go together, its options aside."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.gaussdb_options import OPTIONS, Mode, as_sent
from cdc_lake.config.gaussdb_refusal import Refusal, Rule
from cdc_lake.config.source import FamilySource, host_and_port

_PLUGIN_STYLES = {"parallel_binary_decoding": "b", "parallel_text_decoding": "t", "parallel_json_decoding": "j"}


def judge_source(source: FamilySource) -> Iterator[Refusal]:
    """Every broken rule."""
    yield from _hosts(source)
    yield from _slot(source)
    yield from _order(source)


def _hosts(source: FamilySource) -> Iterator[Refusal]:
    if (source.host is None) == (source.hosts is None):
        twice = source.host is not None
        summary = "`host` and `hosts` are both given" if twice else "no host is given"
        remedy = "keep one of them" if twice else "add `host: …`, or `hosts: […]` for several"
        yield Refusal(Rule.ONE_HOST, ("hosts",) if twice else (), summary, remedy, key=True)
    without = source.host if source.host is not None else None
    for i, text in enumerate(source.hosts or ()):
        try:
            host, port = host_and_port(text)
        except ValueError as bad:
            yield Refusal(Rule.HOST_PORT, ("hosts", str(i)), f"`{text}` is no host: {bad}", "write db1 or db1:8000")
        else:
            without = host if port is None and without is None else without
    if without is not None and source.port is None:
        remedy = "add `port: …`: GaussDB is often at 8000, openGauss at 5432, MogDB at 26000"
        yield Refusal(Rule.HOST_PORT, (), f"host `{without}` has no port", remedy)
    if source.type != "gaussdb" and source.node not in {None, "single"}:
        summary = f"{source.type} is not distributed: it has no {str(source.node).replace('_', ' ')}"
        yield Refusal(Rule.NODE, ("node",), summary, "remove `node`, or use `type: gaussdb`")


def _slot(source: FamilySource) -> Iterator[Refusal]:
    slot, at = source.slot, ("slot", "plugin")
    if slot.name is not None and slot.name.startswith("gs_roach"):
        summary = "slot names that begin with gs_roach are the server's own"
        yield Refusal(Rule.SLOT_NAME, ("slot", "name"), summary, "choose another name")
    style = _PLUGIN_STYLES.get(slot.plugin)
    if style is None:
        return
    if source.type != "gaussdb":
        yield Refusal(Rule.PLUGIN_PRODUCT, at, f"{source.type} has no plugin {slot.plugin}", "use mppdb_decoding")
        return
    name = "decode-style"
    sent = as_sent(OPTIONS[name], source.decoding.get(name, OPTIONS[name].ours))
    if source.decoding_mode is not Mode.PARALLEL:
        summary = f"what {slot.plugin} prints in serial decoding is in no document"
        yield Refusal(Rule.PLUGIN_STYLE, at, summary, "use mppdb_decoding, or parallel decoding in a stream")
    elif sent != style:
        summary = f"{slot.plugin} is for style {style}, and `decode-style` is {sent}"
        yield Refusal(Rule.PLUGIN_STYLE, at, summary, f"set `decode-style: {style}`, or use mppdb_decoding")


def _order(source: FamilySource) -> Iterator[Refusal]:
    given, polling = source.slot.output_order, source.decoding_mode is Mode.SQL
    at = ("slot", "output_order")
    if source.type != "gaussdb":
        if given == "csn":
            summary = f"{source.type} has no slots in CSN order"
            remedy = "remove it: with `order: auto` transactions of an ordinary slot are put into CSN order here"
            yield Refusal(Rule.CSN_SLOT_PRODUCT, at, summary, remedy)
            return
    elif source.node == "coordinator" and given == "lsn":
        summary = "a coordinator gives transactions in CSN order, whatever is asked for"
        yield Refusal(Rule.COORDINATOR_ORDER, at, summary, "remove it, or set it to csn")
        return
    if source.slot_order == "csn":
        yield from _csn_slot(source, polling=polling)
    elif source.order == "csn" and source.decoding_mode is not Mode.PARALLEL:
        what = "SQL functions leave" if polling else "serial decoding leaves"
        summary = f"{what} out transactions of other databases: CSNs have gaps"
        remedy = "use `order: lsn`" if polling else "use `order: lsn`, or `parallel-decode-num` 2 or more"
        yield Refusal(Rule.SERIAL_ORDER, ("order",), summary, remedy)
    elif source.order == "csn" and source.node == "data_node":
        summary = "one data node of several has gaps in its CSNs"
        yield Refusal(Rule.NODE_ORDER, ("order",), summary, "use `order: lsn`, or a slot with `output_order: csn`")


def _csn_slot(source: FamilySource, *, polling: bool) -> Iterator[Refusal]:
    at = ("slot", "output_order") if source.slot.output_order else ("node",)
    if polling:
        summary = "SQL functions give LSNs, which say nothing on a slot in CSN order"
        other = "a slot in LSN order" if at[0] == "slot" else "a data node: a coordinator has no slot in LSN order"
        yield Refusal(Rule.POLLING_SLOT, at, summary, f"use `mode: stream`, or {other}")
    if source.order == "lsn":
        summary = "positions of a slot in CSN order are CSNs"
        yield Refusal(Rule.CSN_SLOT_ORDER, ("order",), summary, "remove it, or use a slot in LSN order")
