"""Addresses of networks in the server's binary format, as the text that the server prints.

A function takes the bytes of one value. Raises MalformedMessage. Source: network.c and inet_net_ntop.c of PostgreSQL.
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import Final

from cdc_lake.errors import MalformedMessage

_SIZES: Final = {2: 4, 3: 16}  # bytes of an address by its family, PGSQL_AF_INET and PGSQL_AF_INET6
_HEAD: Final = 4  # bytes: family, bits of the network, whether it is a cidr, bytes of the address
_MAPPED: Final = 0xFFFF


def inet(data: bytes) -> str:
    """An address, with its network's bits where those are not all."""
    address, network, most = _read(data)
    return address if network == most else f"{address}/{network}"


def cidr(data: bytes) -> str:
    """A network, always with its bits."""
    address, network, _ = _read(data)
    return f"{address}/{network}"


def _read(data: bytes) -> tuple[str, int, int]:
    size = _SIZES.get(data[0]) if len(data) >= _HEAD else None
    if size is None or data[3] != size or len(data) != _HEAD + size or data[1] > 8 * size:
        raise MalformedMessage(f"a binary address of {len(data)} bytes that is of neither family")
    address = data[_HEAD:]
    return (_four(address) if size == _SIZES[2] else _six(address)), data[1], 8 * size


def _four(address: bytes) -> str:
    return ".".join(map(str, address))


def _six(address: bytes) -> str:
    """Eight words, the first of the longest runs of at least two zeros left out; some end in an address of IPv4."""
    words = struct.unpack(">8H", address)
    runs, at = [], 0
    for zero, group in groupby(words, lambda word: word == 0):
        length = len(list(group))
        if zero and length > 1:
            runs.append((length, -at))
        at += length
    if not runs:
        return ":".join(f"{word:x}" for word in words)
    length, first = max(runs)
    first = -first
    last = [f"{word:x}" for word in words[first + length :]]
    if first == 0 and (length == 6 or (length == 5 and words[5] == _MAPPED)):
        last = [*(["ffff"] if length == 5 else []), _four(address[12:])]
    return ":".join(f"{word:x}" for word in words[:first]) + "::" + ":".join(last)
