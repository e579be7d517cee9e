"""Looking for texts that are to be nowhere, in files whatever they are packed in."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_lake_testing.secrets import leaks

SECRET = "correct horse"


def test_a_row_that_is_packed_is_found_in_whichever_row_group_it_is(tmp_path: Path):
    rows = pa.table({"note": ["x" * 10_000] * 50 + [SECRET]})
    pq.write_table(rows, tmp_path / "a.parquet", compression="zstd", row_group_size=10)
    (tmp_path / "log.gz").write_bytes(gzip.compress(f"... {SECRET}".encode()))
    assert leaks(tmp_path, [SECRET, "nowhere"]) == [f"a.parquet: {SECRET}", f"log.gz: {SECRET}"]


def test_a_file_that_was_torn_as_its_writer_was_killed_is_looked_at_as_it_is(tmp_path: Path):
    for name, text in {"with": SECRET, "without": "nothing"}.items():
        pq.write_table(pa.table({"note": [text]}), tmp_path / name, compression="none")
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) - 8])
    assert leaks(tmp_path, [SECRET]) == [f"with: {SECRET}"]
