"""What judging a table by a rule gives: of how many how many failed, and what was seen, without a value of a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    """`evaluated` and `failed` count rows; 1 and 0 or 1 where the table is judged as a whole. `observed`: what was
    seen, to a person: a number of rows, an age. `examples`: numbers of some rows that failed, where they were asked
    for.
    """

    evaluated: int
    failed: int
    observed: str = ""
    examples: tuple[int, ...] = ()
