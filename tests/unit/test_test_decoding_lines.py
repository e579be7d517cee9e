"""Lines that only PostgreSQL's test_decoding prints, as its regression results show them."""

from __future__ import annotations

import pytest

from cdc_lake.decode.test_decoding import MessageLine, PhaseLine, line
from cdc_lake.devtools.wire_dump import described_line

CASES = [
    (b"message: transactional: 1 prefix: test, sz: 4 content:msg1", MessageLine(True, "test", "msg1")),
    (b"message: transactional: 0 prefix: test, sz: 0 content:", MessageLine(False, "test", "")),
    (b"message: transactional: 1 prefix: a, sz: 3 content:x, sz: 4 content:abcd", MessageLine(True, "a, sz: 3 content:x", "abcd")),
    (b"message: transactional: 1 prefix: p, sz: 3 content:a\nb", MessageLine(True, "p", "a\nb")),
    (b"streaming message: transactional: 1 prefix: test, sz: 50", MessageLine(True, "test", None)),
    (b"PREPARE TRANSACTION 'test_prepared#1', txid 529", PhaseLine("prepare", "test_prepared#1", 529)),
    (b"COMMIT PREPARED 'it''s', txid 529 (at 2024-02-06 07:17:19.45874+08)", PhaseLine("commit_prepared", "it's", 529, "2024-02-06 07:17:19.45874+08")),
    (b"ROLLBACK PREPARED E'a\\\\b', txid 7", PhaseLine("rollback_prepared", "a\\b", 7)),
    (b"PREPARE TRANSACTION 'g'", PhaseLine("prepare", "g")),
    (b"opening a streamed block for transaction TXN 12", PhaseLine("stream_start", None, 12)),
    (b"opening a streamed block for transaction", PhaseLine("stream_start")),
    (b"closing a streamed block for transaction", PhaseLine("stream_stop")),
    (b"aborting streamed (sub)transaction", PhaseLine("stream_abort")),
    (b"streaming change for transaction", PhaseLine("stream_change")),
    (b"streaming change for TXN 3", PhaseLine("stream_change", None, 3)),
    (b"streaming truncate for transaction", PhaseLine("stream_truncate")),
    (b"preparing streamed transaction 'test1', txid 5", PhaseLine("stream_prepare", "test1", 5)),
    (b"preparing streamed transaction TXN 'test1', txid 5", PhaseLine("stream_prepare", "test1", 5)),
    (b"committing streamed transaction TXN 5 (at 2020-01-01 00:00:00+00)", PhaseLine("stream_commit", None, 5, "2020-01-01 00:00:00+00")),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "expected"), CASES)
def test_a_line_is_read(payload, expected):
    assert line(payload, bytes.decode) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"BEGIN 693",
        b"COMMIT 693 (at 2020-01-01 00:00:00+00)",
        b"COMMIT",
        b"PREPARE 12",
        b"table public.t: INSERT: a[integer]:1",
        b"message: prefix deparse, relid 1, cmdtype: Simple, sz: 3 content: abc",
        b"message: transactional: 1 prefix: test, sz: 5 content:four",
        b"",
    ],
)
def test_another_line_is_left_to_others(payload):
    assert line(payload, bytes.decode) is None


def test_a_line_is_described():
    assert described_line(MessageLine(True, "p", "c"), 16) == {
        "type": "message",
        "lsn": "0/10",
        "prefix": "p",
        "transactional": True,
        "content": "c",
    }
    assert described_line(PhaseLine("prepare", "g", 5), None) == {"type": "prepare", "gid": "g", "xid": 5}
