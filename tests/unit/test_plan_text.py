"""What `plan` says of what waits: the words that `run --allow` takes, as they can be pasted, and what no run does."""

from __future__ import annotations

import shlex
from dataclasses import replace

from cdc_lake.cli.text import plan_text
from cdc_lake.connectors.base import Action, ActionKind
from cdc_lake.ops.plan import Plan

ADD = Action(ActionKind.ADD_COLUMN, "s.t", "add column a int to s.t")
DROP = Action(ActionKind.DROP_COLUMN, "s.t", "drop column it's of s.t", destructive=True)
RENAME = Action(ActionKind.RENAME_COLUMN, "s.t", "rename column b of s.t to c", destructive=True)
REMAKE = Action(ActionKind.REMAKE, "s.u", "s.u was made otherwise: it waits for `cdc-lake rebuild`", destructive=True)


def test_the_command_that_plan_ends_with_allows_all_that_waits_for_it() -> None:
    planned = Plan("shop", (ADD, DROP, RENAME))
    _, _, command = plan_text(planned).partition("! 2 destructive actions: not carried out unless allowed:\n")
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:2] == ["cdc-lake", "run"]
    assert (set(words[2::2]), tuple(words[3::2])) == ({"--allow"}, planned.waiting)
    assert planned.waiting == (DROP.text, RENAME.text)


def test_what_only_a_rebuild_does_is_not_offered_to_be_allowed() -> None:
    assert plan_text(Plan("shop", (REMAKE,))).splitlines()[-1] == "! 1 rebuild needed, which a run does not do"
    copied = replace(REMAKE, kind=ActionKind.COPY_AGAIN)
    told = plan_text(Plan("shop", (copied,))).splitlines()[-1]
    assert told == "! 1 operation that need a new copy of the table"
    both = plan_text(Plan("shop", (DROP, REMAKE))).splitlines()
    assert both[-3:] == [
        "! 1 destructive action: not carried out unless allowed:",
        f"  cdc-lake run --allow {shlex.quote(DROP.text)}",
        "! 1 rebuild needed, which a run does not do",
    ]


def test_a_plan_that_loses_nothing_says_so() -> None:
    goes_on = Action(ActionKind.RESUME, "shop", "resume slot `shop`", changes=False)
    assert plan_text(Plan("shop", (ADD,))).endswith("\nnothing destructive; `cdc-lake run` carries it out")
    assert plan_text(Plan("shop", (goes_on,))).endswith("\nnothing to create or alter")
    assert plan_text(Plan("shop", ())) == "nothing to do: shop is up to date"
