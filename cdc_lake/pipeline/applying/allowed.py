"""What a run may do to silver tables although it would lose something: operations that were allowed by their words.

It remembers which of them a table waited with, so that words which nothing waited for can be said: mostly they have an
error in them, and the table waits on.
"""

from __future__ import annotations

from collections.abc import Iterable

from cdc_lake.observe.progress import Progress, Tell


class Allowed:
    """The words that were given. Asking for words (`in`) is to need them."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(words)
        self._needed: set[str] = set()

    def __contains__(self, words: object) -> bool:
        self._needed.add(str(words))
        return words in self._words

    @property
    def idle(self) -> tuple[str, ...]:
        """The words that nothing waited for up to now."""
        return tuple(sorted(self._words - self._needed))

    def say(self, tell: Tell) -> None:
        """Tell of idle words."""
        for words in self.idle:
            text = f"no table waits with `{words}`, which was allowed: `cdc-lake plan` has the words of what waits"
            tell(Progress("warning", text, facts={"operation": words}))
