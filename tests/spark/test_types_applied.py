"""What apply makes of a live server's values is proven by compare, held values and odd names included."""

from __future__ import annotations

import threading

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.observe.progress import silent
from cdc_lake.pipeline.apply import apply
from cdc_lake.pipeline.compare import compare
from cdc_lake.pipeline.receive import receive
from tests.spark.conftest import make_project

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:The 'without_files' parameter:DeprecationWarning"),
]

DDL = (
    '(id int8 PRIMARY KEY, "a b" numeric(10,2), "A B" text, _deleted bool, day date, at timestamptz, '
    "weight float8, photo bytea, big text, mood mood, tags text[])"
)


def project_of(database, root):
    """On the lake of the shared session."""
    source = database.source
    tables = [{"from": "public.types_i", "format": "iceberg"}, {"from": "public.types_d", "format": "delta"}]
    return make_project(root, database.name, source=source, silver={"tables": tables}, bronze={"durability": "os"})


def step(project, spark):
    receive(project, DeltaBronze(project.bronze, "os"), once=True, stop=threading.Event(), tell=silent, slot_patience=2)
    apply(project, once=True, stop=threading.Event(), tell=silent, spark=spark)
    found = compare(project, (), silent).tables
    return {t.table: t.text + (f": {t.reason}" if t.reason else "") for t in found}


def test_silver_equals_the_source_at_each_step_but_for_what_does_not_fit(database, spark, lake_root):
    project = project_of(database, lake_root)
    with database.connect() as sql:
        sql.execute("CREATE TYPE mood AS ENUM ('so so', 'well')")
        for name in ("types_d", "types_i"):
            sql.execute(f"CREATE TABLE {name} {DDL}")
            sql.execute(
                f"INSERT INTO {name} SELECT i, i / 7.0, '', i % 2 = 0, date '0001-01-01' + i, "
                "timestamptz '9999-12-31 23:59:59.999999+00' - i * interval '1 month', -i / 3e10, decode('00ff', 'hex'), "
                f"repeat(md5(i::text), 400), 'so so', array['x', NULL, i::text] FROM generate_series(1, 50) i"
            )
            sql.execute(f"INSERT INTO {name} (id, day, at) VALUES (60, 'infinity', '0044-03-15 12:00:00 BC')")
            sql.execute(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL")
        equal_but = "equal but for 1 held key"
        assert step(project, spark) == {"public.types_d": equal_but, "public.types_i": equal_but}
        for name in ("types_d", "types_i"):
            sql.execute(f"UPDATE {name} SET \"a b\" = -0.01, weight = 'NaN', _deleted = NULL WHERE id < 10")
            sql.execute(f"UPDATE {name} SET id = id + 1000 WHERE id % 5 = 0 AND id < 50")
            sql.execute(f"DELETE FROM {name} WHERE id = 7")
            sql.execute(f"UPDATE {name} SET at = NULL WHERE id = 60")
            sql.execute(f"UPDATE {name} SET \"a b\" = 'NaN' WHERE id = 12")
            sql.execute(f'ALTER TABLE {name} ADD COLUMN "x,y" time')
            sql.execute(f"INSERT INTO {name} (id, \"x,y\") VALUES (70, '24:00:00')")
        equal_but = "equal but for 2 held keys"
        assert step(project, spark) == {"public.types_d": equal_but, "public.types_i": equal_but}
        for name in ("types_d", "types_i"):
            sql.execute(f"TRUNCATE {name}")
            sql.execute(f"INSERT INTO {name} (id, weight) VALUES (1, '-0')")
        assert step(project, spark) == {"public.types_d": "equal", "public.types_i": "equal"}
