"""What every section of a pipeline file is, and the small types that its fields share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, strict=True)]
Port = Annotated[int, Field(ge=1, le=65535, strict=True)]


class Section(BaseModel):
    """What every section is: frozen, strict about unknown keys, silent about values in errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=True, use_attribute_docstrings=True
    )
