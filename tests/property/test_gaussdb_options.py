"""Random sources of the GaussDB family: what `validate` accepts, the server's own parser accepts."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import yaml

from cdc_lake.config.fields import captures, white_list
from cdc_lake.config.gaussdb_options import OPTIONS, Form, Mode
from cdc_lake.config.loader import validate
from cdc_lake.config.project import effective_options
from cdc_lake.config.source import FamilySource
from cdc_lake.config.validation.gaussdb import judge
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.dialect import dialect_of
from cdc_lake_testing.gaussdb.options import Refused, StreamOptions, parse_options
from tests.seeds import one_seed

SEED = one_seed()
SECONDS = 2 * float(os.environ.get("CDC_LAKE_BUDGET", "1"))
PRODUCTS = {"gaussdb": "GaussDB", "opengauss": "openGauss", "mogdb": "MogDB"}
RELEASES = ("6.0.2", "5.0.3", "3.0.0")
PARTS = ("public", "Stock", "a.b", "a,b", "größe", "with space", "o'neill", "x*", "t?", "*", "tmp_*", "t", "_", "$x")

PLAIN = {"host": "h", "port": 5432, "database": "d", "user": "u", "tables": ["*.*"]}
UNTRIED = ("start-position", "parallel-decode-num")
"""Never sent, and what decides the mode."""


def value(rng: random.Random, form: Form, low: int, high: int) -> bool | int | str:
    """Often right, sometimes not."""
    match form:
        case Form.BOOLEAN:
            return rng.choice([True, False, "on", "OFF", "t", "no", 0, 1, "o", "maybe"])
        case Form.NUMBER:
            return rng.choice([low, high, low - 1, high + 1, rng.randint(low, high), str(high), 64, "x", 2000])
        case Form.STYLE:
            return rng.choice(["b", "t", "j", "json", "xml", "B"])
        case Form.WHITE_LIST:
            return rng.choice(["*.*", "public.*,*.t", "public.t", "nodot", "a.b,", "a. b", "*.t,s.*"])
        case _:
            return rng.choice(["10,11", "anna,bert", "1/2", "", "a, b"])


def random_source(rng: random.Random) -> FamilySource:
    decoding = {
        name: value(rng, option.form, option.low, option.high)
        for name, option in OPTIONS.items()
        if rng.random() < 0.12
    }
    return FamilySource.model_validate(
        {
            "type": rng.choice(list(PRODUCTS)),
            "version": rng.choice(RELEASES),
            "node": rng.choice([None, None, "single", "coordinator", "data_node"]),
            **PLAIN,
            "order": rng.choice(["auto", "csn", "lsn"]),
            "slot": {"output_order": rng.choice([None, None, "lsn", "csn"])},
            "decoding": decoding,
            "tables": rng.choice([["*.*"], ["public.*"], ["public.t", "s.*", "!s.u"]]),
        }
    )


def served(source: FamilySource) -> StreamOptions:
    """What the server makes of what is sent."""
    product = PRODUCTS[source.type]
    dialect = dialect_of(source.version, product)  # type: ignore[arg-type]
    return parse_options(list(effective_options(source).items()), dialect)


def test_what_is_accepted_is_accepted_by_the_server_and_means_the_same() -> None:
    print("CDC_LAKE_SEED =", SEED)
    rng, until, accepted = random.Random(SEED), time.monotonic() + SECONDS, 0
    while time.monotonic() < until or accepted < 50:
        source = random_source(rng)
        if judge(source):
            continue
        if source.type == "gaussdb" and any(name.startswith("max-") for name in source.decoding):
            continue  # its upper bound is the server's memory
        accepted += 1
        options = served(source)
        assert options.serial == (source.decoding_mode is Mode.SERIAL)
        assert options.output_order in (None, int(source.slot_order == "csn"))
        assert not (source.order == "csn" and source.slot_order == "lsn" and options.skip_empty)


def test_what_the_server_would_refuse_is_refused() -> None:
    """The other way round: a source whose only fault is in its options, by the server's parser, has broken a rule."""
    print("CDC_LAKE_SEED =", SEED)
    rng, until, refused = random.Random(SEED + 1), time.monotonic() + SECONDS, 0
    while time.monotonic() < until or refused < 50:
        source = random_source(rng)
        raw = [(name, "on" if v is True else "off" if v is False else str(v)) for name, v in source.decoding.items()]
        number = ("parallel-decode-num", "4")
        asked = raw if "parallel-decode-num" in source.decoding else [number, *raw]
        said = refusal(asked, source)
        if said is None or (source.type == "gaussdb" and '"max-' in said):  # whose upper bound is the server's memory
            continue
        refused += 1
        said = said.replace("logical_sender_timeout", "sender-timeout")
        suspects = {name for name in source.decoding if name in said}
        assert suspects & {r.path.removeprefix("source.decoding.") for r in judge(source)}, (
            source.decoding,
            said,
        )


def refusal(asked: list[tuple[str, str]], source: FamilySource) -> str | None:
    """What the server says to these options, None where it takes them."""
    try:
        parse_options(asked, dialect_of(source.version, PRODUCTS[source.type]))  # type: ignore[arg-type]
    except Refused as told:
        return told.failed.message
    return None


def test_a_white_list_lets_through_every_captured_table() -> None:
    print("CDC_LAKE_SEED =", SEED)
    rng, until = random.Random(SEED + 2), time.monotonic() + SECONDS
    while time.monotonic() < until:
        parts = [p.replace("\\", "\\\\").replace(".", "\\.") for p in PARTS]
        patterns = [
            rng.choice(["", "", "", "!"]) + f"{rng.choice(parts)}.{rng.choice(parts)}" for _ in range(rng.randint(1, 4))
        ]
        if all(p.startswith("!") for p in patterns):
            continue
        listed = white_list(patterns)
        names = ("public", "Stock", "a.b", "a,b", "größe", "with space", "o'neill", "xyz", "t1", "tmp_1", "t", "$x")
        table = TableName(rng.choice(names), rng.choice(names))
        if listed is not None and captures(patterns, table):
            options = parse_options([("white-table-list", listed)], dialect_of("6.0.2", "openGauss"))
            assert options.wants(table.schema, table.name), (patterns, listed, table)


ANYTHING = (None, "x", "", 1, -1, 2.5, True, [], {}, ["a"], [1], [["a"]], {"a": 1}, "1 s", ["a:b", "c:1"], "csn", "polling",
            "coordinator", ["nodot"], {"name": "gs_roach", "output_order": "csn"}, {"x": None, "decode-style": ["b"]},
            {"parallel-decode-num": 1, "skip-empty-xacts": "on"}, {"slice-id": 0, "logical-receiver-num": 1})  # fmt: skip


def test_whatever_stands_in_the_section_each_problem_has_its_place(tmp_path: Path) -> None:
    print("CDC_LAKE_SEED =", SEED)
    rng, until = random.Random(SEED + 3), time.monotonic() + SECONDS
    file = tmp_path / "p.yaml"
    while time.monotonic() < until:
        source: dict[str, object] = {"type": rng.choice(list(PRODUCTS)), **PLAIN}
        for key in rng.sample(list(FamilySource.model_fields), rng.randint(1, 5)):
            if rng.random() < 0.2:
                source.pop(key, None)
            elif key != "type":
                source[key] = rng.choice(ANYTHING)
        file.write_text(yaml.safe_dump({"version": 1, "pipeline": "p", "source": source}))
        for problem in validate([file]):
            assert problem.location is not None
            assert problem.summary


@pytest.mark.parametrize("name", sorted(n for n, o in OPTIONS.items() if o.documented and n not in UNTRIED))
def test_the_table_knows_the_modes_of_the_server(name: str) -> None:
    option = OPTIONS[name]
    right = {Form.BOOLEAN: "off", Form.STYLE: "b", Form.WHITE_LIST: "*.*"}.get(option.form, str(max(option.low, 0)))
    for product in option.products:
        for mode, number in ((Mode.SERIAL, "1"), (Mode.PARALLEL, "4")):
            sent = [("parallel-decode-num", number), (name, right)]
            asked = FamilySource.model_validate({**PLAIN, "type": product, "version": "6.0.2"})
            assert (refusal(sent, asked) is None) == (mode in option.modes), (product, mode)
