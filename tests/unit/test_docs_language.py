"""README, guides, concepts, command help, hints, and the docstrings and comments of the package are in plain technical
English: no turn of phrase of earlier versions.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from typing import Any

import click
import pytest
from typer.main import get_command

from cdc_lake.cli.app import app
from cdc_lake.errors import CdcLakeError
from cdc_lake.errors.base import kinds
from tests.unit.test_docs import ROOT, prose

PHRASES = {
    # a clause without a noun
    r"\bwhat (comes|was seen|is seen|stands)\b": "What comes is published.",
    r"\b(?<!anybody )(?<!anyone )(?<!everybody )who (reads|writes|asks|waits)\b": "Who reads at a cut never sees money on its way from one table to another.",
    r"\bwhat becomes of\b": "What becomes of an update that did not send every value.",
    r"\bwhat (this|it|that) stands on\b": "What this stands on: streams recorded from openGauss.",
    r"\bwhatever it\b": "A change that waits names no rule, whatever it breaks.",
    # "of", "none" and "no" as a predicate
    r"\bof no\b": "What came in before the break stays, at a position of no account.",
    r"\b(is|are) no matter\b": "Compaction, VACUUM and tags leave the rows as they are and are no matter.",
    r"\bthat (is|are) none\b": "They are text that is none.",
    r"\bnothing of\b": "Nothing of a span is collected on the driver but what is followed one by one.",
    r"\bis not the (source|server|table)'s\b(?! \w)": "Then silver's row is not the source's.",
    # passives without an actor, and verbs of another language
    r"\b(is|are|was|were|be) told\b": "A secret that others can read is told.",
    r"\bit is said\b": "It cannot be decoded, so it is said.",
    r"\btaken for\b": "Later changes are taken for what they tell.",
    r"\btells? altered\b": "Only the SQL of the event trigger that tells altered tables.",
    r"\b(is|was|are|were) (not )?held up\b": "Let it end or stop it, then run again; bronze was not held up.",
    r"\band passed over\b": "CSN 951909 did not arrive: recorded, and passed over.",
    r"\bnot made here\b": "Something else changed rows of silver.orders: version 14 was not made here (DELETE).",
    r"\bis another one\b": "The server's log is another one behind 0/16B3748: read from there.",
    r"\blet [a-z ]+ leave\b": "Keep tables up: let old transactions and versions leave.",
    r"\blay \S+ over\b": "Lay conf/NAME.yaml over it.",
    r"\bnarration\b": "No narration, only errors.",
    r"\bways of (its|their) own\b": "Keeps inputs that go ways of their own.",
    # things as persons
    r"\b(silver|bronze) waits\b": "Silver waits until the row was read again.",
    r"\bdo(es)? not notice\b": "Rows do not notice, since transactions that touch the same row have both orders alike.",
    r"\bstands? still\b": "A quiet source never stands still for the log.",
    r"\blife\b.*\bgo(es)? on\b": "It takes the initial copy and lets life go on.",
    # "where" for "if"
    r"\bwhere (it|there|that|this) (is|are|was|has|does) (not|no|none|nothing)\b": "The plugin is installed where it is not there.",
}
"""What the texts must not contain, each with a sentence of an earlier version that did."""


def help_of(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    yield name, "\n".join([command.help or "", *(getattr(one, "help", None) or "" for one in command.params)])
    for verb, below in getattr(command, "commands", {}).items():
        yield from help_of(below, f"{name} {verb}")


def texts() -> dict[str, str]:
    """Where a text stands, and the text; of a page its prose, without code."""
    pages = [ROOT / "README.md", *(ROOT / "docs/guides").glob("*.md"), *(ROOT / "docs/concepts").glob("*.md")]
    found = {str(page.relative_to(ROOT)): re.sub(r"`[^`\n]*`", "``", prose(page)) for page in pages}
    return found | {kind.code: kind.hint for kind in kinds(CdcLakeError)} | dict(help_of(get_command(app), "cdc-lake"))


def comments() -> dict[str, str]:
    """The docstrings and comments of each module of the package."""
    found = {}
    for module in (ROOT / "cdc_lake").rglob("*.py"):
        tokens = tokenize.generate_tokens(io.StringIO(module.read_text(encoding="utf-8")).readline)
        lines = [
            re.sub(r"``?[^`]+``?", "``", token.string)
            for token in tokens
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""'))
        ]
        found[str(module.relative_to(ROOT))] = ". ".join(lines)
    return found


def phrases_in(text: str) -> list[str]:
    flat = " ".join(text.split())
    sentences: list[Any] = re.split(r"(?<=[.:;?!]) ", flat)
    return [sentence for sentence in sentences for phrase in PHRASES if re.search(phrase, sentence, re.IGNORECASE)]


def test_no_text_has_a_phrase_of_earlier_versions() -> None:
    assert {where: found for where, text in (texts() | comments()).items() if (found := phrases_in(text))} == {}


@pytest.mark.parametrize(("phrase", "sentence"), PHRASES.items())
def test_each_phrase_is_found_where_it_was(phrase: str, sentence: str) -> None:
    assert re.search(phrase, sentence, re.IGNORECASE)
    assert phrases_in(f"Earlier text. {sentence} Later text.")
