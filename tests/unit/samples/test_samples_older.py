"""Every recorded stream of openGauss 5.0.3 and 3.0.0, applied to the oracle, gives the server's tables of the end."""

from __future__ import annotations

import pytest

from tests.tally import tally
from tests.unit.samples.checks import bags, prove
from tests.unit.samples.recorded import stream, streams_of

WHOLE = {
    "5.0.3": (
        "og_a_par2_b_batch1",
        "og_a_par2_j_batch1",
        "og_a_par2_t_batch1",
        "og_a_ser_default",
        "og_a_test_decoding",
    ),
    "3.0.0": (
        "og_a_par2_b_batch1",
        "og_a_par2_j_batch1",
        "og_a_par2_t_batch1",
        "og_a_ser_default",
        "og_a_test_decoding",
    ),
}
VARIANT = ("3.0.0", "og_a_par2_t_batch1_xon_ton_soff")
PARTS = {"5.0.3": (), "3.0.0": ("spec_par_b", "spec_ser", VARIANT[1])}


@pytest.mark.parametrize("version", WHOLE)
def test_no_recording_is_left_out(version):
    assert sorted(streams_of(version)) == sorted(WHOLE[version] + PARTS[version])


@pytest.mark.parametrize(
    ("version", "name"),
    [*((v, n) for v, names in WHOLE.items() for n in names), pytest.param(*VARIANT, marks=pytest.mark.slow)],
)
def test_a_stream_gives_the_final_tables_but_for_what_the_server_withholds(version, name):
    prove(version, name)
    tally("R7", **{"recorded streams": 1})


def test_speculative_inserts_come_out_the_same_in_serial_and_parallel():
    serial, parallel = (bags(stream("3.0.0", name)) for name in ("spec_ser", "spec_par_b"))
    assert serial == parallel
    assert {"t_sp", "u_sp"} <= {table for table, rows in serial.items() if rows.total() > 50}


@pytest.mark.parametrize("version", WHOLE)
def test_serial_and_parallel_give_the_same_state(version):
    serial, parallel = (bags(stream(version, f"og_a_{name}")) for name in ("ser_default", "par2_b_batch1"))
    assert serial == parallel
