"""What a run draws: as many seeds as asked for, the same wherever the chance is the same."""

from __future__ import annotations

import pytest

from tests.seeds import one_seed, seeds


def test_a_chance_gives_as_many_seeds_as_asked_for_and_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDC_LAKE_SEED", raising=False)
    monkeypatch.setenv("CDC_LAKE_CHANCE", "a tree")
    assert len({*seeds(150)}) == 150
    assert seeds(3) == seeds(150)[:3]
    assert one_seed() == seeds(150)[0]
    monkeypatch.setenv("CDC_LAKE_CHANCE", "another tree")
    first = one_seed()
    monkeypatch.setenv("CDC_LAKE_CHANCE", "a tree")
    assert first != one_seed()


def test_one_seed_is_repeated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE_CHANCE", "a tree")
    monkeypatch.setenv("CDC_LAKE_SEED", "7")
    assert seeds(150) == [7]
    assert one_seed() == 7
