"""The bare side of `cold_start.py`: a session and one MERGE, as somebody writes them who has nothing of ours.

    python benchmarks/bare_session.py '{"settings": {...}, "net": "net.parquet", "table": "delta.`/there`"}'

Prints the monotonic clock when the MERGE is over.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from span_merge import merge_by_hand


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("bare")
    for key, value in given["settings"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    net = spark.read.parquet(given["net"])
    F.broadcast(net).createOrReplaceTempView("net")
    spark.sql(merge_by_hand(given["table"], [name for name in net.columns if name != "op"]))
    print(time.monotonic())


if __name__ == "__main__":
    main()
