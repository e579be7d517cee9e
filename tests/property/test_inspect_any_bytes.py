"""Any bytes are JSON objects or one error object, whatever they are said to be: no traceback, no other exception.

Payloads of every format, from recordings and builders, are damaged at random. CDC_LAKE_SEED repeats a run,
CDC_LAKE_BUDGET multiplies how many payloads are damaged.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from cdc_lake.cli.output import dumps
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.devtools.replay import PLUGINS, PayloadReader, Reading, inspect_files, statements
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import UNCHANGED, Insert, OldKind, Transaction, Update
from cdc_lake_testing import messages
from cdc_lake_testing.messages import boundaries, encode_transaction, table
from tests.seeds import one_seed
from tests.unit.samples.recorded import stream

SEED = one_seed()
BUDGET = 6000 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))
LONGEST = 2000  # bytes of a payload that is damaged: what is behind is more of the same

READINGS = [
    *(Reading(plugin) for plugin in PLUGINS),
    *(Reading("mppdb_decoding", style, batch) for style in Style for batch in (False, True)),
    Reading("test_decoding", Style.SERIAL, codec=Codec("SQL_ASCII")),
    Reading("mppdb_decoding", Style.TEXT, codec=Codec("GBK")),
]


def payloads() -> list[bytes]:
    found = [
        b"message: transactional: 1 prefix: a, sz: 3 content:abc",
        b"PREPARE TRANSACTION 'it''s', txid 7 (at 2024-02-06 07:17:19.45874+08)",
        b"table public.a, public.b: TRUNCATE: restart_seqs cascade",
        b"h" + bytes(24) + b"F",
        b"S\x00\x00\x00\x07\x01",
        b"I\x00\x00\x40\x00N\x00\x02b\x00\x00\x00\x02\x01\x02t\x00\x00\x00\x01x",
    ]
    orders = table("public.orders", id="int8", note="text")
    changes = (Insert(orders, ("1", None)), Update(orders, ("1", UNCHANGED), ("1", None), OldKind.KEY))
    found += [payload for _, payload in encode_transaction(Transaction(boundaries(1000), changes))]
    found += [messages.truncate([orders]), messages.message("p", b"c")]
    for name in ("ddlpub_par_b", "ddlpub_par_j", "ddlpub_par_tb1", "ddlpub_ser", "toastvac_par_t"):
        found += [payload[:LONGEST] for _, payload in stream("6.0.2", name).messages()]
    return found


def damaged(payload: bytes, chance: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at : at + chance.randint(1, 9)] = b""
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 9))
            case 3:
                data[at : at + 4] = chance.choice([b"\xff" * 4, bytes(4), b"\x00\x00\x00\x09", b"\x7f\xff\xff\xff"])
            case _ if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
    return bytes(data)


def test_any_bytes_are_objects_or_a_decode_error():
    print(f"CDC_LAKE_SEED={SEED}")
    chance = random.Random(SEED)
    whole = payloads()
    errors: list[DecodeError] = []
    for _ in range(BUDGET):
        data = damaged(chance.choice(whole), chance)
        reader = PayloadReader(chance.choice(READINGS))
        try:
            for _, _, statement in statements(data) if reader.reads_text else [(None, None, data)]:
                for found in reader.objects(statement, chance.choice([None, 0, 1 << 63])):
                    assert json.loads(dumps(found, indent=None))["type"]
        except DecodeError as error:
            errors.append(error)
    assert all(error.offset >= 0 and error.message.isprintable() for error in errors)
    assert BUDGET // 10 < len(errors) < BUDGET


@pytest.mark.parametrize("plugin", PLUGINS)
def test_any_file_is_read_to_its_end(tmp_path: Path, plugin):
    print(f"CDC_LAKE_SEED={SEED}")
    chance = random.Random(SEED)
    whole, files = payloads(), []
    for number in range(min(BUDGET, 20_000) // 60):
        file = tmp_path / f"{number}.bin"
        data = chance.choice(whole)
        if chance.random() < 0.5:  # as recordings
            data = b"w" + bytes(24) + data
            data = len(data).to_bytes(4, "big") + data
            data += data
        file.write_bytes(damaged(data, chance))
        files.append(str(file))
    found = list(inspect_files(files, Reading(plugin)))
    assert all(json.loads(dumps(one, indent=None))["type"] for one in found)
    assert all(one["file"] in files and one["code"] for one in found if one["type"] == "error")
