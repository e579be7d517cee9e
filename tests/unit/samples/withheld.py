"""What the server withholds of the recorded workload, each with the fact that says so; nothing else may differ.

Facts are numbered as where they were found, on running servers (6.0.2, 5.0.3, 3.0.0):

* V6   no old row without a key or with REPLICA IDENTITY NOTHING, so UPDATE and DELETE name no row
* V9   a transaction with a replication origin is left out unless `only-local` is off
* V10  TRUNCATE is not sent (serial: from 6.0 on), nor TRUNCATE PARTITION, nor DDL: a renamed table leaves its rows
* V11  rows after DDL in the same transaction are dropped (not by serial decoding from 6.0 on)
* V21  column store and unlogged tables are not decoded
* V30  3.0.x: text of ustore rows may have no columns
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cdc_lake.decode.gaussdb.records import Style
from tests.unit.samples.recorded import Stream

Values = tuple[str | None, ...]


@dataclass(frozen=True)
class Withheld:
    """How a table differs in the end: rows that the stream leaves out, and such as it leaves behind."""

    fact: str
    table: str
    missing: tuple[Values, ...] = ()
    extra: tuple[Values, ...] = ()
    all: bool = False
    """Every row is missing."""

    def missing_of(self, rows: Counter) -> Counter:
        """The missing ones of a table's rows."""
        return rows if self.all else Counter(self.missing)


EVERYWHERE = (
    Withheld("V21", "t_col", missing=(("1", "column store"),)),
    Withheld("V21", "t_unlogged", missing=(("1", "unlogged"),)),
    Withheld("V6", "t_nokey", missing=(("1", "b"),), extra=(("1", "a"), ("2", None))),
    Withheld("V6", "t_ridnothing", missing=(("1", "z"),), extra=(("1", "x"), ("2", "y"))),
    Withheld("V10", "t_part", extra=(("500", "c", "3"),)),
    Withheld(
        "V10",
        "t_ddl2",  # t_ddl when these came
        missing=(
            ("1", None, "dflt", None),
            ("3", None, "dflt", None),
            ("4", "44", "c4", None),
            ("5", "5", "c5", None),
            ("6", "6000000000", "c6", None),
        ),
    ),
)

ORIGIN = (Withheld("V9", "t_pk", missing=(("700", "from origin", "7.000"),)),)

WITH_DDL = (
    Withheld(
        "V10",
        "t_copy",
        extra=(
            ("1", "after truncate", "1"),
            ("2", "before truncate in tx", "2"),
            ("3", "tab\there", "3"),
            ("4", "back\\slash", "4"),
            *((str(i), f"v{i}", f"{i * 11 // 10}.{i * 11 % 10}") for i in range(100, 111)),
        ),
    ),
    Withheld("V11", "t_copy", missing=(("3", "after truncate in tx", "3"),)),
    Withheld(
        "V11",
        "t_ctas",
        missing=(("20", "two"), ("3", "three"), ("1", "ONE"), ("500", "unrelated table after ddl in tx")),
    ),
    Withheld(
        "V11",
        "t_ddl2",
        missing=(("9", "9", "after ddl in tx", "d9"), ("8", "8", "before ddl in tx", "upd")),
        extra=(("8", "8", "before ddl in tx", None),),
    ),
    Withheld("V11", "t_newintx", missing=(("1", "u", None), ("2", "two", None), ("5", "y", "5"))),
    Withheld("V11", "t_other_in_tx", missing=(("1",),)),
    Withheld("V11", "t_pk", missing=(("500", "unrelated table after ddl in tx", "5.000"),)),
    Withheld("V10", "u_nokey", extra=(("1", "b", None),)),
    Withheld("V11", "u_nokey", missing=(("6", "after ddl", "6"),)),
)

USTORE_TEXT = (
    Withheld("V30", "u_pk", missing=(("50", "in tx", "5.000"),)),
    Withheld("V30", "u_nokey", missing=(("5", "before ddl", None),)),
)
USTORE_TEST_DECODING = tuple(
    Withheld("V30", table, all=True) for table in ("u_pk", "u_nokey", "u_full", "u_part", "u_toast", "u_ups")
)


def withheld(stream: Stream) -> tuple[Withheld, ...]:
    """All of a stream, in the order of the lists above."""
    found = EVERYWHERE
    if "originid" not in stream.name and stream.version != "3.0.0":
        found += ORIGIN
    if stream.version == "3.0.0" and stream.plugin == "test_decoding":
        return found + USTORE_TEST_DECODING + tuple(w for w in WITH_DDL if w.table != "u_nokey")
    if drops_after_ddl(stream):
        found += WITH_DDL
    if stream.version == "3.0.0" and stream.style is Style.TEXT:
        found += USTORE_TEXT
    return found


def drops_after_ddl(stream: Stream) -> bool:
    """V10, V11: only serial decoding of 6.0 and later sends TRUNCATE, and rows after DDL in a transaction."""
    return stream.parallel or stream.version != "6.0.2"


def unfollowed(stream: Stream) -> Counter:
    """Rows of a stream that no oracle can follow, or that stand twice: (what, table) → number."""
    found = Counter({("update without a key", "t_nokey"): 1, ("update without a key", "t_ridnothing"): 1})
    if not (stream.version == "3.0.0" and stream.parallel):  # V30: nothing is sent
        found += Counter({("delete without a key", "t_nokey"): 1, ("delete without a key", "t_ridnothing"): 1})
    found["insert of a row that is there", "t_todrop"] = 1  # V10: dropped and made again
    if drops_after_ddl(stream):
        found["insert of a row that is there", "t_copy"] = 2  # V10
        found["update of no row", "t_wide"] = 1  # V11: its INSERT was CREATE TABLE AS
    if stream.version == "3.0.0":
        found += _leaks_of_3_0(stream)
    return found


def _leaks_of_3_0(stream: Stream) -> Counter:
    """V30: speculative inserts come twice; text of ustore rows may lack columns, of test_decoding it is a head alone."""
    if stream.plugin == "test_decoding":
        return Counter()
    leaks = Counter({("insert of a row that is there", "u_ups"): 1})
    if stream.parallel:
        leaks["insert of a row that is there", "t_ups"] = 1
    if stream.style is Style.TEXT:
        leaks["insert without columns", "u_pk"] = leaks["insert without columns", "u_nokey"] = 1
    return leaks
