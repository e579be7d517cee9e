"""Spark's classes as Java has them once they are loaded, in a file that the JVMs of the tests begin with.

A start of Spark with a first merge takes 16 seconds of processor time with it instead of 26 (measured), and tests start
Spark as a program many times. `python -m tests.class_archive FILE` makes it; without the file Java loads classes as ever.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from cdc_lake.tables.spark_session import start
from tests.conftest import NO_WORD, filling_jars
from tests.pipeline_file import make_project


def make(archive: Path) -> None:
    """Load what a small pipeline needs, and let the JVM keep it at its end."""
    os.environ["JDK_JAVA_OPTIONS"] += f" -XX:ArchiveClassesAtExit={archive} {NO_WORD}"
    with tempfile.TemporaryDirectory() as folder:
        with filling_jars():
            spark = start(make_project(Path(folder)))
        table = f"delta.`{folder}/table`"
        spark.sql(f"CREATE TABLE {table} USING delta AS SELECT 1 AS id, 'a' AS name").collect()
        spark.sql(
            f"MERGE INTO {table} t USING (SELECT 2 AS id, 'b' AS name) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        ).collect()
        stream = spark.readStream.format("delta").load(f"{folder}/table").writeStream
        batches = stream.foreachBatch(lambda frame, _: frame.toArrow()).trigger(availableNow=True)
        batches.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
        process = spark.sparkContext._gateway.proc
        spark.stop()
        process.stdin.close()  # it ends with it, and writes the file then
        if process.wait():
            archive.unlink(missing_ok=True)
            print(f"Java could not write {archive}: the tests start without it", file=sys.stderr)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
