"""What is sent to a server of the GaussDB family: its options of logical decoding as text."""

from __future__ import annotations

from cdc_lake.config.gaussdb_options import OPTIONS, Mode, OptionValue, as_number, as_sent
from cdc_lake.config.source import FamilySource
from cdc_lake.config.white_list import white_list


def effective_options(source: FamilySource, mode: Mode | None = None) -> dict[str, str]:
    """Options by name, as sent in `mode` (by default the one the source asks for). Takes a source that was judged.

    What decides how the stream reads is always sent, since a server may have other defaults: the number of decoders,
    style, batches, xids, times, empty transactions, and the order of a slot in CSN order. Given options that do not
    exist in `mode` are left out.
    """
    mode = mode or source.decoding_mode
    values: dict[str, OptionValue] = {name: o.ours for name, o in OPTIONS.items() if o.ours and mode in o.modes}
    if mode is Mode.SERIAL:
        values["parallel-decode-num"] = 1
    if source.slot_order == "csn" and source.node != "coordinator" and mode is not Mode.SQL:
        values["output-order"] = 1
    if (listed := white_list(source.tables)) is not None:
        values["white-table-list"] = listed
    for name, value in source.decoding.items():
        if name == "parallel-decode-num" and (as_number(value) == 1) != (mode is Mode.SERIAL):
            continue  # of another mode
        if name not in OPTIONS or mode in OPTIONS[name].modes:
            values[name] = value
    order = {name: i for i, name in enumerate(OPTIONS)}
    return {
        name: as_sent(OPTIONS.get(name), values[name])
        for name in sorted(values, key=lambda name: order.get(name, len(order)))
    }
