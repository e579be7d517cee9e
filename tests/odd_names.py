"""Names and texts as no one should use them: what quoting has to bear."""

from __future__ import annotations

import random

MOST = 63
"""Bytes of a name: NAMEDATALEN - 1 of PostgreSQL and its family."""

PIECES = (
    *('"', '""', "'", "''", "`", "``", "\\", "\\'", '\\"', ".", ",", ";", "/", "|", "*", "?", "@", "#", "&", "~", "^"),
    *(
        " ",
        "\t",
        "\n",
        "\r\n",
        "--",
        "-- ",
        "/*",
        "*/",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "{}",
        "{schema}",
        "${",
        "$",
        "$$",
    ),
    *("$1", "%", "%s", "%%", "%(a)s", "%I", ":name", "::text", "E'", "U&'", "\\u0041", "\\x41", "\\n"),
    *("${env:HOME}", "${env:PATH:-x}", "${spark.app.name}", "${system:user.name}", "$tag$", "a", "A", "Order", "1"),
    *("select", "FROM", "NULL", "größe", "日本", "имя", "e\u0301", "\u00a0", "\u200b", "\u202e", "\ufeff", "😀", "_"),
    *('"; DROP TABLE victim; --', "'; DROP TABLE victim; --", "`; DROP TABLE victim; --", "victim", "\u017f", "İ"),
)


def odd_text(rng: random.Random) -> str:
    """A text of any length."""
    return "".join(rng.choices(PIECES, k=rng.choice((1, 1, 2, 3, 5, 40))))


def odd_name(rng: random.Random) -> str:
    """A name that the servers keep whole; one in three is as long as a name can be."""
    text = odd_text(rng) if rng.random() < 2 / 3 else "".join(rng.choices(PIECES, k=2 * MOST))
    return text.encode()[:MOST].decode(errors="ignore")


def odd_names(rng: random.Random, count: int) -> list[str]:
    """As many different ones."""
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault(odd_name(rng))
    return list(found)
