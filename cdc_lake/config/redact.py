"""The section `bronze.redact`: which columns' values never reach the lake, and what becomes of them instead."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, SecretStr

from cdc_lake.config.section import Section, Text

MIN_KEY: int = 16
"""Bytes of a key at least: 128 bits, if they are random."""

RedactKey: TypeAlias = SecretStr
"""The key of hashes. Never shown."""


def _word(given: object) -> object:
    """`null` without quotes is YAML's null."""
    return "null" if given is None else given


Strategy: TypeAlias = Annotated[
    Literal["drop", "null", "sha256"],
    BeforeValidator(_word, json_schema_input_type=Literal["drop", "null", "sha256"] | None),
]


class Redact(Section):
    """What becomes of the values of some columns before anything is written to the lake."""

    columns: Annotated[list[Text], Field(min_length=1)]
    """Columns as `schema.table.column`; `*` and `?` match within a part, also in tables and columns that come later."""
    strategy: Strategy
    """`drop`: the column is left out; `null`: it is always NULL; `sha256`: its text becomes its keyed hash."""
