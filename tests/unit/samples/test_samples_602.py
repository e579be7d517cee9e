"""Every recorded stream of openGauss 6.0.2, applied to the oracle, gives the tables that the server had in the end."""

from __future__ import annotations

import pytest

from cdc_lake.decode.gaussdb.records import Begin, Commit, Row
from tests.tally import tally
from tests.unit.samples.checks import bags, prove, values
from tests.unit.samples.recorded import stream, streams_of
from tests.unit.samples.withheld import WITH_DDL

VERSION = "6.0.2"
WHOLE = (
    "og_a_par2_b_batch1",
    "og_a_par2_b_batch1_originid",
    "og_a_par2_j_batch1",
    "og_a_par2_t_batch1",
    "og_a_ser_default",
    "og_a_test_decoding",
    "og_pg_par2_b_batch1",
)
"""Streams of the whole workload, one a format."""
VARIANTS = (
    "og_a_par2_b_batch0",
    "og_a_par2_b_batch1_xon_ton_soff",
    "og_a_par2_j_batch0",
    "og_a_par2_t_batch0",
    "og_a_par2_t_batch1_originid",
    "og_a_par2_t_batch1_xon_ton_soff",
    "og_a_ser_originid",
    "og_a_ser_xoff_toff_son",
    "og_pg_ser_default",
)
"""The same with other options: for `make test-long`."""
PARTS = (
    "ddlpub_par_b",
    "ddlpub_par_j",
    "ddlpub_par_tb1",
    "ddlpub_ser",
    "og_a_par2_b_batch1_whitelist",
    "spec_par_b",
    "spec_ser",
    "toastvac_par_b",
    "toastvac_par_t",
    "toastvac_ser",
)
"""Streams that show one thing each: a publication with DDL, a white list, speculative inserts, TOAST."""


def test_no_recording_is_left_out():
    assert sorted(streams_of(VERSION)) == sorted(WHOLE + VARIANTS + PARTS)


@pytest.mark.parametrize("name", [*WHOLE, *(pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS)])
def test_a_stream_gives_the_final_tables_but_for_what_the_server_withholds(name):
    prove(VERSION, name)
    tally("R7", **{"recorded streams": 1})


def test_serial_and_parallel_give_the_same_state_but_for_what_parallel_drops():
    serial, parallel = (bags(stream(VERSION, f"og_a_{name}")) for name in ("ser_default", "par2_b_batch1"))
    dropped = {w.table for w in WITH_DDL} | {"t_wide", "mvw"}  # V10, V11: also a refreshed materialised view
    assert {t: rows for t, rows in serial.items() if t not in dropped} == {
        t: rows for t, rows in parallel.items() if t not in dropped
    }
    assert len(set(serial) - dropped) > 30


@pytest.mark.parametrize("name", PARTS)
def test_a_stream_that_shows_one_thing_decodes(name):
    found = list(stream(VERSION, name).records())
    assert sum(isinstance(r, Begin) for r in found) == sum(isinstance(r, Commit) for r in found) > 0


def test_speculative_inserts_come_out_the_same_in_serial_and_parallel():
    serial, parallel = (bags(stream(VERSION, name)) for name in ("spec_ser", "spec_par_b"))
    assert serial == parallel
    assert {"t_sp", "u_sp"} <= {table for table, rows in serial.items() if rows.total() > 50}


def test_toast_values_are_the_same_in_every_style():
    serial, binary, text = (
        [(r.operation, values(r.new), values(r.old)) for r in stream(VERSION, f"toastvac_{name}").records() if isinstance(r, Row)]
        for name in ("ser", "par_b", "par_t")
    )  # fmt: skip
    assert serial == binary == text
    assert max(len(value or "") for _, new, _ in serial for _, value in new or ()) > 5000


def test_a_white_list_leaves_rows_of_its_tables_only():
    found = stream(VERSION, "og_a_par2_b_batch1_whitelist").records()
    assert {r.table.name for r in found if isinstance(r, Row)} == {"t_pk", "zz_end"}
