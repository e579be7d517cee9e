"""What every error knows."""

from __future__ import annotations

from cdc_lake.errors import Unconvertible


def test_a_remedy_names_the_table_as_a_shell_takes_it():
    assert "`cdc-lake resync 'public.My Orders'` copies" in Unconvertible("m").for_table("public.My Orders").remedy
